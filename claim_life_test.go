package lease

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestALossByTheDeadlineTellsTheLastTroubleAndNoneThatIsOver(t *testing.T) {
	t.Run("renewals that timed out", func(t *testing.T) {
		keeping(t, T, func(t *testing.T, k *keeper) {
			k.store.inject(firstly(3, "renew", hung)) // each until its own timeout
			begun := time.Now()
			b := k.heartbeat(T / 12)
			elapse(T * 4 / 12)
			k.store.inject(always(fault{before: time.Hour, deaf: true}))
			elapse(T)
			if err := b.lostOnce(begun.Add(T - T/3)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	})
	t.Run("a failure, and then a good renewal", func(t *testing.T) {
		keeping(t, T, func(t *testing.T, k *keeper) {
			k.store.inject(firstly(1, "renew", fault{fail: errRefused}))
			b := k.heartbeat(0)
			elapse(T/2 - tick)
			sent := k.store.sentAt()
			k.store.inject(always(fault{before: time.Hour, deaf: true}))
			elapse(T)
			if err := b.lostOnce(sent[len(sent)-1].Add(T - T/3)); !errors.Is(err, errSilent) || errors.Is(err, errRefused) {
				t.Errorf("%v", err)
			}
		})
	})
	t.Run("a good renewal, and then the failure of an older one", func(t *testing.T) {
		keeping(t, T, func(t *testing.T, k *keeper) {
			begun := time.Now()
			k.store.inject(firstly(1, "renew", fault{after: T / 6, lose: true})) // at 6 twelfths
			b := k.heartbeat(0)
			elapse(T*5/12 + tick)
			k.store.inject(always(fault{before: time.Hour, deaf: true}))
			elapse(T)
			if err := b.lostOnce(begun.Add(T*5/12 + T - T/3)); !errors.Is(err, errSilent) {
				t.Errorf("%v", err)
			}
		})
	})
}

func TestThreeDeadConnectionsDoNotCostAClaimThatIsRenewedOften(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		k.store.inject(firstly(3, "renew", hung)) // they make room for others a third of a TTL later
		b := k.heartbeat(T / 12)
		elapse(10 * T)
		b.neverLost()
	})
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

func TestAHeartbeatReturnsOnceItsLastRenewalHas(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		k.store.inject(of("renew", fault{after: T / 24, deaf: true}))
		b := k.heartbeat(0)
		elapse(T/3 + tick)
		b.stop()
		elapse(T/24 - 2*tick)
		if b.over() {
			t.Error("Heartbeat returned before its renewal did")
		}
		elapse(tick)
		if !b.over() {
			t.Error("Heartbeat has not returned")
		}
	})
}

// A DEFECT: fails on the code as it is.
func TestAReleaseOfALostClaimSaysSoHoweverOftenThoughARenewalWasAnsweredMeanwhile(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		k.store.inject(of("release", fault{after: T / 24}))
		r := k.run(func(ctx context.Context) error {
			<-time.After(T/3 - T/48)
			for range 2 {
				if err := k.Release(t.Context()); !errors.Is(err, ErrLost) {
					t.Errorf("Release of a claim that another had taken before: %v", err)
				}
			}
			return nil
		})
		k.store.taken()
		elapse(T)
		if !errors.Is(r.err, ErrLost) {
			t.Errorf("Run of it returned %v", r.err)
		}
		k.lost(1)
	})
}
