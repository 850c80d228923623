package spec

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// repeatableToo is everyIsolation, and Postgres with transactions that read one snapshot.
func repeatableToo(t *testing.T, spec func(t *testing.T, db *dbtest.Database)) {
	everyIsolation(t, spec)
	t.Run("postgres repeatable read", func(t *testing.T) {
		db := dbtest.Postgres(t)
		spec(t, &dbtest.Database{Backend: db.Backend, DSN: db.DSNVia("", "default_transaction_isolation=repeatable read")})
	})
}

func TestOneOfTwelveContendersWinsAnExpiredItem(t *testing.T) {
	repeatableToo(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, keepConnections(t, fresh(t, db))).byTheCallers()
		for round := range 60 {
			w.pass(time.Hour)
			winners := race(t, 12, func(i int) (bool, error) { return heldIsFalse(w.try(t, fmt.Sprint(i))) })
			it := w.load(t)
			if len(winners) != 1 || it.Owner != fmt.Sprint(winners[0]) || it.Epoch != int64(round+1) || it.Attempts != round+1 {
				t.Fatalf("round %d: %v won; the row is %s", round, winners, shows(it))
			}
		}
	})
}

func TestWhatChangedSinceItWasLookedAtIsNotTaken(t *testing.T) {
	changes := map[string]func(t *testing.T, w *world, a *lease.Holder){
		"renewed":            func(t *testing.T, _ *world, a *lease.Holder) { must(t, a.Renew(t.Context())) },
		"claimed":            func(t *testing.T, w *world, _ *lease.Holder) { w.claim(t, "C") },
		"claimed anew":       func(t *testing.T, w *world, _ *lease.Holder) { w.claim(t, "A") },
		"claimed by itself":  func(t *testing.T, w *world, _ *lease.Holder) { w.claim(t, "B") },
		"claimed and undone": func(t *testing.T, w *world, _ *lease.Holder) { must(t, w.claim(t, "C").Release(t.Context())) },
		"deleted":            func(t *testing.T, w *world, _ *lease.Holder) { exec(t, w.gdb, "DELETE FROM lease_items") },
		"done": func(t *testing.T, _ *world, a *lease.Holder) {
			it := a.Item()
			it.Done = true
			must(t, a.Save(t.Context(), it))
		},
	}
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		slow, spy := spied(t, db)
		for what, change := range changes {
			t.Run(what, func(t *testing.T) {
				w := newWorld(t, db, gdb).byTheCallers()
				a := w.claim(t, "A")
				w.pass(time.Minute)
				changed, after := false, ""
				spy.fail = func(query string) error {
					if strings.HasPrefix(query, "UPDATE") && !changed { // B has looked, and is about to take what it saw
						changed = true
						change(t, w, a)
						after = w.contents(t)
					}
					return nil
				}
				h, err := lease.Claim(t.Context(), slow, "item", "B", "", time.Minute, w.now)
				if h != nil || !errors.Is(err, lease.ErrHeld) || !changed {
					t.Errorf("the claim is %v, %v", h, err)
				}
				if now := w.contents(t); now != after {
					t.Errorf("the row was\n%s and is\n%s", after, now)
				}
			})
		}
	})
}

func TestAnOwnerThatClaimsTwiceAtOnceHasOneClaimThatStands(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, keepConnections(t, fresh(t, db)))
		for round := range 20 {
			var holders [4]*lease.Holder
			winners := race(t, len(holders), func(i int) (ok bool, err error) {
				holders[i], err = w.try(t, "A")
				return heldIsFalse(holders[i], err)
			})
			stands := 0
			for _, i := range winners {
				switch err := holders[i].Save(t.Context(), with(holders[i], i)); {
				case err == nil:
					stands++
					if holders[i].Epoch() != w.load(t).Epoch {
						t.Errorf("round %d: claim %d was saved, and the row is %s", round, holders[i].Epoch(), shows(w.load(t)))
					}
				case !errors.Is(err, lease.ErrLost):
					t.Error(err)
				}
			}
			if stands != 1 {
				t.Fatalf("round %d: %d of %d claims stand", round, stands, len(winners))
			}
		}
	})
}

func TestASaveThatRacesAClaimIsInItOrRefused(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, keepConnections(t, fresh(t, db))).byTheCallers()
		for round := range 200 {
			stale := w.claim(t, "A")
			w.pass(time.Minute)
			var b *lease.Holder
			n := 2*round + 1
			saved := slices.Contains(race(t, 2, func(i int) (ok bool, err error) {
				if i == 0 {
					b, err = w.try(t, "B")
					return err == nil, err
				}
				err = stale.Save(t.Context(), with(stale, n))
				if errors.Is(err, lease.ErrLost) {
					return false, nil
				}
				return err == nil, err
			}), 1)
			if b == nil {
				t.Fatalf("round %d: B has no claim", round)
			}
			// A save that was good came before the claim, which has found it; one that came after the claim has written nothing.
			if found := string(b.Item().Payload) == string(payload(n)); found != saved {
				t.Fatalf("round %d: saved is %v, and the claim has %s", round, saved, b.Item().Payload)
			}
			w.agrees(t, "after the race", b)
			mustBe(t, stale.Save(t.Context(), with(stale, n)), lease.ErrLost)
			must(t, b.Save(t.Context(), with(b, n+1)))
			mustBe(t, stale.Save(t.Context(), with(stale, n)), lease.ErrLost)
			is(t, w.load(t), n+1)
			w.pass(time.Minute)
		}
	})
}

func TestClaimsOfDifferentItemsDoNotMeet(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		gdb := keepConnections(t, fresh(t, db))
		const workers = 8
		for i := range workers {
			must(t, lease.Create(t.Context(), gdb, lease.Item{Key: fmt.Sprint(i)}))
		}
		winners := race(t, workers, func(i int) (bool, error) {
			for n := range 5 {
				h, err := lease.Claim(t.Context(), gdb, fmt.Sprint(i), fmt.Sprint(i), "", time.Minute, nil)
				if err != nil {
					return false, err
				}
				if err := errors.Join(h.Renew(t.Context()), h.Save(t.Context(), with(h, n)), h.Release(t.Context())); err != nil {
					return false, err
				}
			}
			return true, nil
		})
		if len(winners) != workers {
			t.Errorf("only %v went through", winners)
		}
	})
}
