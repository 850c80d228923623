package lease

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
)

// Leading

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

func TestAStandbySeesWhoLeadsAndWritesNothing(t *testing.T) { // C72
	inBubble(t, func(t *testing.T, c *cluster) {
		c.start("A")
		b := c.start("B")
		c.pass(time.Hour)
		if holder, ok := b.Leader(); !ok || holder != "A" {
			t.Errorf("Leader is %q, %v", holder, ok)
		}
		polls := b.store.count("poll")
		if writes := b.store.count("") - polls; writes != 0 {
			t.Errorf("a standby wrote %d times", writes)
		}
		if least, most := int(time.Hour/(T/3)), int(time.Hour/(T/4))+1; polls < least || polls > most {
			t.Errorf("it polled %d times in an hour, not %d to %d times", polls, least, most)
		}
	})
}

func TestAnHourOfLeadingIsThreeWritesPerTTL(t *testing.T) { // C72
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		c.pass(time.Hour)
		if n, want := a.store.count("renew"), int(3*time.Hour/T); n < want-1 || n > want {
			t.Errorf("%d renewals, not %d", n, want)
		}
		if n := a.store.count("") - a.store.count("renew"); n != 2 {
			t.Errorf("%d other statements, not a poll and a take", n)
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
		if took := time.Since(last); took < T || took > T+T/30 {
			t.Errorf("B leads %v after A's last renewal, not %v and a little", took, T)
		}
		if term, _ := b.Term(); term.Epoch != 2 {
			t.Errorf("B's epoch is %d", term.Epoch)
		}
	})
}

func TestManyStandbysSpreadTheirPolls(t *testing.T) { // C71
	inBubble(t, func(t *testing.T, c *cluster) {
		c.start("A")
		at := map[time.Time]int{}
		for range 50 {
			c.start("B")
		}
		c.pass(10 * T)
		for _, p := range c.replicas[1:] {
			for _, sent := range p.store.sentAt()[1:] {
				at[sent.Truncate(T/100)]++
			}
		}
		for when, n := range at {
			if n > 15 { // 50 electors poll every 29 hundredths of a TTL or so: 1.7 on average
				t.Errorf("%d polls within a hundredth of a TTL, at %v", n, when)
			}
		}
	})
}

// A database that is slow, silent or gone

func TestWorkEndsTwoThirdsOfATTLAfterTheLastGoodRenewalWasSent(t *testing.T) { // C36, C37
	for name, f := range map[string]fault{
		"hangs":                    hung,
		"hangs in a deaf driver":   {before: time.Hour, deaf: true},
		"fails":                    {fail: errors.New("connection refused")},
		"is carried out, but deaf": {after: time.Hour, deaf: true},
		"loses its answer":         {lose: true},
	} {
		t.Run("when the next one "+name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.start("A")
				c.pass(T + T/12)
				last := c.table.read().RenewedAt
				a.store.inject(func(string) fault { return f })
				<-time.After(time.Until(last.Add(T-T/3)) - tick)
				if !a.IsLeader() {
					t.Fatal("it stopped leading too early")
				}
				<-time.After(tick)
				if a.IsLeader() {
					t.Errorf("it still leads at its deadline, %v after the last good renewal; the row is %+v\n%s", time.Since(last), c.table.read(), a.log)
				}
				synctest.Wait()
				ended, cause := a.lastEnd(t)
				if got := ended.Sub(last); got != T-T/3 || cause != ErrLost {
					t.Errorf("the work's context ended after %v with %v", got, cause)
				}
				a.store.heal()
				<-time.After(time.Hour) // the deaf driver returns
			})
		})
	}
}

func TestOneFailedRenewalGoesUnnoticed(t *testing.T) { // C44
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		a.store.inject(firstly(1, "renew", fault{fail: errors.New("broken pipe")}))
		c.pass(10 * T)
		c.leads(a)
		if a.terms() != 1 {
			t.Errorf("%d terms", a.terms())
		}
	})
}

func TestAnOldAttemptThatFailsAfterANewerOneWasGoodIsOfNoConsequence(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		a.store.inject(firstly(1, "renew", hung)) // it fails a third of a TTL later
		c.pass(T - tick)
		if n := a.store.count("renew"); n != 3 { // at 4, 5 and 9 twelfths
			t.Errorf("%d renewals", n)
		}
		if log := a.log.String(); strings.Contains(log, "trouble") {
			t.Error(log)
		}
	})
}

func TestThreeDeadConnectionsDoNotCostLeadership(t *testing.T) { // C79
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		a.store.inject(firstly(3, "renew", hung))
		c.pass(10 * T)
		c.leads(a)
		if a.terms() != 1 {
			t.Errorf("%d terms", a.terms())
		}
	})
}

func TestAnOutageShorterThanAThirdOfATTLDoesNotCostLeadership(t *testing.T) {
	for offset := time.Duration(0); offset < T/3; offset += T / 24 {
		inBubble(t, func(t *testing.T, c *cluster) {
			a := c.start("A")
			c.pass(T + offset)
			a.store.inject(func(string) fault { return fault{fail: errors.New("the database system is starting up")} })
			c.pass(T/3 - T/40)
			a.store.heal()
			c.pass(2 * T)
			if c.leads(a); a.terms() != 1 {
				t.Errorf("an outage that began %v after a renewal cost the term", offset)
			}
		})
	}
}

func TestASlowDatabaseIsHeard(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(func(string) fault { return fault{before: T / 8, after: T / 8} })
		c.run(a, untilCancelled)
		c.pass(20 * T)
		if c.leads(a); a.terms() != 1 {
			t.Errorf("%d terms under a database that takes a quarter of the TTL", a.terms())
		}
	})
}

func TestEightyMillisecondsPerStatementDoNotMakeAShortTTLFlap(t *testing.T) { // C68
	inBubble(t, func(t *testing.T, c *cluster) {
		c.ttl = 300 * time.Millisecond
		slow := func(string) fault { return fault{before: 40 * time.Millisecond, after: 40 * time.Millisecond} }
		a, b := c.add("A"), c.add("B")
		a.store.inject(slow)
		b.store.inject(slow)
		c.run(a, untilCancelled)
		c.pass(c.ttl)
		c.run(b, untilCancelled)
		c.pass(time.Minute)
		if c.leads(a); a.terms() != 1 {
			t.Errorf("%d terms", a.terms())
		}
	})
}

func TestDeadlinesCountFromTheSending(t *testing.T) { // C04
	t.Run("of an acquisition: too late an answer starts no work, and gives the lease back", func(t *testing.T) {
		for _, delay := range []time.Duration{T * 8 / 10, T * 12 / 10} {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.add("A")
				a.store.inject(firstly(1, "take", fault{after: delay, deaf: true}))
				c.run(a, untilCancelled)
				c.pass(min(delay, T-tick))
				if a.terms() != 0 {
					t.Fatal("work was started")
				}
				if r := c.table.read(); delay < T && r.Holder != "" {
					t.Errorf("the lease was not given back: %+v", r)
				}
				c.pass(T)
				c.leads(a)
				if term, _ := a.Term(); term.Epoch != 2 {
					t.Errorf("epoch %d", term.Epoch)
				}
			})
		}
	})
	t.Run("of an acquisition that took half a TTL", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *cluster) {
			a := c.add("A")
			polls := 0
			a.store.inject(func(s string) fault {
				switch {
				case s == "take":
					return fault{after: T / 2}
				case s == "poll" && polls == 0:
					polls++
					return fault{}
				}
				return hung
			})
			c.run(a, untilCancelled)
			c.pass(T/2 + tick)
			c.leads(a)
			sent := c.table.read().AcquiredAt
			c.pass(T)
			if ended, _ := a.lastEnd(t); ended.Sub(sent) != T-T/3 {
				t.Errorf("its work ended %v after the acquisition was sent", ended.Sub(sent))
			}
		})
	})
	t.Run("of a renewal", func(t *testing.T) {
		for _, delay := range []time.Duration{T * 8 / 10, T * 12 / 10} {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.start("A")
				a.store.inject(func(string) fault { return fault{after: delay, deaf: true} })
				sent := c.table.read().RenewedAt
				c.pass(T)
				if ended, cause := a.lastEnd(t); ended.Sub(sent) != T-T/3 || cause != ErrLost {
					t.Errorf("its work ended %v after the last good one was sent, with %v", ended.Sub(sent), cause)
				}
				a.store.heal()
				<-time.After(delay)
			})
		}
	})
}

func TestRunGoesOnThroughALongOutage(t *testing.T) { // C42
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(func(string) fault { return fault{fail: errors.New("connection refused")} })
		c.run(a, untilCancelled)
		c.pass(5 * T)
		if err := a.Health(); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("Health is %v", err)
		}
		if polls := a.store.count("poll"); polls < 15 || polls > 30 {
			t.Errorf("it tried %d times in 5 TTL", polls)
		}
		if lines := strings.Count(a.log.String(), "\n"); lines < 4 || lines > 6 {
			t.Errorf("%d log lines in 5 TTL:\n%s", lines, a.log)
		}
		a.store.heal()
		c.pass(T/3 + tick)
		c.leads(a)
		if err := a.Health(); err != nil {
			t.Errorf("Health is %v", err)
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

func TestATakeoverThatLandsAfterItsSenderGaveUpIsGivenBack(t *testing.T) { // C78
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

// Leaving

func TestWhenRunsContextEndsTheLeaseIsFreeAtOnce(t *testing.T) { // C60
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.start("A"), c.start("B")
		c.pass(T)
		why := errors.New("rolling update")
		a.stop(why)
		<-a.done
		if r := c.table.read(); r.Holder != "" || r.Epoch != 1 {
			t.Errorf("the row is %+v", r)
		}
		if _, cause := a.lastEnd(t); cause != why {
			t.Errorf("the cause is %v", cause)
		}
		if a.IsLeader() {
			t.Error("it still leads")
		}
		c.passUntil(T/3+tick, "B leads", b.IsLeader)
	})
}

func TestRunReturnsWithinABoundWhateverTheDatabaseDoes(t *testing.T) { // C37, C60
	for name, f := range map[string]fault{
		"refuses":                {fail: errors.New("connection refused")},
		"hangs":                  hung,
		"hangs in a deaf driver": {before: time.Hour, deaf: true},
	} {
		for _, leading := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, c *cluster) {
					a := c.add("A")
					if !leading {
						a.store.inject(func(string) fault { return f })
					}
					c.run(a, untilCancelled)
					a.store.inject(func(string) fault { return f })
					c.pass(T / 2)
					begin := time.Now()
					a.stop(nil)
					<-a.done
					if took := time.Since(begin); took > T/3 {
						t.Errorf("Run returned after %v", took)
					}
					<-time.After(2 * time.Hour) // the deaf driver returns
				})
			})
		}
	}
}

func TestTheLeaseIsRenewedUntilWorkHasWoundDown(t *testing.T) { // C62
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(3 * T)
		})
		b := c.start("B")
		c.pass(T)
		a.stop(nil)
		c.pass(3*T - tick)
		if b.terms() != 0 {
			t.Fatal("B led while A's work wound down")
		}
		if a.IsLeader() {
			t.Error("A leads although its work was cancelled")
		}
		if n := strings.Count(a.log.String(), "winds down"); n != 2 {
			t.Errorf("logged %d times in three TTL:\n%s", n, a.log)
		}
		<-a.done
		c.passUntil(T/3+tick, "B leads", b.IsLeader)
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

func TestRunReturnsOnlyAfterItsStatementsHave(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(func(string) fault { return fault{before: T / 12, deaf: true} }) // it returns, but not at once
		c.run(a, untilCancelled)
		c.pass(T/24 + tick)
		a.stop(nil)
		<-a.done
		if n := a.store.pending(); n != 0 {
			t.Errorf("%d statements are still on their way", n)
		}
	})
}

func TestResignHandsOverAndStandsBack(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.start("A"), c.start("B")
		c.pass(T)
		a.Resign()
		if a.IsLeader() {
			t.Error("it leads after Resign")
		}
		c.passUntil(T/3+tick, "B leads", b.IsLeader)
		if _, cause := a.lastEnd(t); cause != ErrResigned {
			t.Errorf("the cause is %v", cause)
		}
		c.pass(T)
		c.leads(b)
		b.Resign()
		c.passUntil(T/3+tick, "A leads again", a.IsLeader)
		b.Resign() // of no effect
		c.pass(T)
		c.leads(a)
	})
}

func TestAResignedElectorWithoutAnotherLeadsAgainAfterHalfATTL(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		a.Resign()
		synctest.Wait()
		if took := c.passUntil(T, "A leads again", a.IsLeader); took < T/2 || took > T*5/8 {
			t.Errorf("it led again after %v", took)
		}
	})
}

func TestWorkMayResignByItself(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		c.run(a, func(ctx context.Context) { a.Resign(); <-ctx.Done() })
		b := c.start("B")
		c.pass(T / 3)
		c.leads(b)
	})
}

func TestWorkThatReturnsByItselfGivesTheLeaseBackAndIsPaced(t *testing.T) { // C67
	for name, work := range map[string]func(context.Context){
		"returns": func(context.Context) {},
		"goexits": func(context.Context) { runtime.Goexit() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a, b := c.run(c.add("A"), work), c.run(c.add("B"), work)
				c.pass(10 * T)
				if a.terms() < 10 || a.terms() > 20 || b.terms() < 10 || b.terms() > 20 {
					t.Errorf("%d and %d terms in ten TTL", a.terms(), b.terms())
				}
				if !strings.Contains(a.log.String(), "returned by itself") {
					t.Errorf("it was not logged:\n%s", a.log)
				}
			})
		})
	}
}

func TestAPanicComesOutOfRunAndFreesTheLease(t *testing.T) { // C64
	inBubble(t, func(t *testing.T, c *cluster) {
		boom := errors.New("boom")
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-time.After(T)
			panic(boom)
		})
		<-a.done
		if a.panicked != boom {
			t.Errorf("%v came out", a.panicked)
		}
		if r := c.table.read(); r.Holder != "" {
			t.Errorf("the row is %+v", r)
		}
		renewals := a.store.count("renew")
		<-time.After(T)
		if n := a.store.count("renew"); n != renewals {
			t.Error("it renewed after the panic")
		}
		if !strings.Contains(a.log.String(), "fake_test.go") && !strings.Contains(a.log.String(), "elector_test.go") {
			t.Errorf("the log has no stack:\n%s", a.log)
		}
	})
}

// Losing

func TestWorkThatIgnoresItsContextIsWaitedForAndNeverDoubled(t *testing.T) { // C63
	inBubble(t, func(t *testing.T, c *cluster) {
		release := make(chan struct{})
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-release
			if term, _ := TermFrom(ctx); term.Epoch > 1 {
				<-ctx.Done()
			}
		})
		c.pass(T)
		c.table.edit(func(r *Record) { r.Holder, r.Epoch, r.ExpiresAt = "thief", 7, r.ExpiresAt.Add(-T) })
		c.pass(T/3 + tick)
		if a.IsLeader() {
			t.Error("it leads after its lease was taken")
		}
		if err := a.Health(); !errors.Is(err, ErrLost) {
			t.Errorf("Health is %v", err)
		}
		c.pass(5 * T)
		if a.terms() != 1 {
			t.Fatal("a second work began before the first returned")
		}
		if n := strings.Count(a.log.String(), "goes on although"); n != 5 {
			t.Errorf("logged %d times:\n%s", n, a.log)
		}
		if r := c.table.read(); r.Holder != "thief" {
			t.Errorf("the thief's row was touched: %+v", r)
		}
		close(release)
		c.passUntil(2*T, "A leads again", a.IsLeader) // C65
		if term, _ := a.Term(); term.Epoch != 8 {
			t.Errorf("epoch %d", term.Epoch)
		}
	})
}

func TestALeaderThatFindsAnotherHolderStopsAtOnce(t *testing.T) { // C47
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		c.pass(T + tick)
		c.table.edit(func(r *Record) { r.Holder = "by hand" })
		row := c.table.read()
		c.pass(T/3 - tick)
		if ended, cause := a.lastEnd(t); !ended.Equal(row.RenewedAt.Add(T/3)) || cause != ErrLost {
			t.Errorf("ended at %v with %v", ended.Sub(row.RenewedAt), cause)
		}
		c.pass(T / 3)
		if got := c.table.read(); got != row {
			t.Errorf("the new holder's row became %+v", got)
		}
	})
}

func TestAfterALossByDeadlineTheTermIsReleasedOnceWorkReturned(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(T / 12)
		})
		c.pass(T)
		a.store.inject(func(s string) fault {
			if s == "renew" {
				return hung
			}
			return fault{}
		})
		c.pass(T * 2 / 3)
		if r := c.table.read(); r.Holder != "A" {
			t.Fatalf("released before work returned: %+v", r)
		}
		c.pass(T/12 + T/3)
		if term, ok := a.Term(); !ok || term.Epoch != 2 {
			t.Errorf("%v, %v; the row is %+v", term, ok, c.table.read())
		}
	})
}

func TestTwoElectorsWithOneHolderNeverBothLead(t *testing.T) { // C48
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

func TestADeletedRowEndsTheTermAndIsSeededAfterATTLWithTheEpochGoingOn(t *testing.T) { // C56
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

// Clocks

func TestAFrozenProcessLearnsOfItsLossBeforeAnyTimerRan(t *testing.T) { // C03
	for name, jump := range map[string]func(p *replica){
		"frozen for 3 TTL":              func(p *replica) { p.jump(3*T, 3*T) },
		"suspended for 10 TTL":          func(p *replica) { p.jump(0, 10*T) },
		"its wall clock put back after": func(p *replica) { p.jump(T, -time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				var first error
				asked := make(chan struct{})
				a := c.run(c.add("A"), func(ctx context.Context) {
					<-asked
					if term, _ := TermFrom(ctx); term.Epoch == 1 {
						first = ctx.Err()
					}
					<-ctx.Done()
				})
				jump(a)
				if a.IsLeader() {
					t.Error("the first IsLeader is true")
				}
				close(asked)
				synctest.Wait()
				if first == nil {
					t.Error("the work's first ctx.Err is nil")
				}
				if _, cause := a.lastEnd(t); cause != ErrLost {
					t.Errorf("the cause is %v", cause)
				}
			})
		})
	}
}

func TestAWallClockThatIsPutBackNeverProlongsATerm(t *testing.T) { // C03
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		c.pass(T)
		last := c.table.read().RenewedAt
		a.jump(0, -time.Hour)
		a.store.cut()
		c.pass(T)
		if ended, _ := a.lastEnd(t); ended.Sub(last) != T-T/3 {
			t.Errorf("its work ended %v after the last good renewal", ended.Sub(last))
		}
	})
}

func TestAWallClockThatJumpsIsSeenWithinATwelfthOfATTL(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		c.pass(T / 100)
		a.jump(0, 10*T)
		jumped := time.Now()
		<-time.After(T / 12)
		synctest.Wait()
		if ended, _ := a.lastEnd(t); ended.Sub(jumped) > T/12 {
			t.Errorf("seen after %v", ended.Sub(jumped))
		}
	})
}

func TestAStepOfTheDatabasesClockMakesNoTwoLeaders(t *testing.T) { // C81
	for _, step := range []time.Duration{T / 12, T / 3, T, 4 * T, 100 * T, -T / 3, -T, -time.Hour} {
		for _, cutOff := range []bool{false, true} {
			t.Run(step.String(), func(t *testing.T) {
				for offset := time.Duration(0); offset < T/3; offset += T / 60 {
					inBubble(t, func(t *testing.T, c *cluster) {
						a, b := c.start("A"), c.start("B")
						c.pass(2*T + offset)
						if cutOff {
							a.store.cut()
						}
						stepped := time.Now()
						c.table.stepClock(step)
						c.pass(2*T + T/3)
						if cutOff && !b.IsLeader() {
							t.Errorf("B does not lead %v after A was cut off; the row is %+v", time.Since(stepped), c.table.read())
						}
						if c.leader() == nil {
							t.Error("nobody leads")
						}
					})
				}
			})
		}
	}
}

func TestAClockThatGoesBackAndForthBetweenTwoPollsMakesNoTwoLeaders(t *testing.T) { // C118
	for _, step := range []time.Duration{T / 3, T / 2, T * 2 / 3, T, 2 * T, time.Hour} {
		for _, cutOff := range []bool{false, true} {
			t.Run(step.String(), func(t *testing.T) {
				for offset := time.Duration(0); offset < T/3; offset += T / 30 {
					for back := T / 120; back < T*2/3; back += T / 24 {
						inBubble(t, func(t *testing.T, c *cluster) {
							a, b := c.start("A"), c.start("B")
							c.pass(T + offset)
							c.table.stepClock(-step)
							c.pass(back)
							c.table.stepClock(step)
							if cutOff {
								a.store.cut()
							}
							c.pass(T)
							if c.pass(T/3 + T/16); cutOff && !b.IsLeader() {
								t.Errorf("B does not lead a TTL and a poll after A was cut off; the row is %+v", c.table.read())
							}
						})
					}
				}
			})
		}
	}
}

// orders calls do with every order of n things.
func orders(n int, do func(order []int)) {
	order := make([]int, n)
	var place func(k int)
	place = func(k int) {
		if k == n {
			do(order)
			return
		}
		for i := k; i < n; i++ {
			order[k], order[i] = order[i], order[k]
			place(k + 1)
			order[k], order[i] = order[i], order[k]
		}
	}
	for i := range order {
		order[i] = i
	}
	place(0)
}

func TestRenewalsThatLandInAnyOrderTakeNothingBack(t *testing.T) { // C111
	const inFlight = 4
	for name, locked := range map[string]bool{"they wait for the row's lock": true, "they are late on the way": false} {
		for _, step := range []time.Duration{0, -T / 5, T / 30, -time.Hour} {
			t.Run(name+", the clock steps by "+step.String(), func(t *testing.T) {
				orders(inFlight, func(order []int) {
					inBubble(t, func(t *testing.T, c *cluster) {
						a, b := c.start("A"), c.start("B")
						c.pass(T / 4)
						sent := 0
						a.store.inject(func(s string) fault {
							if s != "renew" || sent >= inFlight {
								return fault{}
							}
							// The attempts follow each other after T/12, and land when all have been sent.
							wait := T*time.Duration(inFlight-sent)/12 + time.Duration(order[sent])*tick - T/24
							sent++
							if locked {
								return fault{locked: wait}
							}
							return fault{before: wait}
						})
						c.passUntil(T, "the first attempt is on its way", func() bool { return a.store.count("renew") == 1 })
						c.table.stepClock(step)
						before := len(c.table.history())
						for range 120 {
							c.pass(T / 120)
							if left := a.left(); left > 0 && step >= 0 {
								if row := c.table.read(); row.ExpiresAt.Sub(c.table.now()) < left+T/3-step {
									t.Fatalf("A trusts its term for %v, the row for %v: %v", left, row.ExpiresAt.Sub(c.table.now()), order)
								}
							}
						}
						rows := c.table.history()[before-1:]
						if len(rows) <= inFlight {
							t.Fatalf("%d renewals landed", len(rows)-1)
						}
						for i := 1; i < len(rows); i++ {
							if prev, row := rows[i-1], rows[i]; row.ExpiresAt.Before(prev.ExpiresAt) || !row.RenewedAt.After(prev.RenewedAt) {
								t.Errorf("%v: the row went from %v, until %v, to %v, until %v", order,
									prev.RenewedAt, prev.ExpiresAt, row.RenewedAt, row.ExpiresAt)
							}
						}
						if c.leads(a); a.terms() != 1 || b.terms() != 0 {
							t.Errorf("A began %d terms, B %d", a.terms(), b.terms())
						}
					})
				})
			})
		}
	}
}

// The methods

func TestAStoppedOrZeroElectorAnswersNothing(t *testing.T) {
	var e Elector
	if e.IsLeader() {
		t.Error("IsLeader")
	}
	if _, ok := e.Term(); ok {
		t.Error("Term")
	}
	if holder, ok := e.Leader(); ok || holder != "" {
		t.Error("Leader")
	}
	if e.Health() == nil {
		t.Error("Health is nil")
	}
	e.Resign()
}

func TestLeaderIsForgottenOnceItsObservationHasExpired(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.start("A")
		b := c.start("B")
		b.store.cut()
		c.pass(T - T/3)
		if holder, ok := b.Leader(); !ok || holder != "A" {
			t.Errorf("%q, %v", holder, ok)
		}
		c.pass(T/3 + tick)
		if holder, ok := b.Leader(); ok {
			t.Errorf("%q, %v", holder, ok)
		}
		if b.Health() == nil {
			t.Error("Health is nil without an answer for a TTL")
		}
	})
}

func TestFiftyStandbysCostFiftyGoroutines(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.start("A")
		before := runtime.NumGoroutine()
		for range 50 {
			c.start("B")
		}
		c.pass(T / 10)
		if n := runtime.NumGoroutine() - before; n > 55 {
			t.Errorf("%d goroutines", n)
		}
	})
}

func TestBadFieldsAreRefusedAtOnceBeforeAnySQL(t *testing.T) { // C10, C17, C64
	db := dbtest.SQLite(t).Open(t) // without a table: any statement would fail
	work := func(context.Context) {}
	good := func() *Elector { return &Elector{DB: db, Name: "job", TTL: time.Second} }
	tx := db.Begin()
	defer tx.Rollback()
	for argument, e := range map[string]*Elector{
		"Elector.Name":   {DB: db, TTL: time.Second},
		"Elector.Holder": {DB: db, Name: "job", Holder: strings.Repeat("é", 201), TTL: time.Second},
		"Elector.TTL":    {DB: db, Name: "job", TTL: -1},
		"Elector.DB is":  {Name: "job", TTL: time.Second},
		"DryRun":         {DB: db.Session(&gorm.Session{DryRun: true}), Name: "job", TTL: time.Second},
		"Elector.DB":     {DB: tx, Name: "job", TTL: time.Second},
	} {
		if err := e.Run(t.Context(), work); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), argument) {
			t.Errorf("%s: %v", argument, err)
		}
	}
	if err := good().Run(t.Context(), nil); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "work") {
		t.Errorf("nil work: %v", err)
	}
	var none context.Context
	if err := good().Run(none, work); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "ctx") {
		t.Errorf("nil ctx: %v", err)
	}
}

func TestAnElectorRunsOnceAtATimeAndAgain(t *testing.T) {
	db := withSchema(t, dbtest.SQLite(t))
	e := &Elector{DB: db, Name: "job", TTL: time.Minute, Logger: slog.New(slog.DiscardHandler)}
	for range 3 {
		ctx, stop := context.WithCancel(t.Context())
		err := e.Run(ctx, func(ctx context.Context) {
			if err := e.Run(ctx, untilCancelled); !errors.Is(err, ErrInvalid) {
				t.Errorf("a second Run: %v", err)
			}
			if !e.IsLeader() {
				t.Error("the first Run was disturbed")
			}
			e.Name, e.TTL = "", 0 // Run has copied its fields
			stop()
		})
		if err != nil {
			t.Fatal(err)
		}
		e.Name, e.TTL = "job", time.Minute
	}
	if row, err := Find(t.Context(), db, "job"); err != nil || row.Epoch != 3 || row.Held {
		t.Errorf("%+v, %v", row, err)
	}
}

func TestAContextThatHasEndedStartsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		ctx, stop := context.WithCancel(t.Context())
		stop()
		a.Elector.run.campaign(ctx, untilCancelled)
		a.stop, a.done = func(error) {}, make(chan struct{})
		close(a.done)
		if n := a.store.count("take"); n != 0 {
			t.Error("it took the lease")
		}
	})
}

func TestAnyPositiveTTLWorksOrWaitsButNeverPanics(t *testing.T) { // C10
	for _, ttl := range []time.Duration{1, 2, 3, time.Microsecond, time.Millisecond, 1<<63 - 1} {
		t.Run(ttl.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.ttl = ttl
				a := c.start("A")
				<-time.After(time.Second)
				if ttl == 1<<63-1 {
					c.leads(a)
					if term, _ := a.Term(); term.Epoch != 1 {
						t.Errorf("epoch %d", term.Epoch)
					}
				}
				if n := a.store.count(""); n > 500 {
					t.Errorf("%d statements in a second", n)
				}
			})
		})
	}
}

func TestATTLWhoseUnitWasForgottenIsWarnedOf(t *testing.T) { // C10
	db := withSchema(t, dbtest.SQLite(t))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for ttl, wanted := range map[time.Duration]bool{15: true, time.Millisecond: false} {
		var log logBuffer
		e := &Elector{DB: db, Name: "job", TTL: ttl, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		if err := e.Run(ended, func(context.Context) {}); err != nil {
			t.Fatal(err)
		}
		if warned := strings.Contains(log.String(), "was its unit forgotten?"); warned != wanted {
			t.Errorf("with a TTL of %v it logged\n%v", ttl, log.String())
		}
	}
}

func TestALoggerThatBlocksDoesNotProlongATerm(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		let := make(chan struct{})
		a.Elector.run.log = slog.New(slog.NewTextHandler(blockingWriter(func() {
			if a.IsLeader() { // from the first renewal that fails on
				<-let
			}
		}), &slog.HandlerOptions{Level: slog.LevelWarn}))
		c.run(a, untilCancelled)
		c.pass(T)
		last := c.table.read().RenewedAt
		a.store.inject(func(string) fault { return fault{fail: errors.New("refused")} })
		// Run's loop hangs in the log, and nobody asks IsLeader, which would end the term: only the timer is left to.
		<-time.After(T)
		synctest.Wait()
		if ended, _ := a.lastEnd(t); ended.Sub(last) != T-T/3 {
			t.Errorf("the work's context ended after %v", ended.Sub(last))
		}
		close(let)
	})
}
