package spec

import (
	"context"
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

type softlyGone struct {
	ID        int64 `gorm:"primaryKey;autoIncrement:false"`
	DeletedAt gorm.DeletedAt
	lease.Claimable
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

func TestARowThatIsSoftlyDeletedIsAClaimThatIsLost(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, softlyGone{ID: 1})
		h, err := lease.ClaimAs[softlyGone](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		mustBe(t, h.Run(t.Context(), func(context.Context) error { return gdb.Delete(&softlyGone{}, 1).Error }), lease.ErrLost)
	})
}

func TestAnotherWritersGORMSaveFreesNoClaim(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, byBytes{ID: []byte("key")})
		var read byBytes
		must(t, gdb.First(&read).Error)
		h, err := lease.ClaimAs[byBytes](t.Context(), gdb, []byte("key"), "A", "", time.Minute, nil)
		must(t, err)
		read.Text = "by another"
		must(t, gdb.Save(&read).Error) // all of a row that was read before the claim
		_, err = lease.ClaimAs[byBytes](t.Context(), gdb, []byte("key"), "B", "", time.Minute, nil)
		mustBe(t, err, lease.ErrHeld)
		must(t, h.Renew(t.Context()))
		must(t, h.Release(t.Context()))
	})
}

func TestAClockOutOfRangeIsInvalidAtEveryStatement(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		now := noon
		must(t, lease.Create(t.Context(), gdb, lease.Item{Key: "k"}))
		h, err := lease.Claim(t.Context(), gdb, "k", "A", "", time.Minute, func() time.Time { return now })
		must(t, err)
		now = time.Date(300_000, 1, 1, 0, 0, 0, 0, time.UTC)
		mustBe(t, h.Renew(t.Context()), lease.ErrInvalid)
		mustBe(t, h.Save(t.Context(), h.Item()), lease.ErrInvalid)
		mustBe(t, h.Release(t.Context()), lease.ErrInvalid)
		now = noon
		must(t, h.Renew(t.Context()))
	})
}
