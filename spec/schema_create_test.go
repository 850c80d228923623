package spec

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

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

func TestEnsureSchemaSetsNothingInACallersTransaction(t *testing.T) {
	gdb := dbtest.Postgres(t).Open(t)
	must(t, gdb.Transaction(func(tx *gorm.DB) error {
		must(t, lease.EnsureSchema(tx))
		for _, setting := range []string{"idle_in_transaction_session_timeout", "lock_timeout"} {
			if got := ask[string](t, tx, "SHOW "+setting); got != "0" {
				t.Errorf("%s is %s", setting, got)
			}
		}
		return nil
	}))
}
