package spec

import (
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
	"gorm.io/plugin/dbresolver"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// Models with one hook each, which writes a note.

type (
	beforeSaved struct {
		ID uint
		lease.Claimable
	}
	beforeUpdated beforeSaved
	afterUpdated  beforeSaved
	afterSaved    beforeSaved
)

func (*beforeSaved) BeforeSave(tx *gorm.DB) error     { return note(tx) }
func (*beforeUpdated) BeforeUpdate(tx *gorm.DB) error { return note(tx) }
func (*afterUpdated) AfterUpdate(tx *gorm.DB) error   { return note(tx) }
func (*afterSaved) AfterSave(tx *gorm.DB) error       { return note(tx) }

func TestWhatAModelsOnlyHookWroteIsRolledBackWithASaveThatIsLost(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		exec(t, db.Open(t), "CREATE TABLE notes (text varchar(20))")
		t.Run("BeforeSave", func(t *testing.T) { savesWithItsHook[beforeSaved](t, db) })
		t.Run("BeforeUpdate", func(t *testing.T) { savesWithItsHook[beforeUpdated](t, db) })
		t.Run("AfterUpdate", func(t *testing.T) { savesWithItsHook[afterUpdated](t, db) })
		t.Run("AfterSave", func(t *testing.T) { savesWithItsHook[afterSaved](t, db) })
	})
}

func savesWithItsHook[T any, M lease.Model[T]](t *testing.T, db *dbtest.Database) {
	gdb := db.Open(t)
	must(t, gdb.AutoMigrate(new(T)))
	must(t, gdb.Session(&gorm.Session{SkipHooks: true}).Create(new(T)).Error)
	exec(t, gdb, "DELETE FROM notes")
	lost, err := lease.ClaimAs[T, M](t.Context(), gdb, 1, "A", "", time.Minute, nil)
	must(t, err)
	h, err := lease.ClaimAs[T, M](t.Context(), gdb, 1, "A", "", time.Minute, nil)
	must(t, err)
	mustBe(t, lost.Save(t.Context(), lost.Item()), lease.ErrLost)
	if n := notes(t, gdb); n != 0 {
		t.Errorf("%d notes were committed with a save that is lost", n)
	}
	must(t, h.Save(t.Context(), h.Item()))
	if n := notes(t, gdb); n != 1 {
		t.Errorf("%d notes were committed with one that is good", n)
	}
}

func TestARepeatedSaveGivesItsHooksTheRowAsItsCallerDid(t *testing.T) {
	for _, isolation := range []string{"serializable", "repeatable read"} {
		t.Run(isolation, func(t *testing.T) {
			db := dbtest.Postgres(t)
			other := withHooks(t, db)
			gdb := db.OpenDSN(t, db.DSNVia("", "default_transaction_isolation="+isolation))
			h := claimHooked(t, gdb, "A")
			times := 0
			ctx := hookedBy(t, func(name string, h *hooked, tx *gorm.DB) error {
				if name != "BeforeUpdate" {
					return note(tx)
				}
				h.Slug += strings.ToLower(h.Name)
				if times++; times > 1 {
					return nil
				}
				return other.Exec("UPDATE hookeds SET slug = 'of another'").Error // after tx's snapshot
			})
			must(t, h.Save(ctx, h.Item()))
			if slug := ask[string](t, other, "SELECT slug FROM hookeds"); times != 2 || slug != "one" || h.Item().Slug != "one" {
				t.Errorf("after %d attempts the slug is %q, and in Item %q", times, slug, h.Item().Slug)
			}
		})
	}
}

func TestAHookThatChangesTheKeyAndFailsIsToldByItsOwnError(t *testing.T) {
	failure := errors.New("out of paper")
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		h := claimHooked(t, withHooks(t, db), "A")
		ctx := hookedBy(t, func(_ string, h *hooked, _ *gorm.DB) error {
			h.ID = 77
			return failure
		})
		err := h.Save(ctx, h.Item())
		if !errors.Is(err, failure) || errors.Is(err, lease.ErrInvalid) {
			t.Errorf("the error is %v", err)
		}
		must(t, h.Save(t.Context(), h.Item()))
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

// A replicated row has an updated_at that GORM does not keep up to date.
type replicated struct {
	ID        uint
	Text      string
	UpdatedAt time.Time `gorm:"autoUpdateTime:false"`
	lease.Claimable
}

func TestASaveOfNamedColumnsLeavesAnUpdatedAtThatIsAnothersAlone(t *testing.T) { // C85
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, replicated{ID: 1, UpdatedAt: noon})
		h, err := lease.ClaimAs[replicated](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		later := noon.Add(time.Hour)
		must(t, gdb.Model(&replicated{ID: 1}).UpdateColumn("updated_at", later).Error)
		it := h.Item()
		it.Text = "saved"
		must(t, h.Save(t.Context(), it, "text"))
		var got replicated
		must(t, gdb.Take(&got).Error)
		if got.Text != "saved" || !got.UpdatedAt.Equal(later) {
			t.Errorf("the row is %+v", got)
		}
	})
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

func TestHooksOfASaveSeeTheClaimWhateverTheCallerGave(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		h := claimHooked(t, gdb, "A")
		claim := h.Item().Claimable
		claim.Revision, claim.Done = claim.Revision+1, true
		ctx := hookedBy(t, func(name string, h *hooked, _ *gorm.DB) error {
			if h.Claimable != claim || h.ID != 1 {
				t.Errorf("%s sees the row %d, and the claim\n%+v, not\n%+v", name, h.ID, h.Claimable, claim)
			}
			return nil
		})
		given := hooked{Name: "Two", Claimable: lease.Claimable{Owner: "B", Epoch: 9, Attempts: 9, Done: true}}
		must(t, h.Save(ctx, given))
		if given.Epoch != 9 || given.ID != 0 {
			t.Errorf("the caller's copy is %+v", given)
		}
	})
}

type twiceNamed struct {
	ID     uint
	Weight int
	lease.Claimable
}

func TestHandlesThatNameAColumnDifferentlyEachUseTheirOwn(t *testing.T) { // C26
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

func TestAHookOfAClaimReadsThePrimaryAndBeginsEachStatementAnew(t *testing.T) {
	for backend, open := range map[string]func(testing.TB) *dbtest.Database{"sqlite": dbtest.SQLite, "postgres": dbtest.Postgres} {
		t.Run(backend, func(t *testing.T) {
			primary, replica := open(t), open(t)
			dialector := sqlite.Open(replica.DSN)
			if backend == dbtest.BackendPostgres {
				dialector = postgres.Open(replica.DSN)
			}
			gdb := withHooks(t, primary)
			resolver := dbresolver.Register(dbresolver.Config{Replicas: []gorm.Dialector{dialector}})
			must(t, gdb.Use(resolver))
			t.Cleanup(func() {
				if err := resolver.Call(func(pool gorm.ConnPool) error { return pool.(*sql.DB).Close() }); err != nil {
					t.Error(err)
				}
			})
			exec(t, gdb, "INSERT INTO notes VALUES ('written')")
			ran := false
			ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
				var none, all int64
				err := errors.Join(tx.Table("notes").Where("1 = 0").Count(&none).Error, tx.Table("notes").Count(&all).Error)
				if none != 0 || all != 1 {
					t.Errorf("%s counts %d and %d notes", name, none, all)
				}
				ran = true
				return err
			})
			_, err := lease.ClaimAs[hooked](ctx, gdb, 1, "A", "", time.Minute, nil)
			if must(t, err); !ran {
				t.Error("AfterFind did not run")
			}
		})
	}
}

func TestAHookOfAClaimMayUseTheOnlyConnection(t *testing.T) { // C34, C35
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		pool(t, gdb).SetMaxOpenConns(1)
		ctx := hookedBy(t, func(_ string, _ *hooked, tx *gorm.DB) error { return note(tx) })
		h, err := lease.ClaimAs[hooked](ctx, gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		must(t, h.Release(t.Context()))
		_, err = lease.ClaimNext[hooked](ctx, gdb, "A", "", time.Minute, nil)
		must(t, err)
		if n := notes(t, gdb); n != 2 {
			t.Errorf("%d notes were written", n)
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

type level int

func (level) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Lt{Column: f.DBName, Value: 16}, clause.Gt{Column: f.DBName, Value: -16}, clause.Expr{SQL: "COALESCE(?, 1) = 1", Vars: []any{nil}})
}

type levelled struct {
	ID    uint
	Level level
	lease.Claimable
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
		"a callback": filtering{}.Initialize, // A DEFECT: fails on the code as it is
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

// A choosy row's hook leaves one column out, or all but one.
type choosy struct {
	ID        uint
	Text      string
	Other     string
	Checked   string `gorm:"<-:update"`
	UpdatedAt time.Time
	lease.Claimable
}

func (c *choosy) BeforeUpdate(tx *gorm.DB) error {
	switch c.Text {
	case "omits":
		tx.Statement.Omit("other")
	case "selects":
		tx.Statement.Select("text")
	}
	return nil
}

func TestASaveWhoseHookLeavesColumnsOutWritesTheRestAndTheTime(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, choosy{ID: 1, UpdatedAt: time.Unix(1, 0)})
		h, err := lease.ClaimAs[choosy](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		for text, checked := range map[string]string{"omits": "yes", "selects": ""} {
			must(t, gdb.Exec("UPDATE choosies SET text = '', other = '', checked = '', updated_at = '2000-01-01'").Error)
			must(t, h.Save(t.Context(), choosy{Text: text, Other: "other", Checked: "yes"}))
			var row choosy
			must(t, gdb.Take(&row).Error)
			if row.Text != text || row.Other != "" || row.Checked != checked || time.Since(row.UpdatedAt) > time.Hour {
				t.Errorf("of a hook that %s the row is %+v", text, row)
			}
		}
	})
}
