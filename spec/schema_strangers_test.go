package spec

import (
	"strings"
	"testing"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestAStrangersTableStaysAsItIs(t *testing.T) {
	for what, script := range map[string]string{
		"of flats": `CREATE TABLE leases (id integer PRIMARY KEY, tenant varchar(50), starts date, ends date);
INSERT INTO leases (id, tenant) VALUES (1, 'Smith')`,
		"with a timestamp": `CREATE TABLE leases (name varchar(100) PRIMARY KEY, holder varchar(100), expires_at timestamp);
INSERT INTO leases VALUES ('job', 'A', '2024-03-01 12:00:00')`,
		"with a date as text": `CREATE TABLE leases (name varchar(100) PRIMARY KEY, holder varchar(100), expires_at varchar(30));
INSERT INTO leases VALUES ('job', 'A', '2024-03-01')`,
		"with names that repeat": `CREATE TABLE leases (id integer PRIMARY KEY, name varchar(100), holder varchar(100), expires_at bigint);
INSERT INTO leases VALUES (1, 'job', 'A', 5), (2, 'job', 'B', 6)`,
		"with a wider key": `CREATE TABLE leases (name varchar(100), tenant varchar(100), holder varchar(100), expires_at bigint, PRIMARY KEY (name, tenant));
INSERT INTO leases VALUES ('job', 'x', 'A', 5), ('job', 'y', 'B', 6)`,
		"with holders by number": `CREATE TABLE leases (name varchar(100) PRIMARY KEY, holder bigint, expires_at bigint);
INSERT INTO leases VALUES ('job', 7, 5)`,
		"with names by number": `CREATE TABLE leases (name bigint PRIMARY KEY, holder varchar(100), expires_at bigint);
INSERT INTO leases VALUES (7, 'A', 5)`,
		"with an epoch that is text": `CREATE TABLE leases (name varchar(100) PRIMARY KEY, holder varchar(100), expires_at bigint, epoch varchar(10));
INSERT INTO leases VALUES ('job', 'A', 5, 'jurassic')`,
		"with a column that must be given": `CREATE TABLE leases (name varchar(100) PRIMARY KEY, holder varchar(100), expires_at bigint, tenant varchar(10) NOT NULL);
INSERT INTO leases VALUES ('job', 'A', 5, 'x')`,
		"that is a view": `CREATE TABLE contracts (name varchar(100) PRIMARY KEY, holder varchar(100), expires_at bigint);
INSERT INTO contracts VALUES ('job', 'A', 5);
CREATE VIEW leases AS SELECT * FROM contracts`,
	} {
		t.Run(what, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) { staysAsItIs(t, db, script) })
		})
	}
	for what, kind := range map[string]string{
		"with an interval": "interval", "with a range": "int8range", "with a point": "point", "with an array": "bigint[]",
		"with a time": "timestamptz", "with a fraction": "numeric", "with four bytes, too few for microseconds": "integer",
	} {
		t.Run(what, func(t *testing.T) {
			staysAsItIs(t, dbtest.Postgres(t), `CREATE TABLE leases (name varchar(100) PRIMARY KEY, holder varchar(100), expires_at `+kind+`);
INSERT INTO leases VALUES ('job', 'A', NULL)`)
		})
	}
}

func TestAStrangersTableOfItemsStaysAsItIs(t *testing.T) {
	for what, script := range map[string]string{
		"of flats":                "CREATE TABLE lease_items (id integer PRIMARY KEY, flat varchar(50))",
		"with one column missing": strings.Replace(itemsTable(t, "postgres"), `	"claim_step_id" varchar(200) NOT NULL DEFAULT '',`+"\n", "", 1),
		"with a number for text":  strings.Replace(itemsTable(t, "postgres"), `"claim_owner" varchar(200) NOT NULL DEFAULT ''`, `"claim_owner" bigint`, 1),
		"with text for a flag":    strings.Replace(itemsTable(t, "postgres"), `"claim_done" boolean NOT NULL DEFAULT false`, `"claim_done" varchar(5)`, 1),
		"with a tenant":           strings.Replace(itemsTable(t, "postgres"), `	PRIMARY KEY`, `	"tenant" bigint NOT NULL, PRIMARY KEY`, 1),
	} {
		t.Run(what, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				own := script
				if db.Backend == dbtest.BackendSQLite {
					own = strings.ReplaceAll(own, "jsonb", "text")
				}
				staysAsItIs(t, db, own)
			})
		})
	}
}

// itemsTable is the DDL of the table lease_items without its index.
func itemsTable(t *testing.T, dialect string) string {
	_, items, _ := strings.Cut(ddl(t, dialect), ";\n")
	table, _, _ := strings.Cut(items, ";\n")
	return table
}

func staysAsItIs(t *testing.T, db *dbtest.Database, script string) {
	run(t, db, script)
	gdb := db.Open(t)
	before := portrait(t, db.Open(t))
	err := lease.EnsureSchema(gdb)
	if err == nil || !strings.Contains(err.Error(), "Tables") || !strings.Contains(err.Error(), "belongs to something else") {
		t.Errorf("EnsureSchema is %v", err)
	}
	if after := portrait(t, db.Open(t)); after != before {
		t.Errorf("the table was\n%s\nand is\n%s", before, after)
	}
	app := lease.Tables(gdb, "app_") // the way out
	ensure(t, app)
	works(t, app)
}
