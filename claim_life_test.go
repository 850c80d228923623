package lease

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
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

func TestAClaimIsOverByWhatItsRowSays(t *testing.T) { // C65
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb, now := db.Open(t), time.Now().Truncate(time.Microsecond)
		if err := EnsureSchema(gdb); err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for name, tc := range map[string]struct {
			change string
			clock  time.Duration
			over   bool
		}{
			"in force":                              {"UPDATE lease_items SET claim_epoch = claim_epoch", time.Minute - time.Microsecond, false},
			"in another epoch":                      {"UPDATE lease_items SET claim_epoch = 2", 0, true},
			"another owner's":                       {"UPDATE lease_items SET claim_owner = 'B'", 0, true},
			"run out":                               {"UPDATE lease_items SET claim_epoch = claim_epoch", time.Minute, true},
			"deleted":                               {"DELETE FROM lease_items", 0, true},
			"of which the database will not say it": {"DROP TABLE lease_items", 0, false},
		} {
			for ctxIs, ctx := range map[string]context.Context{"alive": t.Context(), "ended": ended} {
				clock := now
				if err := Create(t.Context(), gdb, Item{Key: "k"}); err != nil {
					t.Fatal(err)
				}
				h, err := Claim(t.Context(), gdb, "k", "A", "", time.Minute, func() time.Time { return clock })
				if err != nil {
					t.Fatal(err)
				}
				if err := gdb.Exec(tc.change).Error; err != nil {
					t.Fatal(err)
				}
				clock = now.Add(tc.clock)
				if over := h.over(ctx, nil); over != tc.over {
					t.Errorf("%s, in a context that is %s: over is %v", name, ctxIs, over)
				}
				if err := EnsureSchema(gdb); err != nil {
					t.Fatal(err)
				}
				if err := gdb.Exec("DELETE FROM lease_items").Error; err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func TestALockedTableInACallersTransactionIsTheirsToHear(t *testing.T) { // C25
	db := withSchema(t, dbtest.Postgres(t))
	if err := db.Exec("ALTER TABLE leases DROP COLUMN renewed_at").Error; err != nil {
		t.Fatal(err)
	}
	other := db.Begin()
	defer other.Rollback()
	if err := other.Exec("LOCK TABLE leases IN ACCESS SHARE MODE").Error; err != nil {
		t.Fatal(err)
	}
	tx := db.Begin()
	defer tx.Rollback()
	if err := tx.Exec("SET LOCAL lock_timeout = '50ms'").Error; err != nil {
		t.Fatal(err)
	}
	err := EnsureSchema(tx)
	if !states("55P03")(err) || !strings.Contains(err.Error(), "ALTER TABLE ") { // not 25P02, which a second attempt would give
		t.Errorf("the error is %v", err)
	}
}

func TestTheTrustInAClaimCountsFromItsSending(t *testing.T) { // C36
	for how, claim := range map[string]func(ctx context.Context, db *gorm.DB) (*Holder, error){
		"Claim": func(ctx context.Context, db *gorm.DB) (*Holder, error) {
			return Claim(ctx, db, "k", "A", "", time.Minute, nil)
		},
		"ClaimNext": func(ctx context.Context, db *gorm.DB) (*Holder, error) {
			return ClaimNext[Item](ctx, db, "A", "", time.Minute, nil)
		},
	} {
		t.Run(how, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				withSchema(t, db)
				gdb, statements := recording(t, db, db.SQL(t))
				if err := Create(t.Context(), gdb, Item{Key: "k"}); err != nil {
					t.Fatal(err)
				}
				h, err := claim(t.Context(), gdb)
				if err != nil {
					t.Fatal(err)
				}
				if late := h.life.sent.mono - statements.last("UPDATE ").sent.mono; late > 0 {
					t.Errorf("it counts from %v after the statement was sent", late)
				}
			})
		})
	}
}
