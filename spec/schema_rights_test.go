package spec

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

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
