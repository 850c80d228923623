package spec

import (
	"errors"
	"slices"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

type (
	inC struct {
		ID   uint
		Name string
		lease.Claimable
	}
	inG   inC
	inOdd inC
)

func (inC) TableName() string   { return "c" }
func (inG) TableName() string   { return "g" }
func (inOdd) TableName() string { return "The order" }

func TestATableMayHaveAnyName(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Run("c", func(t *testing.T) { keyed(t, db, inC{ID: 3}, 3, 4) })
		t.Run("g", func(t *testing.T) { keyed(t, db, inG{ID: 3}, 3, 4) })
		t.Run("one with a space", func(t *testing.T) { keyed(t, db, inOdd{ID: 3}, 3, 4) })
	})
}

type inInfra struct {
	ID     uint
	Weight int
	lease.Claimable
	DeletedAt gorm.DeletedAt
}

func (inInfra) TableName() string { return "infra.parcels" }

func TestAModelMayLiveInAnotherSchema(t *testing.T) {
	db := dbtest.Postgres(t)
	gdb := migrated(t, db) // with parcels of the same name in public
	parcels(t, gdb, 1)
	exec(t, gdb, "CREATE SCHEMA infra")
	must(t, gdb.AutoMigrate(&inInfra{}))
	again, spy := spied(t, db)
	must(t, again.AutoMigrate(&inInfra{}))
	if sent := spy.sent(); slices.ContainsFunc(sent, changes.MatchString) {
		t.Errorf("a second AutoMigrate sends DDL: %q", sent)
	}
	must(t, gdb.Create(&inInfra{ID: 1, Weight: 7}).Error)
	h, err := lease.ClaimAs[inInfra](t.Context(), gdb, 1, "A", "", time.Minute, nil)
	must(t, err)
	must(t, h.Save(t.Context(), inInfra{Weight: 8}))
	must(t, h.Renew(t.Context()))
	must(t, gdb.Transaction(func(tx *gorm.DB) error { return errors.Join(h.Fence(tx), h.SaveIn(tx, inInfra{Weight: 9})) }))
	must(t, h.Release(t.Context()))
	h, err = lease.ClaimNext[inInfra](t.Context(), gdb, "B", "", time.Minute, nil, func(db *gorm.DB) *gorm.DB {
		return db.Joins("JOIN public.parcels AS p ON p.id = infra.parcels.id").Where("p.weight = 1").Where("infra.parcels.weight = ?", 9)
	})
	must(t, err)
	if it := h.Item(); it.Weight != 9 || it.Owner != "B" {
		t.Errorf("the claim is %+v", it)
	}
	if p := stored(t, gdb, 1); p.Claimable != (lease.Claimable{}) || p.Weight != 1 {
		t.Errorf("the table in public has %s", asRead(p))
	}
}

func TestAModelFollowsTheNamingStrategy(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		plain := migrated(t, db)
		gdb := migrated(t, db, &gorm.Config{NamingStrategy: schema.NamingStrategy{TablePrefix: "app_", SingularTable: true}})
		mustHaveQueue(t, gdb, "app_parcel")
		parcels(t, gdb, 1)
		w := &world{db: db, gdb: lease.Tables(gdb, "other_"), table: "app_parcel"} // Tables is not for the user's own
		h := w.parcel(t, 1, "A")
		must(t, h.Save(t.Context(), parcel{Weight: 5}))
		must(t, h.Release(t.Context()))
		if p := w.next(t, "B").Item(); p.Weight != 5 {
			t.Errorf("the claim is %s", asRead(p))
		}
		if n := ask[int](t, plain, "SELECT count(*) FROM parcels"); n != 0 {
			t.Errorf("the other table has %d rows", n)
		}
	})
}
