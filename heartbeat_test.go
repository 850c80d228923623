package lease

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"
)

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

func TestAHeartbeatThatBeganLateIsContentWithARenewByHand(t *testing.T) {
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

func TestAHeartbeatThatBeganLateIsEndedSilently(t *testing.T) {
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
