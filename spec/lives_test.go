package spec

import (
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
)

// works runs a lease through its life on a handle: whatever the handle carries, it must behave as a clean one.
func works(t *testing.T, gdb *gorm.DB) {
	t.Helper()
	ctx := t.Context()
	try := func(want bool, holder string, now time.Time) {
		t.Helper()
		if ok, err := lease.TryAcquire(ctx, gdb, "life", holder, time.Minute, now); ok != want || err != nil {
			t.Fatalf("TryAcquire by %s is %v, %v", holder, ok, err)
		}
	}
	now := time.Now()
	try(true, "A", now)
	try(false, "B", now)
	try(true, "A", now.Add(time.Minute/2))
	s, err := lease.Find(ctx, gdb, "life")
	if err != nil || s.Holder != "A" || s.Epoch != 1 || !s.Held || s.RenewedAt.Sub(s.AcquiredAt) != time.Minute/2 {
		t.Fatalf("Find is %+v, %v", s, err)
	}
	if all, err := lease.List(ctx, gdb); err != nil || len(all) != 1 || all[0].Record != s.Record {
		t.Fatalf("List is %+v, %v", all, err)
	}
	try(true, "B", now.Add(2*time.Minute))
	if err := lease.Release(ctx, gdb, "life", "B", now.Add(2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	try(true, "C", now.Add(2*time.Minute))
	if s, err = lease.Find(ctx, gdb, "life"); err != nil || s.Holder != "C" || s.Epoch != 3 || !s.AcquiredAt.Equal(now.Add(2*time.Minute).Truncate(time.Microsecond)) {
		t.Fatalf("Find is %+v, %v", s, err)
	}
}
