package spec

import (
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// Models, and callers, that are odd.

type byBytes struct {
	ID   []byte `gorm:"primaryKey"`
	Text string
	lease.Claimable
}

type pointedTo struct {
	ID   *int64 `gorm:"primaryKey;autoIncrement:false"`
	Text string
	lease.Claimable
}

type renamesItself struct {
	ID   int64 `gorm:"primaryKey;autoIncrement:false"`
	Text string
	lease.Claimable
}

func (r *renamesItself) BeforeUpdate(*gorm.DB) error {
	r.ID = 77
	return nil
}

// withRow makes the table of a model, with one row.
func withRow[T any](t *testing.T, db *dbtest.Database, row T) *gorm.DB {
	t.Helper()
	gdb := db.Open(t)
	must(t, gdb.AutoMigrate(&row))
	must(t, gdb.Create(&row).Error)
	return gdb
}

func TestAKeyMayBeBytes(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, byBytes{ID: []byte("key")})
		h, err := lease.ClaimAs[byBytes](t.Context(), gdb, []byte("key"), "A", "", time.Minute, nil)
		must(t, err)
		it := h.Item()
		it.Text = "saved"
		must(t, h.Save(t.Context(), it))
		mustBe(t, h.Save(t.Context(), byBytes{ID: []byte("other")}), lease.ErrInvalid)
		must(t, h.Release(t.Context()))
		if text := ask[string](t, gdb, "SELECT text FROM by_bytes WHERE claim_owner = ''"); text != "saved" {
			t.Errorf("the row says %q", text)
		}
	})
}

func TestAClaimIsOfTheRowThatItClaimedWhateverBecomesOfAPointerToItsKey(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		one, two := int64(1), int64(2)
		gdb := withRow(t, db, pointedTo{ID: &one})
		must(t, gdb.Create(&pointedTo{ID: &two}).Error)
		_, err := lease.ClaimAs[pointedTo](t.Context(), gdb, (*int64)(nil), "A", "", time.Minute, nil)
		mustBe(t, err, lease.ErrInvalid)
		h, err := lease.ClaimAs[pointedTo](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		it := h.Item()
		*it.ID, it.Text = 2, "elsewhere"
		mustBe(t, h.Save(t.Context(), it), lease.ErrInvalid)
		must(t, h.Save(t.Context(), pointedTo{Text: "here"}))
		must(t, h.Renew(t.Context()))
		if n := ask[int](t, gdb, "SELECT count(*) FROM pointed_tos WHERE id = 1 AND text = 'here' OR id = 2 AND text = ''"); n != 2 {
			t.Errorf("%d rows are as they should be", n)
		}
	})
}

func TestAHookThatChangesTheKeyIsInvalidAndCostsNoClaim(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, renamesItself{ID: 1})
		h, err := lease.ClaimAs[renamesItself](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		mustBe(t, h.Save(t.Context(), h.Item()), lease.ErrInvalid)
		must(t, h.Renew(t.Context()))
	})
}
