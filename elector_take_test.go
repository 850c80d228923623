package lease

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnElectorLeadsAtOnceWhereNobodyDoes(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		c.leads(a)
		if term, ok := a.Term(); !ok || term.Epoch != 1 || term.Holder != "A" || term.Name != "job" {
			t.Errorf("Term is %v, %v", term, ok)
		}
		if holder, ok := a.Leader(); !ok || holder != "A" {
			t.Errorf("Leader is %q, %v", holder, ok)
		}
	})
}

func TestACrashedLeaderIsReplacedAboutATTLAfterItsLastRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.start("A"), c.start("B")
		c.pass(5 * T)
		last := c.table.read().RenewedAt
		a.store.cut()
		c.passUntil(2*T, "B leads", b.IsLeader)
		// B's next poll comes up to a third of a TTL later. B then takes the renewal
		// for no older than a quarter.
		if took := time.Since(last); took < T || took > T+T/12+T/30 {
			t.Errorf("B leads %v after A's last renewal, not %v and a little", took, T)
		}
		if term, _ := b.Term(); term.Epoch != 2 {
			t.Errorf("B's epoch is %d", term.Epoch)
		}
	})
}

func TestAStandbyIsThereWhenTheLeaseExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.table.write(Record{Name: "job", Holder: "gone", Epoch: 1, RenewedAt: time.Now().Add(T/6 - T), ExpiresAt: time.Now().Add(T / 6)})
		a := c.start("A")
		if took := c.passUntil(T, "A leads", a.IsLeader); took < T/6 || took > T/6+T/32+T/100 {
			t.Errorf("A leads after %v", took)
		}
	})
}

func TestTwoElectorsWithOneHolderNeverBothLead(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, twin := c.start("same"), c.start("same")
		c.pass(5 * T)
		c.leads(a)
		if twin.terms() != 0 {
			t.Error("the twin inherited the term")
		}
		a.store.cut()
		c.passUntil(2*T, "the twin leads", twin.IsLeader)
		a.store.heal()
		c.pass(5 * T)
		c.leads(twin)
	})
}

func TestADeletedRowEndsTheTermAndIsSeededAfterATTLWithTheEpochGoingOn(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.start("A"), c.start("B")
		c.table.edit(func(r *Record) { r.Epoch = 41 })
		c.pass(T) // A finds another epoch, and follows
		c.pass(2 * T)
		leader := c.leader()
		if leader == nil {
			t.Fatal("nobody leads")
		}
		was, _ := leader.Term()
		gone := time.Now()
		c.table.delete()
		c.pass(T / 3)
		if leader.IsLeader() {
			t.Error("the old leader goes on")
		}
		c.passUntil(2*T, "somebody leads", func() bool { return a.IsLeader() || b.IsLeader() })
		if took := time.Since(gone); took < T {
			t.Errorf("seeded after %v, before a TTL had passed", took)
		}
		if term, _ := c.leader().Term(); term.Epoch != was.Epoch+1 {
			t.Errorf("epoch %d after %d", term.Epoch, was.Epoch)
		}
	})
}

func TestARowOfAnOlderVersionIsWaitedForByTheElectorsOwnTTL(t *testing.T) {
	for name, fault := range map[string]func(c *cluster){
		"that was deleted":                func(c *cluster) { c.table.delete() },
		"under a clock that was put back": func(c *cluster) { c.table.stepClock(-time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.table.write(Record{Name: "job", Holder: "old", ExpiresAt: time.Now().Add(T)}) // its renewal is not known
				b := c.start("B")
				c.pass(T / 2)
				fault(c)
				c.passUntil(2*T, "B leads", b.IsLeader)
			})
		})
	}
}

// The context of Run has ended when the poll is answered.
func TestNothingIsTakenOnAnAnswerThatCameWithTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.stop, a.done = func(error) {}, make(chan struct{})
		close(a.done)
		tenure, _, err := a.Elector.run.consider(onlySays{context.WithoutCancel(t.Context())})
		if tenure != nil || err != context.Canceled || a.store.count("poll") != 1 || a.store.count("take") != 0 {
			t.Errorf("%v, %v, after %v", tenure, err, a.store.sent)
		}
	})
}

func TestATakeoverWithTooManyStatementsOnTheirWaySaysSo(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.stop, a.done = func(error) {}, make(chan struct{})
		close(a.done)
		r := a.Elector.run
		for range maxInFlight {
			r.flight <- struct{}{}
		}
		if tenure, err := r.take(t.Context()); tenure != nil || err != errBusy {
			t.Errorf("%v, %v", tenure, err)
		}
	})
}

func TestAnAcquisitionWhoseAnswerWasLostIsNotInherited(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(firstly(1, "take", fault{lose: true}))
		c.run(a, untilCancelled)
		begin := time.Now()
		c.pass(T - T/100)
		if a.terms() != 0 {
			t.Fatal("it leads in a term that it does not know of")
		}
		c.passUntil(T/3, "A leads", a.IsLeader)
		if term, _ := a.Term(); term.Epoch != 2 {
			t.Errorf("epoch %d after %v", term.Epoch, time.Since(begin))
		}
	})
}

func TestATakeoverThatLandsAfterItsSenderGaveUpIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(firstly(1, "take", fault{before: 3 * T, deaf: true}))
		c.run(a, untilCancelled)
		c.pass(2 * T)
		c.leads(a) // by a later takeover
		c.pass(2 * T)
		if c.leads(a); a.terms() != 1 {
			t.Errorf("%d terms", a.terms())
		}
	})
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		polls := 0
		a.store.inject(func(s string) fault {
			switch {
			case s == "take":
				return fault{before: T * 3 / 4, deaf: true}
			case s == "poll" && polls > 0:
				return hung
			}
			polls++
			return fault{}
		})
		c.run(a, untilCancelled)
		c.pass(T*3/4 + tick)
		if r := c.table.read(); r.Epoch != 1 || r.Holder != "" {
			t.Errorf("held for nobody: %+v", r)
		}
	})
}

func TestAnAcquisitionInFlightAtTheEndIsAwaitedAndGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(firstly(1, "take", fault{before: T / 24, after: T / 24}))
		c.run(a, untilCancelled)
		a.stop(nil)
		<-a.done
		if r := c.table.read(); r.Epoch != 1 || r.Holder != "" {
			t.Errorf("the row is %+v", r)
		}
		if a.terms() != 0 {
			t.Error("work was started")
		}
	})
}

func TestAnAcquisitionInFlightAtTheEndIsAwaitedWithinABound(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(firstly(1, "take", fault{before: time.Hour, deaf: true}))
		c.run(a, untilCancelled)
		a.stop(nil)
		begin := time.Now()
		<-a.done
		if took := time.Since(begin); took > T/3 {
			t.Errorf("Run returned after %v", took)
		}
	})
}

func TestATakeoverThatHangsAtTheEndIsCutShort(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(firstly(1, "take", hung))
		c.run(a, untilCancelled)
		begin := time.Now()
		a.stop(nil)
		<-a.done
		if took, n := time.Since(begin), a.store.pending(); took > T/9+tick || n != 0 {
			t.Errorf("Run returned after %v, with %d statements on their way", took, n)
		}
	})
}

func TestATermThatWasWonTooLateLeavesNothingBehind(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		var looks atomic.Int32
		a.Elector.run.clock = func() instant { looks.Add(1); return a.clock() }
		a.store.inject(firstly(1, "take", fault{before: T / 24, after: T / 24}))
		c.run(a, untilCancelled)
		a.stop(nil)
		<-a.done
		synctest.Wait()
		before := looks.Load()
		<-time.After(T)
		if n := looks.Load() - before; n != 0 || a.store.count("release") != 1 {
			t.Errorf("%d looks at the clock after the end, and %d releases", n, a.store.count("release"))
		}
	})
}

// onlySays is a context that has ended, without anybody having been told.
type onlySays struct{ context.Context }

func (onlySays) Err() error { return context.Canceled }

func TestADeletedRowIsWaitedForThoughTheElectorNeverSawIt(t *testing.T) {
	for i := range 12 {
		inBubble(t, func(t *testing.T, c *cluster) {
			b := c.start("B") // its first poll finds no row
			c.leads(b)
			other := c.start("C")
			c.pass(T)
			b.store.cut()
			c.passUntil(3*T, "C leads", other.IsLeader)
			c.pass(2*T + time.Duration(i)*T/12)
			c.leads(other)
			c.table.delete()
			b.store.heal()
			c.passUntil(3*T, "somebody leads again", func() bool { return b.terms()+other.terms() == 3 })
			c.checkTerms()
		})
	}
}

func TestARowMadeByHandIsHeldAsLongAsItSays(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.table.row = &Record{Name: "job", Holder: "hand", ExpiresAt: time.Now().Add(10 * T)}
		b := c.start("B")
		if took := c.passUntil(11*T, "B leads", b.IsLeader); took < 10*T {
			t.Errorf("B leads after %v", took)
		}
	})
}
