package spec

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestAnItemIsCreatedUnclaimedWhateverItsClaimSays(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		claimed := lease.Claimable{
			Owner: "A", StepID: "s", Epoch: 7, Revision: 8, Attempts: 9, AcquiredAt: noon, RenewedAt: noon, ExpiresAt: noon.AddDate(100, 0, 0),
		}
		before := time.Now().Add(-time.Microsecond)
		must(t, lease.Create(t.Context(), gdb, lease.Item{Key: "open", Payload: payload(1), Claimable: claimed, CreatedAt: noon, UpdatedAt: noon}))
		claimed.Done = true
		must(t, lease.Create(t.Context(), gdb, lease.Item{Key: "done", Payload: payload(2), Claimable: claimed}))
		for key, want := range map[string]lease.Claimable{"open": {}, "done": {Done: true}} {
			it, _, err := lease.Load(t.Context(), gdb, key)
			must(t, err)
			if it.Key != key || it.Claimable != want {
				t.Errorf("%q reads %s", key, shows(it))
			}
			if it.CreatedAt != it.UpdatedAt || it.CreatedAt.Before(before) || it.CreatedAt.After(time.Now()) || it.CreatedAt.Location() != time.UTC {
				t.Errorf("%q was created at %v, and updated at %v", key, it.CreatedAt, it.UpdatedAt)
			}
		}
	})
}

func TestAKeyIsCreatedOnce(t *testing.T) {
	for _, translate := range []bool{false, true} {
		t.Run(fmt.Sprintf("TranslateError %v", translate), func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := fresh(t, db, &gorm.Config{TranslateError: translate})
				w := newWorld(t, db, gdb)
				before := w.row(t)
				err := lease.Create(t.Context(), gdb, lease.Item{Key: "item", Payload: payload(1)})
				mustBe(t, err, gorm.ErrDuplicatedKey)
				if err == nil || !strings.Contains(err.Error(), `"item"`) {
					t.Errorf("the error does not name the key: %v", err)
				}
				w.unchanged(t, "a second Create", before)
				winners := race(t, 8, func(i int) (bool, error) {
					err := lease.Create(t.Context(), gdb, lease.Item{Key: "contended", Payload: payload(i)})
					if errors.Is(err, gorm.ErrDuplicatedKey) {
						return false, nil
					}
					return err == nil, err
				})
				if len(winners) != 1 {
					t.Errorf("%v created it", winners)
				}
			})
		})
	}
}

func TestKeysThatLookAlikeAreDifferent(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		keys := []string{"item", "Item", "item ", " item", "ítem", "i\u0301tem", "item\n", "item'", `item"`, "item?", "$1", "@item", "%", strings.Repeat("🔒", 255)}
		for i, key := range keys {
			must(t, lease.Create(t.Context(), gdb, lease.Item{Key: key, Payload: payload(i)}))
		}
		for i, key := range keys {
			h, err := lease.Claim(t.Context(), gdb, key, "A", "", time.Minute, nil)
			must(t, err)
			if h.Item().Key != key || h.Epoch() != 1 {
				t.Errorf("%q is claimed as %s", key, shows(h.Item()))
			}
			is(t, h.Item(), i)
			must(t, h.Save(t.Context(), with(h, 100+i)))
			it, _, err := lease.Load(t.Context(), gdb, key)
			must(t, err)
			is(t, it, 100+i)
		}
	})
}

func TestWhatIsNotThereIsRecordNotFound(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		it, version, err := lease.Load(t.Context(), gdb, "nothing")
		mustBe(t, err, gorm.ErrRecordNotFound)
		if version != "" || !reflect.DeepEqual(it, lease.Item{}) {
			t.Errorf("Load returns %s, %q", shows(it), version)
		}
		h, err := lease.Claim(t.Context(), gdb, "nothing", "A", "", time.Minute, nil)
		mustBe(t, err, gorm.ErrRecordNotFound)
		if h != nil || errors.Is(err, lease.ErrHeld) {
			t.Errorf("Claim is %v, %v", h, err)
		}
		if n := ask[int](t, gdb, "SELECT count(*) FROM lease_items"); n != 0 {
			t.Errorf("there are %d rows", n)
		}
	})
}

func TestCreateAndLoadJoinTheCallersTransaction(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		for how, want := range map[string]error{"commit": nil, "roll-back": gorm.ErrRecordNotFound} {
			tx := gdb.Begin()
			defer tx.Rollback()
			must(t, lease.Create(t.Context(), tx, lease.Item{Key: how, Payload: payload(1)}))
			it, _, err := lease.Load(t.Context(), tx, how)
			must(t, err)
			is(t, it, 1)
			_, _, err = lease.Load(t.Context(), gdb, how)
			mustBe(t, err, gorm.ErrRecordNotFound) // not committed yet
			if how == "commit" {
				must(t, tx.Commit().Error)
			} else {
				must(t, tx.Rollback().Error)
			}
			if _, _, err = lease.Load(t.Context(), gdb, how); !errors.Is(err, want) {
				t.Errorf("after the %s: %v", how, err)
			}
		}
	})
}

func TestEveryWriteChangesTheStringOfLoad(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		seen := map[string]string{}
		changed := func(by string) {
			t.Helper()
			w.pass(time.Second)
			_, version, err := lease.Load(t.Context(), w.gdb, "item")
			must(t, err)
			if before, ok := seen[version]; ok || version == "" {
				t.Errorf("after %s it is %q, as after %s", by, version, before)
			}
			seen[version] = by
			if _, again, _ := lease.Load(t.Context(), w.gdb, "item"); again != version {
				t.Errorf("without a write it changed from %q to %q", version, again)
			}
		}
		changed("Create")
		h := w.claim(t, "A")
		changed("Claim")
		must(t, h.Renew(t.Context()))
		changed("Renew")
		must(t, h.Save(t.Context(), with(h, 1)))
		changed("Save")
		must(t, h.Save(t.Context(), with(h, 1)))
		changed("a Save of the same")
		must(t, h.Release(t.Context()))
		changed("Release")
		w.claim(t, "A")
		changed("the next Claim")
		exec(t, w.gdb, "UPDATE lease_items SET payload = '5'")
		changed("an UPDATE of the payload by hand")
		exec(t, w.gdb, "UPDATE lease_items SET claim_attempts = 0")
		changed("an UPDATE of the claim by hand")
	})
}
