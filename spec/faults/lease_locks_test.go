//go:build unix

package faults

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestWorkIsCancelledInTimeWhileSomebodyElseHoldsTheLock(t *testing.T) {
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 900 * time.Millisecond
		gdb := withTable(t, db)
		a := newLedger(t).start(gdb, "A", ttl, nil)
		term := a.leads(5 * time.Second)
		a.renews(gdb)
		lock := map[string][]string{
			dbtest.BackendSQLite:   {"BEGIN IMMEDIATE"},
			dbtest.BackendPostgres: {"BEGIN", "SELECT * FROM leases FOR UPDATE"},
		}
		begin := time.Now()
		other := block(t, db, lock[db.Backend]...)
		last := job(t, gdb).RenewedAt // nobody writes any more
		ended := a.ends(term.Epoch, 3*time.Second)
		took := ended.ended.Sub(last)
		if most := ttl - ttl/3; took > most+noise || ended.cause != lease.ErrLost {
			t.Errorf("cancelled %v after the last renewal with %v, not within %v", took, ended.cause, most)
		}
		if now := job(t, gdb); now.RenewedAt != last {
			t.Errorf("the row was renewed under the lock: %v", now)
		}
		lasts(begin.Add(3 * time.Second))
		if a.IsLeader() {
			t.Error("it leads under the lock")
		}
		other.end("ROLLBACK")
		a.leads(10 * time.Second)
		t.Logf("cancelled %v after the last renewal", took)
	})
}

func TestEnsureSchemaBehindALongTransactionLetsALeaderRenew(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	db := dbtest.Postgres(t)
	gdb := db.Open(t)
	// An older version's table, and its leader, which needs no more.
	mustExec(t, gdb, `CREATE TABLE leases (name varchar(100) PRIMARY KEY, holder varchar(200) NOT NULL, expires_at bigint NOT NULL)`)
	mustExec(t, gdb, `INSERT INTO leases VALUES ('job', 'old', 0)`)
	long := block(t, db, "BEGIN", "SELECT * FROM leases")
	ensured := make(chan error, 1)
	go func() { ensured <- lease.EnsureSchema(gdb) }()
	waited := false
	var slowest time.Duration
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	for end := time.Now().Add(ttl); time.Now().Before(end); <-pace.C {
		begin := time.Now()
		mustExec(t, gdb, "UPDATE leases SET expires_at = expires_at + 1 WHERE name = 'job' AND holder = 'old'")
		slowest = max(slowest, time.Since(begin))
		waited = waited || slowest > 100*time.Millisecond
	}
	select {
	case err := <-ensured:
		t.Fatalf("EnsureSchema is done behind a transaction: %v", err)
	default:
	}
	if !waited {
		t.Error("EnsureSchema never tried")
	}
	if slowest > ttl/3 {
		t.Errorf("a renewal took %v", slowest)
	}
	t.Logf("the slowest renewal took %v", slowest)
	long.end("COMMIT")
	if err := <-ensured; err != nil {
		t.Fatal(err)
	}
	mustExec(t, gdb, "UPDATE leases SET holder = ''")
	newLedger(t).start(gdb, "A", ttl, nil).leads(5 * time.Second)
}

func TestASerializableLeaderDoesNotLoseItsTermToItsNeighbours(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ pause, slow time.Duration }{
		"that are many":             {pause: 3 * time.Millisecond},
		"that its renewals overlap": {pause: 3 * time.Millisecond, slow: 3 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl = 1500 * time.Millisecond
			db := dbtest.Postgres(t)
			serializable := &dbtest.Database{Backend: db.Backend, DSN: db.DSNVia("", "default_transaction_isolation=serializable")}
			gdb := withTable(t, serializable)
			if test.slow > 0 {
				mustExec(t, gdb, fmt.Sprintf(`CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(%f); RETURN NEW; END $$;
CREATE TRIGGER slowly BEFORE UPDATE ON leases FOR EACH ROW WHEN (NEW.name = 'job') EXECUTE FUNCTION slowly()`, test.slow.Seconds()))
			}
			// Its renewals read the whole table, as a planner may choose for a small one, so they conflict with every neighbour.
			scanning := db.DSNVia("", "default_transaction_isolation=serializable", "enable_indexscan=off", "enable_bitmapscan=off")
			l := newLedger(t)
			a := l.start(db.OpenDSN(t, scanning), "A", ttl, nil)
			term := a.leads(5 * time.Second)
			l.start(withTable(t, serializable), "B", ttl, nil)
			enough, stop := context.WithCancel(context.Background())
			var running sync.WaitGroup
			var writes, failures atomic.Int64
			for i := range 4 {
				neighbour := withTable(t, serializable)
				running.Go(func() {
					pause := time.NewTicker(test.pause)
					defer pause.Stop()
					for n := 0; enough.Err() == nil; n++ {
						// Reads all leases and writes one, its own or its neighbour's: a serialization failure for many.
						err := neighbour.Transaction(func(tx *gorm.DB) error {
							if _, err := lease.List(context.Background(), tx); err != nil {
								return err
							}
							_, err := lease.TryAcquire(context.Background(), tx, fmt.Sprintf("other %d", (i+n)%4), fmt.Sprintf("N%d", i), time.Millisecond, time.Time{})
							return err
						})
						if writes.Add(1); err != nil {
							failures.Add(1)
						}
						<-pause.C
					}
				})
			}
			defer running.Wait()
			defer stop()
			a.keeps(term, 5*time.Second)
			t.Logf("%d transactions of neighbours, %d of them failed", writes.Load(), failures.Load())
			if failures.Load() == 0 {
				t.Error("no neighbour met a serialization failure, so this tested nothing")
			}
			if n := len(a.log.saying("trouble")); n > 0 {
				t.Errorf("A had trouble:\n%v", a.log)
			}
		})
	}
}
