//go:build unix

package faults

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// withItem returns a handle as withTable does, and makes the items.
func withItem(t *testing.T, db *dbtest.Database, keys ...string) *gorm.DB {
	t.Helper()
	gdb := withTable(t, db)
	mustExec(t, gdb, "CREATE TABLE notes (n BIGINT)")
	for _, key := range append(keys, "item") {
		if err := lease.Create(t.Context(), gdb, lease.Item{Key: key, Payload: []byte(`"new"`)}); err != nil {
			t.Fatal(err)
		}
	}
	return gdb
}

// item is the row of one.
func item(t *testing.T, gdb *gorm.DB, key string) lease.Item {
	t.Helper()
	it, _, err := lease.Load(context.Background(), gdb, key)
	if err != nil {
		t.Fatal(err)
	}
	return it
}

// mustClaim claims an item that is free.
func mustClaim(t *testing.T, gdb *gorm.DB, key, owner string, ttl time.Duration) *lease.Holder {
	t.Helper()
	h, err := lease.Claim(context.Background(), gdb, key, owner, "", ttl, nil)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// claims claims the item "item" as soon as it can be, and says when it was.
func claims(t *testing.T, gdb *gorm.DB, owner string, ttl, limit time.Duration) (h *lease.Holder, at time.Time) {
	t.Helper()
	within(t, limit, owner+" claims the item", func() bool {
		var err error
		if h, err = lease.Claim(context.Background(), gdb, "item", owner, "", ttl, nil); err != nil && !errors.Is(err, lease.ErrHeld) {
			t.Fatal(err)
		}
		return err == nil
	})
	return h, time.Now()
}

// A workRun is one call of a claim's Run, until the test ends.
type workRun struct {
	t    *testing.T
	h    *lease.Holder
	stop context.CancelFunc
	done chan struct{} // closed when Run has returned
	err  error         // what it returned then

	mu    sync.Mutex // guards the fields below
	ended time.Time  // the work's context; zero while it lasts
	cause error
}

func startWork(t *testing.T, h *lease.Holder, work func(context.Context) error) *workRun {
	ctx, stop := context.WithCancel(context.Background())
	r := &workRun{t: t, h: h, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = h.Run(ctx, func(ctx context.Context) error {
			defer context.AfterFunc(ctx, func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.ended, r.cause = time.Now(), context.Cause(ctx)
			})()
			return work(ctx)
		})
	}()
	t.Cleanup(func() {
		stop()
		r.returns(20 * time.Second)
	})
	return r
}

// untilEnded is work that lasts until its context ends.
func untilEnded(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// returns waits until Run has, and returns its error.
func (r *workRun) returns(limit time.Duration) error {
	r.t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(limit):
		r.t.Errorf("%v: Run has not returned after %v", r.h, limit)
		return nil
	}
}

// lost waits until the work's context has ended, and says when; it must be for the loss.
func (r *workRun) lost(limit time.Duration) (at time.Time) {
	r.t.Helper()
	var cause error
	within(r.t, limit, r.h.String()+" is cancelled", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		at, cause = r.ended, r.cause
		return !at.IsZero()
	})
	if cause != lease.ErrLost {
		r.t.Errorf("%v was cancelled with %v", r.h, cause)
	}
	return at
}

// goesOn fails the test if the work's context has ended.
func (r *workRun) goesOn() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended.IsZero() {
		r.t.Fatalf("%v was cancelled with %v", r.h, r.cause)
	}
}

// renewsItem waits for a renewal, and returns the row after it.
func renewsItem(t *testing.T, gdb *gorm.DB, key string) (after lease.Item) {
	t.Helper()
	before := item(t, gdb, key)
	within(t, 10*time.Second, "a renewal of "+key, func() bool {
		after = item(t, gdb, key)
		return after.RenewedAt.After(before.RenewedAt)
	})
	return after
}
