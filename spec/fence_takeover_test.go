package spec

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func challenge(t *testing.T, db *dbtest.Database) rival {
	t.Helper()
	var gdb *gorm.DB
	r := rival{outcome: make(chan error, 1)}
	if db.Backend == dbtest.BackendPostgres {
		gdb = db.Open(t)
		watch := db.Open(t)
		r.waits = func() { waitUntil(t, "the rival waits", func() bool { return waiters(t, watch) > 0 }) }
	} else {
		file, _, _ := strings.Cut(db.DSN, "?")
		var spy *spy
		gdb, spy = spied(t, &dbtest.Database{Backend: db.Backend, DSN: file + "?_journal_mode=WAL&_busy_timeout=0"})
		locked := make(chan struct{}, 1)
		spy.after = func(_ string, err error) {
			if err != nil && strings.Contains(err.Error(), "locked") {
				select {
				case locked <- struct{}{}:
				default:
				}
			}
		}
		r.waits = func() {
			for range 2 {
				select {
				case <-locked:
				case err := <-r.outcome:
					t.Fatalf("the rival did not wait: %v", err)
				}
			}
		}
	}
	go func() {
		ok, err := lease.TryAcquire(t.Context(), gdb, "job", "B", time.Minute, time.Now().Add(time.Hour))
		if err == nil && !ok {
			err = errors.New("refused")
		}
		r.outcome <- err
	}()
	return r
}

func TestAFenceHoldsOffATakeoverUntilItsTransactionEnds(t *testing.T) {
	for how, end := range map[string]func(*gorm.DB) *gorm.DB{"commit": (*gorm.DB).Commit, "roll-back": (*gorm.DB).Rollback} {
		t.Run(how, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := withNotes(t, db)
				term := hold(t, gdb, "A")
				tx := gdb.Begin() // on SQLite a deferred one
				defer tx.Rollback()
				ask[int](t, tx, "SELECT count(*) FROM notes")
				if err := term.Fence(tx); err != nil {
					t.Fatal(err)
				}
				r := challenge(t, db)
				r.stillWaits(t)
				if err := write(tx); err != nil {
					t.Fatal(err)
				}
				if s := find(t, gdb, "job"); s.Epoch != term.Epoch {
					t.Errorf("term %d began", s.Epoch)
				}
				if err := end(tx).Error; err != nil {
					t.Fatal(err)
				}
				if err := <-r.outcome; err != nil {
					t.Error(err)
				}
				if s := find(t, gdb, "job"); s.Holder != "B" || s.Epoch != term.Epoch+1 {
					t.Errorf("the lease reads %v", s)
				}
			})
		})
	}
}

func TestAFenceHoldsOffATakeoverOfAReleasedLease(t *testing.T) {
	db := dbtest.Postgres(t) // on SQLite the release waits as well
	gdb := fresh(t, db)
	term := hold(t, gdb, "A")
	tx := gdb.Begin()
	defer tx.Rollback()
	if err := term.Fence(tx); err != nil {
		t.Fatal(err)
	}
	release(t, gdb, "A", databasesClock)
	r := challenge(t, db)
	r.stillWaits(t)
	mustBe(t, term.Fence(tx), lease.ErrLost)
	if err := tx.Rollback().Error; err != nil {
		t.Fatal(err)
	}
	if err := <-r.outcome; err != nil {
		t.Error(err)
	}
}

func TestAFenceDoesNotHoldUpRenewalsOnPostgres(t *testing.T) {
	db := dbtest.Postgres(t)
	gdb := fresh(t, db)
	term := hold(t, gdb, "A")
	impatient := db.OpenDSN(t, db.DSNVia("", "lock_timeout=1ms"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	err := lease.Transaction(lease.WithTerm(t.Context(), term), gdb, func(*gorm.DB) error {
		for range 10 {
			if ok, err := lease.TryAcquire(ctx, impatient, "job", "A", time.Minute, databasesClock); !ok || err != nil {
				t.Errorf("the renewal is %v, %v", ok, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestManyMayFenceOneTermAtOnceOnPostgres(t *testing.T) {
	gdb := keepConnections(t, withNotes(t, dbtest.Postgres(t)))
	ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
	var left atomic.Int32
	left.Store(8)
	all := make(chan struct{})
	race(t, 8, func(int) (bool, error) {
		return true, lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
			if left.Add(-1) == 0 {
				close(all)
			}
			select {
			case <-all:
				return write(tx)
			case <-time.After(20 * time.Second):
				return errors.New("the others were not let in")
			}
		})
	})
	if n := notes(t, gdb); n != 8 {
		t.Errorf("%d notes were committed", n)
	}
}

func TestAFenceWaitsForATakeoverThatIsBeingDecided(t *testing.T) {
	for how, want := range map[string]error{"commit": lease.ErrLost, "roll-back": nil} {
		t.Run(how, func(t *testing.T) {
			gdb := withNotes(t, dbtest.Postgres(t))
			ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
			takeover := gdb.Begin()
			defer takeover.Rollback()
			granted(t, takeover, "B", time.Now().Add(time.Hour))
			fenced := make(chan error, 1)
			go func() { fenced <- lease.Transaction(ctx, gdb, write) }()
			waitUntil(t, "the fence waits", func() bool { return waiters(t, gdb) > 0 })
			if how == "commit" {
				takeover.Commit()
			} else {
				takeover.Rollback()
			}
			if err := <-fenced; !errors.Is(err, want) {
				t.Errorf("after the %s of a takeover the fence is %v", how, err)
			}
		})
	}
}

// doc.go warns of such a roll-back.
func TestARollBackToAnEarlierSavepointUndoesAFence(t *testing.T) {
	db := dbtest.Postgres(t)
	gdb := withNotes(t, db)
	term := hold(t, gdb, "A")
	tx := gdb.Begin()
	defer tx.Rollback()
	if err := tx.SavePoint("before").Error; err != nil {
		t.Fatal(err)
	}
	if err := term.Fence(tx); err != nil {
		t.Fatal(err)
	}
	if err := tx.RollbackTo("before").Error; err != nil {
		t.Fatal(err)
	}
	if err := <-challenge(t, db).outcome; err != nil {
		t.Error(err)
	}
	if got := ask[string](t, tx, "SHOW idle_in_transaction_session_timeout"); got != "0" {
		t.Errorf("the transaction may lie idle for %s", got)
	}
}
