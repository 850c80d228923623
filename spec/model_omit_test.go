package spec

import (
	"context"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestASaveLeavesOutWhatAHookOrACallbackDoes(t *testing.T) {
	leaves := map[string]func(tx *gorm.DB){
		"Omit":   func(tx *gorm.DB) { tx.Statement.Omit("Slug") },
		"Select": func(tx *gorm.DB) { tx.Statement.Select("Name") },
	}
	for what, leave := range leaves {
		t.Run(what+" in a hook", func(t *testing.T) {
			ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
				if name == "BeforeUpdate" {
					leave(tx)
				}
				return nil
			})
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) { leavesOutTheSlug(ctx, t, withHooks(t, db)) })
		})
		t.Run(what+" in a callback", func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := withHooks(t, db)
				must(t, gdb.Callback().Update().Before("gorm:update").Register("leaving", leave))
				leavesOutTheSlug(t.Context(), t, gdb)
			})
		})
	}
}

func TestASaveLeavesOutWhatAHookOmitsThoughThereIsAPlugin(t *testing.T) {
	ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
		if name == "BeforeUpdate" {
			tx.Statement.Omit("Slug")
		}
		return nil
	})
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		must(t, gdb.Use(idle{}))
		leavesOutTheSlug(ctx, t, gdb)
	})
}

func TestAHookThatLeavesTheClaimOutWhereThereIsAPluginIsInvalid(t *testing.T) {
	ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
		if name == "BeforeUpdate" {
			tx.Statement.Select("Name")
		}
		return nil
	})
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		must(t, gdb.Use(idle{}))
		h := claimHooked(t, gdb, "A")
		it := h.Item()
		it.Name, it.Done = "changed", true
		mustBe(t, h.Save(ctx, it), lease.ErrInvalid)
		var got hooked
		must(t, gdb.Take(&got).Error)
		if got.Name != "One" || got.Done {
			t.Errorf("the row is %+v", got)
		}
		must(t, h.Save(t.Context(), it))
	})
}

// leavesOutTheSlug saves in a context, or by a handle, that leaves the slug out, and the name in.
func leavesOutTheSlug(ctx context.Context, t *testing.T, gdb *gorm.DB) {
	statements(t, gdb, "UPDATE hookeds SET slug = 'one'")
	h := claimHooked(t, gdb, "A")
	save := func(what string, save func(it hooked) error) {
		t.Helper()
		it, revision := h.Item(), ask[int64](t, gdb, "SELECT claim_revision FROM hookeds")
		it.Name, it.Slug, it.Done = what, "changed", !it.Done
		must(t, save(it))
		var got hooked
		must(t, gdb.Take(&got).Error)
		if got.Name != what || got.Slug != "one" || h.Item().Slug != "one" {
			t.Errorf("%s: the row is %+v, and Item %+v", what, got, h.Item())
		}
		if got.Revision != revision+1 || got.Done != it.Done || got.Owner != "A" {
			t.Errorf("%s: the claim is %+v", what, got.Claimable)
		}
	}
	save("all", func(it hooked) error { return h.Save(ctx, it) })
	save("named", func(it hooked) error { return h.Save(ctx, it, "Name", "slug") })
	save("in a transaction", func(it hooked) error {
		return gdb.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, it) })
	})
}

// A choosy row's hook leaves one column out, or all but one.
type choosy struct {
	ID        uint
	Text      string
	Other     string
	Checked   string `gorm:"<-:update"`
	UpdatedAt time.Time
	lease.Claimable
}

func (c *choosy) BeforeUpdate(tx *gorm.DB) error {
	switch c.Text {
	case "omits":
		tx.Statement.Omit("other")
	case "selects":
		tx.Statement.Select("text")
	}
	return nil
}

func TestASaveWhoseHookLeavesColumnsOutWritesTheRestAndTheTime(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, choosy{ID: 1, UpdatedAt: time.Unix(1, 0)})
		h, err := lease.ClaimAs[choosy](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		for text, checked := range map[string]string{"omits": "yes", "selects": ""} {
			must(t, gdb.Exec("UPDATE choosies SET text = '', other = '', checked = '', updated_at = '2000-01-01'").Error)
			must(t, h.Save(t.Context(), choosy{Text: text, Other: "other", Checked: "yes"}))
			var row choosy
			must(t, gdb.Take(&row).Error)
			if row.Text != text || row.Other != "" || row.Checked != checked || time.Since(row.UpdatedAt) > time.Hour {
				t.Errorf("of a hook that %s the row is %+v", text, row)
			}
		}
	})
}
