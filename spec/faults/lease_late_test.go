//go:build unix

package faults

import (
	"testing"
	"time"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/faultproxy"
)

func TestARenewalThatLandsAfterItsCallerGaveUpHoldsTheRowForATTLAtMost(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	proxy, far := behind(t, db)
	l := newLedger(t)
	a := l.start(far, "A", ttl, nil)
	term := a.leads(5 * time.Second)
	a.renews(direct)
	locked := block(t, db, "BEGIN", "SELECT * FROM leases FOR UPDATE")
	within(t, 5*time.Second, "a renewal waits", func() bool { return lockWaiters(t, direct) > 0 })
	proxy.Hang() // so that nobody can tell the server that its client has left
	a.ends(term.Epoch, 5*time.Second)
	a.stop()
	a.returns(5 * time.Second)
	b := l.start(direct, "B", ttl, nil)
	if n := lockWaiters(t, direct); n == 0 {
		t.Fatal("no renewal waits")
	}
	locked.end("ROLLBACK")
	free := time.Now()
	within(t, 5*time.Second, "the renewals have landed", func() bool { return lockWaiters(t, direct) == 0 })
	b.leads(10 * time.Second)
	if took := b.stint().begun.Sub(free); took > ttl+noise {
		t.Errorf("B leads after %v", took)
	} else {
		t.Logf("B leads after %v", took)
	}
	b.keeps(b.leads(time.Second), ttl)
}

func TestATakeoverThatLandsAfterItsCallerGaveUpHoldsTheRowForATTLAtMost(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	if ok, err := lease.TryAcquire(t.Context(), direct, "job", "dead", ttl, time.Time{}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	proxy, far := behind(t, db)
	l := newLedger(t)
	a := l.start(far, "A", ttl, nil)
	within(t, 5*time.Second, "A sees it", func() bool { holder, _ := a.Leader(); return holder == "dead" })
	locked := block(t, db, "BEGIN", "SELECT * FROM leases FOR UPDATE")
	within(t, 5*time.Second, "a takeover waits", func() bool { return lockWaiters(t, direct) > 0 })
	proxy.Hang()
	a.stop()
	if took := a.returns(5 * time.Second); took > ttl/3+2*noise {
		t.Errorf("Run took %v", took)
	}
	if n := lockWaiters(t, direct); n == 0 {
		t.Fatal("no takeover waits")
	}
	locked.end("ROLLBACK")
	free := time.Now()
	var landed lease.Status
	within(t, 5*time.Second, "it lands", func() bool { landed = job(t, direct); return landed.Holder == "A" })
	if landed.Remaining > ttl || landed.ExpiresAt.Sub(landed.RenewedAt) != ttl {
		t.Errorf("the row is %+v", landed)
	}
	b := l.start(direct, "B", ttl, nil)
	b.leads(10 * time.Second)
	if took := b.stint().begun.Sub(free); took > ttl+noise {
		t.Errorf("B leads after %v", took)
	} else {
		t.Logf("B leads after %v", took)
	}
}

func TestARenewalThatLandsAfterAReleaseDoesNotReviveTheRow(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	proxy, far := behind(t, db)
	a := newLedger(t).start(far, "A", ttl, nil)
	term := a.leads(5 * time.Second)
	a.renews(direct)
	locked := block(t, db, "BEGIN", "SELECT * FROM leases FOR UPDATE")
	within(t, 5*time.Second, "a renewal waits", func() bool { return lockWaiters(t, direct) > 0 })
	proxy.Hang()
	locked.exec("UPDATE leases SET holder = '', expires_at = 0")
	locked.end("COMMIT")
	within(t, 5*time.Second, "the renewals have landed", func() bool { return lockWaiters(t, direct) == 0 })
	a.ends(term.Epoch, 5*time.Second)
	a.stop()
	a.returns(5 * time.Second)
	if s := job(t, direct); s.Holder != "" || s.Epoch != term.Epoch || !s.ExpiresAt.IsZero() {
		t.Errorf("the row is %+v", s)
	}
}

func TestARestartWithTheSameHolderWithinATTLWaitsForTheExpiry(t *testing.T) {
	t.Parallel()
	const ttl = 900 * time.Millisecond // the driver pings what was idle for a second
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	proxy := faultproxy.New(t, db.Addr())
	// One message per statement, so that one on a dead connection is carried out when it is delivered at last.
	far := db.OpenDSN(t, db.DSNVia(proxy.Addr(), "default_query_exec_mode=simple_protocol"))
	warm(t, poolOf(t, far), 8)
	l := newLedger(t)
	dead := l.start(far, "A", ttl, nil)
	dead.leads(5 * time.Second)
	proxy.Hang()
	again := l.start(direct, "A", ttl, nil)
	term := again.leads(10 * time.Second)
	if s := job(t, direct); s.Epoch != 2 || term.Epoch != 2 {
		t.Errorf("it leads in term %d; the row is %+v", term.Epoch, s)
	}
	dead.stop()
	dead.returns(5 * time.Second)
	proxy.Thaw() // the last renewals of its predecessor land now
	again.keeps(term, ttl)
}
