package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

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

func TestARunReleasesOnceItsLastRenewalHasReturned(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		k.store.inject(of("renew", fault{after: T / 24, deaf: true}))
		begun := time.Now()
		r := k.run(working(T/3+tick, nil))
		elapse(T)
		if sent := k.store.sentAt(); !r.over() || r.err != nil || len(sent) != 2 || sent[1].Sub(begun) != T/3+T/24 {
			t.Errorf("returned: %v, %v; the statements were sent at %v", r.over(), r.err, sent)
		}
		k.released(false)
	})
}

func TestARunIsBoundedWhateverItsReleaseDoes(t *testing.T) {
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

func TestARunWhoseRenewalsHangInADeafDriverReturnsWithinABound(t *testing.T) {
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
