package spec

import (
	"context"
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestOtherTablesAreOtherItems(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		run(t, db, "CREATE TABLE lease_items (tenant varchar(20));\nINSERT INTO lease_items VALUES ('Smith')")
		gdb := db.Open(t)
		prefixes := []string{"app_", "x"}
		if db.Backend == dbtest.BackendPostgres {
			exec(t, gdb, "CREATE SCHEMA infra")
			prefixes = append(prefixes, "infra.", "infra.app_", "public.b_")
		} else {
			prefixes = append(prefixes, "main.b_")
		}
		for _, prefix := range prefixes {
			mine := lease.Tables(gdb, prefix)
			ensure(t, mine)
			itemsWork(t, mine)
		}
		for _, prefix := range prefixes {
			mine := lease.Tables(gdb, prefix)
			must(t, lease.Create(t.Context(), mine, lease.Item{Key: "item"}))
			h, err := lease.Claim(t.Context(), mine, "item", "A", "", time.Minute, nil)
			must(t, err)
			must(t, h.Run(t.Context(), func(ctx context.Context) error {
				return lease.Transaction(ctx, gdb, func(tx *gorm.DB) error { return h.SaveIn(tx, with(h, 1)) }) // wherever the claim was made
			}))
			it, _, err := lease.Load(t.Context(), mine, "item")
			must(t, err)
			is(t, it, 1)
		}
		if _, err := lease.Claim(t.Context(), gdb, "item", "A", "", time.Minute, nil); err == nil || errors.Is(err, lease.ErrHeld) {
			t.Errorf("a claim in the stranger's table is %v", err)
		}
		if tenant := ask[string](t, gdb, "SELECT * FROM lease_items"); tenant != "Smith" {
			t.Errorf("the stranger's table has %q", tenant)
		}
	})
}
