package spec

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

var quiet = slog.New(slog.DiscardHandler)

// hold lets holder have the lease "job" for a minute of the database's clock, and returns its term.
func hold(t *testing.T, gdb *gorm.DB, holder string) lease.Term {
	t.Helper()
	granted(t, gdb, holder, databasesClock)
	s := find(t, gdb, "job")
	return lease.Term{Name: s.Name, Holder: s.Holder, Epoch: s.Epoch}
}

// expire lets the lease "job" run out.
func expire(t *testing.T, gdb *gorm.DB) {
	t.Helper()
	exec(t, gdb, "UPDATE leases SET expires_at = renewed_at - 1 WHERE name = 'job'")
}

// withNotes is fresh, with a table for what the transactions write.
func withNotes(t *testing.T, db *dbtest.Database) *gorm.DB {
	t.Helper()
	gdb := fresh(t, db)
	exec(t, gdb, "CREATE TABLE notes (text varchar(20))")
	return gdb
}

func write(tx *gorm.DB) error { return tx.Exec("INSERT INTO notes VALUES ('written')").Error }

func notes(t *testing.T, gdb *gorm.DB) int {
	t.Helper()
	return ask[int](t, gdb, "SELECT count(*) FROM notes")
}

// over is every way in which a term ends.
var over = map[string]func(t *testing.T, gdb *gorm.DB){
	"it expired, and nobody took it": expire,
	"it was released":                func(t *testing.T, gdb *gorm.DB) { release(t, gdb, "A", databasesClock) },
	"another took it":                func(t *testing.T, gdb *gorm.DB) { expire(t, gdb); granted(t, gdb, "B", databasesClock) },
	"its holder took it again":       func(t *testing.T, gdb *gorm.DB) { expire(t, gdb); granted(t, gdb, "A", databasesClock) }, // C50
	"its holder released and took it": func(t *testing.T, gdb *gorm.DB) {
		release(t, gdb, "A", databasesClock)
		granted(t, gdb, "A", databasesClock)
	},
	"its row was deleted":        func(t *testing.T, gdb *gorm.DB) { exec(t, gdb, "DELETE FROM leases") },
	"its holder was overwritten": func(t *testing.T, gdb *gorm.DB) { exec(t, gdb, "UPDATE leases SET holder = 'B'") },
}

// Proving the term

func TestATransactionInForceIsCommitted(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
		before := row(t, gdb)
		if err := lease.Transaction(ctx, gdb, write); err != nil {
			t.Fatal(err)
		}
		if n := notes(t, gdb); n != 1 {
			t.Errorf("%d notes were committed", n)
		}
		if after := row(t, gdb); after != before {
			t.Errorf("the fence changed the row from %s to %s", before, after)
		}
		granted(t, gdb, "A", databasesClock) // renewals do not end the term
		if err := lease.Transaction(ctx, gdb, write); err != nil {
			t.Error(err)
		}
	})
}

func TestNothingIsCommittedOnceTheTermIsOver(t *testing.T) {
	for how, ends := range over {
		t.Run(how, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := withNotes(t, db)
				term := hold(t, gdb, "A")
				ends(t, gdb)
				ctx := lease.WithTerm(t.Context(), term)
				err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
					t.Error("its function was called")
					return write(tx)
				})
				mustBe(t, err, lease.ErrLost)
				if err != nil && !strings.Contains(err.Error(), `"job"`) {
					t.Errorf("the error does not name the lease: %v", err)
				}
				err = gdb.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
					if err := write(tx); err != nil {
						t.Error(err)
					}
					return lease.Fence(tx)
				})
				mustBe(t, err, lease.ErrLost)
				if n := notes(t, gdb); n != 0 {
					t.Errorf("%d notes were committed", n)
				}
			})
		})
	}
}

func TestAWorkersNextTermIsFencedByItsOwnEpoch(t *testing.T) { // C50
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		old := hold(t, gdb, "A")
		expire(t, gdb)
		now := hold(t, gdb, "A")
		if now.Epoch != old.Epoch+1 {
			t.Errorf("term %d followed term %d", now.Epoch, old.Epoch)
		}
		mustBe(t, lease.Transaction(lease.WithTerm(t.Context(), old), gdb, write), lease.ErrLost)
		if err := lease.Transaction(lease.WithTerm(t.Context(), now), gdb, write); err != nil {
			t.Error(err)
		}
	})
}

// What a fence needs

func TestAFenceWithoutATransactionOrATermIsInvalid(t *testing.T) { // C77
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		term := hold(t, gdb, "A")
		ctx := lease.WithTerm(t.Context(), term)
		tx := gdb.Begin()
		defer tx.Rollback()
		never := func(*gorm.DB) error { t.Error("its function was called"); return nil }
		for what, err := range map[string]error{
			"outside a transaction":         lease.Fence(gdb.WithContext(ctx)),
			"Term.Fence outside":            term.Fence(gdb),
			"on a connection":               gdb.WithContext(ctx).Connection(lease.Fence),
			"with PrepareStmt, outside":     lease.Fence(gdb.Session(&gorm.Session{PrepareStmt: true, Context: ctx})),
			"without a term":                lease.Fence(tx),
			"on nil":                        lease.Fence(nil),
			"Term.Fence on nil":             term.Fence(nil),
			"of a zero term":                lease.Term{}.Fence(tx),
			"Transaction without a term":    lease.Transaction(t.Context(), gdb, never),
			"Transaction of nil":            lease.Transaction(ctx, nil, never),
			"Transaction without a func":    lease.Transaction(ctx, gdb, nil),
			"Transaction of a zero term":    lease.Transaction(lease.WithTerm(ctx, lease.Term{}), gdb, never),
			"Transaction of a DryRun":       lease.Transaction(ctx, gdb.Session(&gorm.Session{DryRun: true}), never),
			"Transaction of a handle's ctx": lease.Transaction(t.Context(), gdb.WithContext(ctx), never),
		} {
			if !errors.Is(err, lease.ErrInvalid) || errors.Is(err, lease.ErrLost) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

func TestTheInnermostTermCounts(t *testing.T) {
	if _, ok := lease.TermFrom(t.Context()); ok {
		t.Error("there is a term in a plain context")
	}
	outer, inner := lease.Term{Name: "outer", Holder: "A", Epoch: 1}, lease.Term{Name: "inner", Holder: "A", Epoch: 2}
	ctx := lease.WithTerm(lease.WithTerm(t.Context(), outer), inner)
	if term, ok := lease.TermFrom(context.WithoutCancel(ctx)); !ok || term != inner {
		t.Errorf("%v, %v", term, ok)
	}
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		term := hold(t, gdb, "A")
		stale := term
		stale.Epoch--
		if err := lease.Transaction(lease.WithTerm(lease.WithTerm(t.Context(), stale), term), gdb, write); err != nil {
			t.Error(err)
		}
		mustBe(t, lease.Transaction(lease.WithTerm(lease.WithTerm(t.Context(), term), stale), gdb, write), lease.ErrLost)
	})
}

func TestTheTermReachesATransactionThroughItsContext(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
		err := lease.Transaction(ctx, gdb.Where("1 = 0").Table("strangers"), func(tx *gorm.DB) error {
			if term, ok := lease.TermFrom(tx.Statement.Context); !ok || term.Holder != "A" {
				t.Errorf("in Transaction the term is %v, %v", term, ok)
			}
			return errors.Join(lease.Fence(tx), lease.Fence(tx.Session(&gorm.Session{NewDB: true})), lease.Fence(tx.Where("1 = 0")), write(tx))
		})
		if err != nil {
			t.Error(err)
		}
		for what, begin := range map[string]func() *gorm.DB{
			"WithContext, then Begin": func() *gorm.DB { return gdb.WithContext(ctx).Begin() },
			"Begin, then WithContext": func() *gorm.DB { return gdb.Begin().WithContext(ctx) },
			"a Session":               func() *gorm.DB { return gdb.Session(&gorm.Session{NewDB: true, Context: ctx}).Begin() },
			"PrepareStmt":             func() *gorm.DB { return gdb.Session(&gorm.Session{PrepareStmt: true, Context: ctx}).Begin() },
		} {
			tx := begin()
			if err := lease.Fence(tx); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if err := tx.Rollback().Error; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestATermMadeByHandIsFencedInTheTablesOfTheHandle(t *testing.T) { // C26
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		app := lease.Tables(gdb, "app_")
		ensure(t, app)
		ctx := lease.WithTerm(t.Context(), hold(t, app, "A"))
		if err := lease.Transaction(ctx, app, write); err != nil {
			t.Error(err)
		}
		mustBe(t, lease.Transaction(ctx, gdb, write), lease.ErrLost)
		if n := notes(t, gdb); n != 1 {
			t.Errorf("%d notes were committed", n)
		}
	})
}

// Holding off the next term

// A rival wants the lease "job", at a time at which it has run out.
type rival struct {
	outcome chan error // nil: it was granted
	waits   func()     // returns once it waits for somebody's lock
}

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

// stillWaits fails t if the rival has had an answer.
func (r rival) stillWaits(t *testing.T) {
	t.Helper()
	r.waits()
	select {
	case err := <-r.outcome:
		t.Fatalf("the rival did not wait: %v", err)
	default:
	}
}

func TestAFenceHoldsOffATakeoverUntilItsTransactionEnds(t *testing.T) { // C77
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

func TestARollBackToAnEarlierSavepointUndoesAFence(t *testing.T) { // C77: as documented
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

// A leader that freezes in a transaction

func TestAFenceBoundsHowLongItsTransactionMayLieIdle(t *testing.T) { // C75
	for session, want := range map[string]string{"0": "1min", "2s": "2s", "1500ms": "1500ms", "59999ms": "59999ms", "2min": "1min", "24d": "1min"} {
		t.Run(session, func(t *testing.T) {
			db := dbtest.Postgres(t)
			gdb := fresh(t, &dbtest.Database{Backend: db.Backend, DSN: db.DSNVia("", "idle_in_transaction_session_timeout="+session)})
			pool(t, gdb).SetMaxOpenConns(1)
			before := ask[string](t, gdb, "SHOW idle_in_transaction_session_timeout")
			for range 2 {
				err := lease.Transaction(lease.WithTerm(t.Context(), hold(t, gdb, "A")), gdb, func(tx *gorm.DB) error {
					if got := ask[string](t, tx, "SHOW idle_in_transaction_session_timeout"); got != want {
						t.Errorf("in the transaction it is %s, not %s", got, want)
					}
					return lease.Fence(tx) // again
				})
				if err != nil {
					t.Error(err)
				}
				if after := ask[string](t, gdb, "SHOW idle_in_transaction_session_timeout"); after != before {
					t.Errorf("after the transaction it is %s, not %s", after, before)
				}
			}
		})
	}
}

func TestABoundLongerThanPostgresTakesIsTheLongestItTakes(t *testing.T) { // C10
	gdb := fresh(t, dbtest.Postgres(t))
	for _, ttl := range []time.Duration{time.Hour, 30 * 24 * time.Hour, 1<<63 - 1} {
		exec(t, gdb, "DELETE FROM leases")
		if ok, err := lease.TryAcquire(t.Context(), gdb, "job", "A", ttl, databasesClock); !ok || err != nil {
			t.Fatal(ok, err)
		}
		term := lease.WithTerm(t.Context(), lease.Term{Name: "job", Holder: "A", Epoch: 1})
		if err := lease.Transaction(term, gdb, func(*gorm.DB) error { return nil }); err != nil {
			t.Errorf("ttl %v: %v", ttl, err)
		}
	}
}

func TestATransactionThatLiesIdleForTheTTLIsCutOffAndLost(t *testing.T) { // C75
	db := dbtest.Postgres(t)
	gdb, other := withNotes(t, db), db.Open(t)
	const ttl = 250 * time.Millisecond
	if ok, err := lease.TryAcquire(t.Context(), gdb, "job", "A", ttl, databasesClock); !ok || err != nil {
		t.Fatal(ok, err)
	}
	ctx := lease.WithTerm(t.Context(), lease.Term{Name: "job", Holder: "A", Epoch: 1})
	err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
		if err := write(tx); err != nil {
			t.Error(err)
		}
		waitUntil(t, "another leads", func() bool { return acquire(t, other, "B", databasesClock) })
		return nil
	})
	mustBe(t, err, lease.ErrLost)
	if n := notes(t, gdb); n != 0 {
		t.Errorf("%d notes were committed", n)
	}
}

func TestATransactionThatIsCutOffInATermThatGoesOnIsNotLost(t *testing.T) {
	db := dbtest.Postgres(t)
	gdb, other := withNotes(t, db), db.Open(t)
	const ttl = 250 * time.Millisecond
	if ok, err := lease.TryAcquire(t.Context(), gdb, "job", "A", ttl, databasesClock); !ok || err != nil {
		t.Fatal(ok, err)
	}
	ctx := lease.WithTerm(t.Context(), lease.Term{Name: "job", Holder: "A", Epoch: 1})
	err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
		granted(t, other, "A", databasesClock) // for a minute more
		waitUntil(t, "the session is cut off", func() bool {
			return ask[int](t, other, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'") == 0
		})
		return nil
	})
	if err == nil || errors.Is(err, lease.ErrLost) {
		t.Errorf("the error is %v", err)
	}
}

// Transaction

func TestTransactionRollsBackWhenItsFunctionFailsOrPanics(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		pool(t, gdb).SetMaxOpenConns(1) // a transaction that stays open would be noticed
		ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
		failure := errors.New("out of paper")
		err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error { return errors.Join(write(tx), failure) })
		mustBe(t, err, failure)
		if errors.Is(err, lease.ErrLost) {
			t.Errorf("a failure in force is lost: %v", err)
		}
		func() {
			defer func() {
				if r := recover(); r != "on fire" {
					t.Errorf("the panic came out as %v", r)
				}
			}()
			_ = lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
				if err := write(tx); err != nil {
					t.Error(err)
				}
				panic("on fire")
			})
		}()
		if n := notes(t, gdb); n != 0 {
			t.Errorf("%d notes were committed", n)
		}
	})
}

func TestALossMidwayIsJoinedToWhateverItProduced(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		term := hold(t, gdb, "A")
		failure := errors.New("out of paper")
		for what, after := range map[string]struct {
			then func(tx *gorm.DB) error
			want error // besides ErrLost
		}{
			"another statement": {write, context.Canceled},
			"its own error":     {func(*gorm.DB) error { return failure }, failure},
			"the commit":        {func(*gorm.DB) error { return nil }, nil},
		} {
			ctx, cancel := context.WithCancelCause(lease.WithTerm(t.Context(), term))
			err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
				if err := write(tx); err != nil {
					t.Error(err)
				}
				cancel(lease.ErrLost)
				return after.then(tx)
			})
			if !errors.Is(err, lease.ErrLost) || after.want != nil && !errors.Is(err, after.want) && !errors.Is(err, sql.ErrTxDone) {
				t.Errorf("%s: %v", what, err)
			}
			if after.want == failure {
				mustBe(t, err, failure)
			}
		}
		ctx, cancel := context.WithCancelCause(lease.WithTerm(t.Context(), term))
		cancel(lease.ErrLost) // before it begins
		mustBe(t, lease.Transaction(ctx, gdb, write), lease.ErrLost)
		if n := notes(t, gdb); n != 0 {
			t.Errorf("%d notes were committed", n)
		}
	})
}

func TestACancellationForAnotherReasonIsNoLoss(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		ctx, cancel := context.WithCancel(lease.WithTerm(t.Context(), hold(t, gdb, "A")))
		err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error { cancel(); return write(tx) })
		if err == nil || errors.Is(err, lease.ErrLost) {
			t.Errorf("%v", err)
		}
		if n := notes(t, gdb); n != 0 {
			t.Errorf("%d notes were committed", n)
		}
	})
}

func TestTransactionInATransactionIsASavepointInIt(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withNotes(t, db)
		term := hold(t, gdb, "A")
		stale := term
		stale.Epoch--
		err := gdb.Transaction(func(tx *gorm.DB) error {
			if err := lease.Transaction(lease.WithTerm(t.Context(), term), tx, write); err != nil {
				t.Error(err)
			}
			mustBe(t, lease.Transaction(lease.WithTerm(t.Context(), stale), tx, write), lease.ErrLost)
			failure := errors.New("out of paper")
			mustBe(t, lease.Transaction(lease.WithTerm(t.Context(), term), tx, func(tx *gorm.DB) error { return errors.Join(write(tx), failure) }), failure)
			return write(tx)
		})
		if err != nil {
			t.Error(err)
		}
		if n := notes(t, gdb); n != 2 {
			t.Errorf("%d notes were committed, not the two that were in force and outside", n)
		}
	})
}

func TestTransactionTakesOptions(t *testing.T) {
	gdb := withNotes(t, dbtest.Postgres(t))
	ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
	for level, want := range map[sql.IsolationLevel]string{
		sql.LevelDefault: "read committed", sql.LevelRepeatableRead: "repeatable read", sql.LevelSerializable: "serializable",
	} {
		err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
			if got := ask[string](t, tx, "SHOW transaction_isolation"); got != want {
				t.Errorf("the isolation is %s, not %s", got, want)
			}
			granted(t, gdb, "A", databasesClock) // a renewal beside it
			return write(tx)
		}, &sql.TxOptions{Isolation: level})
		if err != nil {
			t.Errorf("%s: %v", want, err)
		}
	}
	expire(t, gdb)
	mustBe(t, lease.Transaction(ctx, gdb, write, &sql.TxOptions{Isolation: sql.LevelSerializable}), lease.ErrLost)
}

func TestTransactionWorksOnASmallPoolWithPreparedStatements(t *testing.T) { // C34
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		withNotes(t, db)
		gdb := db.Open(t, &gorm.Config{PrepareStmt: true})
		pool(t, gdb).SetMaxOpenConns(1)
		ctx, cancel := context.WithTimeout(lease.WithTerm(t.Context(), hold(t, gdb, "A")), 20*time.Second)
		defer cancel()
		winners := race(t, 6, func(int) (bool, error) { return true, lease.Transaction(ctx, gdb, write) })
		if len(winners) != 6 || notes(t, gdb) != 6 {
			t.Errorf("%v went through", winners)
		}
	})
}

func TestATermPrintsWhatItIs(t *testing.T) {
	if got, want := (lease.Term{Name: "job", Holder: "A", Epoch: 3}).String(), `term 3 of lease "job" held by "A"`; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}
