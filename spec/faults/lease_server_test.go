//go:build unix

package faults

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestARestartShorterThanAThirdOfATTLDoesNotCostLeadership(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	server := dbtest.NewServer(t)
	db := server.Database(t)
	direct := withTable(t, db)
	l := newLedger(t)
	a := l.start(withTable(t, db), "A", ttl, nil)
	term := a.leads(5 * time.Second)
	l.start(withTable(t, db), "B", ttl, nil)
	for _, mode := range []string{"fast", "immediate", "fast"} {
		a.renews(direct)
		begin := time.Now()
		server.Restart(t, mode)
		down := time.Since(begin)
		t.Logf("%s: down for %v", mode, down)
		if down > ttl/3-ttl/12 {
			t.Skipf("this machine takes %v for a restart, which is no shorter than a third of the TTL", down)
		}
		a.keeps(term, ttl/2)
	}
	a.keeps(term, ttl/2)
}

func TestALeaderOfAServerThatTurnsReadOnlyStopsInTimeAndLeadsAgainLater(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	server := dbtest.NewServer(t)
	gdb := withTable(t, server.Database(t))
	a := newLedger(t).start(gdb, "A", ttl, nil)
	term := a.leads(5 * time.Second)
	a.renews(gdb)
	server.Exec(t, "ALTER SYSTEM SET default_transaction_read_only = on")
	server.Exec(t, "SELECT pg_reload_conf()")
	ended := a.ends(term.Epoch, 5*time.Second)
	last := job(t, gdb).RenewedAt
	if took, most := ended.ended.Sub(last), ttl-ttl/3; took > most+noise || ended.cause != lease.ErrLost {
		t.Errorf("cancelled %v after the last renewal with %v, not within %v", took, ended.cause, most)
	}
	lasts(ended.ended.Add(2 * ttl))
	if a.IsLeader() {
		t.Error("it leads on a server that only reads")
	}
	if len(a.log.saying("read-only")) == 0 {
		t.Errorf("the log does not say why:\n%v", a.log)
	}
	server.Exec(t, "ALTER SYSTEM RESET default_transaction_read_only")
	server.Exec(t, "SELECT pg_reload_conf()")
	if again := a.leads(5 * ttl); again.Epoch != term.Epoch+1 {
		t.Errorf("it leads in term %d", again.Epoch)
	}
}

func TestTermsOfThreeProcessesNeverOverlapThoughTheServerIsKilledUnderThem(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	server := dbtest.NewServer(t)
	db := server.Database(t)
	withTable(t, db)
	l := newLedger(t)
	for _, holder := range []string{"A", "B", "C"} {
		startProcess(t, replica, l, db, "plain", holder, ttl)
	}
	leading := func() (leading bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.ContainsFunc(l.stints, func(s *stint) bool { return s.ended.IsZero() })
	}
	for round := range 6 {
		within(t, 15*time.Second, "somebody leads", leading)
		server.Stop(t, "immediate")
		if round%2 == 1 {
			within(t, 15*time.Second, "nobody leads", func() bool { return !leading() })
			lasts(time.Now().Add(time.Duration(round) * ttl / 5))
		}
		server.Start(t)
	}
	within(t, 15*time.Second, "somebody leads", leading)
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("%d terms", len(l.stints))
}

func TestAnElectorSurvivesALongOutageAndLogsItOncePerTTLWithoutThePassword(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	const password = "correct-horse-battery"
	server := dbtest.NewServer(t)
	db := server.Database(t)
	withTable(t, db)
	withPassword := db.DSNVia("", "password="+password)
	a := newLedger(t).start(db.OpenDSN(t, withPassword), "A", ttl, nil)
	term := a.leads(5 * time.Second)
	server.Stop(t, "fast")
	down := time.Now()
	b := newLedger(t).start(db.OpenDSN(t, withPassword, &gorm.Config{DisableAutomaticPing: true}), "B", ttl, nil) // starts during the outage
	a.ends(term.Epoch, 5*time.Second)
	lasts(down.Add(5 * ttl))
	for _, c := range []*contender{a, b} {
		switch err := c.Health(); {
		case err == nil:
			t.Errorf("%s: Health is nil after an outage of five TTLs", c.Holder)
		case strings.Contains(err.Error(), password):
			t.Errorf("%s: Health tells the password: %v", c.Holder, err)
		}
	}
	server.Start(t)
	up := time.Now()
	within(t, 5*ttl, "somebody leads", func() bool { return a.IsLeader() || b.IsLeader() })
	t.Logf("after an outage of %v, somebody leads within %v", up.Sub(down), time.Since(up))
	within(t, 5*ttl, "both are healthy", func() bool { return a.Health() == nil && b.Health() == nil })

	for _, c := range []*contender{a, b} {
		trouble := c.log.saying("trouble with the database")
		if len(trouble) == 0 || trouble[0].at.Sub(down) > ttl {
			t.Errorf("%s did not log the first error at once:\n%v", c.Holder, c.log)
		}
		for i := 1; i < len(trouble); i++ {
			if pause := trouble[i].at.Sub(trouble[i-1].at); pause < ttl-10*time.Millisecond {
				t.Errorf("%s logged again after %v:\n%v", c.Holder, pause, c.log)
			}
		}
		if n := len(trouble); n < 3 || n > 7 {
			t.Errorf("%s logged %d lines about an outage of 5 TTLs:\n%v", c.Holder, n, c.log)
		}
		if strings.Contains(c.log.String(), password) {
			t.Errorf("%s logged the password:\n%v", c.Holder, c.log)
		}
	}
}

func TestAServerThatStandsStillCostsLeadershipOnlyIfItIsLong(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	server := dbtest.NewServer(t)
	db := server.Database(t)
	gdb := withTable(t, db)
	l := newLedger(t)
	a := l.start(gdb, "A", ttl, nil)
	term := a.leads(5 * time.Second)
	l.start(withTable(t, db), "B", ttl, nil)
	a.renews(gdb)

	server.Freeze(t)
	a.keeps(term, ttl/4) // its deadline is at two thirds, its renewal at one third
	lasts(time.Now().Add(ttl / 6))
	server.Thaw(t)
	a.keeps(term, ttl/2)

	last := a.renews(gdb)
	server.Freeze(t)
	frozen := time.Now()
	ended := a.ends(term.Epoch, ttl)
	if took, most := ended.ended.Sub(last.RenewedAt), ttl-ttl/3; took > most+noise || ended.cause != lease.ErrLost {
		t.Errorf("cancelled %v after the last renewal with %v, not within %v", took, ended.cause, most)
	}
	lasts(frozen.Add(2 * ttl))
	server.Thaw(t)
	thawed := time.Now()
	within(t, 3*ttl, "somebody leads", func() bool {
		if s := job(t, gdb); s.Epoch == term.Epoch && s.Holder != "" && s.RenewedAt != last.RenewedAt {
			t.Fatalf("a renewal that was sent before the term was lost revived it: %+v", s)
		}
		return len(l.of("A"))+len(l.of("B")) > 1
	})
	t.Logf("somebody leads %v after the server goes on", time.Since(thawed))
}

func TestAMissingTableIsNamedAndLeadsToLeadershipOnceItIsThere(t *testing.T) {
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 1500 * time.Millisecond
		gdb := db.Open(t)
		a := newLedger(t).start(gdb, "A", ttl, nil)
		within(t, 5*time.Second, "the log names EnsureSchema", func() bool { return len(a.log.saying("EnsureSchema")) > 0 })
		within(t, 5*time.Second, "Health names EnsureSchema", func() bool {
			err := a.Health()
			return err != nil && strings.Contains(err.Error(), "EnsureSchema")
		})
		if err := lease.EnsureSchema(gdb); err != nil {
			t.Fatal(err)
		}
		a.leads(3 * ttl)
		if err := a.Health(); err != nil {
			t.Errorf("Health is %v", err)
		}
	})
}
