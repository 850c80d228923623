package lease

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gorm.io/gorm"
)

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
