package spec

import (
	"context"
	"errors"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// over is every way in which a term ends.
var over = map[string]func(t *testing.T, gdb *gorm.DB){
	"it expired, and nobody took it": expire,
	"it was released":                func(t *testing.T, gdb *gorm.DB) { release(t, gdb, "A", databasesClock) },
	"another took it":                func(t *testing.T, gdb *gorm.DB) { expire(t, gdb); granted(t, gdb, "B", databasesClock) },
	"its holder took it again":       func(t *testing.T, gdb *gorm.DB) { expire(t, gdb); granted(t, gdb, "A", databasesClock) },
	"its holder released and took it": func(t *testing.T, gdb *gorm.DB) {
		release(t, gdb, "A", databasesClock)
		granted(t, gdb, "A", databasesClock)
	},
	"its row was deleted":        func(t *testing.T, gdb *gorm.DB) { exec(t, gdb, "DELETE FROM leases") },
	"its holder was overwritten": func(t *testing.T, gdb *gorm.DB) { exec(t, gdb, "UPDATE leases SET holder = 'B'") },
}

func TestATransactionInForceIsCommitted(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
		before := row(t, gdb)
		if err := lease.Transaction(ctx, gdb, write); err != nil {
			t.Fatal(err)
		}
		if n := notes(t, gdb); n != 1 {
			t.Errorf("%d notes were committed", n)
		}
		if after := row(t, gdb); after != before {
			t.Errorf("the fence changed the row from %s to %s", before, after)
		}
		granted(t, gdb, "A", databasesClock) // renewals do not end the term
		if err := lease.Transaction(ctx, gdb, write); err != nil {
			t.Error(err)
		}
	})
}

func TestNothingIsCommittedOnceTheTermIsOver(t *testing.T) {
	for how, ends := range over {
		t.Run(how, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := withNotes(t, db)
				term := hold(t, gdb, "A")
				ends(t, gdb)
				ctx := lease.WithTerm(t.Context(), term)
				err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
					t.Error("its function was called")
					return write(tx)
				})
				mustBe(t, err, lease.ErrLost)
				if err != nil && !strings.Contains(err.Error(), `"job"`) {
					t.Errorf("the error does not name the lease: %v", err)
				}
				err = gdb.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
					if err := write(tx); err != nil {
						t.Error(err)
					}
					return lease.Fence(tx)
				})
				mustBe(t, err, lease.ErrLost)
				if n := notes(t, gdb); n != 0 {
					t.Errorf("%d notes were committed", n)
				}
			})
		})
	}
}

func TestAWorkersNextTermIsFencedByItsOwnEpoch(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		old := hold(t, gdb, "A")
		expire(t, gdb)
		now := hold(t, gdb, "A")
		if now.Epoch != old.Epoch+1 {
			t.Errorf("term %d followed term %d", now.Epoch, old.Epoch)
		}
		mustBe(t, lease.Transaction(lease.WithTerm(t.Context(), old), gdb, write), lease.ErrLost)
		if err := lease.Transaction(lease.WithTerm(t.Context(), now), gdb, write); err != nil {
			t.Error(err)
		}
	})
}

func TestAFenceWithoutATransactionOrATermIsInvalid(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		term := hold(t, gdb, "A")
		ctx := lease.WithTerm(t.Context(), term)
		tx := gdb.Begin()
		defer tx.Rollback()
		never := func(*gorm.DB) error { t.Error("its function was called"); return nil }
		for what, err := range map[string]error{
			"outside a transaction":         lease.Fence(gdb.WithContext(ctx)),
			"Term.Fence outside":            term.Fence(gdb),
			"on a connection":               gdb.WithContext(ctx).Connection(lease.Fence),
			"with PrepareStmt, outside":     lease.Fence(gdb.Session(&gorm.Session{PrepareStmt: true, Context: ctx})),
			"without a term":                lease.Fence(tx),
			"on nil":                        lease.Fence(nil),
			"Term.Fence on nil":             term.Fence(nil),
			"of a zero term":                lease.Term{}.Fence(tx),
			"Transaction without a term":    lease.Transaction(t.Context(), gdb, never),
			"Transaction of nil":            lease.Transaction(ctx, nil, never),
			"Transaction without a func":    lease.Transaction(ctx, gdb, nil),
			"Transaction of a zero term":    lease.Transaction(lease.WithTerm(ctx, lease.Term{}), gdb, never),
			"Transaction of a DryRun":       lease.Transaction(ctx, gdb.Session(&gorm.Session{DryRun: true}), never),
			"Transaction of a handle's ctx": lease.Transaction(t.Context(), gdb.WithContext(ctx), never),
		} {
			if !errors.Is(err, lease.ErrInvalid) || errors.Is(err, lease.ErrLost) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

func TestTheInnermostTermCounts(t *testing.T) {
	if _, ok := lease.TermFrom(t.Context()); ok {
		t.Error("there is a term in a plain context")
	}
	outer, inner := lease.Term{Name: "outer", Holder: "A", Epoch: 1}, lease.Term{Name: "inner", Holder: "A", Epoch: 2}
	ctx := lease.WithTerm(lease.WithTerm(t.Context(), outer), inner)
	if term, ok := lease.TermFrom(context.WithoutCancel(ctx)); !ok || term != inner {
		t.Errorf("%v, %v", term, ok)
	}
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		term := hold(t, gdb, "A")
		stale := term
		stale.Epoch--
		if err := lease.Transaction(lease.WithTerm(lease.WithTerm(t.Context(), stale), term), gdb, write); err != nil {
			t.Error(err)
		}
		mustBe(t, lease.Transaction(lease.WithTerm(lease.WithTerm(t.Context(), term), stale), gdb, write), lease.ErrLost)
	})
}

func TestTheTermReachesATransactionThroughItsContext(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
		err := lease.Transaction(ctx, gdb.Where("1 = 0").Table("strangers"), func(tx *gorm.DB) error {
			if term, ok := lease.TermFrom(tx.Statement.Context); !ok || term.Holder != "A" {
				t.Errorf("in Transaction the term is %v, %v", term, ok)
			}
			return errors.Join(lease.Fence(tx), lease.Fence(tx.Session(&gorm.Session{NewDB: true})), lease.Fence(tx.Where("1 = 0")), write(tx))
		})
		if err != nil {
			t.Error(err)
		}
		for what, begin := range map[string]func() *gorm.DB{
			"WithContext, then Begin": func() *gorm.DB { return gdb.WithContext(ctx).Begin() },
			"Begin, then WithContext": func() *gorm.DB { return gdb.Begin().WithContext(ctx) },
			"a Session":               func() *gorm.DB { return gdb.Session(&gorm.Session{NewDB: true, Context: ctx}).Begin() },
			"PrepareStmt":             func() *gorm.DB { return gdb.Session(&gorm.Session{PrepareStmt: true, Context: ctx}).Begin() },
		} {
			tx := begin()
			if err := lease.Fence(tx); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if err := tx.Rollback().Error; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestATermMadeByHandIsFencedInTheTablesOfTheHandle(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		app := lease.Tables(gdb, "app_")
		ensure(t, app)
		ctx := lease.WithTerm(t.Context(), hold(t, app, "A"))
		if err := lease.Transaction(ctx, app, write); err != nil {
			t.Error(err)
		}
		mustBe(t, lease.Transaction(ctx, gdb, write), lease.ErrLost)
		if n := notes(t, gdb); n != 1 {
			t.Errorf("%d notes were committed", n)
		}
	})
}

func TestATermPrintsWhatItIs(t *testing.T) {
	if got, want := (lease.Term{Name: "job", Holder: "A", Epoch: 3}).String(), `term 3 of lease "job" held by "A"`; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}
