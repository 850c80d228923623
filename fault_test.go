//go:build unix

package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/faultproxy"
)

// Electors on real databases, under faults that are real. Every test keeps a ledger, which checks at its end that no two works
// trusted their terms at once, and that epochs grew.

// The database hangs, or does not let go

func TestWorkIsCancelledInTimeWhileSomebodyElseHoldsTheLock(t *testing.T) { // C22
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
		if most := ttl - ttl/3; took > most+noise || ended.cause != ErrLost {
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

func TestWorkThatHoldsTheOnlyConnectionIsCancelledAndItsElectorLeadsAgain(t *testing.T) { // C35
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 1500 * time.Millisecond
		gdb := withTable(t, db)
		poolOf(t, gdb).SetMaxOpenConns(1)
		var acquired atomic.Int64
		var released time.Time
		a := newLedger(t).start(gdb, "A", ttl, func(ctx context.Context) {
			if term, _ := TermFrom(ctx); term.Epoch > 1 {
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
		if most := ttl - ttl/3; took > most+noise || took < most/2 || first.cause != ErrLost {
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

func TestPreparedStatementsAndASmallPoolHangNothing(t *testing.T) { // C34
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

func TestWorkIsCancelledInTimeWhileARenewalHangs(t *testing.T) { // C36
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
			if late := ended.ended.Sub(deadline); late > noise || ended.cause != ErrLost {
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

func TestDeadConnectionsInThePoolDoNotCostLeadership(t *testing.T) { // C79
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

func TestFirstConnectionsThatAreDeadDelayATermAndPreventNone(t *testing.T) { // C79
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

// The server goes, and comes back

func TestARestartShorterThanAThirdOfATTLDoesNotCostLeadership(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	server := dbtest.NewServer(t)
	db := server.Database(t)
	direct := withTable(t, db)
	l := newLedger(t)
	a := l.start(withTable(t, db), "A", ttl, nil)
	term := a.leads(5 * time.Second)
	l.start(withTable(t, db), "B", ttl, nil)
	for _, mode := range []string{"fast", "immediate", "fast"} {
		a.renews(direct)
		begin := time.Now()
		server.Restart(t, mode)
		down := time.Since(begin)
		t.Logf("%s: down for %v", mode, down)
		if down > ttl/3-ttl/12 {
			t.Skipf("this machine takes %v for a restart, which is no shorter than a third of the TTL", down)
		}
		a.keeps(term, ttl/2)
	}
	a.keeps(term, ttl/2)
}

func TestALeaderOfAServerThatTurnsReadOnlyStopsInTimeAndLeadsAgainLater(t *testing.T) { // C40
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	server := dbtest.NewServer(t)
	gdb := withTable(t, server.Database(t))
	a := newLedger(t).start(gdb, "A", ttl, nil)
	term := a.leads(5 * time.Second)
	a.renews(gdb)
	server.Exec(t, "ALTER SYSTEM SET default_transaction_read_only = on")
	server.Exec(t, "SELECT pg_reload_conf()")
	ended := a.ends(term.Epoch, 5*time.Second)
	last := job(t, gdb).RenewedAt
	if took, most := ended.ended.Sub(last), ttl-ttl/3; took > most+noise || ended.cause != ErrLost {
		t.Errorf("cancelled %v after the last renewal with %v, not within %v", took, ended.cause, most)
	}
	lasts(ended.ended.Add(2 * ttl))
	if a.IsLeader() {
		t.Error("it leads on a server that only reads")
	}
	if len(a.log.saying("read-only")) == 0 {
		t.Errorf("the log does not say why:\n%v", a.log)
	}
	server.Exec(t, "ALTER SYSTEM RESET default_transaction_read_only")
	server.Exec(t, "SELECT pg_reload_conf()")
	if again := a.leads(5 * ttl); again.Epoch != term.Epoch+1 {
		t.Errorf("it leads in term %d", again.Epoch)
	}
}

func TestTermsOfThreeProcessesNeverOverlapThoughTheServerIsKilledUnderThem(t *testing.T) { // C41
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	server := dbtest.NewServer(t)
	db := server.Database(t)
	withTable(t, db)
	l := newLedger(t)
	for _, holder := range []string{"A", "B", "C"} {
		startProcess(t, l, db, "plain", holder, ttl)
	}
	leading := func() (leading bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.ContainsFunc(l.stints, func(s *stint) bool { return s.ended.IsZero() })
	}
	for round := range 6 {
		within(t, 15*time.Second, "somebody leads", leading)
		server.Stop(t, "immediate")
		if round%2 == 1 {
			within(t, 15*time.Second, "nobody leads", func() bool { return !leading() })
			lasts(time.Now().Add(time.Duration(round) * ttl / 5))
		}
		server.Start(t)
	}
	within(t, 15*time.Second, "somebody leads", leading)
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("%d terms", len(l.stints))
}

func TestAnElectorSurvivesALongOutageAndLogsItOncePerTTLWithoutThePassword(t *testing.T) { // C42
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	const password = "correct-horse-battery"
	server := dbtest.NewServer(t)
	db := server.Database(t)
	withTable(t, db)
	withPassword := db.DSNVia("", "password="+password)
	a := newLedger(t).start(db.OpenDSN(t, withPassword), "A", ttl, nil)
	term := a.leads(5 * time.Second)
	server.Stop(t, "fast")
	down := time.Now()
	b := newLedger(t).start(db.OpenDSN(t, withPassword, &gorm.Config{DisableAutomaticPing: true}), "B", ttl, nil) // starts during the outage
	a.ends(term.Epoch, 5*time.Second)
	lasts(down.Add(5 * ttl))
	for _, c := range []*contender{a, b} {
		switch err := c.Health(); {
		case err == nil:
			t.Errorf("%s: Health is nil after an outage of five TTLs", c.Holder)
		case strings.Contains(err.Error(), password):
			t.Errorf("%s: Health tells the password: %v", c.Holder, err)
		}
	}
	server.Start(t)
	up := time.Now()
	within(t, 5*ttl, "somebody leads", func() bool { return a.IsLeader() || b.IsLeader() })
	t.Logf("after an outage of %v, somebody leads within %v", up.Sub(down), time.Since(up))
	within(t, 5*ttl, "both are healthy", func() bool { return a.Health() == nil && b.Health() == nil })

	for _, c := range []*contender{a, b} {
		trouble := c.log.saying("trouble with the database")
		if len(trouble) == 0 || trouble[0].at.Sub(down) > ttl {
			t.Errorf("%s did not log the first error at once:\n%v", c.Holder, c.log)
		}
		for i := 1; i < len(trouble); i++ {
			if pause := trouble[i].at.Sub(trouble[i-1].at); pause < ttl-10*time.Millisecond {
				t.Errorf("%s logged again after %v:\n%v", c.Holder, pause, c.log)
			}
		}
		if n := len(trouble); n < 3 || n > 7 {
			t.Errorf("%s logged %d lines about an outage of 5 TTLs:\n%v", c.Holder, n, c.log)
		}
		if strings.Contains(c.log.String(), password) {
			t.Errorf("%s logged the password:\n%v", c.Holder, c.log)
		}
	}
}

func TestAMissingTableIsNamedAndLeadsToLeadershipOnceItIsThere(t *testing.T) {
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 1500 * time.Millisecond
		gdb := db.Open(t)
		a := newLedger(t).start(gdb, "A", ttl, nil)
		within(t, 5*time.Second, "the log names EnsureSchema", func() bool { return len(a.log.saying("EnsureSchema")) > 0 })
		within(t, 5*time.Second, "Health names EnsureSchema", func() bool {
			err := a.Health()
			return err != nil && strings.Contains(err.Error(), "EnsureSchema")
		})
		if err := EnsureSchema(gdb); err != nil {
			t.Fatal(err)
		}
		a.leads(3 * ttl)
		if err := a.Health(); err != nil {
			t.Errorf("Health is %v", err)
		}
	})
}

func TestRunReturnsWithinABoundWhateverARealDatabaseDoes(t *testing.T) { // C60
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

// The fence

func TestALeaderCutOffInsideAFencedTransactionIsReplacedWithinTwoTTLs(t *testing.T) { // C75
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	mustExec(t, direct, "CREATE TABLE notes (n BIGINT)")
	proxy, far := behind(t, db)
	fenced, commit, committed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	l := newLedger(t)
	a := l.start(far, "A", ttl, func(ctx context.Context) {
		if term, _ := TermFrom(ctx); term.Epoch > 1 {
			<-ctx.Done()
			return
		}
		committed <- Transaction(ctx, far, func(tx *gorm.DB) error {
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
	if err := <-committed; !errors.Is(err, ErrLost) {
		t.Errorf("its commit returns %v", err)
	}
	if n := number(t, direct, "SELECT count(*) FROM notes"); n != 0 {
		t.Error("it committed")
	}
	b.keeps(b.leads(time.Second), ttl)
	_ = a
}

func TestALeaderFrozenInsideAFencedTransactionIsReplacedWithinTwoTTLs(t *testing.T) { // C75, C03, C110
	t.Parallel()
	for _, mode := range []string{"fenced", "reading"} { // between two statements; in the middle of a large result
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const ttl = 2 * time.Second
			db := dbtest.Postgres(t)
			direct := withTable(t, db)
			mustExec(t, direct, "CREATE TABLE notes (n BIGINT)")
			a := startProcess(t, nil, db, mode, "A", ttl) // it cannot tell when it was frozen, so the ledger is B's alone
			a.says("fenced", 10*time.Second)
			b := newLedger(t).start(direct, "B", ttl, nil)
			within(t, 5*time.Second, "B sees A", func() bool { holder, _ := b.Leader(); return holder == "A" })
			if err := a.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = a.cmd.Process.Signal(syscall.SIGCONT) })
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
			if err := a.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
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

func TestALeaderThatDiesDuringALongFencedStatementIsReplaced(t *testing.T) { // C75
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	proxy := faultproxy.New(t, db.Addr())
	led := db.OpenDSN(t, db.DSNVia(proxy.Addr()))
	l := newLedger(t)
	died := make(chan error, 1)
	a := l.start(led, "A", ttl, func(ctx context.Context) {
		died <- Transaction(ctx, led, func(tx *gorm.DB) error { return tx.Exec("SELECT pg_sleep(60)").Error })
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

func TestAFencedTransactionLeftIdleIsCutOffAndItsCommitFails(t *testing.T) { // C75
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	mustExec(t, direct, "CREATE TABLE notes (n BIGINT)")
	if ok, err := TryAcquire(t.Context(), direct, "job", "A", ttl, time.Time{}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	s := job(t, direct)
	tx := db.Open(t).Begin()
	mustExec(t, tx, "INSERT INTO notes (n) VALUES (1)")
	if err := (Term{Name: "job", Holder: s.Holder, Epoch: s.Epoch}).Fence(tx); err != nil {
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
func TestClientsThatFenceWithoutPauseDoNotStarveATakeover(t *testing.T) { // C76
	const ttl = 600 * time.Millisecond
	const rounds = 7
	const brief = "SELECT pg_sleep(0.01)" // so that there is always one that has not ended
	db := dbtest.Postgres(t)
	gdb := withTable(t, db)
	l := newLedger(t)

	// takeover lets a term expire under a standby, and returns how long after its expiry the next one began.
	takeover := func(clients int) time.Duration {
		mustExec(t, gdb, "UPDATE leases SET holder = '', expires_at = 0")
		if ok, err := TryAcquire(t.Context(), gdb, "job", "dead", ttl, time.Time{}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		dead := job(t, gdb)
		term := Term{Name: "job", Holder: "dead", Epoch: dead.Epoch}
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
						err = Transaction(WithTerm(context.Background(), term), far, func(tx *gorm.DB) error { return tx.Exec(brief).Error })
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
					case errors.Is(err, ErrLost):
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
		if clients > 0 && fences.Load() < 100 {
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

func TestAFencedTransactionHoldsOffATakeoverByAnElector(t *testing.T) { // C77
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 1500 * time.Millisecond
		gdb := withTable(t, db)
		if ok, err := TryAcquire(t.Context(), gdb, "job", "A", ttl, time.Time{}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		s := job(t, gdb)
		b := newLedger(t).start(withTable(t, db), "B", ttl, nil)
		within(t, 5*time.Second, "B sees A", func() bool { holder, _ := b.Leader(); return holder == "A" })
		lasts(s.RenewedAt.Add(ttl * 2 / 3))
		tx := gdb.Begin() // deferred, on SQLite
		if err := (Term{Name: "job", Holder: "A", Epoch: s.Epoch}).Fence(tx); err != nil {
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

// Statements that land late

func TestARenewalThatLandsAfterItsCallerGaveUpHoldsTheRowForATTLAtMost(t *testing.T) { // C78
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	proxy, far := behind(t, db)
	l := newLedger(t)
	a := l.start(far, "A", ttl, nil)
	term := a.leads(5 * time.Second)
	a.renews(direct)
	locked := block(t, db, "BEGIN", "SELECT * FROM leases FOR UPDATE")
	within(t, 5*time.Second, "a renewal waits", func() bool { return lockWaiters(t, direct) > 0 })
	proxy.Hang() // so that nobody can tell the server that its client has left
	a.ends(term.Epoch, 5*time.Second)
	a.stop()
	a.returns(5 * time.Second)
	b := l.start(direct, "B", ttl, nil)
	if n := lockWaiters(t, direct); n == 0 {
		t.Fatal("no renewal waits")
	}
	locked.end("ROLLBACK")
	free := time.Now()
	within(t, 5*time.Second, "the renewals have landed", func() bool { return lockWaiters(t, direct) == 0 })
	b.leads(10 * time.Second)
	if took := b.stint().begun.Sub(free); took > ttl+noise {
		t.Errorf("B leads after %v", took)
	} else {
		t.Logf("B leads after %v", took)
	}
	b.keeps(b.leads(time.Second), ttl)
}

func TestATakeoverThatLandsAfterItsCallerGaveUpHoldsTheRowForATTLAtMost(t *testing.T) { // C78
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	if ok, err := TryAcquire(t.Context(), direct, "job", "dead", ttl, time.Time{}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	proxy, far := behind(t, db)
	l := newLedger(t)
	a := l.start(far, "A", ttl, nil)
	within(t, 5*time.Second, "A sees it", func() bool { holder, _ := a.Leader(); return holder == "dead" })
	locked := block(t, db, "BEGIN", "SELECT * FROM leases FOR UPDATE")
	within(t, 5*time.Second, "a takeover waits", func() bool { return lockWaiters(t, direct) > 0 })
	proxy.Hang()
	a.stop()
	if took := a.returns(5 * time.Second); took > ttl/3+2*noise {
		t.Errorf("Run took %v", took)
	}
	if n := lockWaiters(t, direct); n == 0 {
		t.Fatal("no takeover waits")
	}
	locked.end("ROLLBACK")
	free := time.Now()
	var landed Status
	within(t, 5*time.Second, "it lands", func() bool { landed = job(t, direct); return landed.Holder == "A" })
	if landed.Remaining > ttl || landed.ExpiresAt.Sub(landed.RenewedAt) != ttl {
		t.Errorf("the row is %+v", landed)
	}
	b := l.start(direct, "B", ttl, nil)
	b.leads(10 * time.Second)
	if took := b.stint().begun.Sub(free); took > ttl+noise {
		t.Errorf("B leads after %v", took)
	} else {
		t.Logf("B leads after %v", took)
	}
}

func TestARenewalThatLandsAfterAReleaseDoesNotReviveTheRow(t *testing.T) { // C78
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	proxy, far := behind(t, db)
	a := newLedger(t).start(far, "A", ttl, nil)
	term := a.leads(5 * time.Second)
	a.renews(direct)
	locked := block(t, db, "BEGIN", "SELECT * FROM leases FOR UPDATE")
	within(t, 5*time.Second, "a renewal waits", func() bool { return lockWaiters(t, direct) > 0 })
	proxy.Hang()
	locked.exec("UPDATE leases SET holder = '', expires_at = 0")
	locked.end("COMMIT")
	within(t, 5*time.Second, "the renewals have landed", func() bool { return lockWaiters(t, direct) == 0 })
	a.ends(term.Epoch, 5*time.Second)
	a.stop()
	a.returns(5 * time.Second)
	if s := job(t, direct); s.Holder != "" || s.Epoch != term.Epoch || !s.ExpiresAt.IsZero() {
		t.Errorf("the row is %+v", s)
	}
}

// The database's clock steps

func TestADatabaseClockThatStepsAheadMakesNoSecondLeader(t *testing.T) { // C81
	t.Parallel()
	for _, cut := range []bool{false, true} {
		t.Run(map[bool]string{false: "the leader is well", true: "the leader is cut off"}[cut], func(t *testing.T) {
			t.Parallel()
			const ttl = 2 * time.Second
			server := dbtest.NewServer(t, dbtest.WithFakeClock())
			db := server.Database(t)
			direct := withTable(t, db)
			proxy, far := behind(t, db)
			l := newLedger(t)
			a := l.start(far, "A", ttl, nil)
			term := a.leads(5 * time.Second)
			b := l.start(direct, "B", ttl, nil)
			within(t, 5*time.Second, "B sees A", func() bool { holder, _ := b.Leader(); return holder == "A" })
			a.renews(direct)
			if cut {
				proxy.Hang()
			}
			server.SetClock(t, ttl)
			stepped := time.Now()
			if cut {
				ended := a.ends(term.Epoch, 5*time.Second)
				b.leads(10 * time.Second)
				took := b.stint().begun.Sub(stepped)
				if took > ttl+ttl/3+noise {
					t.Errorf("B leads %v after the step", took)
				}
				t.Logf("A is cancelled %v after the step, B leads after %v", ended.ended.Sub(stepped), took)
				return
			}
			lasts(stepped.Add(2 * ttl))
			within(t, 5*ttl, "somebody leads", func() bool { return a.IsLeader() || b.IsLeader() })
			t.Logf("terms: A %d, B %d", len(l.of("A")), len(l.of("B")))
		})
	}
}

func TestADatabaseClockThatStepsBackFreezesNoLease(t *testing.T) { // C81
	t.Parallel()
	const ttl = 2 * time.Second
	server := dbtest.NewServer(t, dbtest.WithFakeClock())
	db := server.Database(t)
	direct := withTable(t, db)
	proxy, far := behind(t, db)
	l := newLedger(t)
	a := l.start(far, "A", ttl, nil)
	term := a.leads(5 * time.Second)
	b := l.start(direct, "B", ttl, nil)
	within(t, 5*time.Second, "B sees A", func() bool { holder, _ := b.Leader(); return holder == "A" })
	server.SetClock(t, -time.Hour)
	a.keeps(term, ttl+ttl/2)
	proxy.Hang()
	server.SetClock(t, -2*time.Hour)
	dead := time.Now()
	b.leads(4 * ttl)
	took := b.stint().begun.Sub(dead)
	if took > ttl+ttl/3+noise {
		t.Errorf("B leads %v after A died, not within a TTL and a poll", took)
	}
	t.Logf("B leads %v after A died", took)
}

// Neighbours

func TestEnsureSchemaBehindALongTransactionLetsALeaderRenew(t *testing.T) { // C83
	t.Parallel()
	const ttl = 3 * time.Second
	db := dbtest.Postgres(t)
	gdb := db.Open(t)
	// An older version's table, and its leader, which needs no more.
	mustExec(t, gdb, `CREATE TABLE leases (name varchar(100) PRIMARY KEY, holder varchar(200) NOT NULL, expires_at bigint NOT NULL)`)
	mustExec(t, gdb, `INSERT INTO leases VALUES ('job', 'old', 0)`)
	long := block(t, db, "BEGIN", "SELECT * FROM leases")
	ensured := make(chan error, 1)
	go func() { ensured <- EnsureSchema(gdb) }()
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

func TestElectorsOfOneProcessWithOneHolderNeverBothLead(t *testing.T) { // C48
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 1500 * time.Millisecond
		l := newLedger(t)
		gdb := withTable(t, db)
		first := l.start(gdb, "A", ttl, nil)
		first.leads(5 * time.Second)
		second := l.start(withTable(t, db), "A", ttl, nil)
		if db.Backend == dbtest.BackendSQLite {
			second = l.start(gdb, "A", ttl, nil) // a third, on one pool
		}
		first.keeps(Term{Epoch: 1}, 2*ttl)
		if second.IsLeader() {
			t.Error("both lead")
		}
		first.stop()
		first.returns(5 * time.Second)
		within(t, 5*time.Second, "another leads", func() bool { return len(l.of("A")) == 2 })
	})
}

func TestARestartWithTheSameHolderWithinATTLWaitsForTheExpiry(t *testing.T) { // C48
	t.Parallel()
	const ttl = 900 * time.Millisecond // the driver pings what was idle for a second
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	proxy := faultproxy.New(t, db.Addr())
	// One message per statement, so that one on a dead connection is carried out when it is delivered at last.
	far := db.OpenDSN(t, db.DSNVia(proxy.Addr(), "default_query_exec_mode=simple_protocol"))
	warm(t, poolOf(t, far), 8)
	l := newLedger(t)
	dead := l.start(far, "A", ttl, nil)
	dead.leads(5 * time.Second)
	proxy.Hang()
	again := l.start(direct, "A", ttl, nil)
	term := again.leads(10 * time.Second)
	if s := job(t, direct); s.Epoch != 2 || term.Epoch != 2 {
		t.Errorf("it leads in term %d; the row is %+v", term.Epoch, s)
	}
	dead.stop()
	dead.returns(5 * time.Second)
	proxy.Thaw() // the last renewals of its predecessor land now
	again.keeps(term, ttl)
}

func TestAnElectorLeadsOverTheSimpleProtocolAndSurvivesKilledConnections(t *testing.T) { // C33
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
		fenced <- Transaction(ctx, gdb, func(tx *gorm.DB) error { return tx.Exec("INSERT INTO notes (n) VALUES (?)", 1).Error })
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

func TestASerializableLeaderDoesNotLoseItsTermToItsNeighbours(t *testing.T) { // C19
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
							if _, err := List(context.Background(), tx); err != nil {
								return err
							}
							_, err := TryAcquire(context.Background(), tx, fmt.Sprintf("other %d", (i+n)%4), fmt.Sprintf("N%d", i), time.Millisecond, time.Time{})
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

// What it costs

func TestAStandbyWritesNothingAndALeadersRenewalsAreHeapOnly(t *testing.T) { // C72
	t.Parallel()
	const ttl = 1200 * time.Millisecond
	server := dbtest.NewServer(t, dbtest.WithSetting("autovacuum", "off"))
	db := server.Database(t)
	direct := withTable(t, db)
	if ok, err := TryAcquire(t.Context(), direct, "job", "held", time.Hour, time.Time{}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	const next = "SELECT txid_snapshot_xmax(txid_current_snapshot())"
	before := number(t, direct, next)
	l := newLedger(t)
	standby := withTable(t, db)
	b := l.start(standby, "B", ttl, nil)
	within(t, 5*time.Second, "B polls", func() bool { holder, _ := b.Leader(); return holder == "held" })
	lasts(time.Now().Add(3 * ttl))
	if err := b.Health(); err != nil {
		t.Error(err) // it has polled, within a TTL
	}
	if after := number(t, direct, next); after != before {
		t.Errorf("a standby's polls took %d transaction ids", after-before)
	}
	b.stop()
	b.returns(5 * time.Second)

	mustExec(t, direct, "SELECT pg_stat_force_next_flush()")
	count := func(column string) int64 {
		return number(t, direct, "SELECT "+column+" FROM pg_stat_user_tables WHERE relname = 'leases'")
	}
	within(t, 5*time.Second, "the first statistics", func() bool { return count("n_tup_upd") == 1 })
	if err := Release(t.Context(), direct, "job", "held", time.Time{}); err != nil {
		t.Fatal(err)
	}
	led := db.Open(t)
	a := l.start(led, "A", ttl, nil)
	term := a.leads(5 * time.Second)
	a.keeps(term, 6*time.Second)
	a.stop()
	a.returns(5 * time.Second)
	poolOf(t, led).Close() // its sessions then tell what they did
	mustExec(t, direct, "SELECT pg_stat_force_next_flush()")
	renewals := int64(6*time.Second/ttl) * 3
	within(t, 5*time.Second, "the statistics", func() bool { return count("n_tup_upd") >= renewals*9/10 })
	if updates, heapOnly := count("n_tup_upd"), count("n_tup_hot_upd"); updates != heapOnly || updates > renewals+6 {
		t.Errorf("of %d updates, %d are heap-only; %d renewals were due", updates, heapOnly, renewals)
	} else {
		t.Logf("%d updates, all heap-only", updates)
	}
	if others := count("n_tup_ins + n_tup_del"); others != 1 {
		t.Errorf("%d rows were inserted or deleted", others)
	}
}

// Not parallel: others' goroutines would count.
func TestAHundredLivesLeakNothing(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		const ttl = 90 * time.Millisecond
		others := goleak.IgnoreCurrent()
		gdb := db.Open(t)
		if err := EnsureSchema(gdb); err != nil {
			t.Fatal(err)
		}
		l := newLedger(t)
		for life := range 100 {
			c := l.start(gdb, "A", ttl, nil)
			if life%10 != 9 { // some are stopped at once, perhaps in mid-statement
				led := len(l.of("A"))
				within(t, 5*time.Second, "it leads", func() bool { return c.IsLeader() || len(l.of("A")) > led })
			}
			if life%3 == 0 {
				c.Resign()
			}
			c.stop()
			c.returns(5 * time.Second)
			if n := poolOf(t, gdb).Stats().InUse; n != 0 {
				t.Errorf("Run has returned, and uses %d connections", n)
			}
		}
		if err := poolOf(t, gdb).Close(); err != nil {
			t.Fatal(err)
		}
		goleak.VerifyNone(t, others, goleak.IgnoreAnyFunction(dbtest.ServerGoroutine))
	})
}

// Everything at once

func TestAServerThatStandsStillCostsLeadershipOnlyIfItIsLong(t *testing.T) { // C36
	t.Parallel()
	const ttl = 3 * time.Second
	server := dbtest.NewServer(t)
	db := server.Database(t)
	gdb := withTable(t, db)
	l := newLedger(t)
	a := l.start(gdb, "A", ttl, nil)
	term := a.leads(5 * time.Second)
	l.start(withTable(t, db), "B", ttl, nil)
	a.renews(gdb)

	server.Freeze(t)
	a.keeps(term, ttl/4) // its deadline is at two thirds, its renewal at one third
	lasts(time.Now().Add(ttl / 6))
	server.Thaw(t)
	a.keeps(term, ttl/2)

	last := a.renews(gdb)
	server.Freeze(t)
	frozen := time.Now()
	ended := a.ends(term.Epoch, ttl)
	if took, most := ended.ended.Sub(last.RenewedAt), ttl-ttl/3; took > most+noise || ended.cause != ErrLost {
		t.Errorf("cancelled %v after the last renewal with %v, not within %v", took, ended.cause, most)
	}
	lasts(frozen.Add(2 * ttl))
	server.Thaw(t)
	thawed := time.Now()
	within(t, 3*ttl, "somebody leads", func() bool {
		if s := job(t, gdb); s.Epoch == term.Epoch && s.Holder != "" && s.RenewedAt != last.RenewedAt {
			t.Fatalf("a renewal that was sent before the term was lost revived it: %+v", s)
		}
		return len(l.of("A"))+len(l.of("B")) > 1
	})
	t.Logf("somebody leads %v after the server goes on", time.Since(thawed))
}

func TestElectorsThatResignTakeTurns(t *testing.T) {
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 900 * time.Millisecond
		l := newLedger(t)
		electors := map[string]*contender{}
		gate := make(chan struct{})
		for _, holder := range []string{"A", "B", "C"} {
			electors[holder] = l.start(withTable(t, db), holder, ttl, func(ctx context.Context) {
				<-gate
				electors[holder].Resign()
				<-ctx.Done()
			})
		}
		close(gate)
		terms := func() int { return len(l.of("A")) + len(l.of("B")) + len(l.of("C")) }
		within(t, 20*time.Second, "ten terms", func() bool { return terms() >= 10 })
		for holder := range electors {
			if n := len(l.of(holder)); n == 0 || n == terms() {
				t.Errorf("%s had %d of %d terms", holder, n, terms())
			}
		}
	})
}

func TestNoTwoLeadAndNoStaleWriteCommitsUnderRandomFaults(t *testing.T) { // C36, C75, C78
	t.Parallel()
	const ttl = 900 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	mustExec(t, direct, "CREATE TABLE state (epoch BIGINT)")
	mustExec(t, direct, "INSERT INTO state VALUES (0)")
	seed := uint64(time.Now().UnixNano())
	t.Logf("the seed is %d", seed)
	l := newLedger(t)
	var writes, refused atomic.Int64
	var proxies []*faultproxy.Proxy
	for _, holder := range []string{"A", "B", "C"} {
		proxy, far := behind(t, db)
		proxies = append(proxies, proxy)
		l.start(far, holder, ttl, func(ctx context.Context) {
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for term, _ := TermFrom(ctx); ctx.Err() == nil; <-pace.C {
				// Whoever finds a later term's write has found a fault: the fence let it pass.
				err := Transaction(ctx, far, func(tx *gorm.DB) error {
					var epoch int64
					if err := tx.Raw("SELECT epoch FROM state FOR UPDATE").Scan(&epoch).Error; err != nil {
						return err
					}
					if epoch > term.Epoch {
						t.Errorf("a write of term %d comes after one of term %d", term.Epoch, epoch)
					}
					return tx.Exec("UPDATE state SET epoch = ?", term.Epoch).Error
				})
				if err != nil {
					refused.Add(1)
					continue
				}
				writes.Add(1)
			}
		})
	}
	random := rand.New(rand.NewPCG(seed, 0))
	faults := []func(*faultproxy.Proxy){
		(*faultproxy.Proxy).Hang, (*faultproxy.Proxy).HangExisting, (*faultproxy.Proxy).Thaw, (*faultproxy.Proxy).DropReplies,
		(*faultproxy.Proxy).Reset, (*faultproxy.Proxy).Refuse, (*faultproxy.Proxy).Heal, (*faultproxy.Proxy).Heal,
		func(p *faultproxy.Proxy) { p.HangNext(2) },
		func(p *faultproxy.Proxy) { p.DelayReplies(ttl / 3) },
	}
	next := time.NewTicker(ttl / 8)
	defer next.Stop()
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); <-next.C {
		faults[random.IntN(len(faults))](proxies[random.IntN(len(proxies))])
	}
	for _, p := range proxies {
		p.Heal()
	}
	before := len(l.of("A")) + len(l.of("B")) + len(l.of("C"))
	written := writes.Load()
	within(t, 20*time.Second, "writes go on", func() bool { return writes.Load() > written+3 })
	t.Logf("%d terms, %d writes, %d of them failed", before, written, refused.Load())
}
