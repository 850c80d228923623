package spec

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestClaimNextTakesWhatNobodyClaimedAndThenWhatWasClaimedTheLongestAgo(t *testing.T) {
	withParcels(t, 5, func(t *testing.T, w *world) {
		for _, id := range []uint{3, 1, 5} {
			h := w.parcel(t, id, "A")
			w.pass(time.Second)
			if id == 1 { // renewed, saved and released last, but claimed before 5
				defer func() {
					if t.Failed() {
						t.Logf("1 is %s", asRead(stored(t, w.gdb, 1)))
					}
				}()
				w.parcel(t, 5, "A")
				must(t, h.Renew(t.Context()))
				must(t, h.Save(t.Context(), h.Item()))
				must(t, h.Release(t.Context()))
			}
		}
		w.pass(2 * time.Minute)
		var order []uint
		for range 5 {
			h := w.next(t, "B")
			order = append(order, h.Item().ID)
			if expired := h.Item().ID == 3 || h.Item().ID == 5; h.Expired() != expired || h.Item().Claimable.Owner != "B" {
				t.Errorf("Expired is %v of %s", h.Expired(), asRead(h.Item()))
			}
			w.pass(time.Second)
		}
		slices.Sort(order[:2])
		if want := []uint{2, 4, 3, 1, 5}; !slices.Equal(order, want) {
			t.Errorf("they came as %v, not %v", order, want)
		}
		_, err := w.tryNext(t, "C")
		mustBe(t, err, gorm.ErrRecordNotFound)
	})
}

func TestAnItemWhoseWorkersDieGoesToTheBackOfTheQueue(t *testing.T) {
	withParcels(t, 2, func(t *testing.T, w *world) {
		poison := w.next(t, "A").Item().ID
		w.pass(time.Hour)
		for range 3 {
			h := w.next(t, "A") // the other one
			if h.Item().ID == poison {
				t.Fatalf("it came before the other one: %s", asRead(h.Item()))
			}
			must(t, h.Release(t.Context()))
			w.pass(time.Hour)
			if h = w.next(t, "A"); h.Item().ID != poison || !h.Expired() {
				t.Fatalf("it did not come: %s", asRead(h.Item()))
			}
			w.pass(time.Hour)
		}
		if p := stored(t, w.gdb, poison); p.Attempts != 4 || p.Epoch != 4 {
			t.Errorf("it reads %s", asRead(p))
		}
	})
}

func TestClaimNextPassesOverWhatIsLiveOrDone(t *testing.T) {
	withParcels(t, 4, func(t *testing.T, w *world) {
		w.parcel(t, 1, "A")
		h := w.parcel(t, 2, "A")
		p := h.Item()
		p.Done = true
		must(t, h.Save(t.Context(), p))
		w.pass(50 * time.Second)
		w.parcel(t, 3, "A")
		for _, owner := range []string{"B", "A"} { // its own live claims neither
			before := asRead(stored(t, w.gdb, 1)) + asRead(stored(t, w.gdb, 3))
			if owner == "B" {
				if id := w.next(t, owner).Item().ID; id != 4 {
					t.Errorf("it took %d", id)
				}
			}
			_, err := w.tryNext(t, owner)
			mustBe(t, err, gorm.ErrRecordNotFound)
			if after := asRead(stored(t, w.gdb, 1)) + asRead(stored(t, w.gdb, 3)); after != before {
				t.Errorf("live ones became %s", after)
			}
		}
		w.pass(10 * time.Second)
		if h := w.next(t, "B"); h.Item().ID != 1 || !h.Expired() || h.Epoch() != 2 {
			t.Errorf("it took %s, Expired %v", asRead(h.Item()), h.Expired())
		}
		w.pass(time.Hour)
		for range 3 { // 1, 3 and 4
			if id := w.next(t, "C").Item().ID; id == 2 {
				t.Error("it took what is done")
			}
		}
		_, err := w.tryNext(t, "C")
		mustBe(t, err, gorm.ErrRecordNotFound)
	})
}

func TestClaimNextNeverWaitsForAnothersRow(t *testing.T) {
	for what, locks := range map[string]func(t *testing.T, w *world, tx *gorm.DB){
		"locked": func(t *testing.T, _ *world, tx *gorm.DB) {
			exec(t, tx, "SELECT * FROM parcels WHERE id = 1 FOR UPDATE")
		},
		"being saved":   func(t *testing.T, _ *world, tx *gorm.DB) { exec(t, tx, "UPDATE parcels SET weight = 8 WHERE id = 1") },
		"being deleted": func(t *testing.T, _ *world, tx *gorm.DB) { exec(t, tx, "DELETE FROM parcels WHERE id = 1") },
		"fenced": func(t *testing.T, w *world, tx *gorm.DB) {
			h := w.parcel(t, 1, "A")
			must(t, h.Fence(tx))
			must(t, h.Release(t.Context()))
		},
		"saved in a transaction": func(t *testing.T, w *world, tx *gorm.DB) {
			h := w.parcel(t, 1, "A")
			must(t, h.SaveIn(tx, h.Item()))
			w.pass(time.Hour)
		},
	} {
		t.Run(what, func(t *testing.T) {
			db := dbtest.Postgres(t)
			w := (&world{db: db, gdb: migrated(t, db), table: "parcels"}).byTheCallers()
			parcels(t, w.gdb, 2)
			w.parcel(t, 2, "A") // 1 comes before 2
			w.pass(time.Minute)
			tx := w.gdb.Begin()
			defer tx.Rollback()
			locks(t, w, tx)
			impatient := *w
			impatient.gdb = db.OpenDSN(t, db.DSNVia("", "lock_timeout=1ms"))
			if id := impatient.next(t, "B").Item().ID; id != 2 {
				t.Errorf("it took %d", id)
			}
			_, err := impatient.tryNext(t, "B")
			mustBe(t, err, gorm.ErrRecordNotFound)
			must(t, tx.Rollback().Error)
			if id := impatient.next(t, "B").Item().ID; id != 1 {
				t.Errorf("it took %d", id)
			}
		})
	}
}

func TestClaimNextTakesOneRowWhateverThePlan(t *testing.T) {
	db := dbtest.Postgres(t)
	gdb := migrated(t, db)
	exec(t, gdb, "ALTER TABLE parcels SET (autovacuum_enabled = false)")
	parcels(t, gdb, 1)
	exec(t, gdb, "ANALYZE parcels") // a table of one row, it believes
	for i := uint(2); i <= 20; i++ {
		must(t, gdb.Create(&parcel{Model: gorm.Model{ID: i}, Weight: int(i)}).Error)
	}
	taken := 0
	for _, off := range [][]string{
		{}, {"enable_indexscan", "enable_bitmapscan"}, {"enable_seqscan"}, {"enable_hashjoin", "enable_mergejoin"}, {"enable_nestloop"},
		{"enable_material", "enable_hashjoin", "enable_mergejoin", "enable_indexscan", "enable_bitmapscan"}, {"enable_memoize", "enable_sort"},
	} {
		var settings []string
		for _, name := range off {
			settings = append(settings, name+"=off")
		}
		w := &world{db: db, gdb: db.OpenDSN(t, db.DSNVia("", settings...)), table: "parcels"}
		for _, scope := range []func(*gorm.DB) *gorm.DB{
			func(db *gorm.DB) *gorm.DB { return db }, func(db *gorm.DB) *gorm.DB { return db.Where("weight > 0") },
		} {
			w.next(t, "A", scope)
			taken++
			if n := ask[int](t, gdb, "SELECT count(*) FROM parcels WHERE claim_epoch > 0"); n != taken {
				t.Fatalf("without %q: %d claims took %d rows", off, taken, n)
			}
		}
	}
}

func TestWorkersDrainAQueueAndWorkNothingTwice(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		gdb := keepConnections(t, migrated(t, db))
		const rows, workers = 60, 6
		parcels(t, gdb, rows)
		var worked [rows + 1]atomic.Int32
		winners := race(t, workers, func(i int) (bool, error) {
			for {
				h, err := lease.ClaimNext[parcel](t.Context(), gdb, fmt.Sprint(i), "", time.Minute, nil)
				if errors.Is(err, gorm.ErrRecordNotFound) {
					return true, nil
				}
				if err != nil {
					return false, err
				}
				p := h.Item()
				worked[p.ID].Add(1)
				p.Done, p.Owner = true, fmt.Sprint(i)
				if err := h.Save(t.Context(), p); err != nil {
					return false, err
				}
			}
		})
		if len(winners) != workers {
			t.Errorf("only %v went through", winners)
		}
		for id := 1; id <= rows; id++ {
			if n := worked[id].Load(); n != 1 {
				t.Errorf("parcel %d was worked %d times", id, n)
			}
		}
		if n := ask[int](t, gdb, "SELECT count(*) FROM parcels WHERE claim_done AND claim_epoch = 1 AND claim_attempts = 1 AND owner = claim_owner"); n != rows {
			t.Errorf("%d of %d are as they should be", n, rows)
		}
	})
}

func TestARenewalKeepsARowsPlaceInTheQueue(t *testing.T) {
	withParcels(t, 2, func(t *testing.T, w *world) {
		first := w.parcel(t, 1, "A")
		w.pass(time.Second)
		w.parcel(t, 2, "A")
		w.pass(time.Second)
		must(t, first.Renew(t.Context()))
		w.pass(2 * time.Minute)
		for _, want := range []uint{1, 2} {
			if id := w.next(t, "B").Item().ID; id != want {
				t.Errorf("it took %d, not %d", id, want)
			}
		}
	})
}

func TestClaimNextLooksAgainForAsLongAsOthersAreFaster(t *testing.T) {
	for what, test := range map[string]struct {
		meanwhile func(t *testing.T, other *world) // between a look and the claim, twice
		want      uint
	}{
		"at one row after another": {func(t *testing.T, other *world) { other.next(t, "B") }, 3},
		"at the same row": {func(t *testing.T, other *world) {
			h := other.parcel(t, 1, "B")
			must(t, h.Release(t.Context()))
			exec(t, other.gdb, "UPDATE parcels SET claim_acquired_at = 0")
		}, 1},
	} {
		t.Run(what, func(t *testing.T) {
			db := dbtest.SQLite(t) // which has no rows that are locked, to be passed over
			other := &world{db: db, gdb: migrated(t, db), table: "parcels"}
			parcels(t, other.gdb, 3)
			exec(t, other.gdb, "UPDATE parcels SET claim_acquired_at = id - 1")
			gdb, spy := spied(t, db)
			raced := 0
			spy.fail = func(query string) error {
				if strings.HasPrefix(query, "UPDATE") && raced < 2 {
					raced++
					test.meanwhile(t, other)
				}
				return nil
			}
			h, err := lease.ClaimNext[parcel](t.Context(), gdb, "A", "", time.Minute, nil)
			must(t, err)
			if h.Item().ID != test.want || raced != 2 {
				t.Errorf("after %d races it took %s", raced, asRead(h.Item()))
			}
		})
	}
}
