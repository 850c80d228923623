package spec

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestAnErrorSaysWhatFailedAndOnWhat(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t) // without a schema
		_, acquireErr := lease.TryAcquire(t.Context(), gdb, "job", "A", time.Minute, noon)
		_, findErr := lease.Find(t.Context(), gdb, "job")
		_, listErr := lease.List(t.Context(), gdb)
		for start, err := range map[string]error{
			`lease: acquire "job": `: acquireErr,
			`lease: release "job": `: lease.Release(t.Context(), gdb, "job", "A", noon),
			`lease: find "job": `:    findErr,
			`lease: list: `:          listErr,
		} {
			if err == nil || !strings.HasPrefix(err.Error(), start) || !strings.Contains(err.Error(), "EnsureSchema") {
				t.Errorf("%q says: %v", start, err)
			}
			if errors.Is(err, lease.ErrInvalid) || errors.Is(err, gorm.ErrRecordNotFound) {
				t.Errorf("a missing table is taken for something else: %v", err)
			}
		}
	})
}

func TestACancelledContextIsAnErrorAndNotARefusal(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		ok, err := lease.TryAcquire(ctx, gdb, "job", "A", time.Minute, noon)
		if ok {
			t.Error("it was granted")
		}
		mustBe(t, err, context.Canceled)
		mustBe(t, lease.Release(ctx, gdb, "job", "A", noon), context.Canceled)
	})
}

func TestNoErrorTellsAPassword(t *testing.T) {
	const password = "pa55-w0rd"
	db := dbtest.Postgres(t)
	for what, dsn := range map[string]string{
		"nobody listens":   "host=127.0.0.1 port=1 user=app password=" + password + " dbname=app sslmode=disable",
		"a URL":            "postgres://app:" + password + "@127.0.0.1:1/app?sslmode=disable",
		"an unknown role":  db.DSNVia("", "user=nobody_at_all", "password="+password),
		"no such database": db.DSNVia("", "dbname=nothing_at_all", "password="+password),
	} {
		t.Run(what, func(t *testing.T) {
			gdb := (&dbtest.Database{Backend: dbtest.BackendPostgres, DSN: dsn}).Open(t, &gorm.Config{DisableAutomaticPing: true})
			_, acquireErr := lease.TryAcquire(t.Context(), gdb, "job", "A", time.Minute, noon)
			_, findErr := lease.Find(t.Context(), gdb, "job")
			term := lease.WithTerm(t.Context(), lease.Term{Name: "job", Holder: "A", Epoch: 1})
			for _, err := range []error{
				acquireErr, findErr, lease.EnsureSchema(gdb), lease.Release(t.Context(), gdb, "job", "A", noon),
				lease.Transaction(term, gdb, func(*gorm.DB) error { return nil }),
			} {
				if err == nil {
					t.Error("it worked")
				} else if strings.Contains(err.Error(), password) {
					t.Errorf("the password is in: %v", err)
				}
			}
		})
	}
}

func TestAFailingSelectIsAnErrorAndNotAFreeLease(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		fresh(t, db)
		gdb, spy := spied(t, db)
		failure := errors.New("the network is down")
		spy.fail = func(query string) error {
			if strings.HasPrefix(query, "SELECT") {
				return failure
			}
			return nil
		}
		ok, err := lease.TryAcquire(t.Context(), gdb, "job", "A", time.Minute, noon)
		if ok {
			t.Error("it was granted")
		}
		mustBe(t, err, failure)
		if sent := spy.sent(); len(sent) != 1 {
			t.Errorf("after the failure it went on: %q", sent)
		}
	})
}
