package spec

import (
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// until is when a row goes, and NULL if it stays.
type until struct{ sql.NullTime }

func (until) GormDataType() string { return "time" }

type (
	rawUntil      struct{ until } // its condition is SQL with an OR, which GORM does not see through
	composedUntil struct{ until } // its condition is an OR of GORM's
)

func (rawUntil) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Expr{SQL: f.DBName + " IS NULL OR " + f.DBName + " > CURRENT_TIMESTAMP"})
}

func (composedUntil) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Or(clause.Eq{Column: f.DBName, Value: nil}, clause.Gt{Column: f.DBName, Value: "2024-03-01"}))
}

type (
	rawLodger struct {
		ID   uint
		Text string
		Gone rawUntil
		lease.Claimable
	}
	composedLodger struct {
		ID   uint
		Text string
		Gone composedUntil
		lease.Claimable
	}
)

func (rawLodger) TableName() string      { return "lodgers" }
func (composedLodger) TableName() string { return "lodgers" }

// lodgers makes the table of a model, with these rows, of which NULL stays.
func lodgers[T any](t *testing.T, db *dbtest.Database, gone ...string) *gorm.DB {
	t.Helper()
	gdb := db.Open(t)
	must(t, gdb.Migrator().DropTable("lodgers"))
	must(t, gdb.AutoMigrate(new(T)))
	for i, gone := range gone {
		exec(t, gdb, fmt.Sprintf("INSERT INTO lodgers (id, text, gone) VALUES (%d, '', %s)", i+1, gone))
	}
	return gdb
}

// ids are those of the rows that meet a condition.
func ids(t *testing.T, gdb *gorm.DB, table, condition string) (found []int) {
	t.Helper()
	must(t, gdb.Raw("SELECT id FROM "+table+" WHERE "+condition+" ORDER BY id").Scan(&found).Error)
	return found
}

func TestAFieldsConditionWidensNoClaim(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Run("raw", func(t *testing.T) { claimsOnlyTheLodgerAskedFor[rawLodger](t, db) })
		t.Run("composed", func(t *testing.T) { claimsOnlyTheLodgerAskedFor[composedLodger](t, db) })
	})
}

func claimsOnlyTheLodgerAskedFor[T any, M lease.Model[T]](t *testing.T, db *dbtest.Database) {
	gdb := lodgers[T](t, db, "NULL", "'2999-01-01'", "'2999-01-01'", "'2000-01-01'")
	_, err := lease.ClaimAs[T, M](t.Context(), gdb, 4, "A", "", time.Minute, nil)
	mustBe(t, err, gorm.ErrRecordNotFound)
	h, err := lease.ClaimAs[T, M](t.Context(), gdb, 2, "A", "", time.Minute, nil)
	must(t, err)
	if id := reflect.ValueOf(h.Item()).FieldByName("ID").Uint(); id != 2 {
		t.Errorf("the claim is of %d", id)
	}
	must(t, h.Renew(t.Context()))
	it := h.Item()
	reflect.ValueOf(&it).Elem().FieldByName("Text").SetString("saved")
	must(t, h.Save(t.Context(), it))
	if claimed, saved := ids(t, gdb, "lodgers", "claim_owner = 'A'"), ids(t, gdb, "lodgers", "text = 'saved'"); !slices.Equal(claimed, []int{2}) || !slices.Equal(saved, claimed) {
		t.Errorf("%v are claimed, and %v saved", claimed, saved)
	}
	must(t, h.Release(t.Context()))
	if touched := ids(t, gdb, "lodgers", "claim_epoch > 0"); !slices.Equal(touched, []int{2}) {
		t.Errorf("%v were touched", touched)
	}
}

func TestAFieldsConditionLetsClaimNextTakeNoLiveAndNoDoneRow(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Run("raw", func(t *testing.T) { takesNoLiveAndNoDoneLodger[rawLodger](t, db) })
		t.Run("composed", func(t *testing.T) { takesNoLiveAndNoDoneLodger[composedLodger](t, db) })
	})
}

func takesNoLiveAndNoDoneLodger[T any, M lease.Model[T]](t *testing.T, db *dbtest.Database) {
	gdb := lodgers[T](t, db, "'2999-01-01'", "'2000-01-01'")
	h, err := lease.ClaimNext[T, M](t.Context(), gdb, "A", "", time.Minute, nil)
	must(t, err)
	none := func() {
		t.Helper()
		for _, scopes := range [][]func(*gorm.DB) *gorm.DB{{}, {func(db *gorm.DB) *gorm.DB { return db.Where("1 = 1") }}} {
			_, err := lease.ClaimNext[T, M](t.Context(), gdb, "B", "", time.Minute, nil, scopes...)
			mustBe(t, err, gorm.ErrRecordNotFound)
		}
	}
	none()
	must(t, h.Renew(t.Context()))
	it := h.Item()
	reflect.ValueOf(&it).Elem().FieldByName("Done").SetBool(true)
	must(t, h.Save(t.Context(), it))
	must(t, h.Release(t.Context()))
	none()
}

type (
	state  string
	rank   int
	hidden bool
)

func (state) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Neq{Column: f.DBName, Value: "deleted"}, clause.Neq{Column: f.DBName, Value: "don't"})
}

func (rank) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Gt{Column: f.DBName, Value: 2})
}

func (hidden) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Eq{Column: f.DBName, Value: false})
}

type filtered struct {
	ID      uint
	State   state
	Deleted string // as one of the states
	Rank    rank
	Hidden  hidden `gorm:"type:boolean"`
	lease.Claimable
}

func TestAFieldsConditionMayHaveConstantsAsInGORM(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, filtered{ID: 1, State: "open", Rank: 3})
		must(t, gdb.Create([]filtered{
			{ID: 2, State: "deleted", Rank: 3}, {ID: 3, State: "don't", Rank: 3}, {ID: 4, State: "open", Rank: 2},
			{ID: 5, State: "open", Rank: 3, Hidden: true}, {ID: 6, State: "odd", Deleted: "odd", Rank: 3},
		}).Error)
		var gorms, claimed, next []uint
		must(t, gdb.Model(&filtered{}).Order("id").Pluck("id", &gorms).Error)
		for id := uint(1); id <= 6; id++ {
			h, err := lease.ClaimAs[filtered](t.Context(), gdb, id, "A", "", time.Minute, nil)
			if err != nil {
				mustBe(t, err, gorm.ErrRecordNotFound)
				continue
			}
			claimed = append(claimed, h.Item().ID)
			must(t, h.Save(t.Context(), h.Item()))
			must(t, h.Renew(t.Context()))
			must(t, h.Release(t.Context()))
		}
		for range claimed {
			h, err := lease.ClaimNext[filtered](t.Context(), gdb, "A", "", time.Minute, nil)
			must(t, err)
			next = append(next, h.Item().ID)
		}
		_, err := lease.ClaimNext[filtered](t.Context(), gdb, "A", "", time.Minute, nil)
		mustBe(t, err, gorm.ErrRecordNotFound)
		slices.Sort(next)
		if want := []uint{1, 6}; !slices.Equal(gorms, want) || !slices.Equal(claimed, want) || !slices.Equal(next, want) {
			t.Errorf("GORM sees %v, ClaimAs takes %v, and ClaimNext %v", gorms, claimed, next)
		}
	})
}

type (
	expiry struct{ until }
	path   string
)

func (expiry) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Gt{Column: f.DBName, Value: time.Now()})
}

func (path) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Neq{Column: f.DBName, Value: `C:\gone`})
}

type (
	expiring struct {
		ID     uint
		Expiry expiry
		lease.Claimable
	}
	pathed struct {
		ID   uint
		Path path
		lease.Claimable
	}
)

func TestAFieldsConditionThatIsMoreThanConstantsIsInvalidBeforeAnySQL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb, spy := spied(t, db)
		willNotDo[expiring](t, gdb)
		willNotDo[pathed](t, gdb)
		_, timeErr := lease.ClaimAs[expiring](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		_, pathErr := lease.ClaimNext[pathed](t.Context(), gdb, "A", "", time.Minute, nil)
		for model, err := range map[string]error{"expiring": timeErr, "pathed": pathErr} {
			if err == nil || !strings.Contains(err.Error(), "T spec."+model) {
				t.Errorf("the error is %v", err)
			}
		}
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
	})
}

type lapse struct{ until }

func (lapse) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Gt{Column: f.DBName, Value: time.Now()}, clause.Neq{Column: "text", Value: "gone"})
}

type nul string

func (nul) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Neq{Column: f.DBName, Value: "a\x00b"})
}

type nulled struct {
	ID   uint
	Text nul
	lease.Claimable
}

type lapsing struct {
	ID    uint
	Text  string
	Lapse lapse
	lease.Claimable
}

func TestAFieldsConditionThatEndsWithAConstantMayStillBeMoreThanConstants(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		willNotDo[lapsing](t, db.Open(t))
	})
}

func TestAFieldsConditionWithANULIsInvalid(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		willNotDo[nulled](t, db.Open(t))
	})
}

func TestAFieldsConditionMayHaveAnyNumberAndNULL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, levelled{ID: 1, Level: 15})
		must(t, gdb.Create([]levelled{{ID: 2, Level: 16}, {ID: 3, Level: -15}, {ID: 4, Level: -16}}).Error)
		for id, want := range map[uint]error{1: nil, 2: gorm.ErrRecordNotFound, 3: nil, 4: gorm.ErrRecordNotFound} {
			if _, err := lease.ClaimAs[levelled](t.Context(), gdb, id, "A", "", time.Minute, nil); !errors.Is(err, want) {
				t.Errorf("row %d: %v", id, err)
			}
		}
	})
}
