package spec

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm/clause"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestASaveWritesThePayloadAndDoneAndNotTheClaim(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		w.pass(10 * time.Second)
		before := w.load(t)
		saved := lease.Item{Key: "item", Payload: payload(1), CreatedAt: noon, UpdatedAt: noon, Claimable: lease.Claimable{
			Owner: "B", StepID: "x", Epoch: 70, Revision: 80, Attempts: 90, ExpiresAt: noon.AddDate(50, 0, 0), Done: true,
		}}
		began := time.Now().Add(-time.Microsecond)
		must(t, h.Save(t.Context(), saved))
		after := w.load(t)
		is(t, after, 1)
		if !after.Done || after.Revision != before.Revision+1 || after.CreatedAt != before.CreatedAt {
			t.Errorf("the save changed\n%s into\n%s", shows(before), shows(after))
		}
		if w.now == nil && (after.UpdatedAt.Before(began) || after.UpdatedAt.After(time.Now())) || w.now != nil && !after.UpdatedAt.Equal(w.now()) {
			t.Errorf("it was updated at %v", after.UpdatedAt)
		}
		claim := after.Claimable
		claim.Done, claim.Revision = before.Done, before.Revision
		if claim != before.Claimable {
			t.Errorf("the save changed the claim from %+v to %+v", before.Claimable, claim)
		}
		if w.now != nil { // by the database's clock the test has dated back the row
			w.agrees(t, "after a save", h)
		}
	})
}

func TestASaveOfNamedColumnsLeavesTheOthers(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		exec(t, w.gdb, "UPDATE lease_items SET payload = ?", string(payload(5)))
		it := with(h, 1)
		it.Done = true
		for _, name := range []string{"claim_done", "Done", "updated_at", "UpdatedAt"} {
			w.pass(time.Second)
			must(t, h.Save(t.Context(), it, name))
			if row := w.load(t); !row.Done || row.Revision != h.Item().Revision || string(row.Payload) != string(payload(5)) {
				t.Errorf("after a save of %s the row is %s", name, shows(row))
			}
			is(t, h.Item(), 0)
			if !h.Item().Done {
				t.Errorf("after a save of %s Item is not done", name)
			}
		}
		for _, name := range []string{"payload", "Payload"} {
			it.Payload = payload(len(name) + int(name[0]))
			must(t, h.Save(t.Context(), it, name))
			is(t, w.load(t), len(name)+int(name[0]))
			is(t, h.Item(), len(name)+int(name[0]))
		}
	})
}

func TestASaveOfWhatIsNotForItToWriteIsInvalidBeforeAnySQL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		newWorld(t, db, fresh(t, db))
		gdb, spy := spied(t, db)
		h, err := lease.Claim(t.Context(), gdb, "item", "A", "", time.Minute, nil)
		must(t, err)
		spy.sent()
		for _, name := range []string{
			"key", "Key", "created_at", "claim_owner", "Owner", "claim_step_id", "StepID", "claim_epoch", "Epoch", "claim_revision", "Revision",
			"claim_attempts", "claim_acquired_at", "claim_renewed_at", "claim_expires_at", "ExpiresAt", "", "*", "nothing", "payload ", "PAYLOAD, claim_owner",
			"Claimable", "lease_items.payload", clause.Associations,
		} {
			if err := h.Save(t.Context(), with(h, 1), "payload", name); !errors.Is(err, lease.ErrInvalid) {
				t.Errorf("a save of %q is %v", name, err)
			}
		}
		other := with(h, 1)
		other.Key = "other"
		mustBe(t, h.Save(t.Context(), other), lease.ErrInvalid)
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
		must(t, h.Save(t.Context(), lease.Item{Payload: payload(1)})) // without a key it is this item
		if it := h.Item(); it.Key != "item" || it.Epoch != 1 || it.Owner != "A" {
			t.Errorf("Item is %s", shows(it))
		}
	})
}

func TestItemIsTheRowAsTheClaimLastWroteIt(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		w.agrees(t, "after Claim", h)
		must(t, h.Save(t.Context(), with(h, 1)))
		w.agrees(t, "after Save", h)
		must(t, h.Renew(t.Context()))
		w.agrees(t, "after Renew", h)
		must(t, h.Save(t.Context(), with(h, 2), "payload"))
		w.agrees(t, "after a Save of one column", h)
		it := h.Item()
		exec(t, w.gdb, "UPDATE lease_items SET claim_epoch = claim_epoch + 1")
		mustBe(t, h.Save(t.Context(), with(h, 3)), lease.ErrLost)
		if shows(h.Item()) != shows(it) {
			t.Errorf("a save that is lost changed Item to %s", shows(h.Item()))
		}
		h = w.claim(t, "A")
		if w.now != nil {
			w.pass(time.Second)
		}
		must(t, h.Release(t.Context()))
		w.agrees(t, "after Release", h)
	})
}

func TestARunningRenewalDoesNotUndoASaveInItem(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		const saves = 25
		race(t, 4, func(i int) (bool, error) {
			for n := range saves {
				var err error
				if i == 0 {
					err = h.Save(t.Context(), with(h, n))
				} else {
					err = h.Renew(t.Context())
				}
				if err != nil {
					return false, err
				}
				_ = h.Item()
			}
			return true, nil
		})
		w.agrees(t, "in the end", h)
		is(t, h.Item(), saves-1)
	})
}

func TestSavesAtOnceAreOneAfterTheOther(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, keepConnections(t, fresh(t, db)))
		h := w.claim(t, "A")
		winners := race(t, 6, func(i int) (bool, error) {
			for n := range 10 {
				if err := h.Save(t.Context(), with(h, 100*i+n)); err != nil {
					return false, err
				}
			}
			return true, nil
		})
		if len(winners) != 6 {
			t.Errorf("only %v were always good", winners)
		}
		w.agrees(t, "in the end", h)
		if r := w.load(t).Revision; r != 61 {
			t.Errorf("after a claim and 60 saves the revision is %d", r)
		}
	})
}

func TestASaveWaitsForTheOneBeforeAndForItsContext(t *testing.T) {
	db := dbtest.Postgres(t)
	w := newWorld(t, db, fresh(t, db))
	h := w.claim(t, "A")
	other := w.gdb.Begin()
	defer other.Rollback()
	exec(t, other, "SELECT * FROM lease_items FOR UPDATE")
	first := make(chan error, 1)
	go func() { first <- h.Save(t.Context(), with(h, 1)) }()
	waitUntil(t, "the first save waits", func() bool { return waiters(t, w.gdb) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	mustBe(t, h.Save(ctx, with(h, 2)), context.DeadlineExceeded)
	must(t, other.Rollback().Error)
	must(t, <-first)
	is(t, w.load(t), 1)
	must(t, h.Save(t.Context(), with(h, 3)))
}

func TestSavesRenewalsAndAReleaseAtOnceNeverReadAsALossBeforeIt(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, keepConnections(t, fresh(t, db)))
		for range 10 {
			h := w.claim(t, "A")
			var releasing atomic.Bool
			race(t, 5, func(i int) (bool, error) {
				for n := range 6 {
					var err error
					switch {
					case i == 0 && n < 5:
						continue
					case i == 0:
						releasing.Store(true)
						return true, h.Release(t.Context())
					case i%2 == 0:
						err = h.Renew(t.Context())
					default:
						err = h.Save(t.Context(), with(h, n))
					}
					if err != nil && !(errors.Is(err, lease.ErrLost) && releasing.Load()) {
						return false, err
					}
				}
				return true, nil
			})
			must(t, h.Release(t.Context()))
			if it := w.load(t); it.Owner != "" || it.Attempts != 0 {
				t.Fatalf("after the release it reads %s", shows(it))
			}
		}
	})
}

func TestASaveOfDoneAloneTellsWhenAnItemWasUpdated(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db)).byTheCallers()
		h := w.claim(t, "A")
		w.pass(10 * time.Second)
		it := with(h, 1)
		it.Done = true
		must(t, h.Save(t.Context(), it, "Done"))
		got := w.load(t)
		if is(t, got, 0); !got.Done || !got.UpdatedAt.Equal(w.now()) {
			t.Errorf("the row is %s", shows(got))
		}
		w.agrees(t, "after a save of Done", h)
	})
}
