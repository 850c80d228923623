package lease_test

import (
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
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
