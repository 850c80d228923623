//go:build unix

package faults

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestARestartShorterThanAThirdOfATTLDoesNotCostAClaim(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	server := dbtest.NewServer(t)
	db := server.Database(t)
	gdb := withItem(t, db, "a", "b")
	var workers []*workRun
	finish := make(chan struct{})
	for _, key := range []string{"item", "a", "b"} {
		workers = append(workers, startWork(t, mustClaim(t, gdb, key, lease.InstanceID(), ttl), func(ctx context.Context) error {
			select {
			case <-finish:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}))
	}
	for _, mode := range []string{"fast", "immediate"} {
		begin := time.Now()
		server.Restart(t, mode)
		down := time.Since(begin)
		t.Logf("%s: down for %v", mode, down)
		if down > ttl/3-ttl/12 {
			t.Skipf("this machine takes %v for a restart, which is no shorter than a third of the TTL", down)
		}
		look := db.Open(t) // the other's connections are dead, which its first users find
		for _, w := range workers {
			renewsItem(t, look, w.h.Item().Key)
			w.goesOn()
		}
	}
	close(finish)
	for _, w := range workers {
		if err := w.returns(5 * time.Second); err != nil {
			t.Error(err)
		}
		if it := item(t, db.Open(t), w.h.Item().Key); it.Owner != "" || it.Attempts != 0 || it.Epoch != 1 {
			t.Errorf("the row is %+v", it)
		}
	}
}

func TestWorkersStopInTimeInALongOutageAndTheItemIsTakenOverAfterIt(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	server := dbtest.NewServer(t)
	db := server.Database(t)
	gdb := withItem(t, db)
	a := startWork(t, mustClaim(t, gdb, "item", "A", ttl), untilEnded)
	last := renewsItem(t, gdb, "item").RenewedAt
	server.Stop(t, "fast")
	if late := a.lost(5 * time.Second).Sub(last.Add(ttl - ttl/3)); late > noise {
		t.Errorf("cancelled %v after the deadline", late)
	}
	if err := a.returns(5 * time.Second); !errors.Is(err, lease.ErrLost) {
		t.Errorf("Run: %v", err)
	}
	lasts(last.Add(2 * ttl))
	server.Start(t)
	b, _ := claims(t, withTable(t, db), "B", time.Minute, 5*time.Second)
	if it := b.Item(); !b.Expired() || it.Attempts != 2 || it.Epoch != 2 {
		t.Errorf("B's claim is %+v", it.Claimable)
	}
	if err := a.h.Save(t.Context(), a.h.Item()); !errors.Is(err, lease.ErrLost) {
		t.Errorf("A's save: %v", err)
	}
}
