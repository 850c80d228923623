package spec

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestWhateverTheHandleCarriesModelsWorkAsOnACleanOne(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		clean := migrated(t, db)
		for what, carry := range strange {
			t.Run(what, func(t *testing.T) {
				afresh(t, clean, 0)
				parcelsWork(t, carry(db.Open(t)), clean)
			})
		}
	})
}

func TestAHandleThatSkipsHooksDoesNotSkipThoseOfASave(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db).Session(&gorm.Session{SkipHooks: true})
		h := claimHooked(t, gdb, "A")
		ctx := hookedBy(t, func(_ string, _ *hooked, tx *gorm.DB) error { return note(tx) })
		must(t, h.Save(ctx, h.Item()))
		if n := notes(t, gdb); n != 4 || h.Item().Found != "A 1" {
			t.Errorf("%d hooks ran, and AfterFind saw %q", n, h.Item().Found)
		}
	})
}

type swappable struct {
	ID  uint
	Foo string
	Bar string
	lease.Claimable
}

func TestTwoHandlesMayNameTheColumnsOfAModelDifferentlyAtOnce(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		swapped := db.Open(t, &gorm.Config{NamingStrategy: schema.NamingStrategy{NameReplacer: strings.NewReplacer("Foo", "Bar", "Bar", "Foo")}})
		plain := withRow(t, db, swappable{ID: 1, Foo: "foo", Bar: "bar"})
		for id := uint(2); id <= 8; id++ {
			must(t, plain.Create(&swappable{ID: id, Foo: "foo", Bar: "bar"}).Error)
		}
		race(t, 8, func(i int) (bool, error) {
			gdb, foo := plain, "foo"
			if i%2 == 0 {
				gdb, foo = swapped, "bar"
			}
			h, err := lease.ClaimAs[swappable](t.Context(), gdb, i+1, "A", "", time.Minute, nil)
			if err != nil {
				return false, err
			}
			it := h.Item()
			if it.Foo != foo {
				t.Errorf("%d is claimed as %+v", i+1, it)
			}
			it.Foo += "!"
			return true, errors.Join(h.Save(t.Context(), it, "Foo"), h.Save(t.Context(), it))
		})
		asSaved := "foo = 'foo!' AND bar = 'bar' AND id % 2 = 0 OR foo = 'foo' AND bar = 'bar!' AND id % 2 = 1"
		if n := ask[int](t, plain, "SELECT count(*) FROM swappables WHERE "+asSaved); n != 8 {
			t.Errorf("%d of 8 rows are as they should be", n)
		}
	})
}

type twiceNamed struct {
	ID     uint
	Weight int
	lease.Claimable
}

func TestHandlesThatNameAColumnDifferentlyEachUseTheirOwn(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		one := withRow(t, db, twiceNamed{ID: 1, Weight: 1})
		other := db.Open(t, &gorm.Config{NamingStrategy: schema.NamingStrategy{NameReplacer: strings.NewReplacer("Weight", "Mass")}})
		must(t, other.AutoMigrate(&twiceNamed{}))
		for i, gdb := range []*gorm.DB{one, other} {
			h, err := lease.ClaimNext[twiceNamed](t.Context(), gdb, "A", "", time.Minute, nil)
			must(t, err)
			it := h.Item()
			it.Weight = 10 + i
			must(t, h.Save(t.Context(), it))
			must(t, h.Release(t.Context()))
			var got twiceNamed
			must(t, gdb.Take(&got).Error)
			if got.Weight != 10+i || h.Item().Weight != 10+i {
				t.Errorf("by handle %d Item is\n%+v, and the row\n%+v", i+1, h.Item(), got)
			}
		}
		if weight, mass := ask[int](t, one, "SELECT weight FROM twice_nameds"), ask[int](t, one, "SELECT mass FROM twice_nameds"); weight != 10 || mass != 11 {
			t.Errorf("the weight is %d, and the mass %d", weight, mass)
		}
	})
}
