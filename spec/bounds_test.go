package spec

import (
	"context"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/faultproxy"
)

// How long a client that is gone keeps what it has locked on Postgres

// The server's limit for a client that reads nothing of what it is sent. On a
// Unix socket there is none, and it reads as 0.
const unread = "SHOW tcp_user_timeout"

func TestAFenceBoundsHowLongItsClientMayReadNothing(t *testing.T) { // C110
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

func TestAFenceOverAUnixSocketWorksWithoutThatBound(t *testing.T) { // C110
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

func TestASavesOwnTransactionIsBoundedAsTheCallersIs(t *testing.T) { // C75, C110
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

// oldLeases makes the table of an older version, with a leader, which a later EnsureSchema has to alter.
func oldLeases(t *testing.T, gdb *gorm.DB) {
	t.Helper()
	exec(t, gdb, `CREATE TABLE leases (name varchar(100) PRIMARY KEY, holder varchar(200) NOT NULL, expires_at bigint NOT NULL)`)
	exec(t, gdb, `INSERT INTO leases VALUES ('job', 'old', 0)`)
}

func TestAReplicaThatIsCutOffBetweenDDLAndCommitHoldsUpALeaderForASecond(t *testing.T) { // C90
	const ttl = 3 * time.Second
	db := dbtest.Postgres(t)
	direct := db.Open(t)
	oldLeases(t, direct)
	proxy := faultproxy.New(t, db.Addr())
	far, spy := spied(t, &dbtest.Database{Backend: db.Backend, DSN: db.DSNVia(proxy.Addr())})
	cut := make(chan time.Time, 1)
	spy.after = func(query string, err error) {
		if strings.HasPrefix(query, "ALTER TABLE") && err == nil {
			select {
			case cut <- time.Now():
				proxy.Hang()
			default:
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	returned := make(chan error, 1)
	go func() { returned <- lease.EnsureSchema(far.WithContext(ctx)) }()
	begin := <-cut
	exec(t, direct, "UPDATE leases SET expires_at = expires_at + 1 WHERE name = 'job' AND holder = 'old'") // as its leader renews
	if took := time.Since(begin); took > ttl/3*2 {
		t.Errorf("a renewal took %v, which costs the leader its term", took)
	} else {
		t.Logf("a renewal took %v", took)
	}
	must(t, lease.EnsureSchema(direct))
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("another replica's EnsureSchema was done %v after the cut", took)
	}
	exec(t, direct, "UPDATE leases SET holder = ''")
	granted(t, direct, "A", databasesClock)
	cancel()
	proxy.Heal()
	<-returned
}

func TestEnsureSchemaGoesOnAfterTheServerEndedItsTransaction(t *testing.T) { // C90
	db := dbtest.Postgres(t)
	direct := db.Open(t)
	oldLeases(t, direct)
	slow, spy := spied(t, db)
	first := true
	spy.after = func(query string, err error) {
		if first && strings.HasPrefix(query, "ALTER TABLE") {
			first = false
			waitUntil(t, "the server ends the session", func() bool {
				return ask[int](t, direct, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'") == 0
			})
		}
	}
	must(t, lease.EnsureSchema(slow))
	exec(t, direct, "UPDATE leases SET holder = ''")
	granted(t, direct, "A", databasesClock)
}

func TestEnsureSchemaSetsNothingInACallersTransaction(t *testing.T) { // C90
	gdb := dbtest.Postgres(t).Open(t)
	must(t, gdb.Transaction(func(tx *gorm.DB) error {
		must(t, lease.EnsureSchema(tx))
		for _, setting := range []string{"idle_in_transaction_session_timeout", "lock_timeout"} {
			if got := ask[string](t, tx, "SHOW "+setting); got != "0" {
				t.Errorf("%s is %s", setting, got)
			}
		}
		return nil
	}))
}
