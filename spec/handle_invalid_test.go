package spec

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/utils/tests"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestAHandleThatCannotServeIsInvalid(t *testing.T) {
	unknown, err := gorm.Open(tests.DummyDialector{}, &gorm.Config{ConnPool: &sql.DB{}, DisableAutomaticPing: true})
	if err != nil {
		t.Fatal(err)
	}
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		before := tables(t, gdb)
		for what, bad := range map[string]*gorm.DB{
			"nil":                     nil,
			"zero":                    {},
			"an empty Config":         {Config: &gorm.Config{}},
			"DryRun":                  gdb.Session(&gorm.Session{DryRun: true}),
			"DryRun by its config":    db.Open(t, &gorm.Config{DryRun: true}),
			"a dialect nobody knows":  unknown,
			"a prefix with a quote":   lease.Tables(gdb, `x"`),
			"a prefix with a space":   lease.Tables(gdb, "a b"),
			"a prefix with SQL":       lease.Tables(gdb, `x"; DROP TABLE leases; --`),
			"a prefix with two dots":  lease.Tables(gdb, "a.b.c"),
			"a prefix that is a dot":  lease.Tables(gdb, "."),
			"a prefix with a dash":    lease.Tables(gdb, "my-app_"),
			"a prefix with an accent": lease.Tables(gdb, "é"),
			"a prefix with a newline": lease.Tables(gdb, "app_\n"),
			"a prefix that is long":   lease.Tables(gdb, strings.Repeat("x", 64)),
			"Tables of nil":           lease.Tables(nil, "app_"),
			"Tables of zero":          lease.Tables(&gorm.DB{}, "app_"),
		} {
			_, acquireErr := lease.TryAcquire(t.Context(), bad, "job", "A", time.Minute, noon)
			_, findErr := lease.Find(t.Context(), bad, "job")
			_, listErr := lease.List(t.Context(), bad)
			term := lease.Term{Name: "job", Holder: "A", Epoch: 1}
			for call, err := range map[string]error{
				"TryAcquire":   acquireErr,
				"Release":      lease.Release(t.Context(), bad, "job", "A", noon),
				"Find":         findErr,
				"List":         listErr,
				"EnsureSchema": lease.EnsureSchema(bad),
				"Fence":        lease.Fence(bad),
				"Term.Fence":   term.Fence(bad),
				"Transaction":  lease.Transaction(lease.WithTerm(t.Context(), term), bad, func(*gorm.DB) error { return nil }),
				"Elector.Run":  (&lease.Elector{DB: bad, Name: "job", TTL: time.Minute}).Run(t.Context(), func(context.Context) {}),
			} {
				if !errors.Is(err, lease.ErrInvalid) {
					t.Errorf("%s: %s is %v", what, call, err)
				}
			}
		}
		if after := tables(t, gdb); !slices.Equal(before, after) || ask[int](t, gdb, "SELECT count(*) FROM leases") != 0 {
			t.Errorf("the tables were %q and are %q", before, after)
		}
		_, err := lease.TryAcquire(t.Context(), unknown, "job", "A", time.Minute, noon)
		if err == nil || !strings.Contains(err.Error(), `"dummy"`) {
			t.Errorf("the unknown dialect is not named: %v", err)
		}
	})
}
