package spec

import (
	"context"
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// aClaimEnds is every way in which A's claim is lost.
var aClaimEnds = map[string]func(t *testing.T, w *world){
	"another took it":           func(t *testing.T, w *world) { w.pass(time.Minute); w.claim(t, "B") },
	"its owner claimed anew":    func(t *testing.T, w *world) { w.claim(t, "A") },
	"its owner took it again":   func(t *testing.T, w *world) { w.pass(time.Minute); w.claim(t, "A") },
	"its row was deleted":       func(t *testing.T, w *world) { exec(t, w.gdb, "DELETE FROM lease_items") },
	"its owner was overwritten": func(t *testing.T, w *world) { exec(t, w.gdb, "UPDATE lease_items SET claim_owner = 'B'") },
	"its row was made again": func(t *testing.T, w *world) {
		exec(t, w.gdb, "DELETE FROM lease_items")
		must(t, lease.Create(t.Context(), w.gdb, lease.Item{Key: "item"}))
	},
	"another took it and released": func(t *testing.T, w *world) {
		w.pass(time.Minute)
		must(t, w.claim(t, "B").Release(t.Context()))
	},
}

func TestAClaimThatIsLostChangesNothing(t *testing.T) {
	uses := map[string]func(t *testing.T, w *world, h *lease.Holder) error{
		"Renew":   func(t *testing.T, _ *world, h *lease.Holder) error { return h.Renew(t.Context()) },
		"Save":    func(t *testing.T, _ *world, h *lease.Holder) error { return h.Save(t.Context(), with(h, 1)) },
		"Release": func(t *testing.T, _ *world, h *lease.Holder) error { return h.Release(t.Context()) },
		"Fence":   func(_ *testing.T, w *world, h *lease.Holder) error { return w.gdb.Transaction(h.Fence) },
		"SaveIn": func(_ *testing.T, w *world, h *lease.Holder) error {
			return w.gdb.Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, with(h, 1)) })
		},
	}
	everyClock(t, func(t *testing.T, w *world) {
		for how, ends := range aClaimEnds {
			t.Run(how, func(t *testing.T) {
				for first := range uses {
					newItem := newWorld(t, w.db, w.gdb)
					h := w.claim(t, "A")
					ends(t, w)
					left := newItem.contents(t)
					// The first use finds out, and the others know.
					mustBeLost(t, first, uses[first](t, w, h))
					for other, use := range uses {
						mustBeLost(t, other+" after "+first, use(t, w, h))
					}
					if after := newItem.contents(t); after != left {
						t.Errorf("the table was\n%s and is\n%s", left, after)
					}
				}
			})
		}
	})
}

type softlyGone struct {
	ID        int64 `gorm:"primaryKey;autoIncrement:false"`
	DeletedAt gorm.DeletedAt
	lease.Claimable
}

func TestARowThatIsSoftlyDeletedIsAClaimThatIsLost(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, softlyGone{ID: 1})
		h, err := lease.ClaimAs[softlyGone](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		mustBe(t, h.Run(t.Context(), func(context.Context) error { return gdb.Delete(&softlyGone{}, 1).Error }), lease.ErrLost)
	})
}

func TestAnotherWritersGORMSaveFreesNoClaim(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, byBytes{ID: []byte("key")})
		var read byBytes
		must(t, gdb.First(&read).Error)
		h, err := lease.ClaimAs[byBytes](t.Context(), gdb, []byte("key"), "A", "", time.Minute, nil)
		must(t, err)
		read.Text = "by another"
		must(t, gdb.Save(&read).Error) // all of a row that was read before the claim
		_, err = lease.ClaimAs[byBytes](t.Context(), gdb, []byte("key"), "B", "", time.Minute, nil)
		mustBe(t, err, lease.ErrHeld)
		must(t, h.Renew(t.Context()))
		must(t, h.Release(t.Context()))
	})
}

// The README asks other writers to update only the columns they mean.
func TestAnotherWritersGORMSaveOfAnOldRowCostsTheClaimItsNextSave(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, byBytes{ID: []byte("key")})
		h, err := lease.ClaimAs[byBytes](t.Context(), gdb, []byte("key"), "A", "", time.Minute, nil)
		must(t, err)
		var read byBytes
		must(t, gdb.First(&read).Error)
		must(t, h.Save(t.Context(), h.Item()))
		read.Text = "by another"
		must(t, gdb.Save(&read).Error)
		it := h.Item()
		it.Text = "by the claim"
		mustBe(t, h.Save(t.Context(), it), lease.ErrLost)
		if text := ask[string](t, gdb, "SELECT text FROM by_bytes"); text != "by another" {
			t.Errorf("the row says %q", text)
		}
	})
}

func TestASaveOfARowWithHooksIsLostOnceTheRowBearsTheClaimNoMore(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, housed{ID: 1})
		for _, change := range []string{
			"UPDATE houseds SET claim_epoch = claim_epoch + 1", "UPDATE houseds SET claim_owner = 'B'", "DELETE FROM houseds",
		} {
			must(t, gdb.Exec("UPDATE houseds SET claim_owner = ''").Error)
			h := claimHoused(t, gdb)
			must(t, gdb.Exec(change).Error)
			if err := h.Save(t.Context(), h.Item()); !errors.Is(err, lease.ErrLost) {
				t.Errorf("after %s: %v", change, err)
			}
		}
	})
}

func mustBeLost(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, lease.ErrLost) || errors.Is(err, lease.ErrInvalid) {
		t.Errorf("%s: %v", what, err)
	}
}
