package spec

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestTransactionRollsBackWhenItsFunctionFailsOrPanics(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		pool(t, gdb).SetMaxOpenConns(1) // a transaction that stays open would be noticed
		ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
		failure := errors.New("out of paper")
		err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error { return errors.Join(write(tx), failure) })
		mustBe(t, err, failure)
		if errors.Is(err, lease.ErrLost) {
			t.Errorf("a failure in force is lost: %v", err)
		}
		func() {
			defer func() {
				if r := recover(); r != "on fire" {
					t.Errorf("the panic came out as %v", r)
				}
			}()
			_ = lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
				if err := write(tx); err != nil {
					t.Error(err)
				}
				panic("on fire")
			})
		}()
		if n := notes(t, gdb); n != 0 {
			t.Errorf("%d notes were committed", n)
		}
	})
}

func TestALossMidwayIsJoinedToWhateverItProduced(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		term := hold(t, gdb, "A")
		failure := errors.New("out of paper")
		for what, after := range map[string]struct {
			then func(tx *gorm.DB) error
			want error // besides ErrLost
		}{
			"another statement": {write, context.Canceled},
			"its own error":     {func(*gorm.DB) error { return failure }, failure},
			"the commit":        {func(*gorm.DB) error { return nil }, nil},
		} {
			ctx, cancel := context.WithCancelCause(lease.WithTerm(t.Context(), term))
			err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
				if err := write(tx); err != nil {
					t.Error(err)
				}
				cancel(lease.ErrLost)
				return after.then(tx)
			})
			if !errors.Is(err, lease.ErrLost) || after.want != nil && !errors.Is(err, after.want) && !errors.Is(err, sql.ErrTxDone) {
				t.Errorf("%s: %v", what, err)
			}
			if after.want == failure {
				mustBe(t, err, failure)
			}
		}
		ctx, cancel := context.WithCancelCause(lease.WithTerm(t.Context(), term))
		cancel(lease.ErrLost) // before it begins
		mustBe(t, lease.Transaction(ctx, gdb, write), lease.ErrLost)
		if n := notes(t, gdb); n != 0 {
			t.Errorf("%d notes were committed", n)
		}
	})
}

func TestACancellationForAnotherReasonIsNoLoss(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		ctx, cancel := context.WithCancel(lease.WithTerm(t.Context(), hold(t, gdb, "A")))
		err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error { cancel(); return write(tx) })
		if err == nil || errors.Is(err, lease.ErrLost) {
			t.Errorf("%v", err)
		}
		if n := notes(t, gdb); n != 0 {
			t.Errorf("%d notes were committed", n)
		}
	})
}

func TestTransactionInATransactionIsASavepointInIt(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		term := hold(t, gdb, "A")
		stale := term
		stale.Epoch--
		err := gdb.Transaction(func(tx *gorm.DB) error {
			if err := lease.Transaction(lease.WithTerm(t.Context(), term), tx, write); err != nil {
				t.Error(err)
			}
			mustBe(t, lease.Transaction(lease.WithTerm(t.Context(), stale), tx, write), lease.ErrLost)
			failure := errors.New("out of paper")
			mustBe(t, lease.Transaction(lease.WithTerm(t.Context(), term), tx, func(tx *gorm.DB) error { return errors.Join(write(tx), failure) }), failure)
			return write(tx)
		})
		if err != nil {
			t.Error(err)
		}
		if n := notes(t, gdb); n != 2 {
			t.Errorf("%d notes were committed, not the two that were in force and outside", n)
		}
	})
}

func TestTransactionTakesOptions(t *testing.T) {
	gdb := withNotes(t, dbtest.Postgres(t))
	ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
	for level, want := range map[sql.IsolationLevel]string{
		sql.LevelDefault: "read committed", sql.LevelRepeatableRead: "repeatable read", sql.LevelSerializable: "serializable",
	} {
		err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
			if got := ask[string](t, tx, "SHOW transaction_isolation"); got != want {
				t.Errorf("the isolation is %s, not %s", got, want)
			}
			granted(t, gdb, "A", databasesClock) // a renewal beside it
			return write(tx)
		}, &sql.TxOptions{Isolation: level})
		if err != nil {
			t.Errorf("%s: %v", want, err)
		}
	}
	expire(t, gdb)
	mustBe(t, lease.Transaction(ctx, gdb, write, &sql.TxOptions{Isolation: sql.LevelSerializable}), lease.ErrLost)
}

func TestTransactionWorksOnASmallPoolWithPreparedStatements(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		withNotes(t, db)
		gdb := db.Open(t, &gorm.Config{PrepareStmt: true})
		pool(t, gdb).SetMaxOpenConns(1)
		ctx, cancel := context.WithTimeout(lease.WithTerm(t.Context(), hold(t, gdb, "A")), 20*time.Second)
		defer cancel()
		winners := race(t, 6, func(int) (bool, error) { return true, lease.Transaction(ctx, gdb, write) })
		if len(winners) != 6 || notes(t, gdb) != 6 {
			t.Errorf("%v went through", winners)
		}
	})
}
