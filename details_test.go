package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
)

// What others may see

func TestAnEpochThatWasSeenIsNotForgottenWhileALowerOneIsLed(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.table.write(Record{Name: "job", Holder: "old", Epoch: 7, RenewedAt: time.Now(), ExpiresAt: time.Now().Add(T)})
		a := c.start("A")
		c.table.edit(func(r *Record) { *r = Record{Name: "job", Epoch: 3} }) // by hand
		c.passUntil(T, "A leads", a.IsLeader)
		if term, _ := a.Term(); term.Epoch != 4 {
			t.Errorf("%v", term)
		}
		want(t, scrape(t), map[string]float64{`lease_epoch{lease="job"}`: 7})
	})
}

func TestWorkThatOutlivesItsLeaseHasNoLeader(t *testing.T) { // C63
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(T)
		})
		a.store.cut()
		c.pass(T)
		if holder, ok := a.Leader(); ok || holder != "" {
			t.Errorf("Leader is %q, %v, although its term is over", holder, ok)
		}
	})
}

func TestHealthSaysTheLatestOfWhatItKnows(t *testing.T) {
	now := at(0)
	v := view{clock: func() instant { return now }, fresh: T}
	v.fail(errRefused)
	if err := v.health(); !errors.Is(err, errRefused) {
		t.Errorf("before any answer: %v", err)
	}
	v.hear()
	now = at(T)
	if err := v.health(); err != nil {
		t.Errorf("after a TTL of silence: %v", err)
	}
	now = at(T + 1)
	if err := v.health(); err == nil || errors.Is(err, errRefused) || !strings.Contains(err.Error(), "for "+(T+1).String()) {
		t.Errorf("after more, with a failure before the answer: %v", err)
	}
	v.fail(errRefused)
	if err := v.health(); !errors.Is(err, errRefused) {
		t.Errorf("after that, with a failure: %v", err)
	}
}

// The flight

func TestAskingEndsWithItsContextOrItsLimitWhateverTheDriverDoes(t *testing.T) { // C37
	deaf := func(context.Context) (int, error) {
		<-time.After(time.Hour)
		return 1, nil
	}
	for name, tc := range map[string]struct {
		ends  time.Duration // the context
		limit time.Duration
		after time.Duration
		err   error
	}{
		"its context": {ends: T, limit: 2 * T, after: T, err: errRefused},
		"its limit":   {ends: 2 * T, limit: T, after: T, err: errSilent},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancelCause(t.Context())
				defer end(nil)
				time.AfterFunc(tc.ends, func() { end(errRefused) })
				begin, f := time.Now(), make(flight, maxInFlight)
				if n, err := ask(ctx, f, tc.limit, deaf); n != 0 || err != tc.err || time.Since(begin) != tc.after {
					t.Errorf("%d, %v, after %v", n, err, time.Since(begin))
				}
				<-time.After(2 * time.Hour) // the deaf driver returns
				synctest.Wait()
				if len(f) != 0 {
					t.Errorf("%d statements are still counted", len(f))
				}
			})
		})
	}
}

func TestSettlingLeavesRoomForALateRelease(t *testing.T) {
	f := make(flight, maxInFlight)
	f.settle(time.Second)
	if len(f) != 0 {
		t.Errorf("%d statements are counted, though none is on its way", len(f))
	}
}

// The tenure

func TestAContextThatWorkLeftBehindIsCancelledAndNotLost(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		var left context.Context
		c.run(c.add("A"), func(ctx context.Context) {
			if left == nil {
				left = ctx
			}
		})
		if cause := context.Cause(left); cause != context.Canceled || ctxLost(left) {
			t.Errorf("the cause is %v, after a term that was given back", cause)
		}
	})
}

func TestATenureThatIsOverLooksAtNoClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		tenure := newTenure(t.Context(), Term{}, machineClock(), T, func() instant { looks++; return machineClock() })
		<-time.After(T / 24)
		synctest.Wait()
		tenure.end(byRelease)
		before := looks
		<-time.After(T)
		synctest.Wait()
		if before == 0 || looks != before {
			t.Errorf("%d looks, and %d after the end", before, looks-before)
		}
	})
}

func TestWhoeverSeesTheEndSecondFindsTheContextEnded(t *testing.T) { // C03
	tenure := newTenure(t.Context(), Term{}, at(0), time.Hour, func() instant { return at(0) })
	tenure.mu.Lock() // the first has come this far, and not to the cancelling
	tenure.timer.Stop()
	tenure.ended, tenure.reason, tenure.cause = true, byTakeover, ErrLost
	close(tenure.over)
	tenure.mu.Unlock()
	if tenure.leads() || context.Cause(tenure.ctx) != ErrLost {
		t.Errorf("the context's error is %v, its cause %v", tenure.ctx.Err(), context.Cause(tenure.ctx))
	}
	if reason, ok := tenure.lost(); reason != byTakeover || !ok {
		t.Errorf("the reason became %q, %v", reason, ok)
	}
}

// The fence

func TestATermIsOverByTheseRules(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, database *dbtest.Database) {
		db := database.Open(t)
		app := Tables(db, "app_")
		for _, handle := range []*gorm.DB{db, app} {
			if err := EnsureSchema(handle); err != nil {
				t.Fatal(err)
			}
		}
		h, err := open("db", db)
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		made := Term{Name: "job", Holder: "A", Epoch: 5}
		won := func(by time.Time) Term {
			return Term{Name: "job", Holder: "A", Epoch: 5, origin: &origin{table: "app_leases", now: func() time.Time { return by }}}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for name, tc := range map[string]struct {
			term   Term
			table  string // which is changed
			change string
			over   bool
		}{
			"in force":                              {made, "leases", "epoch = epoch", false},
			"in another epoch":                      {made, "leases", "epoch = 6", true},
			"of another holder":                     {made, "leases", "holder = 'B'", true},
			"expired":                               {made, "leases", "expires_at = 1", true},
			"of another table":                      {made, "app_leases", "epoch = 6", false},
			"won, in force":                         {won(now), "leases", "epoch = 6", false},
			"won, in another epoch":                 {won(now), "app_leases", "epoch = 6", true},
			"won, expired by its own clock":         {won(now.Add(2 * time.Hour)), "leases", "epoch = epoch", true},
			"won, in force only by its own clock":   {won(time.Unix(0, 1)), "app_leases", "expires_at = 1000", false},
			"of which the database will not say it": {Term{Name: "job", Holder: "A", origin: &origin{table: "no_such"}}, "leases", "epoch = epoch", false},
		} {
			for table, handle := range map[string]*gorm.DB{"leases": db, "app_leases": app} {
				err := handle.Exec("DELETE FROM " + table).Error
				if err == nil {
					_, err = h.pool.ExecContext(t.Context(), fmt.Sprintf(
						"INSERT INTO %s (name, holder, epoch, expires_at, acquired_at, renewed_at) VALUES ('job', 'A', 5, %d, %d, %d)",
						table, now.Add(time.Hour).UnixMicro(), now.UnixMicro(), now.UnixMicro()))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := db.Exec("UPDATE " + tc.table + " SET " + tc.change).Error; err != nil {
				t.Fatal(err)
			}
			for _, ctx := range []context.Context{t.Context(), ended} {
				if over := tc.term.over(ctx, h); over != tc.over {
					t.Errorf("%s: over is %v", name, over)
				}
			}
		}
	})
}

func TestALossIsSeenThroughWhateverWasDerivedFromTheWorksContext(t *testing.T) { // C03
	synctest.Test(t, func(t *testing.T) {
		now := at(0)
		tenure := newTenure(t.Context(), Term{Name: "job", Holder: "A", Epoch: 1}, now, time.Hour, func() instant { return now })
		defer tenure.end(byRelease)
		child, cancel := context.WithCancelCause(context.WithoutCancel(tenure.ctx))
		cancel(errRefused)
		if ctxLost(child) || ctxLost(tenure.ctx) {
			t.Error("lost in force")
		}
		synctest.Wait()
		now = at(time.Hour) // no timer has noticed
		if !ctxLost(child) {
			t.Error("the loss is not seen below a context that ended for a reason of its own")
		}
	})
}

func TestEachArgumentOfAFenceIsChecked(t *testing.T) { // C77
	dbtest.Run(t, func(t *testing.T, database *dbtest.Database) {
		db := withSchema(t, database)
		tx := db.Begin()
		defer tx.Rollback()
		bare := db.Session(&gorm.Session{NewDB: true})
		bare.Statement.Context = nil
		closed := db.Session(&gorm.Session{NewDB: true})
		closed.Statement.ConnPool = nil
		var none context.Context
		for what, err := range map[string]error{
			"without a name":          Term{Holder: "A", Epoch: 1}.Fence(tx),
			"without a holder":        Term{Name: "job", Epoch: 1}.Fence(tx),
			"without a context":       Fence(bare),
			"without a pool":          Term{Name: "job", Holder: "A", Epoch: 1}.Fence(closed),
			"Transaction without ctx": Transaction(none, db, func(*gorm.DB) error { return nil }),
		} {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

func TestTransactionTakesNothingFromItsHandle(t *testing.T) { // C24
	dbtest.Run(t, func(t *testing.T, database *dbtest.Database) {
		db := withSchema(t, database)
		if ok, err := TryAcquire(t.Context(), db, "job", "A", time.Minute, time.Time{}); err != nil || !ok {
			t.Fatal(ok, err)
		}
		ctx := WithTerm(t.Context(), Term{Name: "job", Holder: "A", Epoch: 1})
		sticky := db.Session(&gorm.Session{})
		sticky.Error = errRefused
		for what, handle := range map[string]*gorm.DB{"a sticky error": sticky, "conditions": db.Where("1 = 0")} {
			var n int64
			err := Transaction(ctx, handle, func(tx *gorm.DB) error { return tx.Model(&Record{}).Count(&n).Error })
			if err != nil || n != 1 {
				t.Errorf("%s: %v, and %d rows", what, err, n)
			}
		}
		lost, cancel := context.WithCancelCause(WithTerm(t.Context(), Term{Name: "job", Holder: "A", Epoch: 1}))
		err := Transaction(lost, db, func(*gorm.DB) error { cancel(ErrLost); return fmt.Errorf("its own: %w", ErrLost) })
		if !errors.Is(err, ErrLost) || strings.Count(err.Error(), ErrLost.Error()) != 1 {
			t.Errorf("the loss is not told once: %v", err)
		}
	})
}

func TestAFenceSetsTheseBounds(t *testing.T) { // C75
	db := withSchema(t, dbtest.Postgres(t))
	noon := time.Date(2024, 3, 1, 12, 0, 0, 0, time.UTC)
	settings := []string{"idle_in_transaction_session_timeout", "client_connection_check_interval", "tcp_user_timeout"}
	for _, tc := range []struct {
		ttl                             time.Duration
		session                         string // of all settings
		idle, connectionChecked, unread string
	}{
		{time.Minute, "0", "1min", "20s", "60000"},
		{time.Minute, "5s", "5s", "5s", "5000"},
		{time.Minute, "30s", "30s", "20s", "30000"},
		{time.Minute, "2min", "1min", "20s", "60000"},
		{500 * time.Microsecond, "0", "1ms", "1ms", "1"},
		{90 * 365 * 24 * time.Hour, "0", "2147483647ms", "2147483647ms", "2147483647"},
		{90 * 365 * 24 * time.Hour, "2min", "2min", "2min", "120000"},
	} {
		row := Record{Name: "job", Holder: "A", Epoch: 5, ExpiresAt: noon.Add(tc.ttl), AcquiredAt: noon, RenewedAt: noon}
		if err := db.Save(&row).Error; err != nil {
			t.Fatal(err)
		}
		tx := db.Begin()
		for _, setting := range settings {
			if err := tx.Exec("SET LOCAL " + setting + " = '" + tc.session + "'").Error; err != nil {
				t.Fatal(err)
			}
		}
		h, err := open("tx", tx)
		if err != nil {
			t.Fatal(err)
		}
		got, err := query(t.Context(), h, func(rows *sql.Rows) (bounds string, err error) { return bounds, rows.Scan(&bounds) },
			h.statements.fence, noon.UnixMicro(), "job", "A", 5)
		if err != nil || len(got) != 1 || got[0] != tc.idle+tc.connectionChecked+tc.unread {
			t.Errorf("a TTL of %v in a session of %s: %v, %v", tc.ttl, tc.session, got, err)
		}
		tx.Rollback() // may find the session cut off
		for _, setting := range settings {
			var after string
			if err := db.Raw("SHOW " + setting).Scan(&after).Error; tc.ttl > time.Second && (err != nil || after != "0") {
				t.Errorf("after the transaction %s is %s, %v", setting, after, err)
			}
		}
	}
}

// The handle

// A fakePool answers every statement with itself.
type fakePool struct {
	gorm.ConnPool
	err error
}

func (p fakePool) ExecContext(context.Context, string, ...any) (sql.Result, error) { return p, nil }
func (p fakePool) LastInsertId() (int64, error)                                    { return 0, nil }
func (p fakePool) RowsAffected() (int64, error)                                    { return 1, p.err }

func TestACountThatTheDriverCannotGiveIsAnError(t *testing.T) {
	h := &handle{pool: fakePool{err: errRefused}, dialect: dialects[0]}
	if n, err := h.exec(t.Context(), ""); !errors.Is(err, errRefused) {
		t.Errorf("%d, %v", n, err)
	}
}

func TestAQueryThatIsRepeatedMidwayReturnsEachRowOnceOnOneConnection(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, database *dbtest.Database) {
		db := database.Open(t)
		pool, err := db.DB()
		if err != nil {
			t.Fatal(err)
		}
		pool.SetMaxOpenConns(1)
		h, err := open("db", db)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		scans := 0
		got, err := query(ctx, h, func(rows *sql.Rows) (n int, err error) {
			if scans++; scans == 2 {
				return 0, contended{}
			}
			return n, rows.Scan(&n)
		}, "SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3")
		if err != nil || !slices.Equal(got, []int{1, 2, 3}) {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// contended is contention in either dialect.
type contended struct{}

func (contended) Error() string    { return "database is locked" }
func (contended) SQLState() string { return "40P01" }

func TestARowThatCannotBeReadIsAnErrorAndNotTheLast(t *testing.T) { // C27
	for backend, failing := range map[string]string{
		"sqlite":   "SELECT CASE x WHEN 1 THEN 1 ELSE abs(-9223372036854775807 - 1) END FROM (SELECT 1 AS x UNION ALL SELECT 2)",
		"postgres": "SELECT 1 / (2 - x) FROM generate_series(1, 2) AS x",
	} {
		t.Run(backend, func(t *testing.T) {
			database := map[string]func(testing.TB) *dbtest.Database{"sqlite": dbtest.SQLite, "postgres": dbtest.Postgres}[backend](t)
			h, err := open("db", database.Open(t))
			if err != nil {
				t.Fatal(err)
			}
			got, err := query(t.Context(), h, func(rows *sql.Rows) (n int, err error) { return n, rows.Scan(&n) }, failing)
			if err == nil {
				t.Errorf("%v", got)
			}
		})
	}
}

func TestAConnectionToAServerThatOnlyReadsIsNotUsedAgain(t *testing.T) { // C40
	db := withSchema(t, dbtest.Postgres(t))
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxOpenConns(1)
	if err := db.Exec("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY").Error; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := TryAcquire(ctx, db, "job", "A", time.Minute, time.Time{}); !states("25006")(err) || ctx.Err() != nil {
		t.Errorf("the first error is %v", err)
	}
	if ok, err := TryAcquire(ctx, db, "job", "A", time.Minute, time.Time{}); err != nil || !ok {
		t.Errorf("on the next connection: %v, %v", ok, err)
	}
}

func TestARepeatedStatementRunsReadCommittedAndLeavesNothingOpen(t *testing.T) { // C19
	database := dbtest.Postgres(t)
	db := database.OpenDSN(t, database.DSNVia("", "default_transaction_isolation=serializable"))
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxOpenConns(1)
	h, err := open("db", db)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var level string
	for range 2 { // the second needs the connection of the first
		err := h.readCommitted(func(ctx context.Context, tx gorm.ConnPool) error {
			return errors.Join(tx.QueryRowContext(ctx, "SHOW transaction_isolation").Scan(&level), errRefused)
		})(ctx, h.pool)
		if !errors.Is(err, errRefused) || level != "read committed" {
			t.Errorf("at %q: %v", level, err)
		}
	}
}

func TestSQLiteInMemoryThatSomebodyWritesToIsNotRefused(t *testing.T) { // C23
	db := (&dbtest.Database{Backend: dbtest.BackendSQLite, DSN: "file:" + t.Name() + "?mode=memory&cache=shared"}).Open(t)
	if err := EnsureSchema(db); err != nil {
		t.Fatal(err)
	}
	tx := db.Begin()
	defer tx.Rollback()
	if err := tx.Exec("DELETE FROM leases").Error; err != nil {
		t.Fatal(err)
	}
	h, err := open("db", db)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := h.checkMemory(ctx); err != nil {
		t.Errorf("the error is %v", err)
	}
}

// The elector

func TestAStandbyThatIsStoppedReportsNoTrouble(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.start("A")
		b := c.add("B")
		b.store.cut()
		c.run(b, untilCancelled)
		b.stop(nil) // while its first poll is on its way
		<-b.done
		if log := b.log.String(); strings.Contains(log, "trouble") {
			t.Errorf("the log is\n%s", log)
		}
	})
}

func TestABackOffBeginsAnewAfterAnAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.table.write(Record{Name: "job", Holder: "A", Epoch: 1, RenewedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour)})
		b := c.add("B")
		polls := 0
		b.store.inject(func(string) fault {
			if polls++; polls == 6 {
				return fault{}
			}
			return fault{fail: errRefused}
		})
		c.run(b, untilCancelled)
		c.pass(3 * T)
		if sent := b.store.sentAt(); sent[5].Sub(sent[4]) < T/4 || sent[7].Sub(sent[6]) > T/24 {
			t.Errorf("a pause of %v before the answer, and of %v after the next failure", sent[5].Sub(sent[4]), sent[7].Sub(sent[6]))
		}
	})
}

// onlySays is a context that has ended, without anybody having been told.
type onlySays struct{ context.Context }

func (onlySays) Err() error { return context.Canceled }

func TestNothingIsTakenOnAnAnswerThatCameWithTheEnd(t *testing.T) { // C60
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.stop, a.done = func(error) {}, make(chan struct{})
		close(a.done)
		tenure, _, err := a.Elector.run.consider(onlySays{context.WithoutCancel(t.Context())})
		if tenure != nil || err != context.Canceled || a.store.count("poll") != 1 || a.store.count("take") != 0 {
			t.Errorf("%v, %v, after %v", tenure, err, a.store.sent)
		}
	})
}

func TestStandingBackEndsOnTime(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		for range 20 {
			c.leads(a)
			a.Resign()
			synctest.Wait()
			if took := c.passUntil(T, "A leads again", a.IsLeader); took < T/2 || took > T*9/16+T/100 {
				t.Errorf("A stood back for %v", took)
			}
		}
	})
}

func TestAStandbyIsThereWhenTheLeaseExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.table.write(Record{Name: "job", Holder: "gone", Epoch: 1, RenewedAt: time.Now().Add(T/6 - T), ExpiresAt: time.Now().Add(T / 6)})
		a := c.start("A")
		if took := c.passUntil(T, "A leads", a.IsLeader); took < T/6 || took > T/6+T/32+T/100 {
			t.Errorf("A leads after %v", took)
		}
	})
}

func TestATakeoverThatHangsAtTheEndIsCutShort(t *testing.T) { // C60
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(firstly(1, "take", hung))
		c.run(a, untilCancelled)
		begin := time.Now()
		a.stop(nil)
		<-a.done
		if took, n := time.Since(begin), a.store.pending(); took > T/9+tick || n != 0 {
			t.Errorf("Run returned after %v, with %d statements on their way", took, n)
		}
	})
}

func TestATakeoverWithATinyTTLIsStillHeard(t *testing.T) { // C10
	inBubble(t, func(t *testing.T, c *cluster) {
		c.ttl = 12 * time.Millisecond
		a := c.add("A")
		a.store.inject(firstly(1, "take", fault{after: 20 * time.Millisecond}))
		c.run(a, untilCancelled)
		<-time.After(25 * time.Millisecond)
		synctest.Wait()
		if log := a.log.String(); strings.Contains(log, "trouble") || a.store.count("release") != 1 {
			t.Errorf("%d releases; the log is\n%s", a.store.count("release"), log)
		}
	})
}

func TestATakeoverWithTooManyStatementsOnTheirWaySaysSo(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.stop, a.done = func(error) {}, make(chan struct{})
		close(a.done)
		r := a.Elector.run
		for range maxInFlight {
			r.flight <- struct{}{}
		}
		if tenure, err := r.take(t.Context()); tenure != nil || err != errBusy {
			t.Errorf("%v, %v", tenure, err)
		}
	})
}

func TestTheAnswerToATakeoverCountsForHealth(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		begun := false
		a.store.inject(func(s string) fault {
			switch {
			case s == "take":
				return fault{after: T / 2}
			case s == "poll" && !begun:
				begun = true
				return fault{}
			}
			return hung
		})
		c.run(a, untilCancelled)
		c.pass(T + T/6)
		if err := a.Health(); err != nil {
			t.Errorf("two thirds of a TTL after the last answer: %v", err)
		}
		c.pass(T / 2)
		if a.Health() == nil {
			t.Error("healthy without an answer for more than a TTL")
		}
	})
}

func TestATermThatWasWonTooLateLeavesNothingBehind(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		var looks atomic.Int32
		a.Elector.run.clock = func() instant { looks.Add(1); return a.clock() }
		a.store.inject(firstly(1, "take", fault{before: T / 24, after: T / 24}))
		c.run(a, untilCancelled)
		a.stop(nil)
		<-a.done
		synctest.Wait()
		before := looks.Load()
		<-time.After(T)
		if n := looks.Load() - before; n != 0 || a.store.count("release") != 1 {
			t.Errorf("%d looks at the clock after the end, and %d releases", n, a.store.count("release"))
		}
	})
}

func TestWorkBeginsOnlyOnceItsTermIsThereForAll(t *testing.T) {
	r := newRun(nil, t.Name(), "A", time.Hour, slog.New(slog.DiscardHandler))
	r.store = &fakeStore{table: &fakeTable{}}
	r.tally = electors.join(r)
	defer electors.leave(r)
	tenure := newTenure(t.Context(), Term{Name: t.Name(), Holder: "A", Epoch: 1}, machineClock(), time.Hour, machineClock)
	var published atomic.Bool
	var early bool
	ended := make(chan struct{})
	r.view.mu.Lock() // nobody can be told
	go func() {
		defer close(ended)
		r.lead(t.Context(), tenure, func(context.Context) { early = !published.Load() || r.tenure() != tenure })
	}()
	for r.tally.terms() == 0 {
		runtime.Gosched()
	}
	for range 1000 {
		runtime.Gosched()
	}
	published.Store(true)
	r.view.mu.Unlock()
	<-ended
	if early {
		t.Error("work began before its elector said that it leads")
	}
}

// terms says how many terms were begun.
func (t *tally) terms() (n int64) {
	t.add(func(c *counts) { n = c.terms })
	return n
}

func TestTheFirstReminderOfWindingDownComesATTLAfterItBegan(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(2 * T)
		})
		c.pass(T * 9 / 10)
		a.Resign()
		for after, want := range []int{0, 1} {
			c.pass(T - T/20)
			if n := strings.Count(a.log.String(), "winds down"); n != want {
				t.Errorf("said %d times, not %d, after %d TTL", n, want, after+1)
			}
			c.pass(T / 20)
		}
	})
}

func TestALeaderIsHealthyForAsLongAsItsRenewalsAreAnswered(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		c.pass(3 * T)
		if err := a.Health(); err != nil {
			t.Error(err)
		}
		a.store.inject(func(string) fault { return fault{fail: errRefused} })
		c.pass(T/3 + tick)
		if log := a.log.String(); strings.Count(log, "op=renew") != 1 || !strings.Contains(log, errRefused.Error()) {
			t.Errorf("the log is\n%s", log)
		}
	})
}

func TestALostTermIsLoggedWithItsReason(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(c *cluster)
		reason string
	}{
		"deleted":            {func(c *cluster) { c.table.delete() }, byDeletion},
		"released":           {func(c *cluster) { c.table.edit(func(r *Record) { r.Holder = "" }) }, byOthers},
		"taken":              {func(c *cluster) { c.table.edit(func(r *Record) { r.Epoch++ }) }, byTakeover},
		"taken and released": {func(c *cluster) { c.table.edit(func(r *Record) { r.Epoch++; r.Holder = "" }) }, byTakeover},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a := c.start("A")
				tc.change(c)
				c.pass(T/3 + tick)
				log := a.log.String()
				for _, line := range []string{"lease: lost", "after its lease was lost"} {
					if _, rest, ok := strings.Cut(log, line); !ok || !strings.Contains(strings.SplitN(rest, "\n", 2)[0], "reason="+tc.reason) {
						t.Errorf("%q is not in the log, with its reason:\n%s", line, log)
					}
				}
			})
		})
	}
}

func TestAReleaseThatHangsIsSentAgain(t *testing.T) { // C60
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		a.store.inject(firstly(1, "release", hung))
		a.stop(nil)
		<-a.done
		if row := c.table.read(); row.Holder != "" {
			t.Errorf("the row is %+v\n%s", row, a.log)
		}
	})
}

func TestTheAnswerToAReleaseCountsForHealth(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		a.store.inject(func(s string) fault {
			if s == "release" {
				return fault{}
			}
			return hung
		})
		c.pass(T + T/3) // its term was over, and released, after two thirds
		if err := a.Health(); err != nil || a.store.count("release") != 1 {
			t.Errorf("%v, after %d releases", err, a.store.count("release"))
		}
		c.pass(T / 2)
		if a.Health() == nil {
			t.Error("healthy without an answer for more than a TTL")
		}
	})
}

func TestAnElectorWithALongTTLLeavesWithinFiveSeconds(t *testing.T) { // C60
	inBubble(t, func(t *testing.T, c *cluster) {
		c.ttl = time.Hour
		a := c.start("A")
		a.store.cut()
		begin := time.Now()
		a.stop(nil)
		<-a.done
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("Run returned after %v", took)
		}
	})
}

func TestAnElectorWithAShortTTLGivesTheDatabaseFiftyMilliseconds(t *testing.T) { // C10
	inBubble(t, func(t *testing.T, c *cluster) {
		c.ttl = 30 * time.Millisecond
		a := c.add("A")
		a.store.inject(firstly(1, "poll", fault{after: 20 * time.Millisecond}))
		c.run(a, untilCancelled)
		<-time.After(21 * time.Millisecond)
		synctest.Wait()
		if !a.IsLeader() || strings.Contains(a.log.String(), "trouble") {
			t.Errorf("after a poll of 20 ms the log is\n%s", a.log)
		}
		a.store.inject(func(string) fault { return fault{before: 20 * time.Millisecond} })
		a.stop(nil)
		<-a.done
		if row := c.table.read(); row.Holder != "" {
			t.Errorf("after a release of 20 ms the row is %+v", row)
		}
	})
}

func TestRemindersComeOnceASecondAtMost(t *testing.T) { // C10
	inBubble(t, func(t *testing.T, c *cluster) {
		c.ttl = 30 * time.Millisecond
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(1500 * time.Millisecond)
		})
		a.stop(nil)
		<-a.done
		if n := strings.Count(a.log.String(), "winds down"); n != 1 {
			t.Errorf("said %d times in a second and a half", n)
		}
	})
}

func TestARenewalThatChangedNothingIsTriedAgainAfterATwelfth(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		r, tenure := a.Elector.run, a.Elector.run.tenure()
		left := tenure.left()
		next := r.judge(tenure, renewal{sent: r.clock(), row: sighting{Record: c.table.read(), exists: true, now: time.Now()}})
		if next != T/12 || !tenure.leads() || tenure.left() != left {
			t.Errorf("the next comes after %v; it leads: %v, for %v", next, tenure.leads(), tenure.left())
		}
		want(t, scrape(t), map[string]float64{`lease_renewals_total{lease="job", result="refused"}`: 1})
	})
}
