package spec

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// oldParcel is what parcels were before they could be claimed.
type oldParcel struct {
	gorm.Model
	Owner  string
	Weight int
}

func (oldParcel) TableName() string { return "parcels" }

func TestAutoMigrateBringsTheColumnsAndTheIndex(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := migrated(t, db)
		mustHaveQueue(t, gdb, "parcels")
		again, spy := spied(t, db)
		must(t, again.AutoMigrate(&customer{}, &parcel{}, &stop{}))
		if sent := spy.sent(); slices.ContainsFunc(sent, changes.MatchString) {
			t.Errorf("a second AutoMigrate sends %q", slices.DeleteFunc(sent, func(sql string) bool { return !changes.MatchString(sql) }))
		}
		parcels(t, again, 1)
		if p := stored(t, again, 1); p.Claimable != (lease.Claimable{}) {
			t.Errorf("a new row is %+v", p.Claimable)
		}
	})
}

func TestAutoMigrateBringsThemToATableWithRows(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		must(t, gdb.AutoMigrate(&oldParcel{}))
		must(t, gdb.Create([]oldParcel{{Owner: "Jane", Weight: 1}, {Owner: "Joe", Weight: 2}}).Error)
		migrated(t, db)
		mustHaveQueue(t, gdb, "parcels")
		again, spy := spied(t, db)
		must(t, again.AutoMigrate(&parcel{}))
		if sent := spy.sent(); slices.ContainsFunc(sent, changes.MatchString) {
			t.Errorf("a second AutoMigrate sends %q", slices.DeleteFunc(sent, func(sql string) bool { return !changes.MatchString(sql) }))
		}
		if n := ask[int](t, gdb, "SELECT count(*) FROM parcels WHERE claim_acquired_at IS NULL AND claim_renewed_at IS NULL AND claim_expires_at IS NULL"); n != 2 {
			t.Errorf("%d rows have no times", n)
		}
		// What nobody ever claimed comes first, and then a row that was.
		w := (&world{db: db, gdb: gdb, table: "parcels"}).byTheCallers()
		must(t, gdb.Create(&parcel{Weight: 3}).Error)
		must(t, w.parcel(t, 3, "A").Release(t.Context()))
		for range 2 {
			h := w.next(t, "A")
			if p := h.Item(); p.ID > 2 || p.Weight != int(p.ID) || p.Owner == "" || p.Claimable.Owner != "A" || h.Epoch() != 1 || h.Expired() {
				t.Errorf("ClaimNext is %s", asRead(p))
			}
			must(t, h.Renew(t.Context()))
			must(t, h.Save(t.Context(), h.Item()))
		}
		if id := w.next(t, "A").Item().ID; id != 3 {
			t.Errorf("then comes %d", id)
		}
	})
}

func TestRowsThatOtherServicesInsertAreClaimed(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := migrated(t, db)
		exec(t, gdb, "INSERT INTO parcels (id, weight) VALUES (1, 5), (2, 6)") // which leaves NULL in the model's own columns
		w := &world{db: db, gdb: gdb, table: "parcels"}
		for id := uint(1); id <= 2; id++ {
			h := w.parcel(t, id, "A")
			if p := h.Item(); p.ID != id || p.Weight != 4+int(id) || p.Owner != "" || p.Labels != nil || p.Attempts != 1 {
				t.Errorf("the claim is %s", asRead(p))
			}
			must(t, h.Save(t.Context(), h.Item(), "weight"))
			must(t, h.Release(t.Context()))
		}
	})
}

func TestATableWithoutTheColumnsIsAnErrorThatTellsTheWayOut(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		fails := func() {
			t.Helper()
			_, err := lease.ClaimAs[parcel](t.Context(), gdb, 1, "A", "", time.Minute, nil)
			_, nextErr := lease.ClaimNext[parcel](t.Context(), gdb, "A", "", time.Minute, nil)
			for _, err := range []error{err, nextErr} {
				if err == nil || !strings.Contains(err.Error(), "AutoMigrate") || !strings.Contains(err.Error(), "parcels") {
					t.Errorf("the error is %v", err)
				}
			}
		}
		fails()
		must(t, gdb.AutoMigrate(&oldParcel{}))
		fails()
	})
}
