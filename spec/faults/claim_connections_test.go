//go:build unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/faultproxy"
)

func TestAWorkerCutOffInsideATransactionIsReplacedWithinTwoTTLs(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"fenced", "after SaveIn"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const ttl = 1500 * time.Millisecond
			db := dbtest.Postgres(t)
			direct := withItem(t, db)
			proxy, far := behind(t, db)
			inside, commit, committed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			h := mustClaim(t, far, "item", "A", ttl)
			a := startWork(t, h, func(ctx context.Context) error {
				note := func(tx *gorm.DB) error {
					if err := tx.Exec("INSERT INTO notes (n) VALUES (1)").Error; err != nil {
						return err
					}
					if mode == "after SaveIn" {
						if err := h.SaveIn(tx, h.Item()); err != nil {
							return err
						}
					}
					close(inside)
					<-commit
					return nil
				}
				ctx = context.WithoutCancel(ctx)
				if mode == "fenced" {
					committed <- lease.Transaction(ctx, far, note)
				} else {
					committed <- far.WithContext(ctx).Transaction(note)
				}
				return nil
			})
			<-inside
			proxy.Hang()
			cut := time.Now()
			b, at := claims(t, direct, "B", time.Minute, 10*time.Second)
			if took := at.Sub(cut); took > 2*ttl+noise {
				t.Errorf("replaced after %v, more than two TTLs", took)
			} else {
				t.Logf("replaced after %v, %.1f TTLs", took, float64(took)/float64(ttl))
			}
			a.lost(time.Second)
			proxy.Thaw()
			close(commit)
			if err := <-committed; err == nil || mode == "fenced" && !errors.Is(err, lease.ErrLost) {
				t.Errorf("its commit returns %v", err)
			}
			if err := a.returns(10 * time.Second); !errors.Is(err, lease.ErrLost) {
				t.Errorf("Run: %v", err)
			}
			if n := number(t, direct, "SELECT count(*) FROM notes"); n != 0 {
				t.Error("it committed")
			}
			if err := b.Renew(t.Context()); err != nil {
				t.Errorf("B's renewal: %v", err)
			}
		})
	}
}

func TestAWorkerThatDiesDuringALongFencedStatementIsReplaced(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withItem(t, db)
	proxy, far := behind(t, db)
	died := make(chan error, 1)
	startWork(t, mustClaim(t, far, "item", "A", ttl), func(ctx context.Context) error {
		err := lease.Transaction(ctx, far, func(tx *gorm.DB) error { return tx.Exec("SELECT pg_sleep(60)").Error })
		died <- err
		return err
	})
	within(t, 5*time.Second, "the statement runs", func() bool {
		return number(t, direct, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_sleep(60)' AND state = 'active'") == 1
	})
	proxy.Refuse()
	proxy.Reset()
	gone := time.Now()
	_, at := claims(t, direct, "B", time.Minute, 2*ttl+noise)
	t.Logf("replaced %v after it died", at.Sub(gone))
	if err := <-died; err == nil {
		t.Error("it committed")
	}
}

func TestAWorkerIsCancelledInTimeWhileARenewalOfItsClaimHangs(t *testing.T) {
	t.Parallel()
	for fault, strike := range map[string]func(*faultproxy.Proxy){
		"nothing comes through": (*faultproxy.Proxy).Hang,
		"no answer comes back":  (*faultproxy.Proxy).DropReplies,
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			const ttl = 3 * time.Second
			const trust = ttl - ttl/3
			db := dbtest.Postgres(t)
			direct := withItem(t, db, "beaten")
			proxy, far := behind(t, db)
			a := startWork(t, mustClaim(t, far, "item", "A", ttl), untilEnded)
			beaten := mustClaim(t, far, "beaten", "A", ttl)
			var losses atomic.Int32
			lost := make(chan time.Time, 10)
			returned := make(chan struct{})
			go func() {
				defer close(returned)
				beaten.Heartbeat(context.Background(), 0, nil, func(err error) {
					if losses.Add(1); !errors.Is(err, lease.ErrLost) {
						t.Errorf("onLost was called with %v", err)
					}
					lost <- time.Now()
				})
			}()
			renewsItem(t, direct, "item")
			renewsItem(t, direct, "beaten")
			strike(proxy)
			struck := time.Now()
			for key, at := range map[string]time.Time{"item": a.lost(5 * time.Second), "beaten": <-lost} {
				// A renewal is carried out after it was sent, so the clock of the test allows this much.
				deadline := item(t, direct, key).RenewedAt.Add(trust)
				if fault == "no answer comes back" {
					deadline = struck.Add(trust) // the last answer was to an earlier question
				}
				if late := at.Sub(deadline); late > noise || at.Before(struck) {
					t.Errorf("%s was cancelled %v after its deadline, %v after the fault", key, late, at.Sub(struck))
				}
			}
			<-returned
			if n := losses.Load(); n != 1 {
				t.Errorf("onLost was called %d times", n)
			}
			if err := a.returns(5 * time.Second); !errors.Is(err, lease.ErrLost) || !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

func TestDeadConnectionsInThePoolDoNotCostAClaim(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second // the third attempt has a sixth of it to connect and be answered
	db := dbtest.Postgres(t)
	direct := withItem(t, db)
	proxy, far := behind(t, db)
	a := startWork(t, mustClaim(t, far, "item", "A", ttl), untilEnded)
	warm(t, poolOf(t, far), 2)
	if err := proxy.WaitConnections(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	renewsItem(t, direct, "item")
	proxy.HangExisting()
	held := proxy.Held()
	lasts(time.Now().Add(2 * ttl))
	a.goesOn()
	if proxy.Held() == held {
		t.Error("nothing was sent on a dead connection")
	}
	a.stop()
	if err := a.returns(5 * time.Second); !errors.Is(err, context.Canceled) || errors.Is(err, lease.ErrLost) {
		t.Errorf("Run: %v", err)
	}
	if it := item(t, direct, "item"); it.Owner != "" || it.Attempts != 0 {
		t.Errorf("the row is %+v", it.Claimable)
	}
}

func TestNothingThatIsDoneWithAClaimDuringItsHeartbeatReadsAsALoss(t *testing.T) {
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		gdb := withItem(t, db)
		if db.Backend == dbtest.BackendPostgres {
			proxy, far := behind(t, db)
			proxy.DelayReplies(3 * time.Millisecond)
			gdb = far
		}
		for round := range 5 {
			h := mustClaim(t, gdb, "item", "A", time.Minute)
			ctx, stop := context.WithCancel(context.Background())
			var beats, uses sync.WaitGroup
			for range 2 {
				beats.Go(func() { h.Heartbeat(ctx, time.Millisecond, nil, func(err error) { t.Errorf("onLost: %v", err) }) })
			}
			for i := range 2 {
				uses.Go(func() {
					for n := range 10 {
						it := h.Item()
						it.Payload = fmt.Appendf(nil, "%d", n)
						err := h.Save(ctx, it)
						if i == 0 && n%3 == 0 {
							err = errors.Join(err, gdb.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, it) }))
						}
						if err := errors.Join(err, h.Renew(ctx)); err != nil {
							t.Errorf("round %d: %v", round, err)
						}
					}
				})
			}
			uses.Wait()
			for range 3 {
				uses.Go(func() {
					if err := h.Release(ctx); err != nil {
						t.Errorf("Release: %v", err)
					}
				})
			}
			uses.Wait()
			beats.Wait() // by the release, and not by the context
			stop()
		}
	})
}

// Over the simple protocol a statement is one message, so that one which was held on its way is carried out whole when it is delivered at last.
func TestASaveWhoseReplyWasLostNeverReplacesALaterOne(t *testing.T) {
	t.Parallel()
	for name, strike := range map[string]func(*faultproxy.Proxy){
		"it lands at once":           (*faultproxy.Proxy).DropReplies,
		"it lands after a later one": (*faultproxy.Proxy).HangExisting,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := dbtest.Postgres(t)
			direct := withItem(t, db)
			proxy := faultproxy.New(t, db.Addr())
			far := db.OpenDSN(t, db.DSNVia(proxy.Addr(), "default_query_exec_mode=simple_protocol"))
			// It counts the saves that are carried out, whether or not they find their row.
			mustExec(t, direct, `CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO notes VALUES (1); RETURN NULL; END $$;
CREATE TRIGGER noted AFTER UPDATE OF payload ON lease_items FOR EACH STATEMENT EXECUTE FUNCTION noted()`)
			carriedOut := func(n int64) {
				t.Helper()
				within(t, 5*time.Second, fmt.Sprintf("%d saves are carried out", n), func() bool { return number(t, direct, "SELECT count(*) FROM notes") == n })
			}
			save := func(h *lease.Holder, payload string, patience time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				it := h.Item()
				it.Payload = []byte(payload)
				return h.Save(ctx, it)
			}

			h := mustClaim(t, far, "item", "A", time.Minute)
			warm(t, poolOf(t, far), 1)
			if err := save(h, `"first"`, 5*time.Second); err != nil {
				t.Fatal(err)
			}
			carriedOut(1)
			strike(proxy)
			held := proxy.Held()
			if err := save(h, `"unheard"`, 200*time.Millisecond); err == nil || errors.Is(err, lease.ErrLost) {
				t.Fatalf("a save whose reply is lost: %v", err)
			}
			if proxy.Held() == held {
				t.Fatal("it met no fault")
			}
			if it := h.Item(); string(it.Payload) != `"first"` {
				t.Errorf("the claim's item is %s after a save of unknown outcome", it.Payload)
			}
			landed := int64(1)
			if name == "it lands at once" {
				carriedOut(2)
				proxy.Heal()
				landed = 2
			}
			if err := save(h, `"later"`, 5*time.Second); err != nil {
				t.Fatalf("a later save: %v", err)
			}
			carriedOut(landed + 1)
			proxy.Thaw()
			carriedOut(3)
			it := item(t, direct, "item")
			if string(it.Payload) != `"later"` || string(h.Item().Payload) != `"later"` || it.Revision != h.Item().Revision {
				t.Errorf("the row is %s in revision %d, the claim's item %s in %d", it.Payload, it.Revision, h.Item().Payload, h.Item().Revision)
			}
			if err := save(h, `"last"`, 5*time.Second); err != nil {
				t.Errorf("the last save: %v", err)
			}
			if it := item(t, direct, "item"); string(it.Payload) != `"last"` {
				t.Errorf("the row is %s", it.Payload)
			}
		})
	}
}
