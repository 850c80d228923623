package spec

import (
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// An editing plugin notes who edits a parcel, also when the caller does not name the column.
type editing struct{}

func (editing) Name() string { return "editing" }

func (editing) Initialize(db *gorm.DB) error {
	return db.Callback().Update().Before("gorm:update").Register("editing", func(db *gorm.DB) {
		if len(db.Statement.Selects) > 0 {
			db.Statement.Selects = append(db.Statement.Selects, "owner")
		}
		db.Statement.SetColumn("owner", "the plugin")
	})
}

func TestPluginsHaveTheirSayInASaveOfAModel(t *testing.T) {
	for how, use := range map[string]func(*gorm.DB) error{
		"a plugin":   func(db *gorm.DB) error { return db.Use(editing{}) },
		"a callback": editing{}.Initialize,
	} {
		t.Run(how, func(t *testing.T) {
			withParcels(t, 1, func(t *testing.T, w *world) {
				clean := w.gdb
				w.gdb = w.db.Open(t)
				must(t, use(w.gdb))
				h := w.parcel(t, 1, "A")
				p := h.Item()
				p.Weight = 50
				if how == "a plugin" {
					must(t, h.Save(t.Context(), p, "Weight"))
				} else {
					must(t, h.Save(t.Context(), p))
				}
				if got := stored(t, clean, 1); got.Weight != 50 || got.Owner != "the plugin" {
					t.Errorf("the row is %s", asRead(got))
				}
			})
		})
	}
}

// An auditing plugin notes every update.
type auditing struct{}

func (auditing) Name() string { return "auditing" }

func (auditing) Initialize(db *gorm.DB) error {
	return db.Callback().Update().Before("gorm:update").Register("auditing", func(db *gorm.DB) { _ = db.AddError(note(db)) })
}

func TestWhatAPluginWritesIsRolledBackWithASaveThatIsLost(t *testing.T) {
	for what, skip := range map[string]bool{"by default": false, "unless the user wants to do without": true} {
		t.Run(what, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				withRow(t, db, tenanted{ID: 1})
				gdb := db.Open(t, &gorm.Config{SkipDefaultTransaction: skip})
				exec(t, gdb, "CREATE TABLE notes (text varchar(20))")
				must(t, gdb.Use(auditing{}))
				h, err := lease.ClaimAs[tenanted](t.Context(), gdb, 1, "A", "", time.Minute, nil)
				must(t, err)
				must(t, h.Save(t.Context(), h.Item()))
				if n := notes(t, gdb); n != 1 {
					t.Errorf("%d notes were committed with a save", n)
				}
				exec(t, gdb, "DELETE FROM notes")
				_, err = lease.ClaimAs[tenanted](t.Context(), gdb, 1, "A", "", time.Minute, nil)
				must(t, err)
				mustBe(t, h.Save(t.Context(), h.Item()), lease.ErrLost)
				if n := notes(t, gdb); (n == 1) != skip || n > 1 {
					t.Errorf("%d notes were committed with a save that is lost", n)
				}
			})
		})
	}
}

// A tenancy plugin narrows every query for parcels.
type tenancy struct{}

func (tenancy) Name() string { return "tenancy" }

func (tenancy) Initialize(db *gorm.DB) error {
	return db.Callback().Query().Before("gorm:query").Register("tenancy", func(db *gorm.DB) {
		db.Statement.AddClause(clause.Where{Exprs: []clause.Expression{clause.Expr{SQL: "parcels.weight > ?", Vars: []any{1}}}})
	})
}

func TestPluginsHaveTheirSayInWhatClaimNextChooses(t *testing.T) {
	withParcels(t, 2, func(t *testing.T, w *world) {
		w.gdb = w.db.Open(t)
		must(t, w.gdb.Use(tenancy{}))
		if id := w.next(t, "A").Item().ID; id != 2 {
			t.Errorf("it took %d", id)
		}
		_, err := w.tryNext(t, "A")
		mustBe(t, err, gorm.ErrRecordNotFound)
	})
}

type tenanted struct {
	ID     uint
	Tenant string
	lease.Claimable
}

func TestACallbackThatNarrowsQueriesNarrowsClaimNext(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		for what, scopes := range map[string][]func(*gorm.DB) *gorm.DB{
			"without scopes": nil, "with a scope": {func(db *gorm.DB) *gorm.DB { return db.Where("1 = 1") }},
		} {
			t.Run(what, func(t *testing.T) {
				gdb := withRow(t, db, tenanted{ID: 1, Tenant: "another"})
				defer func() { must(t, gdb.Migrator().DropTable(&tenanted{})) }()
				must(t, gdb.Create([]tenanted{{ID: 2, Tenant: "mine"}, {ID: 3, Tenant: "another"}}).Error)
				must(t, gdb.Callback().Query().Before("gorm:query").Register("tenant", func(db *gorm.DB) {
					if db.Statement.Schema != nil && db.Statement.Schema.LookUpField("tenant") != nil {
						db.Statement.AddClause(clause.Where{Exprs: []clause.Expression{clause.Eq{Column: "tenant", Value: "mine"}}})
					}
				}))
				h, err := lease.ClaimNext[tenanted](t.Context(), gdb, "A", "", time.Minute, nil, scopes...)
				must(t, err)
				if h.Item().ID != 2 {
					t.Errorf("it took %+v", h.Item())
				}
				_, err = lease.ClaimNext[tenanted](t.Context(), gdb, "A", "", time.Minute, nil, scopes...)
				mustBe(t, err, gorm.ErrRecordNotFound)
			})
		}
	})
}

// A filtering is a plugin that lets updates be of rows alone whose level is low.
type filtering struct{}

func (filtering) Name() string { return "filtering" }

func (filtering) Initialize(db *gorm.DB) error {
	return db.Callback().Update().Before("gorm:update").Register("filtering", func(db *gorm.DB) {
		db.Statement.AddClause(clause.Where{Exprs: []clause.Expression{clause.Expr{SQL: "level < 10"}}})
	})
}

func TestASaveThatAPluginsConditionStopsIsAnErrorAndNoLoss(t *testing.T) {
	for how, use := range map[string]func(*gorm.DB) error{
		"a plugin":   func(db *gorm.DB) error { return db.Use(filtering{}) },
		"a callback": filtering{}.Initialize,
	} {
		t.Run(how, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				withRow(t, db, levelled{ID: 1, Level: 15})
				gdb := db.Open(t)
				must(t, use(gdb))
				h, err := lease.ClaimAs[levelled](t.Context(), gdb, 1, "A", "", time.Minute, nil)
				must(t, err)
				if err := h.Save(t.Context(), h.Item()); err == nil || errors.Is(err, lease.ErrLost) {
					t.Errorf("Save is %v", err)
				}
				must(t, h.Renew(t.Context()))
			})
		})
	}
}
