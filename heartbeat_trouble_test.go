package lease

import (
	"errors"
	"slices"
	"testing"
	"time"
)

func TestAHeartbeatEndsTwoThirdsOfATTLAfterTheLastGoodRenewalWasSent(t *testing.T) {
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

func TestOneFailedRenewalOfAClaimGoesUnnoticed(t *testing.T) {
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

func TestTwoDeadConnectionsDoNotCostAClaim(t *testing.T) {
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

func TestThreeDeadConnectionsDoNotCostAClaimThatIsRenewedOften(t *testing.T) {
	keeping(t, T, func(t *testing.T, k *keeper) {
		k.store.inject(firstly(3, "renew", hung)) // they make room for others a third of a TTL later
		b := k.heartbeat(T / 12)
		elapse(10 * T)
		b.neverLost()
	})
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

func TestNoMoreThanThreeRenewalsOfAHeartbeatAreInFlight(t *testing.T) {
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

func TestAHeartbeatSeesAJumpOfTheWallClockWithinATwelfthOfATTL(t *testing.T) {
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

func TestAWallClockThatIsPutBackNeverProlongsAClaim(t *testing.T) {
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
