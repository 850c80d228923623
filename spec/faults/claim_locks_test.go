//go:build unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestAClaimWaitsForItsPredecessorsFenceAndARenewalDoesNot(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	db := dbtest.Postgres(t)
	gdb := withItem(t, db)
	a := mustClaim(t, gdb, "item", "A", ttl)
	tx := db.Open(t).WithContext(t.Context()).Begin()
	defer tx.Rollback()
	if err := a.Fence(tx); err != nil {
		t.Fatal(err)
	}
	if err := a.Renew(t.Context()); err != nil {
		t.Errorf("a renewal beside the fence: %v", err)
	}
	expires := item(t, gdb, "item").ExpiresAt
	if _, err := lease.Claim(t.Context(), gdb, "item", "B", "", ttl, nil); !errors.Is(err, lease.ErrHeld) {
		t.Errorf("B's claim of a live one: %v", err)
	}
	lasts(expires.Add(-ttl / 3))
	mustExec(t, tx, "INSERT INTO notes (n) VALUES (1)") // nor does it lie idle for a TTL
	lasts(expires.Add(ttl / 20))
	var committed atomic.Bool
	claimed := make(chan error, 1)
	go func() {
		_, err := lease.Claim(context.Background(), gdb, "item", "B", "", time.Minute, nil)
		if !committed.Load() {
			err = fmt.Errorf("it did not wait for the fence: %v", err)
		}
		claimed <- err
	}()
	within(t, 5*time.Second, "the claim waits", func() bool { return lockWaiters(t, gdb) == 1 })
	if h, err := lease.ClaimNext[lease.Item](t.Context(), gdb, "C", "", ttl, nil); !errors.Is(err, gorm.ErrRecordNotFound) {
		t.Errorf("ClaimNext does not pass over the item: %v, %v", h, err)
	}
	committed.Store(true)
	if err := tx.Commit().Error; err != nil {
		t.Errorf("the commit: %v", err)
	}
	if err := <-claimed; err != nil {
		t.Error(err)
	}
	if it := item(t, gdb, "item"); it.Owner != "B" || it.Epoch != 2 || number(t, gdb, "SELECT count(*) FROM notes") != 1 {
		t.Errorf("the row is %+v", it)
	}
}
