package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
)

// The life of a claim is tested here against a row in memory, in a bubble of testing/synctest, where every wait is exact.

// The pace of a heartbeat

func TestAHeartbeatRenewsAtItsInterval(t *testing.T) {
	for interval, pace := range map[time.Duration]time.Duration{
		0: T / 3, -1: T / 3, math.MinInt64: T / 3,
		T / 4: T / 4, T / 100: T / 100, T / 2: T / 2,
		T/2 + 1: T / 2, T: T / 2, math.MaxInt64: T / 2,
	} {
		t.Run(interval.String(), func(t *testing.T) {
			for name, f := range map[string]fault{"at once": {}, "slowly": {before: T / 300, after: T / 300}} {
				keeping(t, T, func(t *testing.T, k *keeper) {
					k.store.inject(always(f))
					last := k.store.table.read().AcquiredAt
					b := k.heartbeat(interval)
					elapse(10 * T)
					if n, want := k.store.count("renew"), int(10*T/pace); n < want-1 || n > want {
						t.Errorf("answered %s: %d renewals in 10 TTL, not %d", name, n, want)
					}
					for _, sent := range k.store.sentAt() {
						if got := sent.Sub(last); got != pace {
							t.Fatalf("answered %s: a renewal was sent %v after the one before, not %v", name, got, pace)
						}
						last = sent
					}
					if n := b.renewals(); n < k.store.count("renew")-1 {
						t.Errorf("onRenewed was called %d times after %d renewals", n, k.store.count("renew"))
					}
					b.neverLost()
				})
			}
		})
	}
}

func TestAHeartbeatCountsFromTheLastRenewalWhoeverSentIt(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		elapse(T / 6)
		if err := k.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		elapse(T / 6)
		k.heartbeat(0)
		elapse(T / 3)
		if sent := k.store.sentAt(); len(sent) != 2 || sent[1].Sub(begin) != T/3 {
			t.Errorf("renewals at %v, a third of a TTL after %v", sent[1:], begin)
		}
	})
}

func TestAHeartbeatThatBeginsWhenARenewalIsDueSendsItAtOnce(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		elapse(T / 2)
		b := k.heartbeat(0)
		elapse(tick)
		if k.store.count("renew") != 1 || b.over() {
			t.Errorf("%d renewals", k.store.count("renew"))
		}
	})
}

func TestAnHourOfAHeartbeatIsThreeWritesPerTTL(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		b := k.heartbeat(0)
		elapse(time.Hour)
		if n, want := k.store.count(""), int(3*time.Hour/T); n < want-1 || n > want {
			t.Errorf("%d statements, not %d", n, want)
		}
		b.neverLost()
		k.lost(0)
	})
}

func TestTwoHeartbeatsOfOneClaimAreBothKept(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		one, other := k.heartbeat(0), k.heartbeat(T/4)
		elapse(5 * T)
		one.stop()
		elapse(5 * T)
		one.neverLost()
		if !one.over() || other.over() {
			t.Error("the end of the one is not its own")
		}
		k.store.taken()
		taken := k.store.sentAt()
		elapse(T)
		other.lostOnce(taken[len(taken)-1].Add(T / 4))
		k.lost(1)
	})
}

// Trouble with the database

func TestAHeartbeatEndsTwoThirdsOfATTLAfterTheLastGoodRenewalWasSent(t *testing.T) { // C36, C37
	for name, f := range map[string]fault{
		"fails":                                {fail: errRefused},
		"hangs":                                hung,
		"hangs in a deaf driver":               {before: time.Hour, deaf: true},
		"is carried out, but deaf":             {after: time.Hour, deaf: true},
		"is answered after 0.8 TTL":            {after: T * 8 / 10, deaf: true},
		"is answered just too late":            {after: T/3 + tick, deaf: true},
		"is carried out and answered too late": {before: T / 2, deaf: true},
		"loses its answer":                     {lose: true},
	} {
		t.Run("when the next one "+name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				b := k.heartbeat(0)
				elapse(T + T/12)
				last := k.store.table.read().RenewedAt
				k.store.inject(always(f))
				elapse(time.Until(last.Add(T-T/3)) - tick)
				b.neverLost()
				elapse(T)
				why := b.lostOnce(last.Add(T - T/3))
				if f.fail != nil && !errors.Is(why, f.fail) {
					t.Errorf("it does not say why: %v", why)
				}
				elapse(5 * T)
				b.lostOnce(last.Add(T - T/3))
				if !b.over() {
					t.Error("Heartbeat has not returned")
				}
				k.lost(1)
			})
		})
	}
}

func TestATrustCountsFromTheSendingOfARenewalThatIsAnsweredSlowly(t *testing.T) {
	for _, after := range []time.Duration{T / 100, T / 13, T / 4, T/3 - tick} {
		keeping(t, T, func(t *testing.T, k *keeper) {
			begun := time.Now()
			renewals := 0
			k.store.inject(func(string) fault {
				if renewals++; renewals == 1 {
					return fault{after: after}
				}
				return hung
			})
			b := k.heartbeat(0)
			elapse(2 * T)
			b.lostOnce(begun.Add(T/3 + T - T/3))
		})
	}
}

func TestOneFailedRenewalOfAClaimGoesUnnoticed(t *testing.T) { // C44
	for name, f := range map[string]fault{"fails": {fail: errRefused}, "hangs": hung, "loses its answer": {lose: true}} {
		t.Run(name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				k.store.inject(firstly(1, "renew", f))
				b := k.heartbeat(0)
				elapse(10 * T)
				b.neverLost()
				if b.over() {
					t.Error("Heartbeat has returned")
				}
			})
		})
	}
}

func TestTwoDeadConnectionsDoNotCostAClaim(t *testing.T) { // C79
	for name, f := range map[string]fault{"hang": hung, "hang in a deaf driver": {before: time.Hour, deaf: true}} {
		t.Run(name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				k.store.inject(firstly(2, "renew", f))
				b := k.heartbeat(0)
				elapse(10 * T)
				b.neverLost()
			})
		})
	}
}

func TestAnOutageShorterThanAThirdOfATTLDoesNotCostAClaim(t *testing.T) {
	for offset := time.Duration(0); offset < T/3; offset += T / 24 {
		keeping(t, T, func(t *testing.T, k *keeper) {
			b := k.heartbeat(0)
			elapse(T + offset)
			k.store.inject(always(fault{fail: errRefused}))
			elapse(T/3 - T/40)
			k.store.heal()
			elapse(3 * T)
			b.neverLost()
		})
	}
}

func TestASlowDatabaseKeepsAClaim(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		k.store.inject(always(fault{before: T / 8, after: T / 8}))
		b := k.heartbeat(0)
		elapse(20 * T)
		b.neverLost()
	})
}

func TestAnOldRenewalThatFailsAfterANewerOneWasGoodIsOfNoConsequence(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		k.store.inject(firstly(1, "renew", hung)) // it fails a third of a TTL later
		begun := time.Now()
		b := k.heartbeat(0)
		elapse(T - tick)
		var twelfths []float64
		for _, sent := range k.store.sentAt() {
			twelfths = append(twelfths, float64(sent.Sub(begun))/float64(T/12))
		}
		if !slices.Equal(twelfths, []float64{4, 5, 9}) {
			t.Errorf("renewals at %v twelfths of a TTL, not 4, 5 and 9", twelfths)
		}
		b.neverLost()
	})
}

func TestAnOldRenewalThatIsGoodAfterANewerOneTakesNothingBack(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		begun, renewals := time.Now(), 0
		k.store.inject(func(string) fault {
			switch renewals++; renewals {
			case 1:
				return fault{after: T / 6} // answered at 6 twelfths
			case 2:
				return fault{} // at 5 twelfths
			}
			return hung
		})
		b := k.heartbeat(0)
		elapse(2 * T)
		if sent := k.store.sentAt(); sent[2].Sub(begun) != T*9/12 {
			t.Errorf("the next renewal was sent after %v, not a third of a TTL after the newest good one", sent[2].Sub(begun))
		}
		b.lostOnce(begun.Add(T/3 + T/12 + T - T/3))
	})
}

func TestNoMoreThanThreeRenewalsOfAHeartbeatAreInFlight(t *testing.T) { // C37
	for name, f := range map[string]fault{"hang": hung, "hang in a deaf driver": {before: time.Hour, deaf: true}} {
		t.Run(name, func(t *testing.T) {
			for _, interval := range []time.Duration{0, 1, T / 100} {
				keeping(t, T, func(t *testing.T, k *keeper) {
					k.store.inject(always(f))
					b := k.heartbeat(interval)
					most := 0
					for range 120 {
						elapse(T / 120)
						most = max(most, k.store.pending())
					}
					if most != 3 {
						t.Errorf("%d renewals are in flight at most, not 3", most)
					}
					if !b.over() {
						t.Error("Heartbeat has not returned")
					}
				})
			}
		})
	}
}

func TestAHeartbeatWhoseDatabaseFailsAtOnceDoesNotSpin(t *testing.T) {
	for _, ttl := range []time.Duration{30 * time.Millisecond, time.Second, T, time.Hour} {
		keeping(t, ttl, func(t *testing.T, k *keeper) {
			k.store.inject(always(fault{fail: errRefused}))
			k.heartbeat(0)
			elapse(ttl)
			if n := k.store.count("renew"); n > 17 {
				t.Errorf("%d renewals within a TTL of %v", n, ttl)
			}
		})
	}
}

// A loss

func TestALossThatARenewalFindsIsToldAtOnce(t *testing.T) {
	for name, lose := range map[string]func(k *keeper){
		"taken by another":         func(k *keeper) { k.store.taken() },
		"taken anew by its owner":  func(k *keeper) { k.store.table.edit(func(r *Record) { r.Epoch++ }) },
		"released by hand":         func(k *keeper) { k.store.table.edit(func(r *Record) { r.Holder = "" }) },
		"gone":                     func(k *keeper) { k.store.table.delete() },
		"taken, with a slow reply": func(k *keeper) { k.store.taken() },
	} {
		t.Run(name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				var slow time.Duration
				if strings.HasSuffix(name, "reply") {
					slow = T / 24
				}
				k.store.inject(always(fault{after: slow}))
				begun := time.Now()
				b := k.heartbeat(0)
				elapse(T / 6)
				lose(k)
				elapse(T)
				b.lostOnce(begun.Add(T/3 + slow))
				if !b.over() || k.store.count("renew") != 1 {
					t.Errorf("returned: %v, after %d renewals", b.over(), k.store.count("renew"))
				}
				k.lost(1)
			})
		})
	}
}

func TestALossIsToldAtOnceThoughAnOlderRenewalHangsInADeafDriver(t *testing.T) { // C37
	keeping(t, T, func(t *testing.T, k *keeper) {
		k.store.inject(firstly(1, "renew", fault{before: time.Hour, deaf: true}))
		begun := time.Now()
		b := k.heartbeat(0)
		k.store.taken()
		elapse(T)
		b.lostOnce(begun.Add(T/3 + T/12))
	})
}

func TestALossThatRenewFindsEndsTheHeartbeatAtOnce(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		b := k.heartbeat(0)
		elapse(T / 6)
		k.store.taken()
		now := time.Now()
		if err := k.Renew(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("Renew: %v", err)
		}
		synctest.Wait()
		b.lostOnce(now)
		for range 2 {
			if err := k.Renew(t.Context()); !errors.Is(err, ErrLost) {
				t.Errorf("Renew of a lost claim: %v", err)
			}
			if err := k.Release(t.Context()); !errors.Is(err, ErrLost) {
				t.Errorf("Release of a lost claim: %v", err)
			}
		}
		if n := k.store.count(""); n != 1 {
			t.Errorf("%d statements, though it was known after the first", n)
		}
		k.lost(1)
	})
}

func TestALossIsCountedOncePerClaim(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		k.heartbeat(0)
		k.heartbeat(T / 4)
		k.run(func(ctx context.Context) error { <-ctx.Done(); return nil })
		k.store.cut()
		elapse(T) // lost by deadline
		k.lost(1)
		k.store.heal()
		k.store.taken()
		if err := k.Renew(t.Context()); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
		late := k.heartbeat(0)
		late.lostOnce(time.Now())
		k.lost(1)
	})
}

func TestALossWithoutCallbacksEndsTheHeartbeat(t *testing.T) {
	for name, lose := range map[string]func(k *keeper){
		"taken": func(k *keeper) { k.store.taken() }, "cut off": func(k *keeper) { k.store.cut() },
	} {
		t.Run(name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				time.AfterFunc(T, func() { lose(k) })
				begun := time.Now()
				k.Heartbeat(t.Context(), 0, nil, nil)
				if took := time.Since(begun); took < T || took > 2*T {
					t.Errorf("Heartbeat returned after %v", took)
				}
				k.lost(1)
				k.Heartbeat(t.Context(), 0, nil, nil)
				var none context.Context
				k.Heartbeat(none, 0, nil, nil)
			})
		})
	}
}

func TestAHeartbeatWithoutAContextIsInvalid(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		var none context.Context
		var told []error
		k.Heartbeat(none, 0, nil, func(err error) { told = append(told, err) })
		if len(told) != 1 || !errors.Is(told[0], ErrInvalid) || k.store.count("") != 0 {
			t.Errorf("%v, and %d statements", told, k.store.count(""))
		}
		k.lost(0)
	})
}

// Callbacks

func TestASlowOnRenewedHoldsUpNeitherRenewalsNorOnLost(t *testing.T) {
	for name, test := range map[string]struct {
		lasts time.Duration
		calls int // within five TTLs
	}{
		"slow":  {T + T/24, 5},
		"stuck": {time.Hour, 1},
	} {
		t.Run(name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				var at atomic.Int32
				b := k.beat(t.Context(), 0, func() {
					if at.Add(1) != 1 {
						t.Error("two calls of onRenewed at once")
					}
					<-time.After(test.lasts)
					at.Add(-1)
				})
				elapse(5*T + tick)
				if n := k.store.count("renew"); n != 15 {
					t.Errorf("%d renewals in five TTLs", n)
				}
				if n := b.renewals(); n != test.calls {
					t.Errorf("%d calls of onRenewed, not %d", n, test.calls)
				}
				last := k.store.table.read().RenewedAt
				k.store.cut()
				elapse(T)
				b.lostOnce(last.Add(T - T/3))
				elapse(2 * (time.Hour + T))
				if !b.over() || at.Load() != 0 {
					t.Errorf("Heartbeat has returned: %v, and %d calls of onRenewed have not", b.over(), at.Load())
				}
			})
		})
	}
}

func TestAHeartbeatReturnsOnceItsOnRenewedHas(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		let := make(chan struct{})
		b := k.beat(t.Context(), 0, func() { <-let })
		elapse(T / 2)
		b.stop()
		elapse(T)
		if b.over() {
			t.Error("Heartbeat has left its onRenewed behind")
		}
		close(let)
		elapse(tick)
		if !b.over() {
			t.Error("Heartbeat has not returned")
		}
	})
}

func TestCallbacksMayUseTheClaim(t *testing.T) {
	t.Run("Renew", func(t *testing.T) {
		keeping(t, T, func(t *testing.T, k *keeper) {
			var errs []error
			b := k.beat(t.Context(), 0, func() { errs = append(errs, k.Renew(t.Context())) })
			elapse(2 * T)
			b.neverLost()
			if err := errors.Join(errs...); err != nil || len(errs) < 6 {
				t.Errorf("%d renewals in onRenewed: %v", len(errs), err)
			}
		})
	})
	t.Run("Release", func(t *testing.T) {
		keeping(t, T, func(t *testing.T, k *keeper) {
			b := k.beat(t.Context(), 0, func() {
				if err := k.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
			elapse(T)
			b.neverLost()
			if !b.over() || k.store.count("renew") != 1 {
				t.Errorf("returned: %v, after %d renewals", b.over(), k.store.count("renew"))
			}
		})
	})
	t.Run("in onLost", func(t *testing.T) {
		keeping(t, T, func(t *testing.T, k *keeper) {
			k.store.inject(always(fault{fail: errRefused}))
			done := make(chan error, 3)
			k.Heartbeat(t.Context(), 0, nil, func(error) {
				k.store.heal()
				done <- k.Renew(t.Context()) // nobody took it, so it is alive again
				k.Heartbeat(endedContext(t), 0, nil, nil)
				done <- k.Release(t.Context())
				done <- k.Release(t.Context())
			})
			for range 3 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		})
	})
}

// Not in a bubble, which would end the whole test binary for a goroutine that is left behind.
func TestACallbackThatEndsItsGoroutineLeavesNoOtherBehind(t *testing.T) {
	for name, end := range map[string]func(){"panics": func() { panic(errWork) }, "exits": runtime.Goexit} {
		t.Run("onLost "+name, func(t *testing.T) {
			others := goleak.IgnoreCurrent()
			k := newKeeper(t, time.Minute)
			k.store.taken()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { _ = recover() }()
				k.Heartbeat(t.Context(), 1, func(Item) {}, func(error) { end() })
			}()
			<-ended
			goleak.VerifyNone(t, others)
		})
	}
}

// Releases, saves and renewals meanwhile

func TestAReleaseEndsTheHeartbeatAtOnceAndSilently(t *testing.T) { // C69
	keeping(t, T, func(t *testing.T, k *keeper) {
		b := k.heartbeat(0)
		elapse(T / 2)
		if err := k.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !b.over() {
			t.Error("Heartbeat has not returned")
		}
		b.neverLost()
		sent := k.store.count("")
		elapse(T)
		if err := k.Release(t.Context()); err != nil {
			t.Errorf("another Release: %v", err)
		}
		if err := k.Renew(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("Renew: %v", err)
		}
		if n := k.store.count("") - sent; n != 0 {
			t.Errorf("%d statements after the release", n)
		}
		k.lost(0)
	})
}

// Every order in which a renewal and a release can be sent, land and be answered, with nothing at the same instant.
func TestAReleaseNeverReadsAsALossInWhateverOrderThingsLand(t *testing.T) { // C69
	const u = T / 1000
	waits := []time.Duration{0, 20 * u, 40 * u, 60 * u} // all well under a twelfth of a TTL, when another attempt is sent
	for _, offset := range []time.Duration{-50 * u, -30 * u, -10 * u, 10 * u, 30 * u, 50 * u} {
		for _, lands := range waits {
			for _, answered := range waits {
				for _, f := range []fault{
					{}, {before: 15 * u}, {after: 15 * u}, {before: 15 * u, after: 20 * u}, {before: 200 * u}, {after: 200 * u, deaf: true},
					{lose: true}, {before: 15 * u, lose: true}, {before: 15 * u, after: 20 * u, lose: true}, {after: 200 * u, lose: true},
				} {
					keeping(t, T, func(t *testing.T, k *keeper) {
						what := fmt.Sprintf("a renewal that lands after %v and is answered %v later; a release sent %v later with %+v", lands, answered, offset, f)
						k.store.inject(func(s string) fault {
							if s == "release" {
								return f
							}
							return fault{before: lands, after: answered}
						})
						b := k.heartbeat(0)
						elapse(T/3 + offset)
						if err := k.Release(t.Context()); (err != nil) != f.lose && err != nil {
							t.Errorf("%s: Release: %v", what, err)
						}
						elapse(T / 2)
						b.neverLost()
						if !b.over() {
							t.Errorf("%s: Heartbeat has not returned", what)
						}
						k.store.heal()
						if err := k.Release(t.Context()); err != nil {
							t.Errorf("%s: another Release: %v", what, err)
						}
						k.lost(0)
						if t.Failed() {
							t.Fatal(what)
						}
					})
				}
			}
		}
	}
}

func TestAReleaseThatLandedAndIsNeverAnsweredIsNoLoss(t *testing.T) { // C69
	for name, f := range map[string]fault{"by the database": {after: time.Hour}, "by a deaf driver": {after: time.Hour, deaf: true}} {
		t.Run(name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				b := k.heartbeat(0)
				r := k.run(until(0, nil))
				k.store.inject(of("release", f))
				answered := make(chan error, 1)
				go func() { answered <- k.Release(context.Background()) }()
				elapse(2 * T)
				b.neverLost()
				if !b.over() || !r.over() || r.err != nil {
					t.Errorf("Heartbeat has returned: %v; Run: %v, %v", b.over(), r.over(), r.err)
				}
				k.lost(0)
				if err := <-answered; err != nil {
					t.Errorf("when it is answered at last: %v", err)
				}
			})
		})
	}
}

func TestTwoReleasesAtOnceNeverReadAsALossInWhateverOrderTheyLand(t *testing.T) { // C69
	const u = T / 1000
	waits := []time.Duration{0, 20 * u, 40 * u}
	var wrong []string
	for _, later := range []time.Duration{5 * u, 25 * u} {
		for _, first := range waits {
			for _, firstAnswered := range waits {
				for _, second := range waits {
					for _, secondAnswered := range waits {
						keeping(t, T, func(t *testing.T, k *keeper) {
							faults := []fault{{before: first, after: firstAnswered}, {before: second, after: secondAnswered}}
							k.store.inject(func(s string) (f fault) {
								if s == "release" {
									f, faults = faults[0], faults[1:]
								}
								return f
							})
							b := k.heartbeat(0)
							errs := make(chan error, 2)
							for range 2 {
								go func() { errs <- k.Release(context.Background()) }()
								elapse(later)
							}
							elapse(T)
							b.mu.Lock()
							lost := b.losses
							b.mu.Unlock()
							if err := errors.Join(<-errs, <-errs); err != nil || len(lost) > 0 || testutil.ToFloat64(k.losses) > 0 {
								wrong = append(wrong, fmt.Sprintf("landing after %v and %v, answered %v and %v later, sent %v apart: %v; onLost: %v; %v counted",
									first, second, firstAnswered, secondAnswered, later, err, lost, testutil.ToFloat64(k.losses)))
							}
						})
					}
				}
			}
		}
	}
	if len(wrong) > 0 {
		t.Errorf("%d times, such as %s", len(wrong), wrong[0])
	}
}

func TestAReleaseOfUnknownOutcomeThatDidNotLandLeavesTheHeartbeatAlone(t *testing.T) { // C69
	keeping(t, T, func(t *testing.T, k *keeper) {
		b := k.heartbeat(0)
		k.store.inject(firstly(1, "release", fault{fail: errRefused}))
		if err := k.Release(t.Context()); !errors.Is(err, errRefused) {
			t.Errorf("Release: %v", err)
		}
		elapse(3 * T)
		b.neverLost()
		if b.over() {
			t.Error("Heartbeat has returned, though the item is still held")
		}
		if err := k.Release(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !b.over() {
			t.Error("Heartbeat has not returned")
		}
		k.lost(0)
	})
}

func TestAReleaseOfALostClaimSaysSoThoughARenewalWasAnsweredMeanwhile(t *testing.T) { // C69
	keeping(t, T, func(t *testing.T, k *keeper) {
		k.heartbeat(0)
		k.store.inject(of("release", fault{after: T / 24}))
		k.store.taken()
		elapse(T/3 - T/48)
		if err := k.Release(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("Release of a claim that another had taken before: %v", err)
		}
	})
}

func TestARenewByHandExtends(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		k.store.cut()
		b := k.heartbeat(0)
		for range 3 {
			elapse(T/2 + T/100)
			k.store.heal()
			if err := k.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
			k.store.cut()
		}
		last := k.store.table.read().RenewedAt
		b.neverLost()
		elapse(T)
		b.lostOnce(last.Add(T - T/3))
	})
}

func TestARenewByHandThatIsAnsweredTooLateRevivesNoHeartbeat(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		begun := time.Now()
		k.store.cut()
		b := k.heartbeat(0)
		elapse(T / 2)
		k.store.inject(always(fault{after: T / 2}))
		if err := k.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		elapse(T)
		b.lostOnce(begun.Add(T - T/3))
		if !b.over() {
			t.Error("Heartbeat has not returned")
		}
	})
}

func TestAHeartbeatEndsSilentlyWithItsContext(t *testing.T) {
	for name, f := range map[string]fault{
		"the database is well": {}, "it hangs": hung, "it hangs in a deaf driver": {before: time.Hour, deaf: true}, "it fails": {fail: errRefused},
	} {
		t.Run(name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				k.store.inject(always(f))
				b := k.heartbeat(0)
				elapse(T / 2)
				stopped := time.Now()
				b.stop()
				<-b.returned
				if took := time.Since(stopped); took > T/9 {
					t.Errorf("Heartbeat returned after %v", took)
				}
				sent := k.store.count("")
				elapse(T)
				if n := k.store.count(""); n != sent || k.store.count("release") != 0 {
					t.Errorf("%d statements after its end", n-sent)
				}
				b.neverLost()
				k.lost(0)
			})
		})
	}
}

// A heartbeat that begins late

func TestAHeartbeatThatBeginsLateRenewsFirst(t *testing.T) {
	for _, late := range []time.Duration{T - T/3, T * 9 / 10, T, 3 * T} {
		keeping(t, T, func(t *testing.T, k *keeper) {
			elapse(late)
			begun := time.Now()
			k.store.inject(firstly(1, "renew", fault{after: T / 12}))
			b := k.heartbeat(0)
			if n := k.store.count("renew"); n != 1 {
				t.Fatalf("%d renewals at once, %v after the claim", n, late)
			}
			elapse(T / 12)
			b.neverLost()
			k.store.cut()
			elapse(T)
			b.lostOnce(begun.Add(T - T/3))
		})
	}
}

func TestAHeartbeatThatBeginsTooLateTellsTheLossOnce(t *testing.T) {
	for name, test := range map[string]struct {
		fault fault
		taken bool
		after time.Duration
		why   error
	}{
		"taken":                  {taken: true},
		"failing":                {fault: fault{fail: errRefused}, why: errRefused},
		"hanging":                {fault: hung, after: T / 3},
		"hanging in deaf driver": {fault: fault{before: time.Hour, deaf: true}, after: T / 3, why: errSilent},
	} {
		t.Run(name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				elapse(T)
				if test.taken {
					k.store.taken()
				}
				k.store.inject(always(test.fault))
				begun := time.Now()
				b := k.heartbeat(0)
				elapse(T)
				if err := b.lostOnce(begun.Add(test.after)); test.why != nil && !errors.Is(err, test.why) {
					t.Errorf("it does not say why: %v", err)
				}
				k.lost(1)
			})
		})
	}
}

func TestAHeartbeatThatBeganLateIsContentWithARenewByHand(t *testing.T) { // C69
	for name, f := range map[string]fault{"hangs": hung, "fails, slowly": {after: T / 4, lose: true}} {
		t.Run("while its own "+name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				elapse(T)
				k.store.inject(firstly(1, "renew", f))
				b := k.heartbeat(0)
				elapse(T / 12)
				if err := k.Renew(t.Context()); err != nil {
					t.Fatal(err)
				}
				elapse(3 * T)
				b.neverLost()
				if b.over() {
					t.Error("Heartbeat has returned")
				}
			})
		})
	}
}

func TestAHeartbeatThatBeganLateIsEndedSilently(t *testing.T) { // C69
	for name, test := range map[string]struct {
		end   func(k *keeper, b *beating)
		fault fault // of the renewal that comes first
	}{
		"by a release, while its renewal hangs": {
			end:   func(k *keeper, _ *beating) { _ = k.Release(k.t.Context()) },
			fault: hung,
		},
		"by a release, while its renewal hangs in a deaf driver": {
			end:   func(k *keeper, _ *beating) { _ = k.Release(k.t.Context()) },
			fault: fault{before: time.Hour, deaf: true},
		},
		"by a release, before its renewal lands": {
			end:   func(k *keeper, _ *beating) { _ = k.Release(k.t.Context()) },
			fault: fault{before: T / 4},
		},
		"by a release, before its renewal is answered": {
			end:   func(k *keeper, _ *beating) { _ = k.Release(k.t.Context()) },
			fault: fault{after: T / 4},
		},
		"by its context, while its renewal hangs": {
			end:   func(_ *keeper, b *beating) { b.stop() },
			fault: hung,
		},
	} {
		t.Run(name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				elapse(T)
				k.store.inject(firstly(1, "renew", test.fault))
				b := k.heartbeat(0)
				elapse(T / 6)
				test.end(k, b)
				elapse(T)
				b.neverLost()
				if !b.over() {
					t.Error("Heartbeat has not returned")
				}
				k.lost(0)
			})
		})
	}
}

func TestAHeartbeatOfAClaimThatIsOverSendsNothing(t *testing.T) {
	t.Run("released", func(t *testing.T) {
		keeping(t, T, func(t *testing.T, k *keeper) {
			if err := k.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				b := k.heartbeat(0)
				b.neverLost()
				if !b.over() || k.store.count("renew") != 0 {
					t.Errorf("returned: %v, after %d renewals", b.over(), k.store.count("renew"))
				}
				elapse(2 * T)
			}
		})
	})
	t.Run("lost", func(t *testing.T) {
		keeping(t, T, func(t *testing.T, k *keeper) {
			k.store.taken()
			if err := k.Renew(t.Context()); !errors.Is(err, ErrLost) {
				t.Fatal(err)
			}
			for range 2 {
				b := k.heartbeat(0)
				b.lostOnce(time.Now())
				if !b.over() || k.store.count("renew") != 1 {
					t.Errorf("returned: %v, after %d renewals", b.over(), k.store.count("renew"))
				}
				elapse(2 * T)
			}
			k.lost(1)
		})
	})
}

func TestAClaimThatRanOutIsKeptAgainIfNobodyTookIt(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		k.store.cut()
		first := k.heartbeat(0)
		elapse(5 * T)
		if !first.over() {
			t.Fatal("Heartbeat has not returned")
		}
		k.store.heal()
		again := k.heartbeat(0)
		elapse(5 * T)
		again.neverLost()
		if again.over() {
			t.Error("Heartbeat has returned")
		}
	})
}

// Durations of every size

func TestAnyPositiveTTLOfAClaimIsKeptOrLostButNeverPanicsOrSpins(t *testing.T) { // C10
	for _, ttl := range []time.Duration{1, 2, 3, time.Microsecond, time.Millisecond, math.MaxInt64 - 1, math.MaxInt64} {
		for _, interval := range []time.Duration{0, 1, math.MaxInt64} {
			for _, f := range []fault{{}, {fail: errRefused}, {before: 2 * time.Millisecond}} {
				t.Run(fmt.Sprint(ttl, interval), func(t *testing.T) {
					keeping(t, ttl, func(t *testing.T, k *keeper) {
						k.store.inject(always(f))
						b := k.heartbeat(interval)
						elapse(time.Second)
						if n := k.store.count(""); n > 1001 {
							t.Errorf("%d statements in a second", n)
						}
						if huge := ttl > time.Hour; huge {
							b.neverLost()
							if b.over() {
								t.Error("Heartbeat has returned")
							}
						} else if ttl < time.Microsecond && !b.over() {
							t.Error("a claim that cannot be kept for two milliseconds is kept")
						}
						k.run(func(ctx context.Context) error { <-time.After(time.Second); return ctx.Err() })
						elapse(2 * time.Second)
						if n := k.store.count(""); n > 3002 {
							t.Errorf("%d statements in three seconds", n)
						}
					})
				})
			}
		}
	}
}

// Clocks

func TestAHeartbeatSeesAJumpOfTheWallClockWithinATwelfthOfATTL(t *testing.T) { // C03
	keeping(t, T, func(t *testing.T, k *keeper) {
		b := k.heartbeat(0)
		elapse(T / 100)
		k.jump(0, 10*T)
		elapse(T / 12)
		if len(b.losses) != 1 || !errors.Is(b.losses[0], ErrLost) || !b.over() {
			t.Errorf("onLost was called with %v; returned: %v", b.losses, b.over())
		}
	})
}

func TestAWallClockThatIsPutBackNeverProlongsAClaim(t *testing.T) { // C03
	keeping(t, T, func(t *testing.T, k *keeper) {
		b := k.heartbeat(0)
		elapse(T)
		last := k.store.table.read().RenewedAt
		k.jump(0, -time.Hour)
		k.store.cut()
		elapse(T)
		b.lostOnce(last.Add(T - T/3))
	})
}

// Run

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

func TestRunTakesTheAttemptBackWhenItsContextEnded(t *testing.T) { // C84
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

func TestRunInAContextThatHasEndedGivesTheAttemptBack(t *testing.T) { // C84
	keeping(t, T, func(t *testing.T, k *keeper) {
		r := k.runIn(endedContext(t), func(ctx context.Context) error { return ctx.Err() })
		if !r.over() || !errors.Is(r.err, context.Canceled) {
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

func TestAReleaseByWorkOfUnknownOutcomeIsNoLoss(t *testing.T) { // C69
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

func TestAPanicComesOutOfTheRunOfAClaimWhichThenRunsOut(t *testing.T) { // C64
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

func TestWorkThatEndsItsGoroutineLeavesTheClaimToRunOut(t *testing.T) { // C64
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

func TestARunIsBoundedWhateverItsReleaseDoes(t *testing.T) { // C60
	for ttl, bound := range map[time.Duration]time.Duration{
		30 * time.Millisecond: 150 * time.Millisecond, T: T / 3, time.Hour: 5 * time.Second, math.MaxInt64: 5 * time.Second,
	} {
		for name, f := range map[string]fault{
			"fails": {fail: errRefused}, "hangs": hung, "hangs in a deaf driver": {before: time.Hour, deaf: true}, "loses its answer": {after: time.Hour, lose: true},
		} {
			for _, stopped := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v, and it %s; stopped: %v", ttl, name, stopped), func(t *testing.T) {
					keeping(t, ttl, func(t *testing.T, k *keeper) {
						k.store.inject(of("release", f))
						work := working(tick, nil)
						if stopped {
							work = until(0, nil)
						}
						r := k.run(work)
						elapse(tick)
						r.stop(errShutdown)
						elapse(bound)
						if !r.over() || r.err == nil || errors.Is(r.err, ErrLost) || !strings.Contains(r.err.Error(), "not released") {
							t.Errorf("returned: %v, %v", r.over(), r.err)
						}
						k.lost(0)
					})
				})
			}
		}
	}
}

func TestARunWhoseRenewalsHangInADeafDriverReturnsWithinABound(t *testing.T) { // C37
	keeping(t, T, func(t *testing.T, k *keeper) {
		k.store.inject(of("renew", fault{before: time.Hour, deaf: true}))
		r := k.run(working(T/2, nil))
		elapse(T/2 + T/9)
		if !r.over() || r.err != nil {
			t.Errorf("returned: %v, %v", r.over(), r.err)
		}
		k.released(false)
	})
}

func TestAReleaseOfARunIsSentAgain(t *testing.T) {
	for name, f := range map[string]fault{
		"fails": {fail: errRefused}, "hangs": hung, "hangs in a deaf driver": {before: time.Hour, deaf: true},
		"lands, and is answered too late": {after: time.Hour, deaf: true}, "lands, and loses its answer": {lose: true},
	} {
		t.Run("which "+name, func(t *testing.T) {
			keeping(t, T, func(t *testing.T, k *keeper) {
				k.store.inject(firstly(1, "release", f))
				r := k.run(working(0, nil))
				elapse(T / 3)
				if !r.over() || r.err != nil {
					t.Errorf("returned: %v, %v", r.over(), r.err)
				}
				k.released(false)
				k.lost(0)
			})
		})
	}
}

func TestAReleaseOfARunThatFailsIsToldWithTheWorksErrorAndTheCause(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		k.store.inject(of("release", fault{fail: errRefused}))
		r := k.run(until(0, errWork))
		r.stop(errShutdown)
		elapse(T / 3)
		if !r.over() || !errors.Is(r.err, errShutdown) || !errors.Is(r.err, errWork) || !strings.Contains(r.err.Error(), "not released") {
			t.Errorf("returned: %v, %v", r.over(), r.err)
		}
	})
}

func TestALossThatOnlyTheReleaseFindsIsALoss(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		keeping(t, T, func(t *testing.T, k *keeper) {
			work := working(tick, nil)
			if stopped {
				work = until(0, errWork)
			}
			r := k.run(work)
			k.store.taken()
			elapse(tick)
			r.stop(errShutdown)
			elapse(tick)
			if !r.over() || !errors.Is(r.err, ErrLost) || stopped && !errors.Is(r.err, errWork) || strings.Contains(r.err.Error(), "not released") {
				t.Errorf("returned: %v, %v", r.over(), r.err)
			}
			k.lost(1)
		})
	}
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

func TestARunWithoutWorkOrContextIsInvalid(t *testing.T) { // C64
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

func TestTheContextOfAClaimsWorkHasEndedBeforeTheRelease(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		var left context.Context // to a goroutine that work left behind
		trusted := false
		k.store.inject(func(s string) fault {
			if s == "release" {
				trusted = left.Err() == nil
			}
			return fault{}
		})
		r := k.run(func(ctx context.Context) error { left = ctx; return nil })
		if !r.over() || r.err != nil || trusted || ctxLost(left) {
			t.Errorf("returned: %v, %v; trusted: %v; lost: %v", r.over(), r.err, trusted, ctxLost(left))
		}
	})
}

func TestTheContextOfAClaimsWorkCarriesTheClaim(t *testing.T) { // C77
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

// C03: the work was frozen, and asks its context before any timer has had its turn.
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

func TestALossThatNobodySawBeforeAClaimsWorkReturnedIsALoss(t *testing.T) { // C03
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

func TestAClaimWithinATermEndsWithEither(t *testing.T) { // C03
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

// With a database

func TestOnRenewedGetsTheItemAsItIs(t *testing.T) {
	onSQLite(t, func(t *testing.T, _ *gorm.DB, h *Holder) {
		ctx, stop := context.WithTimeout(t.Context(), 2*T+tick)
		defer stop()
		begun, calls := time.Now(), 0
		h.Heartbeat(ctx, 0, func(it Item) {
			calls++
			if at := begun.Add(time.Duration(calls) * T / 3); it.Key != "item" || it.RenewedAt.Sub(at).Abs() > time.Microsecond || it.ExpiresAt.Sub(at.Add(T)).Abs() > time.Microsecond {
				t.Errorf("call %d got %+v", calls, it)
			}
			if want := fmt.Sprint(calls - 1); string(it.Payload) != want {
				t.Errorf("call %d got the payload %s, not %s", calls, it.Payload, want)
			}
			it.Payload = fmt.Append(nil, calls)
			if err := h.Save(ctx, it); err != nil {
				t.Error(err)
			}
		}, func(err error) { t.Error(err) })
		if calls != 6 {
			t.Errorf("%d calls in two TTLs", calls)
		}
	})
}

func TestASaveDuringAHeartbeatNeverReadsAsALoss(t *testing.T) { // C69
	onSQLite(t, func(t *testing.T, db *gorm.DB, h *Holder) {
		ctx, stop := context.WithCancel(t.Context())
		var beat sync.WaitGroup
		beat.Go(func() { h.Heartbeat(ctx, T/100, nil, func(err error) { t.Error(err) }) })
		for i := range 300 {
			it := h.Item()
			it.Payload = fmt.Append(nil, i)
			var err error
			switch i % 3 {
			case 0:
				err = h.Save(ctx, it)
			case 1:
				err = h.Save(ctx, it, "payload")
			case 2: // one that is rolled back, every other time
				err = db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
					if err := h.SaveIn(tx, it); err != nil || i%2 == 0 {
						return err
					}
					return errWork
				})
				if errors.Is(err, errWork) {
					err = nil
				}
			}
			if err != nil {
				t.Fatal(i, err)
			}
			<-time.After(T / 700)
		}
		stop()
		beat.Wait()
		if it, _, err := Load(t.Context(), db, "item"); err != nil || it.Owner != "A" || string(it.Payload) != "298" {
			t.Errorf("%+v, %v", it, err)
		}
	})
}

func TestALossThatSaveFindsEndsTheHeartbeatAtOnce(t *testing.T) {
	onSQLite(t, func(t *testing.T, db *gorm.DB, h *Holder) {
		var told []error
		var beat sync.WaitGroup
		beat.Go(func() { h.Heartbeat(t.Context(), 0, nil, func(err error) { told = append(told, err) }) })
		elapse(T / 6)
		if _, err := Claim(t.Context(), db, "item", "A", "", T, time.Now); err != nil { // its owner, anew
			t.Fatal(err)
		}
		begun := time.Now()
		if err := h.Save(t.Context(), h.Item()); !errors.Is(err, ErrLost) {
			t.Errorf("Save: %v", err)
		}
		beat.Wait()
		if len(told) != 1 || !errors.Is(told[0], ErrLost) || time.Since(begun) != 0 {
			t.Errorf("%v after %v", told, time.Since(begun))
		}
	})
}

func TestAttemptsAreTakenBackOnlyWhenRunsContextEnded(t *testing.T) { // C84
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
