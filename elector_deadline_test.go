package lease

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func TestWorkEndsTwoThirdsOfATTLAfterTheLastGoodRenewalWasSent(t *testing.T) {
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

func TestDeadlinesCountFromTheSending(t *testing.T) {
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

func TestARenewalThatIsAnsweredSlowlyCountsFromItsSending(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		renewals := 0
		var sent time.Time
		a.store.inject(func(s string) fault {
			if renewals++; renewals > 1 {
				return hung
			}
			sent = time.Now()
			return fault{after: T / 13}
		})
		c.passUntil(2*T, "A stops leading", func() bool { return !a.IsLeader() })
		if ended, _ := a.lastEnd(t); ended.Sub(sent) != T-T/3 {
			t.Errorf("the term ended %v after the last good renewal was sent, not %v", ended.Sub(sent), T-T/3)
		}
	})
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

func TestNothingIsRenewedAfterTheDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(5 * T)
		})
		a.store.inject(func(s string) fault { return fault{fail: errRefused} })
		c.passUntil(T, "A stops", func() bool { return !a.IsLeader() })
		synctest.Wait()
		renewals := a.store.count("renew")
		c.pass(3 * T)
		if n := a.store.count("renew") - renewals; n != 0 {
			t.Errorf("%d renewals of a term that is over", n)
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
