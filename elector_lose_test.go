package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestALeaderThatFindsAnotherHolderStopsAtOnce(t *testing.T) {
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

func TestNothingIsRenewedOrReleasedAfterATakeover(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(2 * T)
		})
		c.pass(T)
		c.table.edit(func(r *Record) { r.Epoch++; r.ExpiresAt = r.ExpiresAt.Add(time.Hour) }) // by a twin, of the same name
		took := c.passUntil(T, "A stops", func() bool { return !a.IsLeader() })
		if took > T/3+T/12 {
			t.Errorf("it took A %v to see that", took)
		}
		if !strings.Contains(a.log.String(), "reason=taken") {
			t.Errorf("the log is\n%s", a.log)
		}
		renewals := a.store.count("renew")
		c.pass(3 * T)
		if n := a.store.count("renew") - renewals; n != 0 {
			t.Errorf("%d renewals of a term that is over", n)
		}
		if n := a.store.count("release"); n != 0 {
			t.Errorf("%d releases of somebody else's term", n)
		}
	})
}

func TestATermThatCanNoLongerBeRenewedEndsAtOnceAndIsReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		c.table.stepClock(T / 2) // the next renewal finds a sixth left
		took := c.passUntil(T, "A stops", func() bool { return !a.IsLeader() })
		if took > T/3+T/100 {
			t.Errorf("A led for another %v", took)
		}
		synctest.Wait()
		if !strings.Contains(a.log.String(), "reason=expired") || a.store.count("release") != 1 {
			t.Errorf("%d releases; the log is\n%s", a.store.count("release"), a.log)
		}
	})
}

func TestALossThatNobodySawBeforeWorkReturnedIsALoss(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		woken := make(chan struct{})
		a := c.add("A")
		ctx, stop := context.WithCancelCause(t.Context())
		a.stop = stop
		go func() { // not through c.run, whose work asks its context how it ended
			defer close(a.done)
			a.Elector.run.campaign(ctx, func(context.Context) { <-woken })
		}()
		<-time.After(T / 50)
		a.jump(T, T) // frozen; no timer has had its turn
		close(woken)
		synctest.Wait()
		if !strings.Contains(a.log.String(), "lease: lost") {
			t.Errorf("the log is\n%s", a.log)
		}
	})
}

func TestResigningALostTermDoesNotHideTheLoss(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		<-time.After(T / 50)
		a.jump(T, T) // no timer has had its turn
		a.Resign()
		synctest.Wait()
		if _, cause := a.lastEnd(t); cause != ErrLost {
			t.Errorf("the cause is %v", cause)
		}
	})
}

func TestALostTermIsLoggedWithItsReason(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(c *cluster)
		reason string
	}{
		"deleted":            {func(c *cluster) { c.table.delete() }, byDeletion},
		"released":           {func(c *cluster) { c.table.edit(func(r *Record) { r.Holder = "" }) }, byOthers},
		"taken":              {func(c *cluster) { c.table.edit(func(r *Record) { r.Epoch++ }) }, byTakeover},
		"taken and released": {func(c *cluster) { c.table.edit(func(r *Record) { r.Epoch++; r.Holder = "" }) }, byTakeover},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.start("A")
				tc.change(c)
				c.pass(T/3 + tick)
				log := a.log.String()
				for _, line := range []string{"lease: lost", "after its lease was lost"} {
					if _, rest, ok := strings.Cut(log, line); !ok || !strings.Contains(strings.SplitN(rest, "\n", 2)[0], "reason="+tc.reason) {
						t.Errorf("%q is not in the log, with its reason:\n%s", line, log)
					}
				}
			})
		})
	}
}

func TestWorkThatIgnoresItsContextIsWaitedForAndNeverDoubled(t *testing.T) {
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
		c.passUntil(2*T, "A leads again", a.IsLeader)
		if term, _ := a.Term(); term.Epoch != 8 {
			t.Errorf("epoch %d", term.Epoch)
		}
	})
}

func TestWorkThatWoundDownPastItsDeadlineIsNotSaidToKeepTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(6 * T)
		})
		a.Resign()
		a.store.cut()
		c.pass(T - tick) // lost at two thirds, and not yet reminded
		before := strings.Count(a.log.String(), "keeps the lease")
		c.pass(4 * T)
		if n := strings.Count(a.log.String(), "keeps the lease") - before; n != 0 {
			t.Errorf("said %d times after the loss\n%s", n, a.log)
		}
		a.store.heal()
		c.pass(2 * T)
	})
}
