package spec

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestClaimsCostAsFewStatementsAsTheyCan(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		var spy *spy
		w.gdb, spy = spied(t, w.db)
		costs := func(what string, want ...string) {
			t.Helper()
			var verbs []string
			for _, query := range spy.sent() {
				verbs = append(verbs, strings.Fields(query)[0])
			}
			if !slices.Equal(verbs, want) {
				t.Errorf("%s sent %q, not %q", what, verbs, want)
			}
		}
		claims := func(owner string) *lease.Holder {
			t.Helper()
			h := w.claim(t, owner)
			costs("a claim", "SELECT", "UPDATE")
			return h
		}
		refused := func(owner string, want error) {
			t.Helper()
			_, err := w.try(t, owner)
			mustBe(t, err, want)
			costs("a refusal", "SELECT")
		}
		_, _, err := lease.Load(t.Context(), w.gdb, "item")
		must(t, err)
		costs("a Load", "SELECT")
		must(t, lease.Create(t.Context(), w.gdb, lease.Item{Key: "other"}))
		costs("a Create", "INSERT")
		h := claims("A")
		refused("B", lease.ErrHeld)
		must(t, h.Renew(t.Context()))
		costs("a renewal", "UPDATE")
		must(t, h.Save(t.Context(), with(h, 1)))
		costs("a save", "UPDATE")
		must(t, h.Save(t.Context(), with(h, 1), "payload"))
		costs("a save of one column", "UPDATE")
		must(t, h.Release(t.Context()))
		costs("a release", "UPDATE")
		must(t, h.Release(t.Context()))
		mustBe(t, h.Renew(t.Context()), lease.ErrLost)
		mustBe(t, h.Save(t.Context(), with(h, 1)), lease.ErrLost)
		costs("what comes after a release")
		claims("A")
		h = claims("A")
		w.pass(time.Hour)
		spy.sent()
		claims("B")
		for what, use := range map[string]func(context.Context) error{
			"a renewal": h.Renew, "a release": h.Release, "a save": func(ctx context.Context) error { return h.Save(ctx, with(h, 1)) },
		} {
			mustBe(t, use(t.Context()), lease.ErrLost)
			if sent := spy.sent(); len(sent) > 1 {
				t.Errorf("%s that was lost sent %q", what, sent)
			}
		}
		_, err = lease.Claim(t.Context(), w.gdb, "nothing", "A", "", time.Minute, w.now)
		mustBe(t, err, gorm.ErrRecordNotFound)
		costs("a claim of nothing", "SELECT")
		next := 2
		if w.db.Backend == dbtest.BackendPostgres {
			next = 1
		}
		done, err := lease.ClaimNext[lease.Item](t.Context(), w.gdb, "A", "", time.Minute, w.now)
		must(t, err)
		if n := len(spy.sent()); n != next {
			t.Errorf("ClaimNext sent %d statements", n)
		}
		_, err = lease.ClaimNext[lease.Item](t.Context(), w.gdb, "A", "", time.Minute, w.now)
		mustBe(t, err, gorm.ErrRecordNotFound)
		if n := len(spy.sent()); n != 1 {
			t.Errorf("ClaimNext of nothing sent %d statements", n)
		}
		tx := w.gdb.Begin()
		defer tx.Rollback()
		spy.sent()
		must(t, done.Fence(tx))
		must(t, done.SaveIn(tx, with(done, 1)))
		sent := slices.DeleteFunc(spy.sent(), func(s string) bool { return s == "BEGIN" }) // by which SQLite is asked for the transaction
		if n := len(sent); n != 2 {
			t.Errorf("a fence and a save in a transaction sent %d statements", n)
		}
		must(t, tx.Rollback().Error)
		it := done.Item()
		it.Done = true
		must(t, done.Save(t.Context(), it))
		spy.sent()
		_, err = lease.Claim(t.Context(), w.gdb, "other", "A", "", time.Minute, w.now)
		mustBe(t, err, lease.ErrDone)
		costs("a claim of what is done", "SELECT")
	})
}

func TestTheLosersOfARaceSendTwoStatementsAtMost(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		file := db
		if db.Backend == dbtest.BackendSQLite { // wait in SQLite, and not by trying again
			name, _, _ := strings.Cut(db.DSN, "?")
			file = &dbtest.Database{Backend: db.Backend, DSN: name + "?_journal_mode=WAL&_busy_timeout=20000"}
		}
		w := newWorld(t, db, fresh(t, db)).byTheCallers()
		for range 10 {
			w.pass(time.Hour)
			winners := race(t, 6, func(i int) (bool, error) {
				gdb, spy := spied(t, file)
				ok, err := heldIsFalse(lease.Claim(t.Context(), gdb, "item", fmt.Sprint(i), "", time.Minute, w.now))
				if sent := spy.sent(); len(sent) > 2 {
					t.Errorf("a claim sent %q", sent)
				}
				return ok, err
			})
			if len(winners) != 1 {
				t.Errorf("%v won", winners)
			}
		}
	})
}

func TestARefusedClaimWaitsForNoLock(t *testing.T) {
	db := dbtest.Postgres(t)
	w := newWorld(t, db, fresh(t, db))
	w.claim(t, "A")
	tx := w.gdb.Begin()
	defer tx.Rollback()
	exec(t, tx, "SELECT * FROM lease_items FOR UPDATE")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := lease.Claim(ctx, db.OpenDSN(t, db.DSNVia("", "lock_timeout=1ms")), "item", "B", "", time.Minute, nil)
	mustBe(t, err, lease.ErrHeld)
}

func TestAllRenewalsOfAClaimAreHeapOnly(t *testing.T) {
	db := dbtest.Postgres(t)
	w := newWorld(t, db, fresh(t, db))
	pool(t, w.gdb).SetMaxOpenConns(1) // statistics are kept by session until they are flushed
	h := w.claim(t, "A")
	updates := func() (all, heapOnly int) {
		exec(t, w.gdb, "SELECT pg_stat_force_next_flush()")
		return ask[int](t, w.gdb, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'lease_items'"),
			ask[int](t, w.gdb, "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'lease_items'")
	}
	all, heapOnly := updates()
	const renewals = 300
	for n := range renewals {
		must(t, h.Renew(t.Context()))
		if n%10 == 0 {
			must(t, h.Save(t.Context(), with(h, n)))
		}
	}
	allAfter, heapOnlyAfter := updates()
	if n := allAfter - all; n != renewals+renewals/10 || heapOnlyAfter-heapOnly != n {
		t.Errorf("of %d updates, %d are heap-only", n, heapOnlyAfter-heapOnly)
	}
}
