package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestAnElectorsRenewalsTakeNothingBackInWhateverOrderTheyLand(t *testing.T) {
	noon := time.Date(2024, 3, 1, 12, 0, 0, 0, time.UTC)
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		h, n := leases(t, db), 0
		orders(4, func(order []int) {
			n++
			now := noon.Add(time.Duration(n) * time.Hour)
			r := newRow(h, "job", "A", time.Minute, func() time.Time { return now })
			term, ok, err := r.take(t.Context(), h.look(t, now))
			if !ok || err != nil {
				t.Fatal(ok, err)
			}
			before := h.look(t, now)
			for i, k := range order {
				now = noon.Add(time.Duration(n)*time.Hour + time.Duration(k)*5*time.Second)
				if ok, err := r.renew(t.Context(), term); !ok || err != nil {
					t.Fatalf("%v: %v, %v", order[:i+1], ok, err)
				}
				after := h.look(t, now)
				if after.ExpiresAt.Before(before.ExpiresAt) || !after.RenewedAt.After(before.RenewedAt) || after.ExpiresAt.Before(now.Add(time.Minute)) {
					t.Errorf("%v: the row went from %+v to %+v", order[:i+1], before.Record, after.Record)
				}
				before = after
			}
			if err := r.release(t.Context(), term); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func TestARenewalIsForAWholeTTLFromItsClockOrTheOneBefore(t *testing.T) {
	noon := time.Date(2024, 3, 1, 12, 0, 0, 0, time.UTC)
	us := time.Microsecond
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		h := leases(t, db)
		if _, err := TryAcquire(t.Context(), db.Open(t), "job", "A", time.Minute, noon); err != nil {
			t.Fatal(err)
		}
		term := Term{Name: "job", Holder: "A", Epoch: 1}
		for _, step := range []struct{ now, renewed time.Time }{
			{noon.Add(time.Second), noon.Add(time.Second)},
			{noon.Add(-time.Second), noon.Add(time.Second + us)},
			{noon.Add(-time.Hour), noon.Add(time.Second + 2*us)},
			{noon.Add(time.Second + 2*us), noon.Add(time.Second + 3*us)},
			{noon.Add(20 * time.Second), noon.Add(20 * time.Second)},
		} {
			if ok, err := h.renew(t.Context(), term, time.Minute, step.now, time.Minute/3); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if s := h.look(t, noon); !s.RenewedAt.Equal(step.renewed) || !s.ExpiresAt.Equal(step.renewed.Add(time.Minute)) {
				t.Errorf("after a renewal at %v the row is %+v", step.now, s.Record)
			}
		}
	})
}

// The database's clock is read before the wait for the row's lock, and the
// waiters race for the version that the stranger leaves.
func TestAnElectorsRenewalsBehindARowLockTakeNothingBack(t *testing.T) {
	db := dbtest.Postgres(t)
	h := leases(t, db)
	r := newRow(h, "job", "A", time.Minute, nil)
	term, ok, err := r.take(t.Context(), h.look(t, time.Time{}))
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	other := db.Open(t)
	waiting := func() (n int) {
		const count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
		if err := other.Raw(count).Row().Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for round := range 30 {
		stranger := other.Begin()
		defer stranger.Rollback()
		if err := stranger.Exec("UPDATE leases SET epoch = epoch").Error; err != nil {
			t.Fatal(err)
		}
		const renewals = 5
		type answer struct {
			until time.Time // what it may count on
			err   error
		}
		told := make(chan answer, renewals)
		for i := range renewals {
			until := h.look(t, time.Time{}).now.Add(time.Minute)
			go func() {
				ok, err := r.renew(t.Context(), term)
				if err == nil && !ok {
					err = fmt.Errorf("refused")
				}
				told <- answer{until, err}
			}()
			within(t, 5*time.Second, "the renewal waits", func() bool { return waiting() > i })
		}
		if err := stranger.Commit().Error; err != nil {
			t.Fatal(err)
		}
		var latest time.Time
		for range renewals {
			a := <-told
			if a.err != nil {
				t.Fatalf("round %d: %v", round, a.err)
			}
			if a.until.After(latest) {
				latest = a.until
			}
		}
		if s := h.look(t, time.Time{}); s.ExpiresAt.Before(latest) {
			t.Fatalf("round %d: the lease expires %v before what a renewal may count on", round, latest.Sub(s.ExpiresAt))
		}
	}
}
