package lease

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestRunReleasesTheClaimOfWorkThatIsDone(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		r := k.run(working(3*T, nil))
		elapse(3*T - tick)
		if r.over() || r.ctx.Err() != nil || k.store.count("renew") != 8 {
			t.Errorf("returned: %v; the context says %v; %d renewals in three TTLs", r.over(), r.ctx.Err(), k.store.count("renew"))
		}
		elapse(tick)
		if !r.over() || r.err != nil {
			t.Errorf("returned: %v, %v", r.over(), r.err)
		}
		r.cause(context.Canceled)
		k.released(false)
		k.lost(0)
	})
}

func TestRunLeavesTheClaimOfWorkThatFailedToRunOut(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		r := k.run(working(T, errWork))
		elapse(T)
		if !r.over() || r.err != errWork {
			t.Errorf("returned: %v, %v", r.over(), r.err)
		}
		r.cause(context.Canceled)
		k.leftAlone()
		k.lost(0)
	})
}

func TestRunOfAClaimThatIsOverBeginsNoWork(t *testing.T) {
	for name, test := range map[string]struct {
		before func(k *keeper)
		why    error
	}{
		"lost, as is known":              {func(k *keeper) { k.store.taken(); _ = k.Renew(k.t.Context()) }, ErrLost},
		"lost after it ran out":          {func(k *keeper) { elapse(T); k.store.taken() }, ErrLost},
		"released":                       {func(k *keeper) { _ = k.Release(k.t.Context()) }, ErrLost},
		"run out, and the database down": {func(k *keeper) { elapse(T); k.store.inject(always(fault{fail: errRefused})) }, errRefused},
		"run out, and the database hung": {func(k *keeper) { elapse(T); k.store.cut() }, ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				test.before(k)
				r := k.run(working(0, nil))
				elapse(T / 3)
				if !r.over() || r.began() || !errors.Is(r.err, ErrLost) || !errors.Is(r.err, test.why) {
					t.Errorf("returned: %v; began: %v; %v", r.over(), r.began(), r.err)
				}
			})
		})
	}
}

func TestRunOfAClaimThatRanOutRenewsFirst(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		elapse(5 * T)
		k.store.inject(firstly(1, "renew", fault{after: T / 12}))
		begun := time.Now()
		r := k.run(until(0, nil))
		if r.began() {
			t.Error("work began on a claim that had run out")
		}
		elapse(T / 12)
		if !r.began() {
			t.Fatal("work has not begun")
		}
		k.store.cut()
		elapse(T)
		r.endedAt(begun.Add(T - T/3))
	})
}

func TestRunCancelsWorkWhoseClaimIsLost(t *testing.T) {
	for name, lose := range map[string]struct {
		how   func(k *keeper)
		after time.Duration // after a renewal at two thirds of a TTL
	}{
		"by a takeover":              {func(k *keeper) { k.store.taken() }, T / 3},
		"by deletion":                {func(k *keeper) { k.store.table.delete() }, T / 3},
		"by its deadline":            {func(k *keeper) { k.store.cut() }, T - T/3},
		"by a deaf driver":           {func(k *keeper) { k.store.inject(always(fault{before: time.Hour, deaf: true})) }, T - T/3},
		"by a database that is down": {func(k *keeper) { k.store.inject(always(fault{fail: errRefused})) }, T - T/3},
	} {
		for _, result := range []error{nil, errWork, context.Canceled} {
			t.Run(fmt.Sprint(name, ", with work that returns ", result), func(t *testing.T) {
				keeping(t, T, func(t *testing.T, k *keeper) {
					begun := time.Now()
					r := k.run(until(T/24, result))
					elapse(T - T/4)
					lose.how(k)
					elapse(T)
					r.endedAt(begun.Add(T*2/3 + lose.after))
					r.cause(ErrLost)
					if !r.over() || !errors.Is(r.err, ErrLost) || result != nil && !errors.Is(r.err, result) {
						t.Errorf("returned: %v, %v", r.over(), r.err)
					}
					k.store.heal()
					k.leftAlone()
					k.lost(1)
				})
			})
		}
	}
}

func TestRunTakesTheAttemptBackWhenItsContextEnded(t *testing.T) {
	for name, test := range map[string]struct{ result, want error }{
		"nil":                   {nil, nil},
		"what its context says": {context.Canceled, errShutdown},
		"an error":              {errWork, errShutdown},
	} {
		for _, windsDown := range []time.Duration{0, 3 * T} {
			t.Run(fmt.Sprint("after ", windsDown, " with work that returns ", name), func(t *testing.T) {
				keeping(t, T, func(t *testing.T, k *keeper) {
					r := k.run(until(windsDown, test.result))
					elapse(T)
					renewals, stopped := k.store.count("renew"), time.Now()
					r.stop(errShutdown)
					elapse(windsDown - tick)
					if windsDown > 0 {
						if n := k.store.count("renew") - renewals; n < 8 || r.over() || k.store.table.read().Holder != "A" {
							t.Errorf("%d renewals in three TTLs; returned: %v", n, r.over())
						}
					}
					elapse(tick)
					r.endedAt(stopped)
					r.cause(errShutdown)
					if !r.over() || !errors.Is(r.err, test.want) || test.want == nil && r.err != nil || test.result != nil && !errors.Is(r.err, test.result) {
						t.Errorf("returned: %v, %v", r.over(), r.err)
					}
					k.released(true)
					k.lost(0)
				})
			})
		}
	}
}

func TestAttemptsAreTakenBackOnlyWhenRunsContextEnded(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, database *dbtest.Database) {
		db := withSchema(t, database)
		if err := Create(t.Context(), db, Item{Key: "item"}); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		for i, step := range []struct {
			attempts int // of the claim
			work     func(stop func()) error
			after    int // of the row
		}{
			{1, func(func()) error { return errWork }, 1},
			{2, func(stop func()) error { stop(); return nil }, 1},
			{2, func(stop func()) error { stop(); return errWork }, 1},
			{2, func(func()) error { panic(errWork) }, 2},
			{3, func(stop func()) error { stop(); return context.Canceled }, 2},
			{3, func(func()) error { return nil }, 0},
			{1, func(stop func()) error { stop(); return nil }, 0},
			{1, func(func()) error { return context.Canceled }, 1}, // which nobody asked it to
		} {
			now = now.Add(time.Hour)
			h, err := Claim(t.Context(), db, "item", fmt.Sprint("worker ", i), "", time.Minute, func() time.Time { return now })
			if err != nil {
				t.Fatal(err)
			}
			if n := h.Item().Attempts; n != step.attempts {
				t.Errorf("step %d: %d attempts, not %d", i, n, step.attempts)
			}
			ctx, stop := context.WithCancel(t.Context())
			func() {
				defer func() { _ = recover() }()
				_ = h.Run(ctx, func(context.Context) error { return step.work(stop) })
			}()
			stop()
			if it, _, err := Load(t.Context(), db, "item"); err != nil || it.Attempts != step.after {
				t.Errorf("step %d: %d attempts after it, not %d; %v", i, it.Attempts, step.after, err)
			}
		}
	})
}

func TestRunInAContextThatHasEndedGivesTheAttemptBack(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		r := k.runIn(endedContext(t), func(ctx context.Context) error { return ctx.Err() })
		if !r.over() || !errors.Is(r.err, context.Canceled) {
			t.Errorf("returned: %v, %v", r.over(), r.err)
		}
		k.released(true)
	})
}

func TestRunInAContextThatHasEndedBeginsNoWork(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		ctx, stop := context.WithCancelCause(t.Context())
		stop(errShutdown)
		r := k.runIn(ctx, working(0, nil))
		if r.began() {
			t.Error("work began")
		}
		if !r.over() || !errors.Is(r.err, errShutdown) {
			t.Errorf("returned: %v, %v", r.over(), r.err)
		}
		k.released(true)
	})
}

func TestAClaimThatIsLostWhileWorkWindsDownIsALoss(t *testing.T) {
	for name, lose := range map[string]func(k *keeper){"taken": func(k *keeper) { k.store.taken() }, "cut off": func(k *keeper) { k.store.cut() }} {
		t.Run(name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				r := k.run(until(3*T, context.Canceled))
				r.stop(errShutdown)
				lose(k)
				elapse(3 * T)
				r.cause(errShutdown)
				if !r.over() || !errors.Is(r.err, ErrLost) {
					t.Errorf("returned: %v, %v", r.over(), r.err)
				}
				k.store.heal()
				k.leftAlone()
				k.lost(1)
			})
		})
	}
}

func TestWorkMayReleaseItsOwnClaim(t *testing.T) {
	for name, test := range map[string]struct{ result, want error }{
		"nil":                   {nil, nil},
		"what its context says": {context.Canceled, nil},
		"an error":              {errWork, errWork},
	} {
		t.Run("and return "+name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				b := k.heartbeat(0)
				r := k.run(func(ctx context.Context) error {
					<-time.After(T)
					if err := k.Release(ctx); err != nil {
						t.Error(err)
					}
					if ctx.Err() == nil {
						t.Error("the context has not ended")
					}
					return test.result
				})
				elapse(T)
				r.cause(context.Canceled)
				if !r.over() || !errors.Is(r.err, test.want) || test.want == nil && r.err != nil {
					t.Errorf("returned: %v, %v", r.over(), r.err)
				}
				b.neverLost()
				k.released(false)
				elapse(T)
				if n := k.store.count("release"); n != 1 {
					t.Errorf("%d releases", n)
				}
				k.lost(0)
			})
		})
	}
}

func TestAReleaseByWorkOfUnknownOutcomeIsNoLoss(t *testing.T) {
	for name, f := range map[string]fault{"that landed": {lose: true}, "that did not": {fail: errRefused}} {
		t.Run(name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				k.store.inject(firstly(1, "release", f))
				r := k.run(func(ctx context.Context) error {
					if err := k.Release(ctx); err == nil {
						t.Error("Release told nothing")
					}
					<-time.After(T)
					return nil
				})
				elapse(T)
				if !r.over() || r.err != nil {
					t.Errorf("returned: %v, %v", r.over(), r.err)
				}
				k.released(false)
				k.lost(0)
			})
		})
	}
}

func TestAPanicComesOutOfTheRunOfAClaimWhichThenRunsOut(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		r := k.run(func(context.Context) error {
			<-time.After(T)
			panic(errWork)
		})
		elapse(T)
		if !r.over() || r.panicked != errWork {
			t.Errorf("returned: %v; %v came out", r.over(), r.panicked)
		}
		r.cause(context.Canceled)
		k.leftAlone()
		again := k.run(working(0, nil)) // it may, for nobody took the item
		if !again.over() || again.err != nil {
			t.Errorf("another Run: %v, %v", again.over(), again.err)
		}
	})
}

func TestWorkThatEndsItsGoroutineLeavesTheClaimToRunOut(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		r := k.run(func(context.Context) error {
			<-time.After(T)
			runtime.Goexit()
			return nil
		})
		elapse(T)
		if !r.over() || r.panicked != nil {
			t.Errorf("returned: %v; %v came out", r.over(), r.panicked)
		}
		r.cause(context.Canceled)
		k.leftAlone()
	})
}

func TestASecondRunAtTheSameTimeIsInvalid(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		r := k.run(func(ctx context.Context) error {
			for range 2 {
				if err := k.Run(ctx, working(0, nil)); !errors.Is(err, ErrInvalid) {
					t.Errorf("a Run within: %v", err)
				}
			}
			<-time.After(T)
			return ctx.Err()
		})
		if err := k.Run(t.Context(), working(0, nil)); !errors.Is(err, ErrInvalid) {
			t.Errorf("a Run beside: %v", err)
		}
		elapse(T)
		if !r.over() || r.err != nil {
			t.Errorf("the first returned: %v, %v", r.over(), r.err)
		}
		k.released(false)
	})
}

func TestARunAfterOneThatFailedIsAllowed(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		for range 3 {
			if err := k.Run(t.Context(), working(T/4, errWork)); err != errWork {
				t.Error(err)
			}
		}
		if err := k.Run(t.Context(), working(T/4, nil)); err != nil {
			t.Error(err)
		}
		k.released(false)
	})
}

func TestARunWithoutWorkOrContextIsInvalid(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		if err := k.Run(t.Context(), nil); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "work") {
			t.Errorf("without work: %v", err)
		}
		var none context.Context
		if err := k.Run(none, working(0, nil)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "ctx") {
			t.Errorf("without a context: %v", err)
		}
		if n := k.store.count(""); n != 0 {
			t.Errorf("%d statements", n)
		}
		if err := k.Run(t.Context(), working(0, nil)); err != nil {
			t.Errorf("after that: %v", err)
		}
	})
}

func TestTheContextOfAClaimsWorkCarriesTheClaim(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		k := newKeeper(t, T)
		defer k.end()
		a := c.run(c.add("A"), func(ctx context.Context) {
			_ = k.Run(ctx, func(ctx context.Context) error {
				if f, ok := fenceFrom(ctx); !ok || f != fencer(k.Holder) {
					t.Errorf("in the claim's work within an elector's, the fence is of %v", f)
				}
				if term, ok := TermFrom(ctx); !ok || term.Name != "job" {
					t.Errorf("the elector's term is %v, %v", term, ok)
				}
				if f, _ := fenceFrom(WithTerm(ctx, Term{Name: "inner"})); f.named() != `"inner"` {
					t.Errorf("in a term within it, the fence is of %v", f)
				}
				return nil
			})
			<-ctx.Done()
		})
		c.leads(a)
		k.released(false)
	})
}

func TestAClaimWithinATermEndsWithEither(t *testing.T) {
	for name, test := range map[string]struct {
		freeze     func(a *replica, k *keeper)
		term, kept bool // what goes on
	}{
		"the term's deadline passed":  {func(a *replica, _ *keeper) { a.jump(3*T, 3*T) }, false, true},
		"the claim's deadline passed": {func(_ *replica, k *keeper) { k.jump(3*T, 3*T) }, true, false},
		"both have":                   {func(a *replica, k *keeper) { a.jump(3*T, 3*T); k.jump(3*T, 3*T) }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				k := newKeeper(t, T)
				defer k.end()
				woken, done := make(chan struct{}), make(chan error, 1)
				a := c.run(c.add("A"), func(ctx context.Context) {
					if k.store.count("release") > 0 || closed(woken) {
						<-ctx.Done()
						return
					}
					outer := ctx
					done <- k.Run(ctx, func(ctx context.Context) error {
						<-woken
						if ctx.Err() == nil || context.Cause(ctx) != ErrLost || !ctxLost(ctx) {
							t.Errorf("its context says %v, because of %v", ctx.Err(), context.Cause(ctx))
						}
						if goesOn := outer.Err() == nil; goesOn != test.term {
							t.Errorf("the term goes on: %v", goesOn)
						}
						return ctx.Err()
					})
					<-ctx.Done()
				})
				elapse(T / 100)
				test.freeze(a, k)
				close(woken)
				synctest.Wait()
				if err := <-done; !errors.Is(err, ErrLost) || !errors.Is(err, context.Canceled) {
					t.Errorf("Run: %v", err)
				}
				if test.kept {
					k.released(true)
					k.lost(0)
				} else {
					k.lost(1)
				}
			})
		})
	}
}

// The work was frozen, and asks its context before any timer has had its turn.
func TestFrozenWorkLearnsOfItsLossBeforeAnyTimerRan(t *testing.T) {
	for name, jump := range map[string]func(k *keeper){
		"frozen for 3 TTL":              func(k *keeper) { k.jump(3*T, 3*T) },
		"suspended for 10 TTL":          func(k *keeper) { k.jump(0, 10*T) },
		"its wall clock put back after": func(k *keeper) { k.jump(T, -time.Hour) },
		"its wall clock put back":       func(k *keeper) { k.jump(0, -time.Hour); k.jump(T, T) },
	} {
		t.Run(name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				woken := make(chan struct{})
				r := k.run(func(ctx context.Context) error {
					child, cancel := context.WithCancel(ctx)
					defer cancel()
					<-woken
					if ctx.Err() == nil || context.Cause(ctx) != ErrLost || child.Err() == nil || !ctxLost(child) {
						t.Errorf("its context says %v, because of %v; a child %v", ctx.Err(), context.Cause(ctx), child.Err())
					}
					return nil
				})
				elapse(T / 100)
				jump(k)
				close(woken)
				synctest.Wait()
				if !r.over() || !errors.Is(r.err, ErrLost) {
					t.Errorf("returned: %v, %v", r.over(), r.err)
				}
				k.leftAlone()
				k.lost(1)
			})
		})
	}
}

func TestALossThatNobodySawBeforeAClaimsWorkReturnedIsALoss(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		woken := make(chan struct{})
		r := k.run(func(context.Context) error { <-woken; return nil })
		k.jump(T, T)
		close(woken)
		synctest.Wait()
		if !r.over() || !errors.Is(r.err, ErrLost) {
			t.Errorf("returned: %v, %v", r.over(), r.err)
		}
		k.leftAlone()
		k.lost(1)
	})
}
