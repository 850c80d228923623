package spec

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestAClaimIsFencedWhileItIsInForce(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		before := w.row(t)
		must(t, w.gdb.Transaction(func(tx *gorm.DB) error { return errors.Join(h.Fence(tx), h.Fence(tx)) }))
		w.unchanged(t, "a fence", before)
		w.pass(time.Minute)
		mustBe(t, w.gdb.Transaction(h.Fence), lease.ErrLost) // it ran out
		must(t, h.Renew(t.Context()))
		must(t, w.gdb.Transaction(h.Fence))
		it := h.Item()
		it.Done = true
		must(t, h.Save(t.Context(), it))
		must(t, w.gdb.Transaction(h.Fence)) // what is done is still its
	})
}

// claimant lets B claim the item as soon as A's claim of it has run out by the callers' clock, and notes whether it waits.
func claimant(t *testing.T, w *world) rival {
	t.Helper()
	r, gdb := rival{outcome: make(chan error, 1)}, w.db.Open(t)
	if w.db.Backend == dbtest.BackendPostgres {
		r.waits = func() { waitUntil(t, "the rival waits", func() bool { return waiters(t, w.gdb) > 0 }) }
	} else {
		file, _, _ := strings.Cut(w.db.DSN, "?")
		var spy *spy
		gdb, spy = spied(t, &dbtest.Database{Backend: w.db.Backend, DSN: file + "?_journal_mode=WAL&_busy_timeout=0"})
		sent := make(chan struct{}, 100)
		spy.fail = func(query string) error {
			if strings.HasPrefix(query, "UPDATE") {
				select {
				case sent <- struct{}{}:
				default:
				}
			}
			return nil
		}
		r.waits = func() {
			for range 3 { // so the first two were refused
				<-sent
			}
		}
	}
	go func() {
		_, err := lease.Claim(t.Context(), gdb, "item", "B", "", time.Minute, w.now)
		r.outcome <- err
	}()
	return r
}

func TestAFenceHoldsOffTheNextClaimUntilItsTransactionEnds(t *testing.T) {
	for how, end := range map[string]func(*gorm.DB) *gorm.DB{"commit": (*gorm.DB).Commit, "roll-back": (*gorm.DB).Rollback} {
		t.Run(how, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				w := newWorld(t, db, withNotes(t, db)).byTheCallers()
				h := w.claim(t, "A")
				tx := w.gdb.Begin()
				defer tx.Rollback()
				must(t, h.Fence(tx))
				w.pass(time.Minute)
				r := claimant(t, w)
				r.stillWaits(t)
				must(t, write(tx))
				if it := w.load(t); it.Epoch != h.Epoch() {
					t.Errorf("the row is %s", shows(it))
				}
				must(t, end(tx).Error)
				must(t, <-r.outcome)
				if it := w.load(t); it.Owner != "B" || it.Epoch != h.Epoch()+1 {
					t.Errorf("the row is %s", shows(it))
				}
			})
		})
	}
}

func TestAClaimThatWaitedForAFenceIsWhole(t *testing.T) {
	db := dbtest.Postgres(t)
	w := newWorld(t, db, fresh(t, db))
	h := w.claim(t, "A")
	tx := w.gdb.Begin()
	defer tx.Rollback()
	must(t, h.Fence(tx))
	must(t, h.Release(t.Context()))
	r := claimant(t, w)
	r.stillWaits(t)
	released := ask[int64](t, w.gdb, "SELECT (extract(epoch from clock_timestamp())*1000000)::bigint")
	must(t, tx.Rollback().Error)
	must(t, <-r.outcome)
	if it := w.load(t); it.AcquiredAt.UnixMicro() < released {
		t.Errorf("the claim counts from %v, before the fence's end at %v", it.AcquiredAt, time.UnixMicro(released))
	}
}

func TestAClaimThatWasRenewedWhileAnotherWaitedIsNotTaken(t *testing.T) {
	db := dbtest.Postgres(t)
	w := newWorld(t, db, fresh(t, db)).byTheCallers()
	h := w.claim(t, "A")
	tx := w.gdb.Begin()
	defer tx.Rollback()
	must(t, h.Fence(tx))
	w.pass(time.Minute)
	r := claimant(t, w)
	r.stillWaits(t)
	must(t, h.Renew(t.Context())) // the fence lets it pass
	must(t, tx.Commit().Error)
	mustBe(t, <-r.outcome, lease.ErrHeld)
	must(t, h.Save(t.Context(), with(h, 1)))
}

func TestAFenceLetsRenewalsSavesAndOtherFencesPassOnPostgres(t *testing.T) {
	db := dbtest.Postgres(t)
	newWorld(t, db, fresh(t, db))
	impatient := db.OpenDSN(t, db.DSNVia("", "lock_timeout=1ms"))
	w := &world{db: db, gdb: impatient, table: "lease_items"}
	h := w.claim(t, "A")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	must(t, impatient.Transaction(func(tx *gorm.DB) error {
		must(t, h.Fence(tx))
		for n := range 5 {
			must(t, h.Renew(ctx))
			must(t, h.Save(ctx, with(h, n)))
			must(t, impatient.WithContext(ctx).Transaction(h.Fence))
		}
		return nil
	}))
}

func TestInRunTransactionsAreFencedByTheClaim(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, withNotes(t, db))
		h := w.claim(t, "A")
		must(t, h.Run(t.Context(), func(ctx context.Context) error {
			must(t, lease.Transaction(ctx, w.gdb, func(tx *gorm.DB) error {
				return errors.Join(lease.Fence(tx), write(tx), h.SaveIn(tx, with(h, 1)))
			}))
			must(t, w.gdb.WithContext(ctx).Transaction(lease.Fence))
			exec(t, w.gdb, "UPDATE lease_items SET claim_epoch = claim_epoch + 1")
			err := lease.Transaction(ctx, w.gdb, func(*gorm.DB) error { t.Error("its function was called"); return nil })
			mustBe(t, err, lease.ErrLost)
			if err != nil && !strings.Contains(err.Error(), `"item"`) {
				t.Errorf("the error does not name the item: %v", err)
			}
			mustBe(t, w.gdb.WithContext(ctx).Transaction(lease.Fence), lease.ErrLost)
			exec(t, w.gdb, "UPDATE lease_items SET claim_epoch = claim_epoch - 1")
			return nil
		}))
		if n := notes(t, w.gdb); n != 1 {
			t.Errorf("%d notes were committed", n)
		}
		is(t, w.load(t), 1)
	})
}

func TestTheInnermostOfTermsAndClaimsCounts(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, withNotes(t, db))
		must(t, lease.Create(t.Context(), w.gdb, lease.Item{Key: "other"}))
		term := hold(t, w.gdb, "A")
		stale := term
		stale.Epoch--
		fences := func(what string, ctx context.Context, want error) {
			t.Helper()
			if err := lease.Transaction(ctx, w.gdb, write); !errors.Is(err, want) {
				t.Errorf("%s: %v", what, err)
			}
		}
		h := w.claim(t, "A")
		must(t, h.Run(lease.WithTerm(t.Context(), stale), func(ctx context.Context) error {
			fences("a claim in a stale term", ctx, nil)
			if got, ok := lease.TermFrom(ctx); !ok || got != stale {
				t.Errorf("the term is %v, %v", got, ok)
			}
			fences("a stale term in a claim", lease.WithTerm(ctx, stale), lease.ErrLost)
			fences("a term in a claim", lease.WithTerm(ctx, term), nil)
			other, err := lease.Claim(t.Context(), w.gdb, "other", "A", "", time.Minute, nil)
			must(t, err)
			return other.Run(ctx, func(ctx context.Context) error {
				fences("a claim in a claim", ctx, nil)
				exec(t, w.gdb, "UPDATE lease_items SET claim_epoch = claim_epoch + 1 WHERE key = 'other'")
				fences("a lost claim in a claim", ctx, lease.ErrLost)
				exec(t, w.gdb, "UPDATE lease_items SET claim_epoch = claim_epoch - 1 WHERE key = 'other'")
				return nil
			})
		}))
		must(t, w.claim(t, "A").Run(lease.WithTerm(t.Context(), term), func(ctx context.Context) error {
			exec(t, w.gdb, "UPDATE lease_items SET claim_epoch = claim_epoch + 1 WHERE key = 'item'")
			fences("a lost claim in a term", ctx, lease.ErrLost)
			exec(t, w.gdb, "UPDATE lease_items SET claim_epoch = claim_epoch - 1 WHERE key = 'item'")
			return nil
		}))
	})
}

// doc.go warns of such a roll-back.
func TestAFenceUndoneByASavepointHoldsNobodyOff(t *testing.T) {
	db := dbtest.Postgres(t)
	w := newWorld(t, db, fresh(t, db)).byTheCallers()
	h := w.claim(t, "A")
	tx := w.gdb.Begin()
	defer tx.Rollback()
	must(t, tx.SavePoint("before").Error)
	must(t, h.Fence(tx))
	must(t, tx.RollbackTo("before").Error)
	w.pass(time.Minute)
	must(t, <-claimant(t, w).outcome)
}

// What a worker writes in another table is there once.
func TestAClaimOfAModelFencesOtherTables(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := migrated(t, db)
		exec(t, gdb, "CREATE TABLE notes (text varchar(20))")
		parcels(t, gdb, 1)
		w := (&world{db: db, gdb: gdb, table: "parcels"}).byTheCallers()
		work := func(h *lease.HolderOf[parcel]) error {
			return gdb.Transaction(func(tx *gorm.DB) error {
				p := h.Item()
				p.Done = true
				return errors.Join(h.Fence(tx), write(tx), h.SaveIn(tx, p))
			})
		}
		frozen := w.parcel(t, 1, "A")
		w.pass(time.Minute)
		must(t, work(w.next(t, "B")))
		mustBe(t, work(frozen), lease.ErrLost)
		if n := notes(t, gdb); n != 1 {
			t.Errorf("the effect is there %d times", n)
		}
		_, err := w.tryNext(t, "A")
		mustBe(t, err, gorm.ErrRecordNotFound)
	})
}
