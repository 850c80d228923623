package spec

import (
	"context"
	"fmt"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestLeasesWorkOnOneConnection(t *testing.T) {
	for _, prepare := range []bool{false, true} {
		t.Run(fmt.Sprintf("PrepareStmt %v", prepare), func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := db.Open(t, &gorm.Config{PrepareStmt: prepare})
				pool(t, gdb).SetMaxOpenConns(1)
				ensure(t, gdb)
				works(t, gdb)
				err := gdb.Connection(func(conn *gorm.DB) error {
					exec(t, conn, "DELETE FROM leases")
					works(t, conn)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The work holds the connections that renewals need.
func TestWorkInATransactionOnASmallPoolHangsNobodyForGood(t *testing.T) {
	for _, conns := range []int{1, 2} {
		t.Run(fmt.Sprint(conns), func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := db.Open(t, &gorm.Config{PrepareStmt: true})
				pool(t, gdb).SetMaxOpenConns(conns)
				ensure(t, gdb)
				// The whole pool is in transactions: the call waits no longer than its context.
				var busy []*gorm.DB
				for range conns {
					tx := gdb.Begin()
					exec(t, tx, "SELECT 1")
					busy = append(busy, tx)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				_, err := lease.TryAcquire(ctx, gdb, "job", "A", time.Minute, noon)
				mustBe(t, err, context.DeadlineExceeded)
				refused := busy[0].Exec("SELECT 2") // a statement that no cache knows yet
				if refused.Error != nil {
					t.Error(refused.Error)
				}
				for _, tx := range busy {
					if err := tx.Rollback().Error; err != nil {
						t.Error(err)
					}
				}
				granted(t, gdb, "A", noon)
				// Work in transactions and renewals beside it.
				ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				winners := race(t, 6, func(i int) (bool, error) {
					if i == 0 {
						ok := true
						for n := 0; ok && n < 20; n++ {
							var err error
							if ok, err = lease.TryAcquire(ctx, gdb, "job", "A", time.Minute, noon); err != nil {
								return false, err
							}
						}
						return ok, nil
					}
					return true, gdb.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
						var n int
						return tx.Raw(fmt.Sprintf("SELECT %d", i)).Scan(&n).Error
					})
				})
				if len(winners) != 6 {
					t.Errorf("only %v went through", winners)
				}
			})
		})
	}
}

func TestItemsWorkOnOneConnection(t *testing.T) {
	for _, prepare := range []bool{false, true} {
		t.Run(fmt.Sprintf("PrepareStmt %v", prepare), func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := db.Open(t, &gorm.Config{PrepareStmt: prepare})
				pool(t, gdb).SetMaxOpenConns(1)
				ensure(t, gdb)
				itemsWork(t, gdb)
				must(t, gdb.Connection(func(conn *gorm.DB) error {
					exec(t, conn, "DELETE FROM lease_items")
					itemsWork(t, conn)
					return nil
				}))
			})
		})
	}
}
