package spec

import (
	"fmt"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// A watched row has every kind of time that GORM keeps up to date, and a column with an odd name.
type watched struct {
	ID        string `gorm:"column:i?d"`
	Text      string `gorm:"column:what? \"text\""`
	Other     string
	UpdatedAt time.Time
	Nanos     int64 `gorm:"autoUpdateTime:nano"`
	Millis    int64 `gorm:"autoUpdateTime:milli"`
	Seconds   int64 `gorm:"autoUpdateTime"`
	Never     int64 `gorm:"autoUpdateTime;<-:create"`
	lease.Claimable
}

func TestEverySaveSetsTheTimesOfUpdates(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		at := noon
		gdb := db.Open(t, &gorm.Config{NowFunc: func() time.Time { return at }})
		must(t, gdb.AutoMigrate(&watched{}))
		must(t, gdb.Create(&watched{ID: "a"}).Error)
		h, err := lease.ClaimAs[watched](t.Context(), gdb, "a", "A", "", time.Minute, nil)
		must(t, err)
		for i, columns := range [][]string{nil, {"Text"}, {"Text", "Nanos"}, {"Done"}} {
			at = noon.Add(time.Duration(i+1) * time.Hour)
			row := h.Item()
			row.Text, row.Other = fmt.Sprint("saved ", i), "once"
			row.Millis, row.UpdatedAt = 7, time.Time{}
			must(t, h.Save(t.Context(), row, columns...))
			var got watched
			must(t, gdb.Take(&got).Error)
			if !got.UpdatedAt.Equal(at) || got.Nanos != at.UnixNano() || got.Millis != at.UnixMilli() || got.Seconds != at.Unix() || got.Never != noon.Unix() {
				t.Errorf("save %d, of %q: it was updated at %+v, not %v", i, columns, got, at)
			}
			if want := fmt.Sprint("saved ", min(i, 2)); got.Text != want || got.Other != "once" {
				t.Errorf("save %d, of %q: the texts are %q and %q", i, columns, got.Text, got.Other)
			}
			item := h.Item()
			item.UpdatedAt, item.Claimable = got.UpdatedAt, got.Claimable
			if item != got || !h.Item().UpdatedAt.Equal(at) {
				t.Errorf("save %d, of %q: Item is\n%+v, and the row\n%+v", i, columns, h.Item(), got)
			}
		}
	})
}

// A replicated row has an updated_at that GORM does not keep up to date.
type replicated struct {
	ID        uint
	Text      string
	UpdatedAt time.Time `gorm:"autoUpdateTime:false"`
	lease.Claimable
}

func TestASaveOfNamedColumnsLeavesAnUpdatedAtThatIsAnothersAlone(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, replicated{ID: 1, UpdatedAt: noon})
		h, err := lease.ClaimAs[replicated](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		later := noon.Add(time.Hour)
		must(t, gdb.Model(&replicated{ID: 1}).UpdateColumn("updated_at", later).Error)
		it := h.Item()
		it.Text = "saved"
		must(t, h.Save(t.Context(), it, "text"))
		var got replicated
		must(t, gdb.Take(&got).Error)
		if got.Text != "saved" || !got.UpdatedAt.Equal(later) {
			t.Errorf("the row is %+v", got)
		}
	})
}
