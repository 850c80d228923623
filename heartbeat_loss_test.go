package lease

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gorm.io/gorm"
)

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

func TestALossIsToldAtOnceThoughAnOlderRenewalHangsInADeafDriver(t *testing.T) {
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
