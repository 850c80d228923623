package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestATermIsOverByTheseRules(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, database *dbtest.Database) {
		db := database.Open(t)
		app := Tables(db, "app_")
		for _, handle := range []*gorm.DB{db, app} {
			if err := EnsureSchema(handle); err != nil {
				t.Fatal(err)
			}
		}
		h := opened(t, db)
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

func TestALossIsSeenThroughWhateverWasDerivedFromTheWorksContext(t *testing.T) {
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

func TestTheTermOfAnElectorFencesItsOwnTablesByItsOwnClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := withSchema(t, dbtest.SQLite(t))
		mine := Tables(db, "app_")
		if err := EnsureSchema(mine); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		e := &Elector{DB: mine, Name: "job", TTL: 15 * time.Second, Now: time.Now, Logger: slog.New(slog.DiscardHandler)}
		err := e.Run(ctx, func(ctx context.Context) {
			defer stop()
			if err := Transaction(ctx, db, func(*gorm.DB) error { return nil }); err != nil { // db, whose leases is empty
				t.Error(err)
			}
			term, ok := TermFrom(ctx)
			if own, leads := e.Term(); !ok || !leads || own != term {
				t.Errorf("TermFrom is %v, %v; Term is %v, %v", term, ok, own, leads)
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestEachArgumentOfAFenceIsChecked(t *testing.T) {
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

func TestTransactionTakesNothingFromItsHandle(t *testing.T) {
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

func TestAFenceSetsTheseBounds(t *testing.T) {
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
		h := opened(t, tx)
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
