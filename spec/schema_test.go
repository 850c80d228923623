package spec

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// portrait is all that the catalogue tells of this package's tables, and their rows.
func portrait(t *testing.T, gdb *gorm.DB) string {
	t.Helper()
	var lines []string
	for _, table := range []string{"leases", "lease_items"} {
		query := `SELECT sql FROM sqlite_master WHERE tbl_name = '{table}' AND sql <> '' ORDER BY 1`
		if gdb.Name() == "postgres" {
			query = `SELECT format('%s %s %s default %s', attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid))
FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attrelid = to_regclass('{table}') AND attnum > 0
UNION SELECT conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = to_regclass('{table}')
UNION SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = to_regclass('{table}')
UNION SELECT format('a %s with %s', relkind, reloptions) FROM pg_class WHERE oid = to_regclass('{table}') ORDER BY 1`
		}
		var facts []string
		if err := gdb.Raw(strings.ReplaceAll(query, "{table}", table)).Scan(&facts).Error; err != nil {
			t.Fatal(err)
		}
		if len(facts) > 0 {
			lines = append(append(lines, facts...), contents(t, gdb, table)...)
		}
	}
	if len(lines) == 0 {
		t.Fatal("there is no such table")
	}
	return strings.Join(lines, "\n")
}

// contents is every row of a table, column by column.
func contents(t *testing.T, gdb *gorm.DB, table string) (lines []string) {
	t.Helper()
	rows, err := gdb.Raw("SELECT * FROM " + table + " ORDER BY 1, 2").Rows()
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	for err == nil && rows.Next() {
		columns := map[string]any{}
		err = gdb.ScanRows(rows, &columns)
		lines = append(lines, fmt.Sprint(len(names), columns))
	}
	if err = errors.Join(err, rows.Err()); err != nil {
		t.Fatal(err)
	}
	return lines
}

// run runs a script of several statements.
func run(t *testing.T, db *dbtest.Database, script string) {
	t.Helper()
	sql := db.SQL(t)
	for statement := range strings.SplitSeq(strings.TrimSpace(script), ";\n") {
		if _, err := sql.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func ddl(t *testing.T, dialect string) string {
	t.Helper()
	s, err := lease.DDL(dialect)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var changes = regexp.MustCompile(`(?i)^\s*(BEGIN|SAVEPOINT|LOCK|CREATE|ALTER|DROP|INSERT|UPDATE|DELETE|SET)\b`)

// The table

func TestDDLIsTheGoldenFile(t *testing.T) {
	for _, dialect := range []string{"postgres", "sqlite"} {
		golden, err := os.ReadFile(filepath.Join("testdata", dialect+".sql"))
		if err != nil {
			t.Fatal(err)
		}
		if got := ddl(t, dialect); got != string(golden) {
			t.Errorf("the DDL for %s is:\n%s\nnot:\n%s", dialect, got, golden)
		}
	}
}

func TestDDLOfAnUnknownDialectIsInvalid(t *testing.T) {
	for _, dialect := range []string{"", "oracle", "Postgres"} {
		s, err := lease.DDL(dialect)
		mustBe(t, err, lease.ErrInvalid)
		if s != "" || err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", dialect)) {
			t.Errorf("%q, %v", s, err)
		}
	}
}

func TestEnsureSchemaRunsWhatDDLSays(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb, spy := spied(t, db)
		ensure(t, gdb)
		created := slices.DeleteFunc(spy.sent(), func(sql string) bool { return !strings.HasPrefix(sql, "CREATE") && !strings.HasPrefix(sql, "ALTER") })
		if want := ddl(t, db.Backend); strings.Join(created, "") != want {
			t.Errorf("it runs %q, and DDL is %q", created, want)
		}
	})
}

func TestADatabaseMadeByDDLIsTheOneThatEnsureSchemaMakes(t *testing.T) {
	for backend, open := range map[string]func(testing.TB) *dbtest.Database{"sqlite": dbtest.SQLite, "postgres": dbtest.Postgres} {
		t.Run(backend, func(t *testing.T) {
			byHand, byUs := open(t), open(t)
			run(t, byHand, ddl(t, backend))
			a, b := portrait(t, byHand.Open(t)), portrait(t, fresh(t, byUs))
			if normal := func(s string) string {
				return strings.NewReplacer(" ", "", "\n", "", "\t", "", "`", "", `"`, "").Replace(s)
			}; normal(a) != normal(b) {
				t.Errorf("by hand:\n%s\nby EnsureSchema:\n%s", a, b)
			}
			gdb, spy := spied(t, byHand)
			ensure(t, gdb)
			if sent := spy.sent(); slices.ContainsFunc(sent, changes.MatchString) {
				t.Errorf("it is not content with it: %q", sent)
			}
			works(t, gdb)
		})
	}
}

func TestEnsureSchemaInATransactionIsPartOfIt(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		tx := gdb.Begin()
		ensure(t, tx)
		ensure(t, tx)
		granted(t, tx, "A", noon)
		if err := tx.Rollback().Error; err != nil {
			t.Fatal(err)
		}
		if names := tables(t, gdb); len(names) != 0 {
			t.Errorf("after the roll-back there are %q", names)
		}
	})
}

// Again and at once

func TestEightMayCallEnsureSchemaAtOnce(t *testing.T) { // C30
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		var handles []*gorm.DB
		for range 8 {
			handles = append(handles, db.Open(t))
		}
		for _, start := range []string{"", "", "", "", "3-columns.sql", "3-columns.sql"} {
			if start != "" {
				run(t, db, oldSchema(t, start))
			}
			race(t, len(handles), func(i int) (bool, error) { return true, lease.EnsureSchema(handles[i]) })
			granted(t, handles[0], "A", databasesClock)
			exec(t, handles[0], "DROP TABLE leases")
		}
	})
}

func TestEnsureSchemaBearsAnotherThatJustCreatesTheTable(t *testing.T) { // C30: some other tool, which does not queue with us
	for what, config := range map[string]*gorm.Config{"plain": {}, "TranslateError": {TranslateError: true}} {
		t.Run(what, func(t *testing.T) {
			db := dbtest.Postgres(t)
			gdb := db.Open(t, config)
			watch := db.Open(t)
			other := db.Open(t).Begin()
			defer other.Rollback()
			exec(t, other, ddl(t, "postgres"))
			ended := make(chan error, 1)
			go func() { ended <- lease.EnsureSchema(gdb) }()
			waitUntil(t, "EnsureSchema waits for the other", func() bool { return waiters(t, watch) > 0 })
			if err := other.Commit().Error; err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			works(t, gdb)
		})
	}
}

func TestEnsureSchemaAgainRunsNoDDL(t *testing.T) { // C31
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		fresh(t, db)
		gdb, spy := spied(t, db)
		ensure(t, gdb)
		sent := spy.sent()
		if len(sent) == 0 || slices.ContainsFunc(sent, changes.MatchString) {
			t.Errorf("it sent %q", sent)
		}
	})
}

func TestEnsureSchemaAgainWaitsForNoLock(t *testing.T) { // C31
	db := dbtest.Postgres(t)
	gdb := fresh(t, db)
	granted(t, gdb, "A", noon)
	impatient := db.OpenDSN(t, db.DSNVia("", "lock_timeout=1ms"))
	for _, lock := range []string{
		"SELECT * FROM leases", "SELECT * FROM leases FOR UPDATE", "UPDATE leases SET holder = 'B'", "LOCK TABLE leases",
		"SELECT pg_advisory_xact_lock(7811616831022158965)",
	} {
		tx := gdb.Begin()
		exec(t, tx, lock)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if err := lease.EnsureSchema(impatient.WithContext(ctx)); err != nil {
			t.Errorf("behind %s: %v", lock, err)
		}
		cancel()
		if err := tx.Rollback().Error; err != nil {
			t.Fatal(err)
		}
	}
}

func TestEnsureSchemaAgainDoesNotNeedSQLitesWriteLock(t *testing.T) { // C31
	file, _, _ := strings.Cut(dbtest.SQLite(t).DSN, "?")
	db := &dbtest.Database{Backend: dbtest.BackendSQLite, DSN: file + "?_journal_mode=WAL&_busy_timeout=0"}
	gdb := fresh(t, db)
	tx := gdb.Begin()
	defer tx.Rollback()
	exec(t, tx, "DELETE FROM leases")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	ensure(t, db.Open(t).WithContext(ctx))
}

func TestEnsureSchemaEndsWithItsContext(t *testing.T) {
	db := dbtest.Postgres(t)
	run(t, db, oldSchema(t, "3-columns.sql"))
	gdb := db.Open(t)
	tx := gdb.Begin()
	defer tx.Rollback()
	exec(t, tx, "SELECT * FROM leases")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	mustBe(t, lease.EnsureSchema(db.Open(t).WithContext(ctx)), context.DeadlineExceeded)
}

// Old tables

func oldSchema(t *testing.T, name string) string {
	t.Helper()
	script, err := os.ReadFile(filepath.Join("testdata", "old", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(script)
}

func TestAnOldTableGainsWhatItLacksAndLosesNothing(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "old", "*.sql"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				run(t, db, oldSchema(t, filepath.Base(file)))
				rows := func() (all []map[string]any) {
					gdb := db.Open(t) // anew, since SELECT * does not outlive a change of the table
					if err := gdb.Table("leases").Order("name DESC").Find(&all).Error; err != nil {
						t.Fatal(err)
					}
					return all
				}
				before := rows()
				gdb := db.Open(t)
				ensure(t, gdb)
				after := rows()
				if len(before) != 2 || len(after) != 2 {
					t.Fatalf("%d rows became %d", len(before), len(after))
				}
				for i, r := range before {
					for column, value := range r {
						if after[i][column] != value {
							t.Errorf("%s was %v and is %v", column, value, after[i][column])
						}
					}
				}
				if err := gdb.First(&lease.Record{}).Error; err != nil {
					t.Error(err)
				}
				// The live lease is live, and its holder's.
				refused(t, gdb, "B", databasesClock)
				if s, err := lease.Find(t.Context(), gdb, "job"); err != nil || !s.Held || s.Holder != "A" || s.Remaining < 24*time.Hour {
					t.Errorf("Find of a live lease is %+v, %v", s, err)
				}
				if all, err := lease.List(t.Context(), gdb); err != nil || len(all) != 2 {
					t.Errorf("List is %+v, %v", all, err)
				}
				epoch := ask[int64](t, gdb, "SELECT epoch FROM leases WHERE name = 'job'")
				granted(t, gdb, "A", databasesClock)
				if s, err := lease.Find(t.Context(), gdb, "job"); err != nil || s.Epoch != epoch || s.Remaining < 24*time.Hour || time.Since(s.RenewedAt) > time.Minute {
					t.Errorf("after a renewal in term %d it is %+v, %v", epoch, s, err)
				}
				release(t, gdb, "A", databasesClock)
				granted(t, gdb, "B", databasesClock)
				if s := find(t, gdb, "job"); s.Epoch != epoch+1 {
					t.Errorf("term %d followed term %d", s.Epoch, epoch)
				}
				if ok, err := lease.TryAcquire(t.Context(), gdb, "expired", "B", time.Minute, databasesClock); !ok || err != nil {
					t.Errorf("an expired lease: %v, %v", ok, err)
				}
				before2 := portrait(t, gdb)
				ensure(t, gdb)
				if again := portrait(t, gdb); again != before2 {
					t.Errorf("the second call made of\n%s\nthis:\n%s", before2, again)
				}
			})
		})
	}
}

func TestATableOfItemsThatLostItsIndexGetsItBack(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		before := portrait(t, gdb)
		exec(t, gdb, "DROP INDEX idx_lease_items_claim_queue")
		ensure(t, gdb)
		if after := portrait(t, gdb); after != before {
			t.Errorf("the tables were\n%s\nand are\n%s", before, after)
		}
	})
}

func TestLeadersKeepRenewingWhileEnsureSchemaWaitsForALockedTable(t *testing.T) { // C83
	db := dbtest.Postgres(t)
	run(t, db, oldSchema(t, "3-columns.sql"))
	long := db.Open(t).Begin()
	defer long.Rollback()
	exec(t, long, "SELECT * FROM leases")
	gdb, spy := spied(t, db)
	var attempts atomic.Int32
	spy.after = func(query string, _ error) {
		if strings.HasPrefix(query, "ALTER") {
			attempts.Add(1)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- lease.EnsureSchema(gdb) }()
	leader := db.Open(t)
	var slowest time.Duration
	renew := func() { // as the old version did
		start := time.Now()
		exec(t, leader, "UPDATE leases SET expires_at = expires_at + 1 WHERE name = 'job' AND holder = 'A'")
		slowest = max(slowest, time.Since(start))
	}
	waitUntil(t, "EnsureSchema has tried three times", func() bool { renew(); return attempts.Load() >= 3 })
	select {
	case err := <-ended:
		t.Fatalf("it ended while the table was locked: %v", err)
	default:
	}
	if err := long.Rollback().Error; err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "EnsureSchema has ended", func() bool { renew(); return len(ended) > 0 })
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if slowest > 1500*time.Millisecond {
		t.Errorf("a renewal took %v", slowest)
	}
	granted(t, leader, "A", databasesClock)
	refused(t, leader, "B", databasesClock)
}

// Tables that are not ours

func TestAStrangersTableStaysAsItIs(t *testing.T) { // C82
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

func TestAStrangersTableOfItemsStaysAsItIs(t *testing.T) { // C82
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

// Rights

// role makes a role that may not create, and opens a handle for it.
func role(t *testing.T, db *dbtest.Database) *gorm.DB {
	t.Helper()
	admin := db.Open(t)
	name := fmt.Sprintf("app_%d", rand.Uint64())
	exec(t, admin, "CREATE ROLE "+name)
	t.Cleanup(func() {
		admin := db.Open(t)
		exec(t, admin, "DROP OWNED BY "+name)
		exec(t, admin, "DROP ROLE "+name)
	})
	exec(t, admin, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	exec(t, admin, "GRANT USAGE ON SCHEMA public TO "+name)
	exec(t, admin, "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT, INSERT, UPDATE ON TABLES TO "+name)
	return db.OpenDSN(t, db.DSNVia("", "role="+name))
}

func TestWithoutTheRightToCreateTheErrorQuotesTheDDL(t *testing.T) {
	db := dbtest.Postgres(t)
	app := role(t, db)
	err := lease.EnsureSchema(app)
	if err == nil || !strings.Contains(err.Error(), ddl(t, "postgres")) || !strings.Contains(err.Error(), "42501") {
		t.Fatalf("EnsureSchema is %v", err)
	}
	run(t, db, ddl(t, "postgres")) // as the error says
	ensure(t, app)
	works(t, app)
	err = lease.EnsureSchema(lease.Tables(app, "app_"))
	if err == nil || !strings.Contains(err.Error(), `CREATE TABLE "app_leases"`) {
		t.Errorf("EnsureSchema of other tables is %v", err)
	}
}

func TestASchemaThatDoesNotExistIsAnErrorThatSaysSo(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		ensures := map[string]func() error{
			"on its own": func() error { return lease.EnsureSchema(lease.Tables(gdb, "nowhere.")) },
			"in a transaction": func() error {
				return gdb.Transaction(func(tx *gorm.DB) error { return lease.EnsureSchema(lease.Tables(tx, "nowhere.")) })
			},
		}
		for how, ensure := range ensures {
			err := ensure()
			if err == nil || !strings.Contains(err.Error(), "nowhere") || !strings.Contains(err.Error(), "there is no such schema") ||
				strings.Contains(err.Error(), "mends") || strings.Contains(err.Error(), "CREATE") {
				t.Errorf("%s: %v", how, err)
			}
		}
	})
}

func TestWithoutTheRightToAlterTheErrorQuotesTheDDL(t *testing.T) {
	db := dbtest.Postgres(t)
	app := role(t, db)
	run(t, db, oldSchema(t, "3-columns.sql"))
	err := lease.EnsureSchema(app)
	if err == nil {
		t.Fatal("it worked")
	}
	_, quoted, ok := strings.Cut(err.Error(), ":\nALTER")
	if !ok || strings.Count(err.Error(), "ALTER TABLE") != 3 {
		t.Fatalf("EnsureSchema is %v", err)
	}
	run(t, db, "ALTER"+quoted)
	ensure(t, app)
	refused(t, app, "B", databasesClock)
}

func TestASQLiteFileThatMayOnlyBeReadIsCheckedOnly(t *testing.T) {
	db := dbtest.SQLite(t)
	run(t, db, "CREATE TABLE other (id integer)")
	file, _, _ := strings.Cut(db.DSN, "?")
	readOnly := &dbtest.Database{Backend: db.Backend, DSN: "file:" + file + "?mode=ro"}
	err := lease.EnsureSchema(readOnly.Open(t))
	if err == nil {
		t.Fatal("it worked")
	}
	_, quoted, ok := strings.Cut(err.Error(), ":\nCREATE")
	if !ok {
		t.Fatalf("EnsureSchema is %v", err)
	}
	run(t, db, "CREATE"+quoted)
	ensure(t, readOnly.Open(t))
	_, err = lease.TryAcquire(t.Context(), readOnly.Open(t), "job", "A", time.Minute, noon)
	if err == nil || errors.Is(err, lease.ErrInvalid) {
		t.Errorf("TryAcquire is %v", err)
	}
}
