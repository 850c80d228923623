package spec

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestALiveClaimIsHeldAgainstOthersUntilItRunsOut(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		a := w.claim(t, "A")
		for _, d := range []time.Duration{0, 30 * time.Second, 29 * time.Second} {
			w.pass(d)
			w.refuses(t, "B", lease.ErrHeld)
		}
		w.pass(time.Second)
		b := w.claim(t, "B")
		if !b.Expired() || a.Expired() || b.Epoch() != a.Epoch()+1 {
			t.Errorf("Expired is %v, and then %v; the epochs are %d and %d", a.Expired(), b.Expired(), a.Epoch(), b.Epoch())
		}
		w.refuses(t, "A", lease.ErrHeld)
		_, err := w.try(t, "C")
		if err == nil || !strings.Contains(err.Error(), `"item"`) || !strings.Contains(err.Error(), `"B"`) {
			t.Errorf("the error names not both the item and its owner: %v", err)
		}
	})
}

func TestAClaimRunsOutToTheMicrosecond(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db)).byTheCallers()
		w.claim(t, "A")
		w.pass(time.Minute - time.Microsecond)
		w.refuses(t, "B", lease.ErrHeld)
		w.pass(time.Microsecond)
		w.claim(t, "B")
		w.refuses(t, "A", lease.ErrHeld)
	})
}

func TestTheZoneOfACallersClockMeansNothing(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db)).byTheCallers()
		plain, zone := w.now, time.FixedZone("", 5*3600+1800)
		w.now = func() time.Time { return plain().In(zone) }
		h := w.claim(t, "A")
		want := lease.Claimable{
			Owner: "A", StepID: "step of A", Epoch: 1, Revision: 1, Attempts: 1, AcquiredAt: noon, RenewedAt: noon, ExpiresAt: noon.Add(time.Minute),
		}
		if got := h.Item().Claimable; got != want {
			t.Errorf("the claim reads %+v", got)
		}
		zone = time.FixedZone("", -8*3600)
		w.refuses(t, "B", lease.ErrHeld)
		w.pass(time.Minute)
		w.claim(t, "B")
	})
}

func TestWithoutACallersClockClaimsGoByTheDatabases(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db))
		before := time.Now()
		c := w.claim(t, "A").Item().Claimable
		if early, late := before.Add(-time.Millisecond), time.Now().Add(time.Millisecond); c.AcquiredAt.Before(early) || c.AcquiredAt.After(late) {
			t.Errorf("claimed at %v, which is not between %v and %v", c.AcquiredAt, early, late)
		}
		if c.AcquiredAt != c.RenewedAt || c.ExpiresAt.Sub(c.AcquiredAt) != time.Minute || c.AcquiredAt.Location() != time.UTC {
			t.Errorf("the claim reads %+v", c)
		}
	})
}

func TestAnOwnerClaimsAnewAndItsEarlierClaimIsLost(t *testing.T) {
	for what, pass := range map[string]time.Duration{"live": 0, "run out": 2 * time.Minute} {
		t.Run(what, func(t *testing.T) {
			everyClock(t, func(t *testing.T, w *world) {
				old := w.claim(t, "A")
				w.pass(pass)
				h := w.claim(t, "A")
				if h.Epoch() != old.Epoch()+1 || h.Expired() != (pass > 0) || h.Item().Attempts != 2 {
					t.Errorf("the claim is %s, Expired %v", shows(h.Item()), h.Expired())
				}
				before := w.row(t)
				mustBe(t, old.Save(t.Context(), with(old, 1)), lease.ErrLost)
				mustBe(t, old.Renew(t.Context()), lease.ErrLost)
				mustBe(t, old.Release(t.Context()), lease.ErrLost)
				w.unchanged(t, "the earlier claim", before)
				must(t, h.Save(t.Context(), with(h, 2)))
				must(t, h.Renew(t.Context()))
				must(t, h.Release(t.Context()))
			})
		})
	}
}

func TestTheEpochGrowsByOneWithEveryClaimAndNeverGoesBack(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		claims := int64(0)
		claim := func(owner string, expired bool) *lease.Holder {
			t.Helper()
			claims++
			h := w.claim(t, owner)
			if h.Epoch() != claims || h.Expired() != expired {
				t.Errorf("claim %d has epoch %d, Expired %v", claims, h.Epoch(), h.Expired())
			}
			w.agrees(t, "after a claim", h)
			return h
		}
		release := func(h *lease.Holder) {
			t.Helper()
			must(t, h.Release(t.Context()))
			if it := w.load(t); it.Epoch != claims || it.Owner != "" || it.StepID != "" || it.Attempts != 0 {
				t.Errorf("after a release it reads %s", shows(it))
			}
		}
		release(claim("A", false))
		claim("A", false)
		h := claim("A", false)
		must(t, h.Renew(t.Context()))
		must(t, h.Save(t.Context(), with(h, 1)))
		release(h)
		claim("B", false)
		w.pass(time.Minute)
		release(claim("C", true))
		w.pass(time.Hour)
		claim("D", false) // what was released has not run out
		w.refuses(t, "A", lease.ErrHeld)
		w.pass(time.Minute)
		claim("D", true)
	})
}

func TestAnItemThatIsDoneIsNeverClaimedAgain(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		it := with(h, 1)
		it.Done = true
		must(t, h.Save(t.Context(), it))
		for _, owner := range []string{"A", "B"} {
			w.refuses(t, owner, lease.ErrDone)
		}
		must(t, h.Renew(t.Context())) // the claim of it goes on
		must(t, h.Save(t.Context(), with(h, 2)))
		if !h.Item().Done || !w.load(t).Done {
			t.Error("it is not done any more")
		}
		w.pass(time.Hour)
		w.refuses(t, "A", lease.ErrDone)
		must(t, h.Release(t.Context()))
		for _, owner := range []string{"A", "B"} {
			w.refuses(t, owner, lease.ErrDone)
		}
		must(t, lease.Create(t.Context(), w.gdb, lease.Item{Key: "done", Claimable: lease.Claimable{Done: true}}))
		_, err := lease.Claim(t.Context(), w.gdb, "done", "A", "", time.Minute, w.now)
		mustBe(t, err, lease.ErrDone)
		if _, err := lease.ClaimNext[lease.Item](t.Context(), w.gdb, "A", "", time.Minute, w.now); !errors.Is(err, gorm.ErrRecordNotFound) {
			t.Errorf("ClaimNext is %v", err)
		}
	})
}

func TestAHolderMayTakeBackThatItsItemIsDone(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		for _, done := range []bool{true, false} {
			it := h.Item()
			it.Done = done
			must(t, h.Save(t.Context(), it))
			if h.Item().Done != done || w.load(t).Done != done {
				t.Errorf("Done is %v and %v, not %v", h.Item().Done, w.load(t).Done, done)
			}
		}
		must(t, h.Release(t.Context()))
		w.claim(t, "B")
	})
}

func TestEveryClaimCountsInTheAttemptsUntilACleanRelease(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		for round := range 2 {
			for i, owner := range []string{"A", "A", "B", "B", "A"} {
				h := w.claim(t, owner)
				if it := h.Item(); it.Attempts != i+1 || h.Epoch() != int64(6*round+i+1) || h.Expired() != (i > 0) {
					t.Errorf("claim %d of round %d reads %s, Expired %v", i, round, shows(it), h.Expired())
				}
				w.pass(time.Minute)
			}
			h := w.claim(t, "A") // five workers vanished
			if it := w.load(t); it.Attempts != 6 {
				t.Errorf("%d attempts are counted", it.Attempts)
			}
			must(t, h.Release(t.Context()))
			if it := w.load(t); it.Attempts != 0 || h.Item().Attempts != 0 {
				t.Errorf("after a clean release %d attempts are counted, and in Item %d", it.Attempts, h.Item().Attempts)
			}
		}
	})
}

func TestTheNextClaimHasTheLastSavedState(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		a := w.claim(t, "A")
		is(t, a.Item(), 0)
		must(t, a.Save(t.Context(), with(a, 1)))
		must(t, a.Save(t.Context(), with(a, 2)))
		w.pass(time.Minute) // it vanished
		b := w.claim(t, "B")
		is(t, b.Item(), 2)
		if it := b.Item(); it.UpdatedAt != a.Item().UpdatedAt || it.CreatedAt != a.Item().CreatedAt || it.Revision != a.Item().Revision+1 {
			t.Errorf("B finds %s, and A left %s", shows(it), shows(a.Item()))
		}
	})
}

func TestAClaimTellsWhatItIs(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h, err := lease.Claim(t.Context(), w.gdb, "item", "A", "", time.Minute, w.now)
		must(t, err)
		if h.StepID() != "" || h.Item().StepID != "" {
			t.Errorf("without a step, it is %q, %q", h.StepID(), h.Item().StepID)
		}
		must(t, h.Release(t.Context()))
		h = w.claim(t, "A")
		must(t, h.Save(t.Context(), with(h, 1)))
		must(t, h.Release(t.Context()))
		if h.StepID() != "step of A" || h.Epoch() != 2 || h.Expired() {
			t.Errorf("after its release the claim is %q, epoch %d, Expired %v", h.StepID(), h.Epoch(), h.Expired())
		}
		if s := fmt.Sprint(h); !strings.Contains(s, `"item"`) || !strings.Contains(s, `"A"`) {
			t.Errorf("it prints as %q", s)
		}
	})
}
