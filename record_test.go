package lease

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestAnElectorsRenewalsTakeNothingBackInWhateverOrderTheyLand(t *testing.T) {
	noon := time.Date(2024, 3, 1, 12, 0, 0, 0, time.UTC)
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		h, n := opened(t, withSchema(t, db)), 0
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
		h := opened(t, withSchema(t, db))
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
	h := opened(t, withSchema(t, db))
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

func TestEveryTermOfAGuardCounts(t *testing.T) {
	noon := time.Date(2024, 3, 1, 12, 0, 0, 0, time.UTC)
	us := time.Microsecond
	term := func(holder string, epoch int64) Term { return Term{Name: "job", Holder: holder, Epoch: epoch} }
	seen := func(epoch int64, renewed time.Time) sighting {
		return sighting{exists: true, Record: Record{Name: "job", Epoch: epoch, RenewedAt: renewed}}
	}
	type try struct {
		name    string
		change  string // of the row: A's, in epoch 5, renewed at noon for a minute
		run     func(ctx context.Context, h *handle, tx *handle) (bool, error)
		granted bool
	}
	take := func(name string, now time.Time, s sighting) func(context.Context, *handle, *handle) (bool, error) {
		return func(ctx context.Context, h, _ *handle) (bool, error) {
			return h.take(ctx, name, "B", time.Minute, now, s)
		}
	}
	takeUnchanged := func(name string, now time.Time, s sighting) func(context.Context, *handle, *handle) (bool, error) {
		return func(ctx context.Context, h, _ *handle) (bool, error) {
			return h.takeUnchanged(ctx, name, "B", time.Minute, now, s)
		}
	}
	renew := func(tm Term, now time.Time) func(context.Context, *handle, *handle) (bool, error) {
		return func(ctx context.Context, h, _ *handle) (bool, error) {
			return h.renew(ctx, tm, time.Minute, now, 20*time.Second)
		}
	}
	renewSeen := func(tm Term, renewed, now time.Time) func(context.Context, *handle, *handle) (bool, error) {
		return func(ctx context.Context, h, _ *handle) (bool, error) {
			s := sighting{Record: Record{Name: tm.Name, Holder: tm.Holder, Epoch: tm.Epoch, RenewedAt: renewed}}
			return h.renewSeen(ctx, s, time.Minute, now)
		}
	}
	released := func(free func(ctx context.Context, h *handle) error) func(context.Context, *handle, *handle) (bool, error) {
		return func(ctx context.Context, h, _ *handle) (bool, error) {
			if err := free(ctx, h); err != nil {
				return false, err
			}
			row, err := h.poll(ctx, "job", noon)
			return row.Holder == "", err
		}
	}
	releaseTerm := func(tm Term, now time.Time) func(context.Context, *handle, *handle) (bool, error) {
		return released(func(ctx context.Context, h *handle) error { return h.releaseTerm(ctx, tm, now) })
	}
	releaseHeld := func(holder string, now time.Time) func(context.Context, *handle, *handle) (bool, error) {
		return released(func(ctx context.Context, h *handle) error { return h.releaseHeld(ctx, "job", holder, now) })
	}
	fence := func(tm Term, now time.Time) func(context.Context, *handle, *handle) (bool, error) {
		return func(ctx context.Context, _, tx *handle) (bool, error) { return tx.fence(ctx, tm, now) }
	}
	end := noon.Add(time.Minute)
	tries := []try{
		{"take an expired row", "", take("job", end, seen(5, noon)), true},
		{"take a live row", "", take("job", end.Add(-us), seen(5, noon)), false},
		{"take a released row, whatever the clock says", "holder = ''", take("job", noon, seen(5, noon)), true},
		{"take in an older epoch", "", take("job", end, seen(4, noon)), false},
		{"take in a newer epoch", "", take("job", end, seen(6, noon)), false},
		{"take another name", "", take("jo", end, seen(5, noon)), false},
		{"take a live row that stood", "", takeUnchanged("job", noon, seen(5, noon)), true},
		{"take an expired row that stood", "", takeUnchanged("job", end, seen(5, noon)), true},
		{"take a released row that was renewed since", "holder = ''", takeUnchanged("job", noon, seen(5, noon.Add(-us))), true},
		{"take a live row renewed since", "", takeUnchanged("job", noon, seen(5, noon.Add(-us))), false},
		{"take a live row renewed before", "", takeUnchanged("job", noon, seen(5, noon.Add(us))), false},
		{"take an expired row renewed since", "", takeUnchanged("job", end, seen(5, noon.Add(-us))), false},
		{"take a row that stood in an older epoch", "", takeUnchanged("job", noon, seen(4, noon)), false},
		{"take another name's row that stood", "", takeUnchanged("jo", noon, seen(5, noon)), false},
		{"renew", "", renew(term("A", 5), noon.Add(time.Second)), true},
		{"renew for another holder", "", renew(term("B", 5), noon.Add(time.Second)), false},
		{"renew in an older epoch", "", renew(term("A", 4), noon.Add(time.Second)), false},
		{"renew in a newer epoch", "", renew(term("A", 6), noon.Add(time.Second)), false},
		{"renew with little left", "", renew(term("A", 5), end.Add(-20*time.Second)), false},
		{"renew with enough left", "", renew(term("A", 5), end.Add(-20*time.Second-us)), true},
		{"renew out of order", "", renew(term("A", 5), noon.Add(-us)), true},
		{"renew by hand", "", renewSeen(term("A", 5), noon, noon.Add(time.Second)), true},
		{"renew by hand for another holder", "", renewSeen(term("B", 5), noon, noon.Add(time.Second)), false},
		{"renew by hand in an older epoch", "", renewSeen(term("A", 4), noon, noon.Add(time.Second)), false},
		{"renew by hand in a newer epoch", "", renewSeen(term("A", 6), noon, noon.Add(time.Second)), false},
		{"renew by hand what was renewed since", "", renewSeen(term("A", 5), noon.Add(-us), noon.Add(time.Second)), false},
		{"renew by hand what was renewed before", "", renewSeen(term("A", 5), noon.Add(us), noon.Add(time.Second)), false},
		{"renew by hand at the expiry", "", renewSeen(term("A", 5), noon, end), false},
		{"renew by hand just before", "", renewSeen(term("A", 5), noon, end.Add(-us)), true},
		{"renew by hand after the clock was put right", "", renewSeen(term("A", 5), noon, noon.Add(-time.Hour)), true},
		{"release a term", "", releaseTerm(term("A", 5), noon), true},
		{"release a term that expired", "", releaseTerm(term("A", 5), end), true},
		{"release another's term", "", releaseTerm(term("B", 5), noon), false},
		{"release an older term", "", releaseTerm(term("A", 4), noon), false},
		{"release a newer term", "", releaseTerm(term("A", 6), noon), false},
		{"release by hand", "", releaseHeld("A", end.Add(-us)), true},
		{"release by hand what expired", "", releaseHeld("A", end), false},
		{"release by hand what another holds", "", releaseHeld("B", noon), false},
		{"fence", "", fence(term("A", 5), end.Add(-us)), true},
		{"fence an expired term", "", fence(term("A", 5), end), false},
		{"fence another's term", "", fence(term("B", 5), noon), false},
		{"fence an older term", "", fence(term("A", 4), noon), false},
		{"fence a newer term", "", fence(term("A", 6), noon), false},
	}
	onOtherTables(t, func(t *testing.T, db *gorm.DB, table string) {
		for _, tc := range tries {
			row := Record{Name: "job", Holder: "A", Epoch: 5, ExpiresAt: end, AcquiredAt: noon, RenewedAt: noon}
			if err := db.Table(table).Save(&row).Error; err != nil {
				t.Fatal(err)
			}
			if tc.change != "" {
				if err := db.Exec("UPDATE " + table + " SET " + tc.change).Error; err != nil {
					t.Fatal(err)
				}
			}
			var got bool
			err := db.Transaction(func(tx *gorm.DB) error {
				h, err := open("db", tx)
				if err != nil {
					return err
				}
				got, err = tc.run(t.Context(), h, h)
				return err
			})
			if err != nil || got != tc.granted {
				t.Errorf("%s: %v, %v", tc.name, got, err)
			}
		}
	})
}

func TestATTLIsCutToMicrosecondsAndNeverToNothing(t *testing.T) {
	for ttl, want := range map[time.Duration]int64{1: 1, 999: 1, 1000: 1, 1999: 1, 2000: 2, math.MaxInt64: math.MaxInt64 / 1000} {
		if got := ttlMicros(ttl); got != want {
			t.Errorf("%d ns are %d µs, not %d", ttl, got, want)
		}
	}
}
