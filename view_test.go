package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestHealthSaysTheLatestOfWhatItKnows(t *testing.T) {
	now := at(0)
	v := view{clock: func() instant { return now }, fresh: T}
	v.fail(errRefused)
	if err := v.health(); !errors.Is(err, errRefused) {
		t.Errorf("before any answer: %v", err)
	}
	v.hear()
	now = at(T)
	if err := v.health(); err != nil {
		t.Errorf("after a TTL of silence: %v", err)
	}
	now = at(T + 1)
	if err := v.health(); err == nil || errors.Is(err, errRefused) || !strings.Contains(err.Error(), "for "+(T+1).String()) {
		t.Errorf("after more, with a failure before the answer: %v", err)
	}
	v.fail(errRefused)
	if err := v.health(); !errors.Is(err, errRefused) {
		t.Errorf("after that, with a failure: %v", err)
	}
}

func TestAStandbyIsUnhealthyOnceNothingWasAnsweredForATTL(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.start("A")
		b := c.start("B")
		c.pass(T)
		b.store.cut()
		c.pass(T / 2)
		if err := b.Health(); err != nil {
			t.Errorf("after half a TTL: %v", err)
		}
		c.pass(T)
		if err := b.Health(); err == nil {
			t.Error("healthy, although nothing was answered for a TTL")
		}
	})
}

func TestALeaderIsHealthyForAsLongAsItsRenewalsAreAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		c.pass(3 * T)
		if err := a.Health(); err != nil {
			t.Error(err)
		}
		a.store.inject(func(string) fault { return fault{fail: errRefused} })
		c.pass(T/3 + tick)
		if log := a.log.String(); strings.Count(log, "op=renew") != 1 || !strings.Contains(log, errRefused.Error()) {
			t.Errorf("the log is\n%s", log)
		}
	})
}

func TestTheAnswerToATakeoverCountsForHealth(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		begun := false
		a.store.inject(func(s string) fault {
			switch {
			case s == "take":
				return fault{after: T / 2}
			case s == "poll" && !begun:
				begun = true
				return fault{}
			}
			return hung
		})
		c.run(a, untilCancelled)
		c.pass(T + T/6)
		if err := a.Health(); err != nil {
			t.Errorf("two thirds of a TTL after the last answer: %v", err)
		}
		c.pass(T / 2)
		if a.Health() == nil {
			t.Error("healthy without an answer for more than a TTL")
		}
	})
}

func TestTheAnswerToAReleaseCountsForHealth(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		a.store.inject(func(s string) fault {
			if s == "release" {
				return fault{}
			}
			return hung
		})
		c.pass(T + T/3) // its term was over, and released, after two thirds
		if err := a.Health(); err != nil || a.store.count("release") != 1 {
			t.Errorf("%v, after %d releases", err, a.store.count("release"))
		}
		c.pass(T / 2)
		if a.Health() == nil {
			t.Error("healthy without an answer for more than a TTL")
		}
	})
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

func TestWorkThatWindsDownStillHasItsLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(T)
		})
		a.Resign()
		synctest.Wait()
		if holder, ok := a.Leader(); holder != "A" || !ok || a.IsLeader() {
			t.Errorf("Leader is %q, %v; IsLeader is %v", holder, ok, a.IsLeader())
		}
	})
}

func TestWorkThatOutlivesItsLeaseHasNoLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(T)
		})
		a.store.cut()
		c.pass(T)
		if holder, ok := a.Leader(); ok || holder != "" {
			t.Errorf("Leader is %q, %v, although its term is over", holder, ok)
		}
	})
}
