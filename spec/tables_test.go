package spec

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// tables returns the names of the user's tables, schema first on Postgres.
func tables(t *testing.T, gdb *gorm.DB) (names []string) {
	t.Helper()
	query := "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
	if gdb.Name() == "postgres" {
		query = `SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
ORDER BY 1`
	}
	if err := gdb.Raw(query).Scan(&names).Error; err != nil {
		t.Fatal(err)
	}
	return names
}

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

// ddl is lease.DDL, where no error is expected.
func ddl(t *testing.T, dialect string) string {
	t.Helper()
	s, err := lease.DDL(dialect)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// changes matches what writes, or locks, or begins a transaction.
var changes = regexp.MustCompile(`(?i)^\s*(BEGIN|SAVEPOINT|LOCK|CREATE|ALTER|DROP|INSERT|UPDATE|DELETE|SET)\b`)

// oldSchema is the script of an earlier version's tables.
func oldSchema(t *testing.T, name string) string {
	t.Helper()
	script, err := os.ReadFile(filepath.Join("testdata", "old", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(script)
}
