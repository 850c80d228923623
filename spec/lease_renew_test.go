package spec

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// renewingLate starts a renewal by A, at noon plus 5 seconds, and holds up its
// statement. meanwhile runs before the statement goes on to the database.
// renewingLate returns what TryAcquire said.
func renewingLate(t *testing.T, db *dbtest.Database, meanwhile func()) bool {
	t.Helper()
	slow, spy := spied(t, db)
	var held atomic.Bool
	spy.fail = func(query string) error {
		if strings.HasPrefix(query, "UPDATE") && held.CompareAndSwap(false, true) {
			meanwhile()
		}
		return nil
	}
	got := acquire(t, slow, "A", noon.Add(5*time.Second))
	if !held.Load() {
		t.Fatal("no renewal was sent")
	}
	return got
}

func TestARenewalByHandThatLandsAfterANewerOneLeavesTheLaterExpiry(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		granted(t, gdb, "A", noon)
		got := renewingLate(t, db, func() { granted(t, gdb, "A", noon.Add(10*time.Second)) })
		end := noon.Add(70 * time.Second)
		if s := find(t, gdb, "job"); !got || !s.ExpiresAt.Equal(end) || s.Epoch != 1 {
			t.Errorf("it is told %v; the lease expires at %v, in term %d", got, s.ExpiresAt, s.Epoch)
		}
		refused(t, gdb, "B", end.Add(-time.Microsecond))
		granted(t, gdb, "B", end)
	})
}

func TestARenewalByHandThatLandsInANewTermIsRefused(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		granted(t, gdb, "A", noon)
		got := renewingLate(t, db, func() {
			release(t, gdb, "A", noon.Add(6*time.Second))
			granted(t, gdb, "B", noon.Add(7*time.Second))
		})
		if s := find(t, gdb, "job"); got || s.Holder != "B" || !s.ExpiresAt.Equal(noon.Add(67*time.Second)) {
			t.Errorf("it is told %v; the lease is %+v", got, s)
		}
	})
}

func TestARenewalForAShorterTimeLeavesTheLaterExpiry(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		granted(t, gdb, "A", noon)
		if ok, err := lease.TryAcquire(t.Context(), gdb, "job", "A", 10*time.Second, noon.Add(5*time.Second)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if s := find(t, gdb, "job"); !s.ExpiresAt.Equal(noon.Add(time.Minute)) {
			t.Errorf("it expires at %v", s.ExpiresAt)
		}
	})
}

func TestEveryRenewalChangesTheRowWhateverTheClockSays(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		granted(t, gdb, "A", noon)
		for _, now := range []time.Time{noon, noon, noon.Add(-time.Second), noon.Add(-time.Minute), noon.Add(-time.Hour), noon} {
			before := find(t, gdb, "job")
			granted(t, gdb, "A", now)
			if after := find(t, gdb, "job"); after.RenewedAt.Equal(before.RenewedAt) {
				t.Errorf("a renewal at %v left the row at %v", now, after.RenewedAt)
			}
		}
	})
}

func TestManyRenewalsOfOneHolderAtOnceAllSucceed(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		granted(t, gdb, "A", databasesClock)
		var callers sync.WaitGroup
		for range 12 {
			callers.Go(func() {
				for range 10 {
					if ok, err := lease.TryAcquire(t.Context(), gdb, "job", "A", time.Minute, databasesClock); !ok || err != nil {
						t.Errorf("%v, %v", ok, err)
					}
				}
			})
		}
		callers.Wait()
	})
}

// Renewals that wait behind a stranger's lock on the row read the clock before
// they wait. They land in any order once the stranger commits a version of its
// own.
func TestRenewalsBehindARowLockTakeNothingBack(t *testing.T) {
	db := dbtest.Postgres(t)
	gdb := fresh(t, db)
	for round := range 30 {
		granted(t, gdb, "A", databasesClock)
		stranger := gdb.Begin()
		exec(t, stranger, "UPDATE leases SET epoch = epoch")
		const renewals = 6
		told := make(chan time.Time, renewals) // the expiry that each may count on
		for i := range renewals {
			go func() {
				sent := ask[int64](t, gdb, "SELECT (extract(epoch FROM clock_timestamp())*1000000)::bigint")
				if acquire(t, gdb, "A", databasesClock) {
					told <- time.UnixMicro(sent).Add(time.Minute)
				} else {
					told <- time.Time{}
				}
			}()
			waitUntil(t, "the renewal waits", func() bool { return waiters(t, gdb) > i })
		}
		if err := stranger.Commit().Error; err != nil {
			t.Fatal(err)
		}
		var latest time.Time
		for range renewals {
			until := <-told
			if until.IsZero() {
				t.Fatalf("round %d: a renewal was refused", round)
			}
			if until.After(latest) {
				latest = until
			}
		}
		if s := find(t, gdb, "job"); s.ExpiresAt.Before(latest) {
			t.Fatalf("round %d: the lease expires %v before the time that a renewal was told", round, latest.Sub(s.ExpiresAt))
		}
	}
}

func TestAHolderThatAsksTwiceAtOnceIsToldTrueTwice(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		granted(t, gdb, "A", noon)
		slow, spy := spied(t, db)
		var once sync.Once
		spy.fail = func(query string) error {
			if strings.HasPrefix(query, "UPDATE") { // slow has looked, and is about to take what the other takes now
				once.Do(func() { granted(t, gdb, "A", noon.Add(time.Hour)) })
			}
			return nil
		}
		granted(t, slow, "A", noon.Add(time.Hour))
		if s := find(t, gdb, "job"); s.Epoch != 2 {
			t.Errorf("the two began term %d", s.Epoch)
		}
	})
}

func TestATakeoverCountsFromTheEndOfItsWaitAndARenewalFromItsBeginning(t *testing.T) {
	gdb := fresh(t, dbtest.Postgres(t))
	// behind lets holder wait for the row, and returns its renewed_at and the time at which the wait was still on.
	behind := func(holder string) (renewed, waiting int64) {
		tx := gdb.Begin()
		defer tx.Rollback()
		exec(t, tx, "SELECT * FROM leases FOR UPDATE")
		done := make(chan bool, 1)
		go func() {
			ok, err := lease.TryAcquire(t.Context(), gdb, "job", holder, time.Minute, databasesClock)
			done <- ok && err == nil
		}()
		waitUntil(t, "it waits", func() bool { return waiters(t, gdb) > 0 })
		waiting = ask[int64](t, tx, "SELECT (extract(epoch FROM clock_timestamp())*1000000)::bigint")
		if err := tx.Rollback().Error; err != nil {
			t.Fatal(err)
		}
		if !<-done {
			t.Fatal("it was not granted")
		}
		return find(t, gdb, "job").RenewedAt.UnixMicro(), waiting
	}
	granted(t, gdb, "A", noon) // long ago
	if renewed, waiting := behind("B"); renewed < waiting {
		t.Errorf("a takeover counts from %d, and waited until after %d", renewed, waiting)
	}
	if renewed, waiting := behind("B"); renewed >= waiting {
		t.Errorf("a renewal counts from %d, and waited until after %d", renewed, waiting)
	}
}

func TestARenewalAfterAStepBackLastsAWholeTTLFromTheLastOne(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		if ok, err := lease.TryAcquire(t.Context(), gdb, "job", "A", time.Second, noon); !ok || err != nil {
			t.Fatal(ok, err)
		}
		granted(t, gdb, "A", noon.Add(-59*time.Second)) // for a minute
		if s := find(t, gdb, "job"); s.ExpiresAt.Sub(s.RenewedAt) < time.Minute-time.Microsecond {
			t.Errorf("a standby would count %v, not a minute", s.ExpiresAt.Sub(s.RenewedAt))
		}
	})
}

func TestAShortRenewalByAClockThatWentBackALittleLeavesALongLease(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		if ok, err := lease.TryAcquire(t.Context(), gdb, "job", "A", time.Hour, noon); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if ok, err := lease.TryAcquire(t.Context(), gdb, "job", "A", time.Second, noon.Add(-2*time.Second)); !ok || err != nil {
			t.Fatal(ok, err)
		}
		refused(t, gdb, "B", noon.Add(time.Hour-time.Microsecond))
	})
}
