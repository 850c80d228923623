package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"gorm.io/gorm"
)

func TestAReleaseEndsTheHeartbeatAtOnceAndSilently(t *testing.T) {
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
func TestAReleaseNeverReadsAsALossInWhateverOrderThingsLand(t *testing.T) {
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

func TestAReleaseThatLandedAndIsNeverAnsweredIsNoLoss(t *testing.T) {
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

func TestTwoReleasesAtOnceNeverReadAsALossInWhateverOrderTheyLand(t *testing.T) {
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

func TestAReleaseOfUnknownOutcomeThatDidNotLandLeavesTheHeartbeatAlone(t *testing.T) {
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

func TestAReleaseOfALostClaimSaysSoThoughARenewalWasAnsweredMeanwhile(t *testing.T) {
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

func TestASaveDuringAHeartbeatNeverReadsAsALoss(t *testing.T) {
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
