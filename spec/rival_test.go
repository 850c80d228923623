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
