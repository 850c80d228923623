package spec

import (
	"slices"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestARecordReadThroughGORMHasTimesInUTC(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		granted(t, gdb, "A", noon.Add(1234567*time.Nanosecond).In(time.FixedZone("far", 5*3600)))
		want := lease.Record{
			Name: "job", Holder: "A", Epoch: 1,
			AcquiredAt: noon.Add(1234 * time.Microsecond),
			RenewedAt:  noon.Add(1234 * time.Microsecond),
			ExpiresAt:  noon.Add(time.Minute + 1234*time.Microsecond),
		}
		var first lease.Record
		if err := gdb.First(&first, "name = ?", "job").Error; err != nil || first != want {
			t.Errorf("First reads %v, %v", first, err)
		}
		var after, before []lease.Record
		if err := gdb.Where("expires_at > ?", want.ExpiresAt.UnixMicro()-1).Find(&after).Error; err != nil || !slices.Equal(after, []lease.Record{want}) {
			t.Errorf("Where reads %v, %v", after, err)
		}
		if err := gdb.Where("expires_at > ?", want.ExpiresAt.UnixMicro()).Find(&before).Error; err != nil || len(before) != 0 {
			t.Errorf("Where reads %v, %v", before, err)
		}
		if s := find(t, gdb, "job"); s.Record != want {
			t.Errorf("Find reads %v", s)
		}
	})
}

func TestARecordWrittenThroughGORMIsALease(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		local := noon.In(time.FixedZone("far", -8*3600))
		written := lease.Record{Name: "job", Holder: "A", Epoch: 7, AcquiredAt: local, RenewedAt: local, ExpiresAt: local.Add(time.Minute)}
		if err := gdb.Create(&written).Error; err != nil {
			t.Fatal(err)
		}
		refused(t, gdb, "B", noon)
		granted(t, gdb, "B", noon.Add(time.Minute))
		if s := find(t, gdb, "job"); s.Epoch != 8 {
			t.Errorf("it reads %v", s)
		}
		if err := gdb.Create(&lease.Record{Name: "never"}).Error; err != nil {
			t.Fatal(err)
		}
		var never lease.Record
		if err := gdb.Take(&never, "name = ?", "never").Error; err != nil || never != (lease.Record{Name: "never"}) {
			t.Errorf("a record without times reads %v, %v", never, err)
		}
		_, err := lease.Find(t.Context(), gdb, "never")
		mustBe(t, err, gorm.ErrRecordNotFound)
	})
}
