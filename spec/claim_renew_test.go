package spec

import (
	"context"
	"database/sql"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestARenewalExtendsTheClaimAndTouchesNothingElse(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		must(t, h.Save(t.Context(), with(h, 1)))
		for range 3 {
			w.pass(40 * time.Second)
			before := w.load(t)
			must(t, h.Renew(t.Context()))
			after := w.load(t)
			if d := after.RenewedAt.Sub(before.RenewedAt); d < 40*time.Second || after.ExpiresAt.Sub(after.RenewedAt) != time.Minute {
				t.Errorf("40 seconds later the renewal is %v later, for %v", d, after.ExpiresAt.Sub(after.RenewedAt))
			}
			if got := h.Item(); got.RenewedAt != after.RenewedAt || got.ExpiresAt != after.ExpiresAt {
				t.Errorf("Item reads %s, and the row %s", shows(got), shows(after))
			}
			after.RenewedAt, after.ExpiresAt = before.RenewedAt, before.ExpiresAt
			if shows(before) != shows(after) {
				t.Errorf("the renewal changed\n%s into\n%s", shows(before), shows(after))
			}
			w.refuses(t, "B", lease.ErrHeld)
		}
	})
}

func TestARenewalDoesNotSaveWhatItsHolderHas(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		exec(t, w.gdb, "UPDATE lease_items SET payload = ?, claim_attempts = 7", string(payload(5)))
		must(t, h.Renew(t.Context()))
		is(t, w.load(t), 5)
		is(t, h.Item(), 0)
	})
}

func TestAClaimThatRanOutAndNobodyTookMayBeUsed(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		ranOut := func() *lease.Holder {
			newWorld(t, w.db, w.gdb)
			h := w.claim(t, "A")
			w.pass(time.Hour)
			return h
		}
		must(t, ranOut().Renew(t.Context()))
		w.refuses(t, "B", lease.ErrHeld)
		h := ranOut()
		must(t, h.Save(t.Context(), with(h, 1)))
		is(t, w.load(t), 1)
		if b := w.claim(t, "B"); !b.Expired() { // a save is no renewal
			t.Error("B's claim took over nothing that had run out")
		}
		must(t, ranOut().Release(t.Context()))
		if b := w.claim(t, "B"); b.Expired() || b.Item().Attempts != 1 {
			t.Errorf("B's claim is %s, Expired %v", shows(b.Item()), b.Expired())
		}
	})
}

func TestARenewalBesideALaterOneIsNoLoss(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db)).byTheCallers()
		h := w.claim(t, "A")
		w.pass(20 * time.Second)
		must(t, h.Renew(t.Context()))
		w.pass(-5 * time.Second) // the caller's clock was put right, or an earlier renewal lands only now
		if err := h.Renew(t.Context()); err != nil {
			t.Errorf("the claim stands, and its renewal is %v", err)
		}
		w.pass(10 * time.Second)
		if err := h.Renew(t.Context()); err != nil {
			t.Errorf("the claim stands, and its next renewal is %v", err)
		}
		if err := h.Save(t.Context(), with(h, 1)); err != nil {
			t.Errorf("the claim stands, and its save is %v", err)
		}
	})
}

func TestRenewalsAtOnceAreAllGood(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		winners := race(t, 6, func(int) (bool, error) {
			for range 10 {
				if w.now != nil {
					w.pass(time.Millisecond)
				}
				if err := h.Renew(t.Context()); err != nil {
					return false, err
				}
			}
			return true, nil
		})
		if len(winners) != 6 {
			t.Errorf("only %v were always good", winners)
		}
		w.agrees(t, "after the renewals", h)
	})
}

func TestRenewalsByAClockThatWasSetBackALittleNeverTakeTheExpiryBack(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db)).byTheCallers()
		h := w.claim(t, "A")
		for _, ago := range []time.Duration{5, 3, 4} {
			w.pass(-ago * time.Second)
			must(t, h.Renew(t.Context()))
			if it := w.load(t); !it.ExpiresAt.Equal(noon.Add(time.Minute)) || !it.RenewedAt.Equal(noon) {
				t.Errorf("a renewal by a clock %d s ago makes it %s", ago, shows(it))
			}
			w.pass(ago * time.Second)
		}
		w.agrees(t, "after such renewals", h)
	})
}

func TestARenewalByAClockThatWasFarAheadIsOfTheTimeItIsNow(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db)).byTheCallers()
		h := w.claim(t, "A")
		w.pass(-time.Hour)
		must(t, h.Renew(t.Context()))
		now := noon.Add(-time.Hour)
		if it := w.load(t); !it.ExpiresAt.Equal(now.Add(time.Minute)) || !it.RenewedAt.Equal(now) {
			t.Errorf("it is %s", shows(it))
		}
		w.agrees(t, "after it", h)
	})
}

// A tardy pool keeps the reply to its first renewal until the test lets it go.
type tardy struct {
	*sql.DB
	first         atomic.Bool
	carried, goes chan struct{}
}

func (p *tardy) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := p.DB.QueryContext(ctx, query, args...)
	if strings.HasPrefix(query, "UPDATE") && p.first.CompareAndSwap(true, false) {
		close(p.carried)
		<-p.goes
	}
	return rows, err
}

func TestTheReplyToAnEarlierRenewalTakesNothingBackInItem(t *testing.T) {
	db := dbtest.Postgres(t) // which carries a statement out before anybody reads the reply
	w := newWorld(t, db, fresh(t, db)).byTheCallers()
	pool := &tardy{DB: db.SQL(t), carried: make(chan struct{}), goes: make(chan struct{})}
	w.gdb = through(t, db, pool)
	h := w.claim(t, "A")
	pool.first.Store(true)
	w.pass(time.Second)
	earlier := make(chan error, 1)
	go func() { earlier <- h.Renew(t.Context()) }()
	<-pool.carried
	w.pass(time.Second)
	must(t, h.Renew(t.Context()))
	w.agrees(t, "after the later reply", h)
	close(pool.goes)
	must(t, <-earlier)
	w.agrees(t, "after the earlier reply", h)
}
