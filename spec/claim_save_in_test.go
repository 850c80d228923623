package spec

import (
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestSaveInCommitsWithItsTransactionOrNotAtAll(t *testing.T) {
	for how, want := range map[string]int{"commit": 1, "roll-back": 0} {
		t.Run(how, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				w := newWorld(t, db, withNotes(t, db))
				h := w.claim(t, "A")
				before := shows(h.Item())
				tx := w.gdb.Begin()
				defer tx.Rollback()
				must(t, write(tx))
				it := with(h, 1)
				it.Done = true
				must(t, h.SaveIn(tx, it))
				is(t, w.load(t), 0) // not committed yet
				if how == "commit" {
					must(t, tx.Commit().Error)
				} else {
					must(t, tx.Rollback().Error)
				}
				row := w.load(t)
				is(t, row, want)
				if n := notes(t, w.gdb); n != want || row.Done != (want == 1) {
					t.Errorf("after the %s there are %d notes, and the row is %s", how, n, shows(row))
				}
				if after := shows(h.Item()); after != before {
					t.Errorf("SaveIn changed Item from\n%s to\n%s", before, after)
				}
				must(t, h.Save(t.Context(), with(h, 2)))
				w.agrees(t, "after the next Save", h)
				is(t, w.load(t), 2)
				must(t, w.gdb.Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, with(h, 3)) }))
				is(t, w.load(t), 3)
				must(t, h.Renew(t.Context()))
				must(t, h.Release(t.Context()))
			})
		})
	}
}

func TestSaveInMayBeCalledTwiceInOneTransaction(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db))
		h := w.claim(t, "A")
		for n := range 3 {
			must(t, w.gdb.Transaction(func(tx *gorm.DB) error {
				return errors.Join(h.Fence(tx), h.SaveIn(tx, with(h, 2*n)), h.SaveIn(tx, with(h, 2*n+1), "payload"))
			}))
			is(t, w.load(t), 2*n+1)
		}
		must(t, h.Save(t.Context(), with(h, 9)))
		w.agrees(t, "after a Save", h)
	})
}

func TestSaveInIsRolledBackToASavepoint(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db))
		h := w.claim(t, "A")
		failure := errors.New("out of paper")
		must(t, w.gdb.Transaction(func(tx *gorm.DB) error {
			must(t, h.SaveIn(tx, with(h, 1)))
			mustBe(t, tx.Transaction(func(tx *gorm.DB) error { return errors.Join(h.SaveIn(tx, with(h, 2)), failure) }), failure)
			return nil
		}))
		is(t, w.load(t), 1)
		must(t, h.Save(t.Context(), with(h, 3)))
	})
}

func TestASaveInThatIsLostLeavesTheTransactionToItsCaller(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, withNotes(t, db)).byTheCallers()
		h := w.claim(t, "A")
		w.pass(time.Minute)
		w.claim(t, "B")
		err := w.gdb.Transaction(func(tx *gorm.DB) error {
			return errors.Join(write(tx), h.SaveIn(tx, with(h, 1)))
		})
		mustBe(t, err, lease.ErrLost)
		if n := notes(t, w.gdb); n != 0 {
			t.Errorf("%d notes were committed", n)
		}
		is(t, w.load(t), 0)
	})
}
