package spec

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// A transaction that SQLite ended, while its caller has rows open or uses the
// transaction in several goroutines.

func TestATransactionThatEndedUnderOpenRowsFailsAndHangsNowhere(t *testing.T) {
	s := newScene(t, dbtest.SQLite(t), false, nil)
	failed := make(chan error, 1)
	go func() {
		failed <- lease.Transaction(s.ctx, s.gdb, func(tx *gorm.DB) error {
			rows, err := tx.Raw("SELECT id FROM taken").Rows()
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var raw sql.RawBytes // which keeps the rows from being closed by anyone else
				if err := rows.Scan(&raw); err != nil {
					return err
				}
				_ = tx.Exec("INSERT OR ROLLBACK INTO taken VALUES (1)")
				if err := write(tx); err == nil {
					t.Error("a write after the end succeeded")
				}
				if err := tx.Raw("SELECT 1").Row().Scan(new(int)); err == nil {
					t.Error("a row was read after the end")
				}
			}
			return nil
		})
	}()
	select {
	case err := <-failed:
		s.ended("open rows", err)
	case <-time.After(20 * time.Second):
		t.Fatal("it hangs")
	}
}

func TestAnInterruptedReadEndsNoTransaction(t *testing.T) {
	s := newScene(t, dbtest.SQLite(t), false, nil)
	must(t, lease.Transaction(s.ctx, s.gdb, func(tx *gorm.DB) error {
		must(t, write(tx))
		rows, err := tx.Raw("SELECT id FROM taken").Rows()
		must(t, err)
		rows.Next()
		interrupted(slow)(tx)
		_ = tx.Raw("SELECT 1").Scan(new(int)) // the interrupt lasts while rows are open
		must(t, rows.Close())
		return write(tx)
	}))
	s.left("an interrupted read", 2)
}

func TestNoItemIsDoneWithoutItsEffectThoughBothAreWrittenSideBySide(t *testing.T) {
	s := newScene(t, dbtest.SQLite(t), false, nil)
	for range 100 {
		exec(t, s.gdb, "DELETE FROM lease_items")
		must(t, lease.Create(s.ctx, s.gdb, lease.Item{Key: "item", Payload: payload(0)}))
		h, err := lease.Claim(s.ctx, s.gdb, "item", "A", "", time.Minute, nil)
		must(t, err)
		done := h.Item()
		done.Done = true
		err = lease.Transaction(s.ctx, s.gdb, func(tx *gorm.DB) error {
			var both sync.WaitGroup
			errs := make([]error, 2)
			both.Go(func() { errs[0] = h.SaveIn(tx, done) })
			both.Go(func() { errs[1] = tx.Exec("INSERT OR ROLLBACK INTO taken VALUES (1)").Error })
			both.Wait()
			return errors.Join(errs...)
		})
		it, _, loadErr := lease.Load(context.WithoutCancel(s.ctx), s.gdb, "item")
		must(t, loadErr)
		if err == nil || it.Done {
			t.Fatalf("the item is done (%v), and its transaction returned %v", it.Done, err)
		}
	}
}
