package lease

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"
)

func TestAnyPositiveTTLOfAClaimIsKeptOrLostButNeverPanicsOrSpins(t *testing.T) {
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

func TestARenewalOfATinyTTLHasFiftyMillisecondsForItsAnswer(t *testing.T) {
	const tiny = 60 * time.Millisecond
	t.Run("during a heartbeat", func(t *testing.T) {
		keeping(t, tiny, func(t *testing.T, k *keeper) {
			k.store.inject(always(fault{after: tiny/3 + time.Millisecond}))
			b := k.heartbeat(tiny / 12)
			elapse(10 * tiny)
			b.neverLost()
		})
	})
	t.Run("before one that begins late", func(t *testing.T) {
		keeping(t, tiny, func(t *testing.T, k *keeper) {
			elapse(2 * tiny)
			k.store.inject(firstly(1, "renew", fault{after: tiny / 2}))
			b := k.heartbeat(0)
			elapse(10 * tiny)
			b.neverLost()
		})
	})
}

func TestAHeartbeatOfATinyTTLWhoseDatabaseFailsAtOnceDoesNotSpin(t *testing.T) {
	keeping(t, 120*time.Millisecond, func(t *testing.T, k *keeper) {
		k.store.inject(always(fault{fail: errRefused}))
		b := k.heartbeat(0)
		elapse(time.Second)
		if n := k.store.count("renew"); n < 3 || n > 5 { // between the first third and the second
			t.Errorf("%d renewals in 40 milliseconds", n)
		}
		if !b.over() {
			t.Error("Heartbeat has not returned")
		}
	})
}
