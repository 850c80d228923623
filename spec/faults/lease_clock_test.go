//go:build unix

package faults

import (
	"testing"
	"time"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestADatabaseClockThatStepsAheadMakesNoSecondLeader(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{false, true} {
		t.Run(map[bool]string{false: "the leader is well", true: "the leader is cut off"}[cut], func(t *testing.T) {
			t.Parallel()
			const ttl = 2 * time.Second
			server := dbtest.NewServer(t, dbtest.WithFakeClock())
			db := server.Database(t)
			direct := withTable(t, db)
			proxy, far := behind(t, db)
			l := newLedger(t)
			a := l.start(far, "A", ttl, nil)
			term := a.leads(5 * time.Second)
			b := l.start(direct, "B", ttl, nil)
			within(t, 5*time.Second, "B sees A", func() bool { holder, _ := b.Leader(); return holder == "A" })
			a.renews(direct)
			if cut {
				proxy.Hang()
			}
			server.SetClock(t, ttl)
			stepped := time.Now()
			if cut {
				ended := a.ends(term.Epoch, 5*time.Second)
				b.leads(10 * time.Second)
				took := b.stint().begun.Sub(stepped)
				if took > ttl+ttl/3+noise {
					t.Errorf("B leads %v after the step", took)
				}
				t.Logf("A is cancelled %v after the step, B leads after %v", ended.ended.Sub(stepped), took)
				return
			}
			lasts(stepped.Add(2 * ttl))
			within(t, 5*ttl, "somebody leads", func() bool { return a.IsLeader() || b.IsLeader() })
			t.Logf("terms: A %d, B %d", len(l.of("A")), len(l.of("B")))
		})
	}
}

func TestADatabaseClockThatStepsBackFreezesNoLease(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	server := dbtest.NewServer(t, dbtest.WithFakeClock())
	db := server.Database(t)
	direct := withTable(t, db)
	proxy, far := behind(t, db)
	l := newLedger(t)
	a := l.start(far, "A", ttl, nil)
	term := a.leads(5 * time.Second)
	b := l.start(direct, "B", ttl, nil)
	within(t, 5*time.Second, "B sees A", func() bool { holder, _ := b.Leader(); return holder == "A" })
	server.SetClock(t, -time.Hour)
	a.keeps(term, ttl+ttl/2)
	proxy.Hang()
	server.SetClock(t, -2*time.Hour)
	dead := time.Now()
	b.leads(4 * ttl)
	took := b.stint().begun.Sub(dead)
	if took > ttl+ttl/3+noise {
		t.Errorf("B leads %v after A died, not within a TTL and a poll", took)
	}
	t.Logf("B leads %v after A died", took)
}
