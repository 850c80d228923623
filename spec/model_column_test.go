package spec

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

type Stamped struct {
	Name      string
	UpdatedAt time.Time
}

// A restamped row has the fields of its base again.
type restamped struct {
	ID uint
	Stamped
	Name      string
	UpdatedAt time.Time
	lease.Claimable
}

func TestAFieldThatIsShadowedIsNotTheOneNamed(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, restamped{ID: 1, Name: "old"})
		h, err := lease.ClaimAs[restamped](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		it := h.Item()
		it.Name, it.Stamped.Name = "new", "shadowed"
		must(t, h.Save(t.Context(), it, "Name"))
		if name := ask[string](t, gdb, "SELECT name FROM restampeds"); name != "new" || h.Item().Name != "new" {
			t.Errorf("the name is %q, and in Item %q", name, h.Item().Name)
		}
		exec(t, gdb, "UPDATE restampeds SET updated_at = '2020-01-01 00:00:00'")
		must(t, h.Save(t.Context(), it, "UpdatedAt"))
		var got restamped
		must(t, gdb.Take(&got).Error)
		if got.UpdatedAt.Year() == 2020 || !h.Item().UpdatedAt.Truncate(time.Microsecond).Equal(got.UpdatedAt.Truncate(time.Microsecond)) {
			t.Errorf("it was updated at %v, and by Item at %v", got.UpdatedAt, h.Item().UpdatedAt)
		}
	})
}

type routed struct {
	ID   uint
	From address `gorm:"embedded;embeddedPrefix:from_"`
	To   address `gorm:"embedded;embeddedPrefix:to_"`
	lease.Claimable
}

func TestANameThatSeveralColumnsBearIsInvalidAndTheErrorListsThem(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, routed{ID: 1, From: address{Town: "Graz"}, To: address{Town: "Linz"}})
		h, err := lease.ClaimAs[routed](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		it := routed{From: address{Town: "Oslo"}, To: address{Town: "Voss"}}
		err = h.Save(t.Context(), it, "Town")
		mustBe(t, err, lease.ErrInvalid)
		if err != nil && (!strings.Contains(err.Error(), "from_town") || !strings.Contains(err.Error(), "to_town")) {
			t.Errorf("the error is %v", err)
		}
		must(t, h.Save(t.Context(), it, "to_town"))
		if from, to := ask[string](t, gdb, "SELECT from_town FROM routeds"), ask[string](t, gdb, "SELECT to_town FROM routeds"); from != "Graz" || to != "Voss" {
			t.Errorf("it goes from %q to %q", from, to)
		}
	})
}

type oddlyNamed struct {
	ID uint
	A  string `gorm:"column:a$1"`
	B  string `gorm:"column:?1"`
	C  string `gorm:"column:@name"`
	D  string `gorm:"column:it's"`
	E  string `gorm:"column:select"`
	F  string `gorm:"column:durable"`
	G  string `gorm:"column:{now}"`
	H  string `gorm:"column:{from}"`
	I  string `gorm:"column:$1"`
	J  string `gorm:"column:::text"`
	K  string `gorm:"column:lease_c"`
	lease.Claimable
}

func TestAColumnMayHaveAnyName(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		clean := db.Open(t)
		must(t, clean.AutoMigrate(&oddlyNamed{}))
		handles := map[string]*gorm.DB{"plain": clean, "prepared, with the fields listed": db.Open(t, &gorm.Config{QueryFields: true, PrepareStmt: true})}
		if db.Backend == dbtest.BackendPostgres {
			simple, err := gorm.Open(postgres.New(postgres.Config{DSN: db.DSN, PreferSimpleProtocol: true}))
			must(t, err)
			defer pool(t, simple).Close()
			handles["by the simple protocol"] = simple
		}
		for what, gdb := range handles {
			t.Run(what, func(t *testing.T) {
				must(t, clean.Create(&oddlyNamed{ID: 1, A: "a", D: `$1 ' \ `, I: "?"}).Error)
				defer clean.Delete(&oddlyNamed{}, 1)
				h, err := lease.ClaimNext[oddlyNamed](t.Context(), gdb, "A", "", time.Minute, nil)
				must(t, err)
				it := h.Item()
				it.B, it.C = "b$1?@name", `"'\`
				must(t, h.Save(t.Context(), it))
				it.H = "{now}"
				must(t, h.Save(t.Context(), it, "@name", "?1", "$1", "it's", "::text", "H"))
				must(t, h.Renew(t.Context()))
				it.K = "in a transaction"
				must(t, gdb.Transaction(func(tx *gorm.DB) error { return errors.Join(h.Fence(tx), h.SaveIn(tx, it)) }))
				must(t, h.Release(t.Context()))
				var got oddlyNamed
				must(t, clean.Take(&got).Error)
				got.Claimable, it.Claimable = lease.Claimable{}, lease.Claimable{}
				if got != it || it.A != "a" || it.D != `$1 ' \ ` || it.I != "?" {
					t.Errorf("the row is\n%+v, not\n%+v", got, it)
				}
			})
		}
	})
}

// A settled row has columns that are called as the claim's are in Go.
type settled struct {
	ID uint
	lease.Claimable
	Done  string
	Owner string
	Other string
}

func TestAColumnThatIsCalledAsOneOfTheClaimsIsTheModelsOwn(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, settled{ID: 1})
		h, err := lease.ClaimAs[settled](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		it := h.Item()
		it.Done, it.Owner, it.Other, it.Claimable.Done = "yes", "Jane", "stale", true
		must(t, h.Save(t.Context(), it, "Done"))
		if n := ask[int](t, gdb, "SELECT count(*) FROM settleds WHERE done = 'yes' AND owner = '' AND other = '' AND claim_done"); n != 1 || h.Item().Done != "yes" {
			t.Errorf("Done was not what was saved; Item is %+v", h.Item())
		}
		must(t, h.Save(t.Context(), it, "Owner"))
		if n := ask[int](t, gdb, "SELECT count(*) FROM settleds WHERE owner = 'Jane' AND other = '' AND claim_owner = 'A'"); n != 1 || h.Item().Owner != "Jane" {
			t.Errorf("Owner was not what was saved; Item is %+v", h.Item())
		}
	})
}

// A crossed row has two columns, each of which is called as the other one is in Go.
type crossed struct {
	ID   uint
	Text string `gorm:"column:Name"`
	Name string `gorm:"column:Text"`
	lease.Claimable
}

func TestANameIsTheTablesBeforeItIsGos(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, crossed{ID: 1})
		h, err := lease.ClaimAs[crossed](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		it := h.Item()
		it.Text, it.Name = "text", "name"
		must(t, h.Save(t.Context(), it, "Name"))
		var got crossed
		must(t, gdb.Take(&got).Error)
		if got.Text != "text" || got.Name != "" || h.Item() != got {
			t.Errorf("Item is\n%+v, and the row\n%+v", h.Item(), got)
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
