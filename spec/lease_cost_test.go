package spec

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestAttemptsCostAsFewStatementsAsTheyCan(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		fresh(t, db)
		gdb, spy := spied(t, db)
		costs := func(what string, want ...string) {
			t.Helper()
			var verbs []string
			for _, query := range spy.sent() {
				verbs = append(verbs, query[:6])
			}
			if !slices.Equal(verbs, want) {
				t.Errorf("%s sent %q, not %q", what, verbs, want)
			}
		}
		granted(t, gdb, "A", noon)
		costs("the first acquisition of all", "SELECT", "INSERT", "UPDATE")
		refused(t, gdb, "B", noon)
		costs("a refusal", "SELECT")
		granted(t, gdb, "A", noon)
		costs("a renewal", "SELECT", "UPDATE")
		granted(t, gdb, "B", noon.Add(time.Hour))
		costs("a takeover", "SELECT", "UPDATE")
		release(t, gdb, "B", noon.Add(time.Hour))
		costs("a release", "UPDATE")
		find(t, gdb, "job")
		costs("a Find", "SELECT")
		if _, err := lease.List(t.Context(), gdb); err != nil {
			t.Error(err)
		}
		costs("a List", "SELECT")
	})
}

func TestARefusalWritesNothingAndLocksNoRow(t *testing.T) {
	gdb := fresh(t, dbtest.Postgres(t))
	granted(t, gdb, "A", noon)
	tx := gdb.Begin()
	defer tx.Rollback()
	refused(t, tx, "B", noon)
	if ask[bool](t, tx, "SELECT txid_current_if_assigned() IS NOT NULL") {
		t.Error("it has a transaction id, so it wrote")
	}
	if n := ask[int](t, tx, `SELECT count(*) FROM pg_locks
WHERE pid = pg_backend_pid() AND relation = 'leases'::regclass AND mode <> 'AccessShareLock'`); n != 0 {
		t.Errorf("it holds %d locks on the table", n)
	}
	exec(t, gdb, "SELECT * FROM leases FOR UPDATE NOWAIT")
}

func TestARefusalWaitsForNoLock(t *testing.T) {
	db := dbtest.Postgres(t)
	gdb := fresh(t, db)
	granted(t, gdb, "A", noon)
	tx := gdb.Begin()
	defer tx.Rollback()
	exec(t, tx, "UPDATE leases SET renewed_at = renewed_at")
	impatient := db.OpenDSN(t, db.DSNVia("", "lock_timeout=1ms"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if ok, err := lease.TryAcquire(ctx, impatient, "job", "B", time.Minute, noon); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
}

func TestAllRenewalsAreHeapOnly(t *testing.T) {
	gdb := fresh(t, dbtest.Postgres(t))
	pool(t, gdb).SetMaxOpenConns(1) // statistics are kept by session until they are flushed
	const renewals = 1000
	granted(t, gdb, "A", databasesClock)
	for range renewals {
		granted(t, gdb, "A", databasesClock)
	}
	exec(t, gdb, "SELECT pg_stat_force_next_flush()")
	updates := ask[int](t, gdb, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'leases'")
	heapOnly := ask[int](t, gdb, "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'leases'")
	if updates != renewals+1 || heapOnly != updates { // and the acquisition
		t.Errorf("of %d updates, %d are heap-only", updates, heapOnly)
	}
}
