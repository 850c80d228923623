//go:build unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/faultproxy"
)

func TestALeaderCutOffInsideAFencedTransactionIsReplacedWithinTwoTTLs(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	mustExec(t, direct, "CREATE TABLE notes (n BIGINT)")
	proxy, far := behind(t, db)
	fenced, commit, committed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	l := newLedger(t)
	a := l.start(far, "A", ttl, func(ctx context.Context) {
		if term, _ := lease.TermFrom(ctx); term.Epoch > 1 {
			<-ctx.Done()
			return
		}
		committed <- lease.Transaction(ctx, far, func(tx *gorm.DB) error {
			if err := tx.Exec("INSERT INTO notes (n) VALUES (1)").Error; err != nil {
				return err
			}
			close(fenced)
			<-commit // ignores its context
			return nil
		})
	})
	<-fenced
	b := l.start(direct, "B", ttl, nil)
	proxy.Hang()
	cut := time.Now()
	b.leads(10 * time.Second)
	if took := b.stint().begun.Sub(cut); took > 2*ttl+noise {
		t.Errorf("replaced after %v, more than two TTLs", took)
	} else {
		t.Logf("replaced after %v, %.1f TTLs", took, float64(took)/float64(ttl))
	}
	proxy.Thaw()
	close(commit)
	if err := <-committed; !errors.Is(err, lease.ErrLost) {
		t.Errorf("its commit returns %v", err)
	}
	if n := number(t, direct, "SELECT count(*) FROM notes"); n != 0 {
		t.Error("it committed")
	}
	b.keeps(b.leads(time.Second), ttl)
	_ = a
}

func TestALeaderFrozenInsideAFencedTransactionIsReplacedWithinTwoTTLs(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"fenced", "reading"} { // between two statements; in the middle of a large result
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const ttl = 2 * time.Second
			db := dbtest.Postgres(t)
			direct := withTable(t, db)
			mustExec(t, direct, "CREATE TABLE notes (n BIGINT)")
			a := startProcess(t, replica, nil, db, mode, "A", ttl) // it cannot tell when it was frozen, so the ledger is B's alone
			a.says("fenced", 10*time.Second)
			b := newLedger(t).start(direct, "B", ttl, nil)
			within(t, 5*time.Second, "B sees A", func() bool { holder, _ := b.Leader(); return holder == "A" })
			a.signal(syscall.SIGSTOP)
			frozen := time.Now()
			if mode == "reading" {
				sendsInVain(t, direct)
			}
			b.leads(10 * time.Second)
			begun := b.stint().begun
			if took := begun.Sub(frozen); took > 2*ttl+noise {
				t.Errorf("replaced after %v, more than two TTLs", took)
			} else {
				t.Logf("replaced after %v, %.1f TTLs", took, float64(took)/float64(ttl))
			}
			a.signal(syscall.SIGCONT)
			var trusted int64
			if _, err := fmt.Sscan(strings.TrimPrefix(a.says("trusted", 10*time.Second), "until "), &trusted); err != nil {
				t.Fatal(err)
			}
			if at := time.Unix(0, trusted); at.After(frozen.Add(noise)) {
				t.Errorf("when it ran on it trusted its term, %v after it was frozen", at.Sub(frozen))
			}
			if outcome := a.says("committed", 10*time.Second); !strings.HasPrefix(outcome, "false lost true") {
				t.Errorf("its commit: %s", outcome)
			}
			if n := number(t, direct, "SELECT count(*) FROM notes"); n != 0 {
				t.Error("it committed")
			}
			b.keeps(b.leads(time.Second), ttl)
		})
	}
}

func TestALeaderThatDiesDuringALongFencedStatementIsReplaced(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	proxy := faultproxy.New(t, db.Addr())
	led := db.OpenDSN(t, db.DSNVia(proxy.Addr()))
	l := newLedger(t)
	died := make(chan error, 1)
	a := l.start(led, "A", ttl, func(ctx context.Context) {
		died <- lease.Transaction(ctx, led, func(tx *gorm.DB) error { return tx.Exec("SELECT pg_sleep(60)").Error })
		<-ctx.Done()
	})
	a.leads(5 * time.Second)
	within(t, 5*time.Second, "the statement runs", func() bool {
		return number(t, direct, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_sleep(60)' AND state = 'active'") == 1
	})
	b := l.start(direct, "B", ttl, nil)
	// To the server it looks as if A's process were gone.
	proxy.Refuse()
	proxy.Reset()
	gone := time.Now()
	b.leads(2*ttl + noise)
	t.Logf("replaced %v after it died", time.Since(gone))
	if err := <-died; err == nil {
		t.Error("it committed")
	}
	a.stop()
}

func TestAFencedTransactionLeftIdleIsCutOffAndItsCommitFails(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	mustExec(t, direct, "CREATE TABLE notes (n BIGINT)")
	if ok, err := lease.TryAcquire(t.Context(), direct, "job", "A", ttl, time.Time{}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	s := job(t, direct)
	tx := db.Open(t).Begin()
	mustExec(t, tx, "INSERT INTO notes (n) VALUES (1)")
	if err := (lease.Term{Name: "job", Holder: s.Holder, Epoch: s.Epoch}).Fence(tx); err != nil {
		t.Fatal(err)
	}
	b := newLedger(t).start(direct, "B", ttl, nil)
	b.leads(10 * time.Second)
	if took := b.stint().begun.Sub(s.RenewedAt); took > 2*ttl+noise {
		t.Errorf("replaced after %v, more than two TTLs", took)
	} else {
		t.Logf("replaced after %v, %.1f TTLs", took, float64(took)/float64(ttl))
	}
	if err := tx.Commit().Error; err == nil {
		t.Error("its commit succeeds")
	} else {
		t.Logf("its commit: %v", err)
	}
	if n := number(t, direct, "SELECT count(*) FROM notes"); n != 0 {
		t.Error("it committed")
	}
}

// Not parallel: it compares times that are shorter than the noise of the others.
func TestClientsThatFenceWithoutPauseDoNotStarveATakeover(t *testing.T) {
	const ttl = 600 * time.Millisecond
	const rounds = 7
	const brief = "SELECT pg_sleep(0.01)" // so that there is always one that has not ended
	db := dbtest.Postgres(t)
	gdb := withTable(t, db)
	l := newLedger(t)

	// takeover lets a term expire under a standby, and returns how long after its expiry the next one began.
	takeover := func(clients int) time.Duration {
		mustExec(t, gdb, "UPDATE leases SET holder = '', expires_at = 0")
		if ok, err := lease.TryAcquire(t.Context(), gdb, "job", "dead", ttl, time.Time{}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		dead := job(t, gdb)
		term := lease.Term{Name: "job", Holder: "dead", Epoch: dead.Epoch}
		b := l.start(gdb, "B", ttl, nil)
		enough, stop := context.WithCancel(t.Context())
		defer stop()
		var running sync.WaitGroup
		var fences, refused atomic.Int64
		for i := range clients {
			pool := db.SQL(t)
			far, err := gorm.Open(postgres.New(postgres.Config{Conn: pool}), &gorm.Config{Logger: logger.Discard})
			if err != nil {
				t.Fatal(err)
			}
			running.Go(func() {
				defer pool.Close()
				for enough.Err() == nil {
					var err error
					if i%2 == 0 {
						err = lease.Transaction(lease.WithTerm(context.Background(), term), far, func(tx *gorm.DB) error { return tx.Exec(brief).Error })
					} else {
						tx := far.Begin()
						if err = term.Fence(tx); err == nil {
							err = errors.Join(tx.Exec(brief).Error, tx.Commit().Error)
						} else {
							tx.Rollback()
						}
					}
					switch {
					case err == nil:
						fences.Add(1)
					case errors.Is(err, lease.ErrLost):
						refused.Add(1)
					default:
						t.Error(err)
						return
					}
				}
			})
		}
		b.leads(10 * time.Second)
		acquired := job(t, gdb).AcquiredAt
		stop()
		running.Wait()
		b.stop()
		b.returns(10 * time.Second)
		if clients > 0 && fences.Load() < int64(5*clients) {
			t.Errorf("only %d fences, and %d refused", fences.Load(), refused.Load())
		}
		return acquired.Sub(dead.ExpiresAt)
	}
	var without, with []time.Duration
	for range rounds {
		without, with = append(without, takeover(0)), append(with, takeover(8))
	}
	slices.Sort(without)
	slices.Sort(with)
	t.Logf("after the expiry, without clients: %v", without)
	t.Logf("after the expiry, with 8 clients:  %v", with)
	if without[0] < 0 || with[0] < 0 {
		t.Error("a takeover before the expiry")
	}
	if a, b := without[rounds/2], with[rounds/2]; b > a+100*time.Millisecond {
		t.Errorf("clients delay a takeover from %v to %v", a, b)
	}
	if worst := with[rounds-1]; worst > ttl {
		t.Errorf("a takeover waited for %v", worst)
	}
}

func TestAFencedTransactionHoldsOffATakeoverByAnElector(t *testing.T) {
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 1500 * time.Millisecond
		gdb := withTable(t, db)
		if ok, err := lease.TryAcquire(t.Context(), gdb, "job", "A", ttl, time.Time{}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		s := job(t, gdb)
		b := newLedger(t).start(withTable(t, db), "B", ttl, nil)
		within(t, 5*time.Second, "B sees A", func() bool { holder, _ := b.Leader(); return holder == "A" })
		lasts(s.RenewedAt.Add(ttl * 2 / 3))
		tx := gdb.Begin() // deferred, on SQLite
		if err := (lease.Term{Name: "job", Holder: "A", Epoch: s.Epoch}).Fence(tx); err != nil {
			t.Fatal(err)
		}
		lasts(s.RenewedAt.Add(ttl * 3 / 2))
		if terms := b.ledger.of("B"); len(terms) != 0 || b.IsLeader() {
			t.Errorf("B led in a fenced transaction: %+v", terms)
		}
		committed := time.Now()
		if err := tx.Commit().Error; err != nil {
			t.Error(err)
		}
		b.leads(5 * time.Second)
		begun := b.stint().begun
		if begun.Before(committed) {
			t.Error("B led before the commit")
		}
		t.Logf("B leads %v after the commit", begun.Sub(committed))
	})
}
