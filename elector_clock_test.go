package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestAFrozenProcessLearnsOfItsLossBeforeAnyTimerRan(t *testing.T) {
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

func TestAWallClockThatIsPutBackNeverProlongsATerm(t *testing.T) {
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

func TestAStepOfTheDatabasesClockMakesNoTwoLeaders(t *testing.T) {
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

func TestAClockThatGoesBackAndForthBetweenTwoPollsMakesNoTwoLeaders(t *testing.T) {
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

func TestASlowPollHidesNoStepOfTheClock(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.start("A"), c.add("B")
		<-time.After(T / 240)
		b.store.inject(firstly(1, "poll", fault{before: T/3 - T/600})) // lands just after A renewed
		c.run(b, untilCancelled)
		c.pass(T / 3)
		if row := c.table.read(); !row.RenewedAt.After(row.AcquiredAt) {
			t.Fatal("A has not renewed")
		}
		a.store.cut()
		c.table.stepClock(T * 39 / 100)
		c.pass(T)
		c.checkTerms()
	})
}
