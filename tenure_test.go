package lease

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

func TestATenureIsExtendedByTheseRules(t *testing.T) {
	now := at(0)
	begin := func(ttl time.Duration) *tenure {
		return newTenure(t.Context(), Term{Name: "job", Holder: "A", Epoch: 1}, now, ttl, func() instant { return now })
	}
	long := begin(time.Hour)
	defer long.end(byRelease)
	if !long.extend(at(2*time.Hour)) || !long.extend(at(time.Hour)) || long.left() != 2*time.Hour {
		t.Errorf("an answer that came late took the deadline back, to %v", long.left())
	}
	now = at(2 * time.Hour) // no timer has noticed
	if long.extend(at(3 * time.Hour)) {
		t.Error("an answer that came after the deadline revived the term")
	}
	for _, ttl := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 / 2} {
		huge := begin(ttl)
		if !huge.leads() || huge.left() < 90*365*24*time.Hour {
			t.Errorf("a TTL of %v leaves %v", ttl, huge.left())
		}
		huge.end(byRelease)
	}
	if i := at(0).plus(math.MaxInt64); i.mono != math.MaxInt64 || i.wall != math.MaxInt64 {
		t.Errorf("an instant wrapped around: %v", i)
	}
}

func TestATenureThatIsOverLooksAtNoClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		tenure := newTenure(t.Context(), Term{}, machineClock(), T, func() instant { looks++; return machineClock() })
		<-time.After(T / 24)
		synctest.Wait()
		tenure.end(byRelease)
		before := looks
		<-time.After(T)
		synctest.Wait()
		if before == 0 || looks != before {
			t.Errorf("%d looks, and %d after the end", before, looks-before)
		}
	})
}

func TestWhoeverSeesTheEndSecondFindsTheContextEnded(t *testing.T) {
	tenure := newTenure(t.Context(), Term{}, at(0), time.Hour, func() instant { return at(0) })
	tenure.mu.Lock() // the first has come this far, and not to the cancelling
	tenure.timer.Stop()
	tenure.ended, tenure.reason, tenure.cause = true, byTakeover, ErrLost
	close(tenure.over)
	tenure.mu.Unlock()
	if tenure.leads() || context.Cause(tenure.ctx) != ErrLost {
		t.Errorf("the context's error is %v, its cause %v", tenure.ctx.Err(), context.Cause(tenure.ctx))
	}
	if reason, ok := tenure.lost(); reason != byTakeover || !ok {
		t.Errorf("the reason became %q, %v", reason, ok)
	}
}

func TestAContextThatWorkLeftBehindIsCancelledAndNotLost(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		var left context.Context
		c.run(c.add("A"), func(ctx context.Context) {
			if left == nil {
				left = ctx
			}
		})
		if cause := context.Cause(left); cause != context.Canceled || ctxLost(left) {
			t.Errorf("the cause is %v, after a term that was given back", cause)
		}
	})
}
