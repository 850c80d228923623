package spec

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// Structs that a model embeds, and by which it embeds the claim

type richItem struct {
	lease.Item
	Extra string
}

func TestAModelMayEmbedAnItem(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		exec(t, gdb, "ALTER TABLE lease_items ADD COLUMN extra text")
		must(t, lease.Create(t.Context(), gdb, lease.Item{Key: "item", Payload: payload(1)}))
		h, err := lease.ClaimAs[richItem](t.Context(), gdb, "item", "A", "", time.Minute, nil)
		must(t, err)
		it := h.Item()
		it.Extra, it.Payload = "more", payload(2)
		must(t, h.Save(t.Context(), it))
		it.Payload = []byte("{")
		mustBe(t, h.Save(t.Context(), it), lease.ErrInvalid)
		got, _, err := lease.Load(t.Context(), gdb, "item")
		must(t, err)
		is(t, got, 2)
		if extra := ask[string](t, gdb, "SELECT extra FROM lease_items"); extra != "more" || got.UpdatedAt != h.Item().UpdatedAt {
			t.Errorf("the extra is %q; it was updated at %v, and by Item at %v", extra, got.UpdatedAt, h.Item().UpdatedAt)
		}
	})
}

type Alias = lease.Claimable

type aliased struct {
	ID   uint
	Name string
	Alias
}

func TestClaimableMayBeEmbeddedByAnAlias(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) { keyed(t, db, aliased{ID: 3}, 3, 4) })
}

type terms struct {
	Claimable struct{ Amount int } `gorm:"embedded;embeddedPrefix:claimable_"`
}

type insured struct {
	ID    uint
	Terms terms `gorm:"embedded"`
	lease.Claimable
}

func TestAnothersStructThatIsCalledClaimableIsSaved(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, insured{ID: 1})
		h, err := lease.ClaimAs[insured](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		for i, columns := range [][]string{nil, {"Amount"}, {"claimable_amount"}} {
			it := h.Item()
			it.Terms.Claimable.Amount = 5 + i
			must(t, h.Save(t.Context(), it, columns...))
			if n := ask[int](t, gdb, "SELECT claimable_amount FROM insureds"); n != 5+i || h.Item().Terms.Claimable.Amount != 5+i {
				t.Errorf("a save of %q: the amount is %d, and in Item %d", columns, n, h.Item().Terms.Claimable.Amount)
			}
		}
	})
}

// Structs that are embedded by pointers

func TestACopyOfAnItemIsNotChangedByLaterSavesAndMayBeReadMeanwhile(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		h := claimHoused(t, withRow(t, db, housed{ID: 1, Door: &door{"first", 0}}))
		before := h.Item()
		ended, end := context.WithCancel(t.Context())
		defer end()
		var reader sync.WaitGroup
		reader.Go(func() { // as a callback of a heartbeat does
			for ended.Err() == nil {
				if before.Door.Name != "first" || h.Item().Door.Name == "" {
					t.Errorf("the copy says %+v, and Item %+v", before.Door, h.Item().Door)
					return
				}
			}
		})
		for i := range 20 {
			must(t, h.Save(t.Context(), housed{Door: &door{fmt.Sprint(" ", i), i}}))
			must(t, h.Save(t.Context(), h.Item(), "door_name"))
			must(t, h.Save(t.Context(), housed{Door: &door{fmt.Sprint("again ", i), i}}, "door_name"))
		}
		end()
		reader.Wait()
		if *before.Door != (door{"first", 0}) || *h.Item().Door != (door{"again 19", 19}) {
			t.Errorf("the copy from before says %+v, and Item %+v", before.Door, h.Item().Door)
		}
	})
}

func TestTheCallersOwnStructsAreNotChangedBySaves(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		h := claimHoused(t, withRow(t, db, housed{ID: 1}))
		mine := &door{" mine ", 1}
		must(t, h.Save(t.Context(), housed{Door: mine})) // with a hook that would
		if got := *h.Item().Door; got != (door{"mine", 1}) {
			t.Errorf("Item says %+v", got)
		}
		must(t, h.Save(t.Context(), housed{Door: &door{"another", 2}}))
		must(t, h.Save(t.Context(), housed{}))
		if *mine != (door{" mine ", 1}) {
			t.Errorf("the caller's own became %+v", mine)
		}
	})
}

func TestAnEmbeddedStructThatWasSavedAsNilIsNil(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		for what, row := range map[string]housed{"it was nil before": {ID: 1}, "it was not": {ID: 1, Door: &door{"first", 1}}} {
			t.Run(what, func(t *testing.T) {
				gdb := withRow(t, db, row)
				defer func() { must(t, gdb.Migrator().DropTable(&housed{})) }()
				h := claimHoused(t, gdb)
				isNil := func() {
					t.Helper()
					if n := ask[int](t, gdb, "SELECT count(*) FROM houseds WHERE door_name IS NULL AND door_number IS NULL"); n != 1 || h.Item().Door != nil {
						t.Errorf("%d rows have NULL, and Item has %+v", n, h.Item().Door)
					}
				}
				must(t, h.Save(t.Context(), housed{}))
				isNil()
				must(t, h.Save(t.Context(), h.Item()))
				isNil()
				must(t, h.Save(t.Context(), housed{Text: "x"}, "door_name", "Text"))
				isNil()
			})
		}
	})
}

func TestANamedColumnOfAnEmbeddedStructThatIsNilIsSavedAndRemembered(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, housed{ID: 1, Door: &door{"first", 1}})
		h := claimHoused(t, gdb)
		must(t, h.Save(t.Context(), housed{}, "door_name"))
		if n := ask[int](t, gdb, "SELECT count(*) FROM houseds WHERE door_name IS NULL AND door_number = 1"); n != 1 || *h.Item().Door != (door{"", 1}) {
			t.Errorf("%d rows have no name for their door, and Item has %+v", n, h.Item().Door)
		}
	})
}
