package spec

import (
	"testing"

	"gorm.io/gorm"
	"gorm.io/plugin/dbresolver"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestWhatDecidesALeaseIsReadFromThePrimary(t *testing.T) {
	for backend, open := range map[string]func(testing.TB) *dbtest.Database{"sqlite": dbtest.SQLite, "postgres": dbtest.Postgres} {
		for what, config := range map[string]*gorm.Config{"plain": {}, "PrepareStmt": {PrepareStmt: true}} {
			t.Run(backend+" "+what, func(t *testing.T) {
				primary, replica := open(t), open(t)
				gdb := primary.Open(t, config)
				readsFrom(t, gdb, replica)
				ensure(t, gdb)
				ensure(t, gdb)
				for _, handle := range []*gorm.DB{
					gdb, lease.Tables(gdb, "app_"), gdb.Clauses(dbresolver.Read), gdb.Clauses(dbresolver.Write), gdb.Where("1 = 0"),
				} {
					ensure(t, handle)
					works(t, handle)
					exec(t, gdb, "DELETE FROM leases")
				}
				ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
				if err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error { return lease.Fence(tx) }); err != nil {
					t.Error(err)
				}
				err := gdb.Transaction(func(tx *gorm.DB) error {
					refused(t, tx, "B", databasesClock)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				if names := tables(t, replica.Open(t)); len(names) != 0 {
					t.Errorf("the replica has %q", names)
				}
				if err := gdb.Raw("SELECT * FROM leases").Scan(&[]map[string]any{}).Error; err == nil {
					t.Error("the plugin does not send reads to the replica, so this test checks nothing")
				}
			})
		}
	}
}

func TestWhatDecidesAClaimIsReadFromThePrimary(t *testing.T) {
	for backend, open := range map[string]func(testing.TB) *dbtest.Database{"sqlite": dbtest.SQLite, "postgres": dbtest.Postgres} {
		t.Run(backend, func(t *testing.T) {
			primary, replica := open(t), open(t)
			gdb := primary.Open(t)
			readsFrom(t, gdb, replica)
			fresh(t, primary)
			migrated(t, primary)
			for _, handle := range []*gorm.DB{gdb, gdb.Clauses(dbresolver.Read), gdb.Clauses(dbresolver.Write), gdb.Session(&gorm.Session{PrepareStmt: true})} {
				exec(t, gdb, "DELETE FROM lease_items")
				afresh(t, gdb, 0)
				itemsWork(t, handle)
				parcelsWork(t, handle, primary.Open(t))
			}
			if names := tables(t, replica.Open(t)); len(names) != 0 {
				t.Errorf("the replica has %q", names)
			}
		})
	}
}
