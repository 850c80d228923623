package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestWhenRunsContextEndsTheLeaseIsFreeAtOnce(t *testing.T) {
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

func TestTheContextOfWorkThatReturnedHasEndedBeforeTheRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		var left context.Context // to a goroutine that work left behind
		var trusted, released bool
		a.store.inject(func(s string) fault {
			if s == "release" && !released {
				released, trusted = true, left.Err() == nil
			}
			return fault{}
		})
		c.run(a, func(ctx context.Context) { left = ctx })
		if !released || trusted {
			t.Errorf("released: %v; while the work's context was trusted: %v", released, trusted)
		}
	})
}

func TestTheLeaseIsRenewedUntilWorkHasWoundDown(t *testing.T) {
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

func TestRenewalsThatTakeTheirTimeGoOnWhileWorkWindsDown(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(3 * T)
		})
		b := c.start("B")
		a.store.inject(func(string) fault { return fault{before: T / 100, after: T / 100} })
		c.pass(T)
		a.stop(nil)
		c.pass(3*T - tick)
		if b.terms() != 0 {
			t.Error("B led while A's work wound down")
		}
		c.passUntil(T, "B leads", b.IsLeader)
	})
}

func TestTheFirstReminderOfWindingDownComesATTLAfterItBegan(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(2 * T)
		})
		c.pass(T * 9 / 10)
		a.Resign()
		for after, want := range []int{0, 1} {
			c.pass(T - T/20)
			if n := strings.Count(a.log.String(), "winds down"); n != want {
				t.Errorf("said %d times, not %d, after %d TTL", n, want, after+1)
			}
			c.pass(T / 20)
		}
	})
}

func TestAReleaseThatFailsIsTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		a.store.inject(firstly(2, "release", fault{fail: errRefused}))
		a.stop(nil)
		<-a.done
		if row := c.table.read(); row.Holder != "" {
			t.Errorf("the row is %+v\n%s", row, a.log)
		}
	})
}

func TestAReleaseThatHangsIsSentAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		a.store.inject(firstly(1, "release", hung))
		a.stop(nil)
		<-a.done
		if row := c.table.read(); row.Holder != "" {
			t.Errorf("the row is %+v\n%s", row, a.log)
		}
	})
}

func TestRunKeepsItsBoundThoughATakeoverIsInFlightAndTheReleaseHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(func(s string) fault {
			switch s {
			case "take":
				return fault{after: T / 10}
			case "release":
				return fault{before: time.Hour, deaf: true}
			}
			return fault{}
		})
		c.run(a, untilCancelled)
		<-time.After(T / 100)
		begin := time.Now()
		a.stop(nil)
		<-a.done
		if took := time.Since(begin); took > T/3 {
			t.Errorf("Run returned after %v", took)
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

func TestStandingBackEndsOnTime(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		for range 20 {
			c.leads(a)
			a.Resign()
			synctest.Wait()
			if took := c.passUntil(T, "A leads again", a.IsLeader); took < T/2 || took > T*9/16+T/100 {
				t.Errorf("A stood back for %v", took)
			}
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
