package spec

import (
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/leasetest"
)

// What these tests share with lease_test.go.
var (
	noon, databasesClock = leasetest.Noon, leasetest.DatabasesClock

	fresh           = leasetest.Fresh
	ensure          = leasetest.Ensure
	acquire         = leasetest.Acquire
	granted         = leasetest.Granted
	refused         = leasetest.Refused
	release         = leasetest.Release
	find            = leasetest.Find
	row             = leasetest.Row
	exec            = leasetest.Exec
	mustBe          = leasetest.MustBe
	pool            = leasetest.Pool
	keepConnections = leasetest.KeepConnections
	race            = leasetest.Race
	everyIsolation  = leasetest.EveryIsolation
)

// ask returns the one value that the caller's own SELECT gives.
func ask[V any](t *testing.T, gdb *gorm.DB, sql string, args ...any) V {
	t.Helper()
	return leasetest.Ask[V](t, gdb, sql, args...)
}

// waiters counts the sessions of gdb's database that wait for a lock.
func waiters(t *testing.T, gdb *gorm.DB) int {
	t.Helper()
	return ask[int](t, gdb, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
}

// waitUntil asks for a state that the database or an elector reaches by itself and tells nobody.
func waitUntil(t *testing.T, what string, reached func() bool) {
	t.Helper()
	ask := time.NewTicker(2 * time.Millisecond)
	defer ask.Stop()
	for limit := time.Now().Add(20 * time.Second); !reached(); <-ask.C {
		if time.Now().After(limit) {
			t.Fatalf("20 seconds, and not yet: %s", what)
		}
	}
}

// hold lets holder have the lease "job" for a minute of the database's clock, and returns its term.
func hold(t *testing.T, gdb *gorm.DB, holder string) lease.Term {
	t.Helper()
	granted(t, gdb, holder, databasesClock)
	s := find(t, gdb, "job")
	return lease.Term{Name: s.Name, Holder: s.Holder, Epoch: s.Epoch}
}

// expire lets the lease "job" run out.
func expire(t *testing.T, gdb *gorm.DB) {
	t.Helper()
	exec(t, gdb, "UPDATE leases SET expires_at = renewed_at - 1 WHERE name = 'job'")
}

// withNotes is fresh, with a table for what the transactions write.
func withNotes(t *testing.T, db *dbtest.Database) *gorm.DB {
	t.Helper()
	gdb := fresh(t, db)
	exec(t, gdb, "CREATE TABLE notes (text varchar(20))")
	return gdb
}

// write writes a note.
func write(tx *gorm.DB) error { return tx.Exec("INSERT INTO notes VALUES ('written')").Error }

// notes counts the notes.
func notes(t *testing.T, gdb *gorm.DB) int {
	t.Helper()
	return ask[int](t, gdb, "SELECT count(*) FROM notes")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// statements is exec of one statement after the other.
func statements(t *testing.T, gdb *gorm.DB, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		exec(t, gdb, sql)
	}
}

// A rival wants the lease "job", at a time at which it has run out.
type rival struct {
	outcome chan error // nil: it was granted
	waits   func()     // returns once it waits for somebody's lock
}

// stillWaits fails t if the rival has had an answer.
func (r rival) stillWaits(t *testing.T) {
	t.Helper()
	r.waits()
	select {
	case err := <-r.outcome:
		t.Fatalf("the rival did not wait: %v", err)
	default:
	}
}
