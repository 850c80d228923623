package spec

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestScopesNarrowTheChoice(t *testing.T) {
	smiths := func(db *gorm.DB) *gorm.DB {
		return db.Joins("JOIN customers ON customers.id = parcels.customer_id").Where("customers.name = ?", "Smith")
	}
	tests := map[string]struct {
		scopes []func(*gorm.DB) *gorm.DB
		want   []uint
	}{
		"none":             {nil, []uint{1, 2, 3, 4}},
		"one that is idle": {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB { return db }}, []uint{1, 2, 3, 4}},
		"Where":            {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB { return db.Where("weight > ?", 2) }}, []uint{3, 4}},
		"Where of a model": {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB { return db.Where(&parcel{Weight: 2}) }}, []uint{2}},
		"Where of a map":   {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB { return db.Where(map[string]any{"weight": []int{1, 4}}) }}, []uint{1, 4}},
		"Not":              {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB { return db.Not("weight = 1") }}, []uint{2, 3, 4}},
		"Where and Or":     {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB { return db.Where("weight = 1").Or("weight = 3") }}, []uint{1, 3}},
		"Or alone":         {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB { return db.Or("weight = 3") }}, []uint{3}},
		"a named parameter": {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB {
			return db.Where("weight = @w", sql.Named("w", 4))
		}}, []uint{4}},
		"two": {[]func(*gorm.DB) *gorm.DB{
			func(db *gorm.DB) *gorm.DB { return db.Where("weight > 1") }, func(db *gorm.DB) *gorm.DB { return db.Where("weight < 3") },
		}, []uint{2}},
		"Scopes in a scope": {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB {
			return db.Scopes(func(db *gorm.DB) *gorm.DB { return db.Where("weight = 3") })
		}}, []uint{3}},
		"Joins": {[]func(*gorm.DB) *gorm.DB{smiths}, []uint{2, 3}},
		"Joins with a parameter": {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB {
			return db.Joins("JOIN customers ON customers.id = parcels.customer_id AND customers.name = ?", "Jones")
		}}, []uint{4}},
		"Joins of an association": {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB {
			return db.Joins("Customer").Where(map[string]any{"Customer.name": "Smith"})
		}}, []uint{2, 3}},
		"InnerJoins of an association": {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB { return db.InnerJoins("Customer") }}, []uint{2, 3, 4}},
		"a join with many rows for one": {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB {
			return db.Joins("JOIN stops ON stops.parcel_id = parcels.id")
		}}, []uint{3}},
		"a left join": {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB {
			return db.Joins("LEFT JOIN customers ON customers.id = parcels.customer_id").Where("customers.id IS NULL")
		}}, []uint{1}},
		"a query in it": {[]func(*gorm.DB) *gorm.DB{func(db *gorm.DB) *gorm.DB {
			return db.Where("customer_id IN (?)", db.Session(&gorm.Session{NewDB: true}).Model(&customer{}).Select("id").Where("name = 'Jones'"))
		}}, []uint{4}},
	}
	withParcels(t, 0, func(t *testing.T, w *world) {
		for what, test := range tests {
			t.Run(what, func(t *testing.T) {
				afresh(t, w.gdb, 4)
				for id, name := range map[uint]string{2: "Smith", 3: "Smith", 4: "Jones"} {
					must(t, w.gdb.Create(&customer{ID: id, Name: name}).Error)
					exec(t, w.gdb, "UPDATE parcels SET customer_id = id WHERE id = ?", id)
				}
				must(t, w.gdb.Create([]stop{{ParcelID: 3, Town: "Oslo"}, {ParcelID: 3, Town: "Bergen"}, {ParcelID: 3, Town: "Voss"}}).Error)
				var took []uint
				for range test.want {
					h, err := w.tryNext(t, "A", test.scopes...)
					if err != nil {
						t.Fatalf("after %v: %v", took, err)
					}
					took = append(took, h.Item().ID)
				}
				if slices.Sort(took); !slices.Equal(took, test.want) {
					t.Errorf("it took %v, not %v", took, test.want)
				}
				_, err := w.tryNext(t, "A", test.scopes...)
				mustBe(t, err, gorm.ErrRecordNotFound)
			})
		}
	})
}

func TestNoScopeWidensTheChoice(t *testing.T) {
	scopes := map[string]func(*gorm.DB) *gorm.DB{
		"Or":                         func(db *gorm.DB) *gorm.DB { return db.Or("1 = 1") },
		"Where and Or":               func(db *gorm.DB) *gorm.DB { return db.Where("weight = 99").Or("1 = 1") },
		"Or first":                   func(db *gorm.DB) *gorm.DB { return db.Or("weight > 0").Where("weight < 99").Or("1 = 1") },
		"an OR in the text":          func(db *gorm.DB) *gorm.DB { return db.Where("weight = 99 OR 1 = 1") },
		"an or in the text":          func(db *gorm.DB) *gorm.DB { return db.Where("weight = 99 or 1 = 1") },
		"an OR on a line of its own": func(db *gorm.DB) *gorm.DB { return db.Where("weight = 99\nOR\n1 = 1") },
		"an OR after a tab":          func(db *gorm.DB) *gorm.DB { return db.Where("weight = 99\tOR 1 = 1") },
		"an OR between parentheses":  func(db *gorm.DB) *gorm.DB { return db.Where("(weight = 99)OR(1 = 1)") },
		"an OR after an AND":         func(db *gorm.DB) *gorm.DB { return db.Where("weight = 99\nAND weight = 98\nOR 1 = 1").Where("1 = 1") },
		"an OR in Scopes":            func(db *gorm.DB) *gorm.DB { return db.Scopes(func(db *gorm.DB) *gorm.DB { return db.Or("1 = 1") }) },
		"Not":                        func(db *gorm.DB) *gorm.DB { return db.Not("weight = 99\nOR 1 = 0") },
		"an OR in a join": func(db *gorm.DB) *gorm.DB {
			return db.Joins("JOIN customers ON customers.id = parcels.customer_id\nOR 1 = 1")
		},
	}
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := migrated(t, db)
		for what, scope := range scopes {
			t.Run(what, func(t *testing.T) {
				afresh(t, gdb, 3)
				must(t, gdb.Create(&customer{ID: 1, Name: "Smith"}).Error)
				w := (&world{db: db, gdb: gdb, table: "parcels"}).byTheCallers()
				w.parcel(t, 1, "A")
				h := w.parcel(t, 2, "A")
				p := h.Item()
				p.Done = true
				must(t, h.Save(t.Context(), p))
				must(t, gdb.Delete(&parcel{}, 3).Error)
				before := w.contents(t)
				if h, err := w.tryNext(t, "B", scope); !errors.Is(err, gorm.ErrRecordNotFound) {
					t.Errorf("it took %v, %v", h, err)
				}
				if after := w.contents(t); after != before {
					t.Errorf("the rows were\n%s and are\n%s", before, after)
				}
			})
		}
	})
}

func TestAScopeThatDoesMoreThanNarrowIsInvalid(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := &world{db: db, gdb: migrated(t, db), table: "parcels"}
		parcels(t, w.gdb, 2)
		before := w.contents(t)
		for what, scope := range map[string]func(*gorm.DB) *gorm.DB{
			"Order":             func(db *gorm.DB) *gorm.DB { return db.Order("weight DESC") },
			"Limit":             func(db *gorm.DB) *gorm.DB { return db.Limit(5) },
			"Offset":            func(db *gorm.DB) *gorm.DB { return db.Offset(1) },
			"Select":            func(db *gorm.DB) *gorm.DB { return db.Select("id") },
			"Omit":              func(db *gorm.DB) *gorm.DB { return db.Omit("weight") },
			"Distinct":          func(db *gorm.DB) *gorm.DB { return db.Distinct() },
			"Unscoped":          func(db *gorm.DB) *gorm.DB { return db.Unscoped() },
			"Group":             func(db *gorm.DB) *gorm.DB { return db.Group("weight") },
			"Having":            func(db *gorm.DB) *gorm.DB { return db.Group("weight").Having("1 = 1") },
			"Preload":           func(db *gorm.DB) *gorm.DB { return db.Preload("Stops") },
			"Table":             func(db *gorm.DB) *gorm.DB { return db.Table("stops") },
			"another Model":     func(db *gorm.DB) *gorm.DB { return db.Model(&stop{}) },
			"Raw":               func(db *gorm.DB) *gorm.DB { return db.Raw("SELECT 1") },
			"Where, then Order": func(db *gorm.DB) *gorm.DB { return db.Where("weight > 0").Order("weight") },
			"Order in Scopes": func(db *gorm.DB) *gorm.DB {
				return db.Scopes(func(db *gorm.DB) *gorm.DB { return db.Order("weight DESC") })
			},
			"no handle":     func(*gorm.DB) *gorm.DB { return nil },
			"a zero handle": func(*gorm.DB) *gorm.DB { return &gorm.DB{} },
			"nil":           nil,
		} {
			if h, err := w.tryNext(t, "A", scope); !errors.Is(err, lease.ErrInvalid) {
				t.Errorf("%s: %v, %v", what, h, err)
			}
		}
		failure := errors.New("no such tenant")
		_, err := w.tryNext(t, "A", func(db *gorm.DB) *gorm.DB { _ = db.AddError(failure); return db })
		mustBe(t, err, failure)
		if after := w.contents(t); after != before {
			t.Errorf("the rows were\n%s and are\n%s", before, after)
		}
	})
}

func TestAJoinLocksOnlyTheItem(t *testing.T) {
	db := dbtest.Postgres(t)
	w := &world{db: db, gdb: migrated(t, db), table: "parcels"}
	must(t, w.gdb.Create(&parcel{Model: gorm.Model{ID: 1}, Customer: &customer{Name: "Smith"}}).Error)
	tx := w.gdb.Begin()
	defer tx.Rollback()
	exec(t, tx, "UPDATE customers SET name = 'Jones'")
	h := w.next(t, "A", func(db *gorm.DB) *gorm.DB {
		return db.Joins("JOIN customers ON customers.id = parcels.customer_id").Where("customers.name = 'Smith'")
	})
	if h.Item().ID != 1 {
		t.Errorf("it took %s", asRead(h.Item()))
	}
}

func TestClaimNextOfAnItemWithAScopeNeverWaitsForAnothersRow(t *testing.T) {
	db := dbtest.Postgres(t)
	gdb := fresh(t, db)
	for _, key := range []string{"first", "second"} {
		must(t, lease.Create(t.Context(), gdb, lease.Item{Key: key}))
	}
	exec(t, gdb, "UPDATE lease_items SET claim_acquired_at = 1 WHERE key = 'second'")
	tx := gdb.Begin()
	defer tx.Rollback()
	exec(t, tx, "SELECT * FROM lease_items WHERE key = 'first' FOR UPDATE")
	impatient := db.OpenDSN(t, db.DSNVia("", "lock_timeout=1ms"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	next := func() (*lease.Holder, error) {
		return lease.ClaimNext[lease.Item](ctx, impatient, "A", "", time.Minute, nil, func(db *gorm.DB) *gorm.DB { return db.Where("key <> 'x'") })
	}
	h, err := next()
	must(t, err)
	if key := h.Item().Key; key != "second" {
		t.Errorf("it took %s", key)
	}
	_, err = next()
	mustBe(t, err, gorm.ErrRecordNotFound)
}

func TestAScopeMayAskTheDatabase(t *testing.T) {
	withParcels(t, 2, func(t *testing.T, w *world) {
		must(t, w.gdb.Create(&customer{ID: 7, Name: "Smith"}).Error)
		exec(t, w.gdb, "UPDATE parcels SET customer_id = 7 WHERE id = 2")
		smiths := func(db *gorm.DB) *gorm.DB {
			var id uint
			if err := db.Session(&gorm.Session{NewDB: true}).Model(&customer{}).Select("id").Where("name = 'Smith'").Scan(&id).Error; err != nil {
				_ = db.AddError(err)
			}
			return db.Where("customer_id = ?", id)
		}
		if id := w.next(t, "A", smiths).Item().ID; id != 2 {
			t.Errorf("it took %d", id)
		}
		_, err := w.tryNext(t, "A", smiths)
		mustBe(t, err, gorm.ErrRecordNotFound)
	})
}

func TestAScopeThatChoosesFromAnotherQueryIsInvalid(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := &world{db: db, gdb: migrated(t, db), table: "parcels"}
		parcels(t, w.gdb, 2)
		before := w.contents(t)
		for what, scope := range map[string]func(*gorm.DB) *gorm.DB{
			"a query": func(db *gorm.DB) *gorm.DB {
				return db.Table("(?)", db.Session(&gorm.Session{NewDB: true}).Model(&parcel{}).Where("weight = 2"))
			},
			"a query with a name": func(db *gorm.DB) *gorm.DB { return db.Table("(SELECT * FROM parcels WHERE weight = 2) AS parcels") },
			"two tables":          func(db *gorm.DB) *gorm.DB { return db.Table("parcels, stops") },
		} {
			if h, err := w.tryNext(t, "A", scope); !errors.Is(err, lease.ErrInvalid) {
				t.Errorf("%s: %v, %v", what, h, err)
			}
		}
		if after := w.contents(t); after != before {
			t.Errorf("the rows were\n%s and are\n%s", before, after)
		}
	})
}

func TestScopesThatReadAlikeEachHaveTheirOwnChoice(t *testing.T) {
	withParcels(t, 3, func(t *testing.T, w *world) {
		for id, weighs := range map[uint]string{1: "weight = 1", 2: "weight = 2", 3: "weight = 3"} {
			if got := w.next(t, "A", func(db *gorm.DB) *gorm.DB { return db.Where(weighs) }).Item().ID; got != id {
				t.Errorf("%s: it took %d", weighs, got)
			}
		}
	})
}
