//go:build unix

package faults

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestAStandbyWritesNothingAndALeadersRenewalsAreHeapOnly(t *testing.T) {
	t.Parallel()
	const ttl = 1200 * time.Millisecond
	server := dbtest.NewServer(t, dbtest.WithSetting("autovacuum", "off"))
	db := server.Database(t)
	direct := withTable(t, db)
	if ok, err := lease.TryAcquire(t.Context(), direct, "job", "held", time.Hour, time.Time{}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	const next = "SELECT txid_snapshot_xmax(txid_current_snapshot())"
	before := number(t, direct, next)
	l := newLedger(t)
	standby := withTable(t, db)
	b := l.start(standby, "B", ttl, nil)
	within(t, 5*time.Second, "B polls", func() bool { holder, _ := b.Leader(); return holder == "held" })
	lasts(time.Now().Add(3 * ttl))
	if err := b.Health(); err != nil {
		t.Error(err) // it has polled, within a TTL
	}
	if after := number(t, direct, next); after != before {
		t.Errorf("a standby's polls took %d transaction ids", after-before)
	}
	b.stop()
	b.returns(5 * time.Second)

	mustExec(t, direct, "SELECT pg_stat_force_next_flush()")
	count := func(column string) int64 {
		return number(t, direct, "SELECT "+column+" FROM pg_stat_user_tables WHERE relname = 'leases'")
	}
	within(t, 5*time.Second, "the first statistics", func() bool { return count("n_tup_upd") == 1 })
	if err := lease.Release(t.Context(), direct, "job", "held", time.Time{}); err != nil {
		t.Fatal(err)
	}
	led := db.Open(t)
	a := l.start(led, "A", ttl, nil)
	term := a.leads(5 * time.Second)
	a.keeps(term, 6*time.Second)
	a.stop()
	a.returns(5 * time.Second)
	poolOf(t, led).Close() // its sessions then tell what they did
	mustExec(t, direct, "SELECT pg_stat_force_next_flush()")
	renewals := int64(6*time.Second/ttl) * 3
	within(t, 5*time.Second, "the statistics", func() bool { return count("n_tup_upd") >= renewals*9/10 })
	if updates, heapOnly := count("n_tup_upd"), count("n_tup_hot_upd"); updates != heapOnly || updates > renewals+6 {
		t.Errorf("of %d updates, %d are heap-only; %d renewals were due", updates, heapOnly, renewals)
	} else {
		t.Logf("%d updates, all heap-only", updates)
	}
	if others := count("n_tup_ins + n_tup_del"); others != 1 {
		t.Errorf("%d rows were inserted or deleted", others)
	}
}

// Not parallel: others' goroutines would count.
func TestAHundredLivesLeakNothing(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		const ttl = 90 * time.Millisecond
		others := goleak.IgnoreCurrent()
		gdb := db.Open(t)
		if err := lease.EnsureSchema(gdb); err != nil {
			t.Fatal(err)
		}
		l := newLedger(t)
		for life := range 100 {
			c := l.start(gdb, "A", ttl, nil)
			if life%10 != 9 { // some are stopped at once, perhaps in mid-statement
				led := len(l.of("A"))
				within(t, 5*time.Second, "it leads", func() bool { return c.IsLeader() || len(l.of("A")) > led })
			}
			if life%3 == 0 {
				c.Resign()
			}
			c.stop()
			c.returns(5 * time.Second)
			if n := poolOf(t, gdb).Stats().InUse; n != 0 {
				t.Errorf("Run has returned, and uses %d connections", n)
			}
		}
		if err := poolOf(t, gdb).Close(); err != nil {
			t.Fatal(err)
		}
		goleak.VerifyNone(t, others, goleak.IgnoreAnyFunction(dbtest.ServerGoroutine))
	})
}
