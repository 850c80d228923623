package spec

import (
	"errors"
	"slices"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestAModelOfTheUsersOwnIsClaimedAsAnItemIs(t *testing.T) {
	withParcels(t, 2, func(t *testing.T, w *world) {
		a := w.parcel(t, 1, "A")
		if p := a.Item(); p.ID != 1 || p.Claimable.Owner != "A" || p.Owner != "" || a.StepID() != "step of A" || a.Epoch() != 1 || p.Attempts != 1 {
			t.Errorf("the claim is %+v", p)
		}
		if got, want := asRead(a.Item()), asRead(stored(t, w.gdb, 1)); got != want {
			t.Errorf("Item is\n%s, and the row\n%s", got, want)
		}
		_, err := w.tryParcel(t, 1, "B")
		mustBe(t, err, lease.ErrHeld)
		_, err = w.tryParcel(t, 3, "B")
		mustBe(t, err, gorm.ErrRecordNotFound)
		other := w.parcel(t, 2, "B")
		w.pass(40 * time.Second)
		must(t, a.Renew(t.Context()))
		w.pass(40 * time.Second)
		_, err = w.tryParcel(t, 1, "B")
		mustBe(t, err, lease.ErrHeld)
		w.pass(20 * time.Second)
		b := w.parcel(t, 1, "B")
		if !b.Expired() || b.Epoch() != 2 || b.Item().Attempts != 2 {
			t.Errorf("the next claim is %+v, Expired %v", b.Item(), b.Expired())
		}
		row := asRead(stored(t, w.gdb, 1))
		p := a.Item()
		p.Weight = 99
		mustBe(t, a.Save(t.Context(), p), lease.ErrLost)
		mustBe(t, a.Renew(t.Context()), lease.ErrLost)
		mustBe(t, a.Release(t.Context()), lease.ErrLost)
		if after := asRead(stored(t, w.gdb, 1)); after != row {
			t.Errorf("a lost claim changed\n%s into\n%s", row, after)
		}
		must(t, other.Save(t.Context(), other.Item())) // it ran out, and nobody took it
		p = b.Item()
		p.Done = true
		must(t, b.Save(t.Context(), p))
		must(t, b.Release(t.Context()))
		_, err = w.tryParcel(t, 1, "A")
		mustBe(t, err, lease.ErrDone)
	})
}

func TestASaveWritesTheModelsOwnColumns(t *testing.T) {
	withParcels(t, 2, func(t *testing.T, w *world) {
		must(t, w.gdb.Create(&customer{ID: 7, Name: "Smith"}).Error)
		statements(t, w.gdb, "UPDATE parcels SET origin = 'Oslo', scans = 3")
		h := w.parcel(t, 1, "A")
		claim := stored(t, w.gdb, 1).Claimable
		began := time.Now()
		seven := uint(7)
		p := parcel{
			Owner: "Jane", Weight: -5, Tracked: "x", Labels: []string{"a", "ü"}, From: address{"Graz", "8010"}, Origin: "forged", Scans: 99,
			CustomerID: &seven, Model: gorm.Model{CreatedAt: noon}, Claimable: lease.Claimable{Owner: "B", Epoch: 9, Attempts: 9, Done: true},
		}
		must(t, h.Save(t.Context(), p))
		got := stored(t, w.gdb, 1)
		if got.Owner != "Jane" || got.Weight != -5 || got.Tracked != "x" || !slices.Equal(got.Labels, p.Labels) || got.From != p.From ||
			got.CustomerID == nil || *got.CustomerID != 7 || !got.CreatedAt.Equal(noon) {
			t.Errorf("the row is %s", asRead(got))
		}
		if got.Origin != "Oslo" || got.Scans != 3 {
			t.Errorf("what is only created, and only read, became %q and %d", got.Origin, got.Scans)
		}
		if got.UpdatedAt.Before(began.Truncate(time.Millisecond)) {
			t.Errorf("it was updated at %v, before %v", got.UpdatedAt, began)
		}
		claim.Done, claim.Revision = true, claim.Revision+1
		if got.Claimable != claim {
			t.Errorf("the claim is %+v, not %+v", got.Claimable, claim)
		}
		if item := h.Item(); asRead(item) != asRead(got) {
			t.Errorf("Item is\n%s, and the row\n%s", asRead(item), asRead(got))
		}
		must(t, h.Save(t.Context(), parcel{})) // zeroes are written too
		if got := stored(t, w.gdb, 1); got.Owner != "" || got.Weight != 0 || got.Labels != nil || got.CustomerID != nil || got.Done {
			t.Errorf("the row is %s", asRead(got))
		}
		if other := stored(t, w.gdb, 2); other.Weight != 2 || other.Revision != 0 {
			t.Errorf("the other row is %s", asRead(other))
		}
	})
}

func TestASaveOfNamedColumnsLeavesAnotherWritersAlone(t *testing.T) {
	for how, names := range map[string][]string{
		"as in the table": {"weight", "owner", "from_zip", "labels"}, "as in Go": {"Weight", "Owner", "Zip", "Labels"},
	} {
		t.Run(how, func(t *testing.T) {
			withParcels(t, 1, func(t *testing.T, w *world) {
				h := w.parcel(t, 1, "A")
				statements(t, w.gdb, "UPDATE parcels SET tracked = 'by another', from_town = 'Linz', updated_at = '2020-01-01 00:00:00'")
				p := h.Item()
				p.Weight, p.Owner, p.Tracked, p.From, p.Labels, p.Done = 8, "Jane", "stale", address{"stale", "8010"}, []string{"x"}, true
				must(t, h.Save(t.Context(), p, names...))
				got := stored(t, w.gdb, 1)
				if got.Weight != 8 || got.Owner != "Jane" || got.From.Zip != "8010" || !slices.Equal(got.Labels, []string{"x"}) || !got.Done {
					t.Errorf("what was named is %s", asRead(got))
				}
				if got.Tracked != "by another" || got.From.Town != "Linz" || got.Claimable.Owner != "A" {
					t.Errorf("what was not named is %s", asRead(got))
				}
				if got.UpdatedAt.Year() == 2020 {
					t.Errorf("it was updated at %v", got.UpdatedAt)
				}
				item := h.Item()
				if item.Weight != 8 || item.Owner != "Jane" || item.Tracked != "" || item.From != (address{"", "8010"}) || !item.Done ||
					!item.UpdatedAt.Truncate(time.Microsecond).Equal(got.UpdatedAt.Truncate(time.Microsecond)) {
					t.Errorf("Item is %s", asRead(item))
				}
			})
		})
	}
}

func TestOnlyDoneIsWrittenWithoutBeingNamed(t *testing.T) {
	withParcels(t, 1, func(t *testing.T, w *world) {
		h := w.parcel(t, 1, "A")
		for _, name := range []string{"Done", "claim_done"} {
			for _, done := range []bool{true, false} {
				p := h.Item()
				p.Weight, p.Done = 50, done
				must(t, h.Save(t.Context(), p, name))
				if got := stored(t, w.gdb, 1); got.Weight != 1 || got.Done != done || h.Item().Done != done || h.Item().Weight != 1 {
					t.Errorf("the row is %s", asRead(got))
				}
			}
		}
	})
}

func TestAColumnMayBeNamedMoreThanOnce(t *testing.T) {
	withParcels(t, 1, func(t *testing.T, w *world) {
		h := w.parcel(t, 1, "A")
		p := h.Item()
		p.Weight = 50
		must(t, h.Save(t.Context(), p, "weight", "Weight", "updated_at", "UpdatedAt", "Done", "claim_done"))
		if got := stored(t, w.gdb, 1); got.Weight != 50 || asRead(h.Item()) != asRead(got) {
			t.Errorf("Item is\n%s, and the row\n%s", asRead(h.Item()), asRead(got))
		}
	})
}

func TestAColumnThatIsNotForSaveToWriteIsInvalid(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		parcels(t, migrated(t, db), 2)
		gdb, spy := spied(t, db)
		h, err := lease.ClaimAs[parcel](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		spy.sent()
		for _, name := range []string{
			"id", "ID", "claim_owner", "claim_epoch", "claim_revision", "Revision", "StepID", "Epoch", "origin", "Origin", "scans", "Scans", "Memo", "memo",
			"Customer", "Stops", "From", "Model", "Claimable", "*", "", "WEIGHT", "weight, owner", "nothing", "from_Zip", "parcels.weight",
		} {
			if err := h.Save(t.Context(), h.Item(), "weight", name); !errors.Is(err, lease.ErrInvalid) {
				t.Errorf("a save of %q is %v", name, err)
			}
		}
		other := h.Item()
		other.ID = 2
		mustBe(t, h.Save(t.Context(), other), lease.ErrInvalid)
		mustBe(t, h.Save(t.Context(), other, "weight"), lease.ErrInvalid)
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
		other.ID, other.Weight = 0, 77
		must(t, h.Save(t.Context(), other))
		if h.Item().ID != 1 || stored(t, gdb, 1).Weight != 77 || stored(t, gdb, 2).Weight != 2 {
			t.Errorf("without a key it wrote %s and %s", asRead(stored(t, gdb, 1)), asRead(stored(t, gdb, 2)))
		}
	})
}

func TestAssociationsAreNeverSavedAlong(t *testing.T) {
	for what, config := range map[string]*gorm.Config{"plain": {}, "FullSaveAssociations": {FullSaveAssociations: true}} {
		t.Run(what, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := migrated(t, db, config)
				must(t, gdb.Create(&parcel{Customer: &customer{Name: "Smith"}, Stops: []stop{{Town: "Oslo"}}}).Error)
				h, err := lease.ClaimNext[parcel](t.Context(), gdb, "A", "", time.Minute, nil)
				must(t, err)
				p := h.Item()
				if p.CustomerID == nil || p.Customer != nil {
					t.Fatalf("the claim is %s", asRead(p))
				}
				p.Customer = &customer{ID: *p.CustomerID, Name: "Jones"}
				p.Stops = []stop{{Town: "Graz"}, {Town: "Linz"}}
				p.Weight = 5
				must(t, h.Save(t.Context(), p))
				must(t, h.Save(t.Context(), p, "weight", "customer_id"))
				must(t, gdb.Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, p) }))
				p.CustomerID, p.Customer = nil, &customer{Name: "Brown"}
				must(t, h.Save(t.Context(), p))
				if got := stored(t, gdb, p.ID); got.Weight != 5 || got.CustomerID != nil {
					t.Errorf("the row is %s", asRead(got))
				}
				if n, name := ask[int](t, gdb, "SELECT count(*) FROM customers"), ask[string](t, gdb, "SELECT name FROM customers"); n != 1 || name != "Smith" {
					t.Errorf("there are %d customers, and one is %s", n, name)
				}
				if n := ask[int](t, gdb, "SELECT count(*) FROM stops"); n != 1 {
					t.Errorf("there are %d stops", n)
				}
			})
		})
	}
}

func TestARowThatIsSoftDeletedIsNotThere(t *testing.T) {
	withParcels(t, 2, func(t *testing.T, w *world) {
		h := w.parcel(t, 1, "A")
		renewing := w.parcel(t, 2, "A")
		must(t, w.gdb.Delete(&parcel{}, 2).Error)
		mustBe(t, renewing.Renew(t.Context()), lease.ErrLost)
		must(t, w.gdb.Unscoped().Model(&parcel{}).Where("id = 2").Update("deleted_at", nil).Error)
		must(t, w.gdb.Delete(&parcel{}, 1).Error)
		before := asRead(stored(t, w.gdb, 1))
		_, err := w.tryParcel(t, 1, "A")
		mustBe(t, err, gorm.ErrRecordNotFound)
		mustBe(t, w.gdb.Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx.Unscoped(), h.Item()) }), lease.ErrLost)
		mustBe(t, h.Save(t.Context(), h.Item()), lease.ErrLost)
		if after := asRead(stored(t, w.gdb, 1)); after != before {
			t.Errorf("the row was\n%s and is\n%s", before, after)
		}
		w.pass(time.Hour)
		if id := w.next(t, "B").Item().ID; id != 2 {
			t.Errorf("ClaimNext took parcel %d", id)
		}
		_, err = w.tryNext(t, "B")
		mustBe(t, err, gorm.ErrRecordNotFound)
		h = w.parcel(t, 2, "B")
		p := h.Item()
		p.DeletedAt = gorm.DeletedAt{Time: noon, Valid: true}
		must(t, h.Save(t.Context(), p)) // a column like others, for a save
		_, err = w.tryParcel(t, 2, "B")
		mustBe(t, err, gorm.ErrRecordNotFound)
	})
}
