package spec

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestEightMayCallEnsureSchemaAtOnce(t *testing.T) {
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

// Another tool makes the table. It does not queue as EnsureSchema does.
func TestEnsureSchemaBearsAnotherThatJustCreatesTheTable(t *testing.T) {
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

func TestEnsureSchemaAgainRunsNoDDL(t *testing.T) {
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

func TestEnsureSchemaAgainWaitsForNoLock(t *testing.T) {
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

func TestEnsureSchemaAgainDoesNotNeedSQLitesWriteLock(t *testing.T) {
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
