package spec

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestAFenceBoundsHowLongItsTransactionMayLieIdle(t *testing.T) {
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

func TestABoundLongerThanPostgresTakesIsTheLongestItTakes(t *testing.T) {
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

// Its process is frozen, or cut off.
func TestATransactionThatLiesIdleForTheTTLIsCutOffAndLost(t *testing.T) {
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

// The server's limit for a client that reads nothing of what it is sent. On a
// Unix socket there is none, and it reads as 0.
const unread = "SHOW tcp_user_timeout"

// A client that froze in the middle of a large result reads nothing.
func TestAFenceBoundsHowLongItsClientMayReadNothing(t *testing.T) {
	for session, want := range map[string]string{"0": "60000", "1500": "1500", "59999": "59999", "120000": "60000"} {
		t.Run(session, func(t *testing.T) {
			db := dbtest.Postgres(t)
			gdb := fresh(t, &dbtest.Database{Backend: db.Backend, DSN: db.DSNVia("", "tcp_user_timeout="+session)})
			pool(t, gdb).SetMaxOpenConns(1)
			must(t, lease.Create(t.Context(), gdb, lease.Item{Key: "item"}))
			h, err := lease.Claim(t.Context(), gdb, "item", "A", "", time.Minute, nil)
			must(t, err)
			term := hold(t, gdb, "A")
			for what, fence := range map[string]func(tx *gorm.DB) error{
				"of a term":  term.Fence,
				"of a claim": h.Fence,
				"SaveIn":     func(tx *gorm.DB) error { return h.SaveIn(tx, h.Item()) },
				"twice":      func(tx *gorm.DB) error { must(t, term.Fence(tx)); return term.Fence(tx) },
			} {
				must(t, gdb.Transaction(func(tx *gorm.DB) error {
					must(t, fence(tx))
					if got := ask[string](t, tx, unread); got != want {
						t.Errorf("%s: in the transaction it is %s, not %s", what, got, want)
					}
					return nil
				}))
				if got := ask[string](t, gdb, unread); got != session {
					t.Errorf("%s: after the transaction it is %s, not %s", what, got, session)
				}
			}
		})
	}
}

func TestAFenceOverAUnixSocketWorksWithoutThatBound(t *testing.T) {
	db := dbtest.Postgres(t)
	gdb := fresh(t, db)
	directory, _, _ := strings.Cut(ask[string](t, gdb, "SHOW unix_socket_directories"), ",")
	ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
	local := db.OpenDSN(t, db.DSN+" host="+directory)
	must(t, lease.Transaction(ctx, local, func(tx *gorm.DB) error {
		if got := ask[string](t, tx, unread); got != "0" {
			t.Errorf("it is %s", got)
		}
		if got := ask[string](t, tx, "SHOW idle_in_transaction_session_timeout"); got != "1min" {
			t.Errorf("the transaction may lie idle for %s", got)
		}
		return nil
	}))
}

func TestASavesOwnTransactionIsBoundedAsTheCallersIs(t *testing.T) {
	gdb := withHooks(t, dbtest.Postgres(t))
	h := claimHooked(t, gdb, "A")
	ran := false
	ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
		if ran = ran || name == "AfterUpdate"; name != "AfterUpdate" {
			return nil
		}
		tx = tx.Session(&gorm.Session{NewDB: true})
		if idle, sent := ask[string](t, tx, "SHOW idle_in_transaction_session_timeout"), ask[string](t, tx, unread); idle != "1min" || sent != "60000" {
			t.Errorf("it may lie idle for %s, and read nothing for %s ms", idle, sent)
		}
		return nil
	})
	must(t, h.Save(ctx, h.Item()))
	if !ran {
		t.Error("no hook ran")
	}
}

func TestSaveInBoundsHowLongItsTransactionMayLieIdle(t *testing.T) {
	db := dbtest.Postgres(t)
	w := newWorld(t, db, fresh(t, db))
	h := w.claim(t, "A")
	must(t, w.gdb.Transaction(func(tx *gorm.DB) error {
		must(t, h.SaveIn(tx, with(h, 1)))
		if got := ask[string](t, tx, "SHOW idle_in_transaction_session_timeout"); got != "1min" {
			t.Errorf("the transaction may lie idle for %s", got)
		}
		return nil
	}))
}

func TestSaveInOfAModelBoundsHowLongItsTransactionMayLieIdle(t *testing.T) {
	db := dbtest.Postgres(t)
	w := &world{db: db, gdb: migrated(t, db), table: "parcels"}
	parcels(t, w.gdb, 1)
	h := w.parcel(t, 1, "A")
	must(t, w.gdb.Transaction(func(tx *gorm.DB) error {
		must(t, h.SaveIn(tx, h.Item()))
		if got := ask[string](t, tx, "SHOW idle_in_transaction_session_timeout"); got != "1min" {
			t.Errorf("the transaction may lie idle for %s", got)
		}
		return nil
	}))
}
