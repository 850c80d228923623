package spec

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestHooksRunAndWhatTheyWriteIsCommittedWithTheSave(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		h := claimHooked(t, gdb, "A")
		var ran []string
		ctx := hookedBy(t, func(name string, h *hooked, tx *gorm.DB) error {
			ran = append(ran, name)
			if name == "BeforeUpdate" {
				h.Slug = strings.ToLower(h.Name)
			}
			return note(tx)
		})
		it := h.Item()
		it.Name = "Two"
		must(t, h.Save(ctx, it))
		if want := []string{"BeforeSave", "BeforeUpdate", "AfterUpdate", "AfterSave"}; !slices.Equal(ran, want) {
			t.Errorf("the hooks that ran are %q", ran)
		}
		if n, slug := notes(t, gdb), ask[string](t, gdb, "SELECT slug FROM hookeds"); n != 4 || slug != "two" || h.Item().Slug != "two" {
			t.Errorf("%d notes were committed; the slug is %q, and in Item %q", n, slug, h.Item().Slug)
		}
		if it.Slug != "" {
			t.Errorf("the caller's copy is %+v", it)
		}
		must(t, gdb.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, it) }))
		if n := notes(t, gdb); n != 8 {
			t.Errorf("%d notes were committed", n)
		}
		must(t, h.Save(t.Context(), it))
		must(t, h.Renew(ctx))
		must(t, h.Release(ctx))
		if n := notes(t, gdb); n != 8 {
			t.Errorf("a renewal or a release ran hooks: %d notes", n)
		}
	})
}

func TestAfterFindSeesTheClaim(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		if h := claimHooked(t, gdb, "A"); h.Item().Found != "A 1" {
			t.Errorf("in ClaimAs it saw %q", h.Item().Found)
		}
		exec(t, gdb, "UPDATE hookeds SET claim_expires_at = 0")
		h, err := lease.ClaimNext[hooked](t.Context(), gdb, "B", "", time.Minute, nil)
		must(t, err)
		if it := h.Item(); it.Found != "B 2" || it.Owner != "B" {
			t.Errorf("in ClaimNext it saw %q, and Item is %+v", it.Found, it)
		}
	})
}

func TestWhatAHookWroteIsRolledBackWithASaveThatIsLost(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		h := claimHooked(t, gdb, "A")
		claimHooked(t, gdb, "A")
		ctx := hookedBy(t, func(_ string, _ *hooked, tx *gorm.DB) error { return note(tx) })
		mustBe(t, h.Save(ctx, h.Item()), lease.ErrLost)
		if n := notes(t, gdb); n != 0 {
			t.Errorf("%d notes were committed", n)
		}
	})
}

func TestWhatAHookWroteIsRolledBackHoweverTheSaveIsRepeated(t *testing.T) {
	for _, isolation := range []string{"serializable", "repeatable read"} {
		t.Run(isolation, func(t *testing.T) {
			db := dbtest.Postgres(t)
			other := withHooks(t, db)
			gdb := db.OpenDSN(t, db.DSNVia("", "default_transaction_isolation="+isolation))
			h := claimHooked(t, gdb, "A")
			first := true
			ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
				if err := note(tx); err != nil || name != "BeforeUpdate" || !first {
					return err
				}
				first = false
				return other.Exec("UPDATE hookeds SET claim_epoch = claim_epoch + 1").Error // as a claim does, after tx's snapshot
			})
			mustBe(t, h.Save(ctx, h.Item()), lease.ErrLost)
			if n := notes(t, gdb); n != 0 {
				t.Errorf("%d notes were committed", n)
			}
		})
	}
}

func TestAHooksErrorComesOutAndUndoesTheSave(t *testing.T) {
	failure := errors.New("out of paper")
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		h := claimHooked(t, gdb, "A")
		for _, failing := range []string{"BeforeSave", "BeforeUpdate", "AfterUpdate", "AfterSave"} {
			ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
				if name == failing {
					return failure
				}
				return note(tx)
			})
			it := h.Item()
			it.Name = "changed"
			err := h.Save(ctx, it)
			if !errors.Is(err, failure) || errors.Is(err, lease.ErrLost) {
				t.Errorf("%s: %v", failing, err)
			}
			mustBe(t, gdb.Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx.WithContext(ctx), it) }), failure)
			if n, name := notes(t, gdb), ask[string](t, gdb, "SELECT name FROM hookeds"); n != 0 || name != "One" || h.Item().Name != "One" {
				t.Errorf("%s: %d notes were committed; the name is %q, and in Item %q", failing, n, name, h.Item().Name)
			}
		}
		must(t, h.Save(t.Context(), h.Item()))
		ctx := hookedBy(t, func(string, *hooked, *gorm.DB) error { return failure })
		_, err := lease.ClaimAs[hooked](ctx, gdb, 1, "A", "", time.Minute, nil)
		mustBe(t, err, failure) // AfterFind's
	})
}

func TestSavesWithHooksWorkAtEveryIsolation(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		gdb := keepConnections(t, withHooks(t, db))
		h := claimHooked(t, gdb, "A")
		ctx := hookedBy(t, func(_ string, _ *hooked, tx *gorm.DB) error { return note(tx) })
		winners := race(t, 4, func(i int) (bool, error) {
			for range 5 {
				err := h.Renew(ctx)
				if i%2 == 0 && err == nil {
					err = h.Save(ctx, h.Item())
				}
				if err != nil {
					return false, err
				}
			}
			return true, nil
		})
		if n := notes(t, gdb); len(winners) != 4 || n != 40 {
			t.Errorf("%v were always good, and %d notes were committed", winners, n)
		}
	})
}

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

func TestAHookOfAClaimReadsThePrimaryAndBeginsEachStatementAnew(t *testing.T) {
	for backend, open := range map[string]func(testing.TB) *dbtest.Database{"sqlite": dbtest.SQLite, "postgres": dbtest.Postgres} {
		t.Run(backend, func(t *testing.T) {
			primary, replica := open(t), open(t)
			gdb := withHooks(t, primary)
			readsFrom(t, gdb, replica)
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

func TestAHookOfAClaimMayUseTheOnlyConnection(t *testing.T) {
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

func TestASaveThatAHooksConditionStopsIsAnErrorAndNoLoss(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		must(t, gdb.Create(&hooked{ID: 2, Name: "Two"}).Error)
		h := claimHooked(t, gdb, "A")
		ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
			if name == "BeforeUpdate" {
				tx.Statement.AddClause(clause.Where{Exprs: []clause.Expression{clause.Expr{SQL: "name <> 'One' OR name IS NULL"}}})
			}
			return note(tx)
		})
		it := h.Item()
		it.Name = "changed"
		in := func(tx *gorm.DB) error { return h.SaveIn(tx, it) }
		hindered := func(what string, err error) {
			t.Helper()
			if err == nil || errors.Is(err, lease.ErrLost) {
				t.Errorf("%s is %v", what, err)
			}
			names := ask[string](t, gdb, "SELECT min(name) || max(name) FROM hookeds")
			if n := notes(t, gdb); n != 0 || names != "OneTwo" || h.Item().Name != "One" {
				t.Errorf("after %s there are %d notes, the names are %q, and in Item %q", what, n, names, h.Item().Name)
			}
			must(t, h.Renew(t.Context()))
		}
		hindered("Save", h.Save(ctx, it))
		hindered("Save of a column", h.Save(ctx, it, "name"))
		hindered("SaveIn", gdb.WithContext(ctx).Transaction(in))
		must(t, h.Save(t.Context(), it))
		must(t, h.Save(ctx, it)) // the row meets it now
		if n := ask[int](t, gdb, "SELECT count(*) FROM hookeds WHERE name = 'changed' AND id = 1 OR name = 'Two' AND claim_revision = 0"); n != 2 {
			t.Errorf("%d rows are as they should be", n)
		}
		it.Name = "One"
		must(t, h.Save(t.Context(), it))
		claimHooked(t, gdb, "A")
		mustBe(t, gdb.WithContext(ctx).Transaction(in), lease.ErrLost)
		mustBe(t, h.Save(ctx, it), lease.ErrLost)
	})
}

// Hooks that read or rebuild their row

// A returned row's hook asks the database for all of the row.
type returned struct {
	ID   uint
	Text string
	Door *door `gorm:"embedded;embeddedPrefix:door_"`
	lease.Claimable
}

func (*returned) BeforeUpdate(tx *gorm.DB) error {
	tx.Statement.AddClause(clause.Returning{})
	return nil
}

func TestAHookMayAskForTheRowBack(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, returned{ID: 1})
		h, err := lease.ClaimAs[returned](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		for i := range 3 {
			must(t, h.Save(t.Context(), returned{Text: fmt.Sprint(i)}))
			var got returned
			must(t, gdb.Take(&got).Error)
			if !reflect.DeepEqual(got, h.Item()) || got.Text != fmt.Sprint(i) {
				t.Errorf("Item is\n%+v, and the row\n%+v", h.Item(), got)
			}
		}
	})
}

// A rebuilt row's hook makes it anew.
type rebuilt struct {
	ID   uint
	Text string
	lease.Claimable
}

func (r *rebuilt) BeforeSave(*gorm.DB) error {
	*r = rebuilt{ID: r.ID, Text: strings.TrimSpace(r.Text)}
	return nil
}

func TestAHookThatRebuildsTheRowDoesNotResetTheRevision(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, rebuilt{ID: 1})
		h, err := lease.ClaimAs[rebuilt](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		first := h.Item().Revision
		for i := range int64(3) {
			must(t, h.Save(t.Context(), rebuilt{Text: fmt.Sprint(i, " ")}))
			var got rebuilt
			must(t, gdb.Take(&got).Error)
			if got.Text != fmt.Sprint(i) || got.Revision != first+i+1 || h.Item().Revision != got.Revision || got.Owner != "A" {
				t.Errorf("after %d saves of revision %d the row is %+v, and Item %+v", i+1, first, got, h.Item())
			}
		}
	})
}

func TestAHookThatRebuildsTheRowIsInvalidWhereGORMComposesAllOfASave(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, rebuilt{ID: 1, Text: "old"})
		must(t, gdb.Use(idle{}))
		h, err := lease.ClaimAs[rebuilt](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		mustBe(t, h.Save(t.Context(), rebuilt{Text: "new"}), lease.ErrInvalid)
		var got rebuilt
		must(t, gdb.Take(&got).Error)
		if got.Text != "old" || got.Revision != h.Item().Revision {
			t.Errorf("the row is %+v, and Item %+v", got, h.Item())
		}
		must(t, h.Renew(t.Context()))
	})
}
