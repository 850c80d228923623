//go:build unix

package faults

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/faultproxy"
)

func TestWorkThatHoldsTheOnlyConnectionIsCancelledAndItsElectorLeadsAgain(t *testing.T) {
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 1500 * time.Millisecond
		gdb := withTable(t, db)
		poolOf(t, gdb).SetMaxOpenConns(1)
		var acquired atomic.Int64
		var released time.Time
		a := newLedger(t).start(gdb, "A", ttl, func(ctx context.Context) {
			if term, _ := lease.TermFrom(ctx); term.Epoch > 1 {
				<-ctx.Done()
				return
			}
			tx := gdb.WithContext(context.WithoutCancel(ctx)).Begin()
			defer func() {
				released = time.Now()
				tx.Rollback()
			}()
			acquired.Store(job(t, tx).AcquiredAt.UnixMicro())
			lasts(time.Now().Add(3 * ttl))
		})
		a.leads(5 * time.Second)
		first := a.ends(1, 2*ttl)
		took := first.ended.Sub(time.UnixMicro(acquired.Load()))
		if most := ttl - ttl/3; took > most+noise || took < most/2 || first.cause != lease.ErrLost {
			t.Errorf("cancelled %v after it acquired with %v, not within %v", took, first.cause, most)
		}
		within(t, 10*ttl, "it leads again", func() bool { return len(a.ledger.of("A")) > 1 })
		again := a.stint()
		if again.begun.Before(released) {
			t.Error("a second work began before the first had returned")
		}
		if len(a.log.saying("all 1 connections of the pool are in use")) == 0 {
			t.Errorf("it logged\n%v", a.log)
		}
		t.Logf("cancelled %v after it acquired; leads again %v after the connection came free", took, again.begun.Sub(released))
	})
}

func TestPreparedStatementsAndASmallPoolHangNothing(t *testing.T) {
	t.Parallel()
	for _, connections := range []int{1, 2} {
		t.Run(fmt.Sprint(connections), func(t *testing.T) {
			t.Parallel()
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				t.Parallel()
				const ttl = 1500 * time.Millisecond
				gdb := withTable(t, db, &gorm.Config{PrepareStmt: true})
				poolOf(t, gdb).SetMaxOpenConns(connections)
				mustExec(t, gdb, "CREATE TABLE notes (n BIGINT)")
				var held atomic.Bool
				var short atomic.Int64
				a := newLedger(t).start(gdb, "A", ttl, func(ctx context.Context) {
					read := func(ctx context.Context, long time.Duration) error {
						return gdb.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
							var n int64
							if err := tx.Raw("SELECT count(*) FROM notes WHERE n > ?", 1).Scan(&n).Error; err != nil {
								return err
							}
							if long > 0 {
								lasts(time.Now().Add(long))
							}
							return tx.Raw("SELECT count(*) FROM notes WHERE n < ?", 1).Scan(&n).Error
						})
					}
					if !held.Swap(true) {
						if err := read(context.WithoutCancel(ctx), 2*ttl); err != nil {
							t.Error(err)
						}
					}
					pause := time.NewTicker(10 * time.Millisecond)
					defer pause.Stop()
					for ctx.Err() == nil {
						if err := read(ctx, 0); err == nil {
							short.Add(1)
						} else if ctx.Err() == nil {
							t.Error(err)
						}
						<-pause.C
					}
				})
				a.leads(5 * time.Second)
				within(t, 10*ttl, "short transactions", func() bool { return short.Load() > 0 })
				if terms := len(a.ledger.of("A")); terms != 3-connections {
					t.Errorf("a work that holds one of %d connections for two TTLs needs %d terms; its elector logged\n%v", connections, terms, a.log)
				}
				a.keeps(a.leads(5*time.Second), 2*ttl)
			})
		})
	}
}

func TestWorkIsCancelledInTimeWhileARenewalHangs(t *testing.T) {
	t.Parallel()
	for fault, strike := range map[string]func(*faultproxy.Proxy){
		"nothing comes through": (*faultproxy.Proxy).Hang,
		"no answer comes back":  (*faultproxy.Proxy).DropReplies,
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			const ttl = 1500 * time.Millisecond
			const trust = ttl - ttl/3
			db := dbtest.Postgres(t)
			direct := withTable(t, db)
			proxy, far := behind(t, db)
			l := newLedger(t)
			a := l.start(far, "A", ttl, nil)
			term := a.leads(5 * time.Second)
			b := l.start(direct, "B", ttl, nil)
			last := a.renews(direct)

			var trusted atomic.Int64 // the last instant at which IsLeader was true
			done := make(chan struct{})
			asker := make(chan struct{})
			go func() {
				defer close(asker)
				ask := time.NewTicker(time.Millisecond)
				defer ask.Stop()
				for {
					if now := time.Now(); a.IsLeader() {
						trusted.Store(now.UnixNano())
					}
					select {
					case <-ask.C:
					case <-done:
						return
					}
				}
			}()
			strike(proxy)
			struck := time.Now()
			before := proxy.Held()
			ended := a.ends(term.Epoch, 5*time.Second)
			if n := proxy.Held(); n == before {
				t.Error("nothing hangs")
			}
			if fault == "nothing comes through" {
				if a.IsLeader() || proxy.Hung() == 0 {
					t.Errorf("IsLeader is %v, with %d hung connections", a.IsLeader(), proxy.Hung())
				}
				last = job(t, direct)
			}
			b.leads(5 * time.Second)
			close(done)
			<-asker

			// A renewal is carried out after it was sent, so this much is allowed by the clock of the test, with no tolerance.
			deadline := last.RenewedAt.Add(trust)
			if fault == "no answer comes back" {
				deadline = struck.Add(trust) // the last answer that it heard was to an earlier question
			}
			if at := time.Unix(0, trusted.Load()); at.After(deadline.Add(time.Millisecond)) {
				t.Errorf("IsLeader was true %v after the deadline", at.Sub(deadline))
			}
			if late := ended.ended.Sub(deadline); late > noise || ended.cause != lease.ErrLost {
				t.Errorf("the work was cancelled %v after the deadline, with %v", late, ended.cause)
			}
			if now := job(t, direct); now.Holder != "B" || now.Epoch != term.Epoch+1 {
				t.Errorf("the row is %+v", now)
			}
			t.Logf("cancelled %v after the last renewal that landed, %v before or after its deadline; B leads %v later",
				ended.ended.Sub(last.RenewedAt), ended.ended.Sub(deadline), b.stint().begun.Sub(ended.ended))
			proxy.Heal()
			b.stop()
			a.leads(10 * time.Second)
		})
	}
}

func TestDeadConnectionsInThePoolDoNotCostLeadership(t *testing.T) {
	t.Parallel()
	for _, dead := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(dead), func(t *testing.T) {
			t.Parallel()
			const ttl = 4 * time.Second
			db := dbtest.Postgres(t)
			direct := withTable(t, db)
			proxy, far := behind(t, db)
			a := newLedger(t).start(far, "A", ttl, nil)
			term := a.leads(5 * time.Second)
			warm(t, poolOf(t, far), dead)
			if err := proxy.WaitConnections(t.Context(), dead); err != nil {
				t.Fatal(err)
			}
			last := a.renews(direct)
			proxy.HangExisting()
			hung := proxy.Hung()
			if hung < dead {
				t.Fatalf("%d connections are hung, not %d", hung, dead)
			}
			a.keeps(term, 2*ttl)
			now := job(t, direct)
			if now.Epoch != term.Epoch || !now.RenewedAt.After(last.RenewedAt.Add(ttl)) {
				t.Errorf("the row is %+v", now)
			}
			if n := proxy.Held(); n == 0 {
				t.Error("nothing was sent on a dead connection")
			}
		})
	}
}

func TestFirstConnectionsThatAreDeadDelayATermAndPreventNone(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	db := dbtest.Postgres(t)
	withTable(t, db)
	proxy := faultproxy.New(t, db.Addr())
	proxy.HangNext(3)
	far := db.OpenDSN(t, db.DSNVia(proxy.Addr()), &gorm.Config{DisableAutomaticPing: true})
	a := newLedger(t).start(far, "A", ttl, nil)
	begin := time.Now()
	term := a.leads(2 * ttl)
	t.Logf("leads after %v", time.Since(begin))
	a.keeps(term, ttl)
}

// The simple protocol is what a pooler of transactions needs.
func TestAnElectorLeadsOverTheSimpleProtocolAndSurvivesKilledConnections(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	mustExec(t, direct, "CREATE TABLE notes (n BIGINT)")
	open := func() *gorm.DB {
		dsn := db.DSNVia("", "application_name=simple")
		gdb, err := gorm.Open(postgres.New(postgres.Config{DSN: dsn, PreferSimpleProtocol: true}), &gorm.Config{Logger: logger.Discard})
		if err != nil {
			t.Fatal(err)
		}
		pool := poolOf(t, gdb)
		t.Cleanup(func() { pool.Close() })
		return gdb
	}
	l := newLedger(t)
	gdb := open()
	fenced := make(chan error, 1)
	a := l.start(gdb, "A", ttl, func(ctx context.Context) {
		fenced <- lease.Transaction(ctx, gdb, func(tx *gorm.DB) error { return tx.Exec("INSERT INTO notes (n) VALUES (?)", 1).Error })
		<-ctx.Done()
	})
	term := a.leads(5 * time.Second)
	if err := <-fenced; err != nil {
		t.Error(err)
	}
	b := l.start(open(), "B", ttl, nil)
	for range 3 {
		a.renews(direct)
		if n := number(t, direct, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE application_name = 'simple' AND datname = current_database()`); n == 0 {
			t.Error("no connection to kill")
		}
		a.keeps(term, ttl/2)
	}
	a.stop()
	b.leads(5 * time.Second)
}

func TestRunReturnsWithinABoundWhateverARealDatabaseDoes(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	const bound = ttl / 3
	down := map[string]func(*testing.T, *dbtest.Database, *faultproxy.Proxy){
		"up":      func(*testing.T, *dbtest.Database, *faultproxy.Proxy) {},
		"hung":    func(_ *testing.T, _ *dbtest.Database, p *faultproxy.Proxy) { p.Hang() },
		"refused": func(_ *testing.T, _ *dbtest.Database, p *faultproxy.Proxy) { p.Refuse(); p.Reset() },
		"locked": func(t *testing.T, db *dbtest.Database, _ *faultproxy.Proxy) {
			block(t, db, "BEGIN", "LOCK TABLE leases")
		},
	}
	check := func(t *testing.T, state string, a, b *contender, table *gorm.DB, strike func()) {
		term := a.leads(5 * time.Second)
		within(t, 5*time.Second, "B sees A", func() bool { holder, _ := b.Leader(); return holder == "A" })
		strike()
		b.stop()
		a.stop()
		if took := a.returns(20 * time.Second); took > bound+2*noise {
			t.Errorf("the leader's Run took %v", took)
		} else {
			t.Logf("the leader's Run took %v", took)
		}
		if took := b.returns(20 * time.Second); took > bound+2*noise {
			t.Errorf("the standby's Run took %v more", took)
		}
		if cause := a.stint().cause; cause != context.Canceled {
			t.Errorf("the cause is %v", cause)
		}
		if state != "up" {
			return
		}
		if s := job(t, table); s.Held || s.Holder != "" || s.Epoch != term.Epoch {
			t.Errorf("the row is %+v", s)
		}
	}
	for state, strike := range down {
		t.Run("postgres "+state, func(t *testing.T) {
			t.Parallel()
			db := dbtest.Postgres(t)
			direct := withTable(t, db)
			proxy, far := behind(t, db)
			l := newLedger(t)
			a := l.start(far, "A", ttl, nil)
			a.leads(5 * time.Second)
			b := l.start(db.OpenDSN(t, db.DSNVia(proxy.Addr())), "B", ttl, nil)
			check(t, state, a, b, direct, func() { strike(t, db, proxy) })
		})
	}
	for _, state := range []string{"up", "locked"} {
		t.Run("sqlite "+state, func(t *testing.T) {
			t.Parallel()
			db := dbtest.SQLite(t)
			gdb := withTable(t, db)
			l := newLedger(t)
			a := l.start(gdb, "A", ttl, nil)
			a.leads(5 * time.Second)
			b := l.start(withTable(t, db), "B", ttl, nil)
			check(t, state, a, b, gdb, func() {
				if state == "locked" {
					block(t, db, "BEGIN IMMEDIATE")
				}
			})
		})
	}
}

func TestAnErrorOfTimeSaysThatThePoolIsUsedUpIfItIs(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withTable(t, db)
		pool := poolOf(t, gdb)
		pool.SetMaxOpenConns(2)
		var taken []*sql.Conn
		take := func() {
			t.Helper()
			conn, err := pool.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			taken = append(taken, conn)
		}
		const says = "all 2 connections of the pool are in use"
		take()
		take()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, _, err := lease.Load(ctx, gdb, "k"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), says) {
			t.Errorf("with none left: %v", err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if _, _, err := lease.Load(ended, gdb, "k"); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "connections") {
			t.Errorf("with none left, in a context that has ended: %v", err)
		}
		for _, conn := range taken {
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
		}
		pool.SetMaxOpenConns(0)
		take()
		defer taken[2].Close()
		late, cancel := context.WithDeadline(t.Context(), time.Now())
		defer cancel()
		if _, _, err := lease.Load(late, gdb, "k"); !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "connections") {
			t.Errorf("with any number left: %v", err)
		}
	})
}
