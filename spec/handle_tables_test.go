package spec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestOtherTablesAreOtherLeases(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		prefixes := []string{"app_", "APP_", "x"}
		if db.Backend == dbtest.BackendPostgres {
			exec(t, gdb, "CREATE SCHEMA infra")
			prefixes = append(prefixes, "infra.", "infra.app_", "public.b_")
		} else {
			prefixes = append(prefixes, "main.b_")
		}
		if db.Backend == dbtest.BackendSQLite {
			prefixes[1] = "Q_" // there, names of tables have no case
		}
		works(t, gdb)
		for _, prefix := range prefixes {
			other := lease.Tables(gdb, prefix)
			ensure(t, other)
			ensure(t, other)
			works(t, other)
			if s := find(t, lease.Tables(other, ""), "life"); s.Holder != "C" {
				t.Errorf("an empty prefix is not the default: %v", s)
			}
		}
		if names := tables(t, gdb); len(names) != 2*len(prefixes)+2 {
			t.Errorf("the tables are %q", names)
		}
		for i, prefix := range prefixes {
			if ok, err := lease.TryAcquire(t.Context(), lease.Tables(gdb, prefix), "job", fmt.Sprint(i), time.Minute, noon); !ok || err != nil {
				t.Errorf("%q: %v, %v", prefix, ok, err)
			}
		}
	})
}

func TestSessionsAndTransactionsKeepTheTables(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		app := lease.Tables(gdb, "app_")
		ensure(t, app)
		if ok, err := lease.TryAcquire(t.Context(), app, "job", "app's", time.Minute, noon); !ok || err != nil {
			t.Fatal(ok, err)
		}
		keeps := func(what string, handle *gorm.DB) {
			t.Helper()
			if s, err := lease.Find(t.Context(), handle, "job"); err != nil || s.Holder != "app's" {
				t.Errorf("%s: %v, %v", what, s, err)
			}
		}
		keeps("WithContext", app.WithContext(t.Context()))
		keeps("NewDB", app.Session(&gorm.Session{NewDB: true}))
		keeps("PrepareStmt", app.Session(&gorm.Session{PrepareStmt: true}))
		keeps("Debug", app.Debug().Session(&gorm.Session{Logger: logger.Discard}))
		keeps("a chain", app.Where("1 = 0").Table("strangers"))
		keeps("Tables twice", lease.Tables(lease.Tables(gdb, "other_"), "app_"))
		tx := app.Begin()
		keeps("Begin", tx)
		keeps("Begin and NewDB", tx.Session(&gorm.Session{NewDB: true}))
		if err := tx.Rollback().Error; err != nil {
			t.Error(err)
		}
		err := app.Transaction(func(tx *gorm.DB) error {
			keeps("Transaction", tx)
			return tx.Transaction(func(tx *gorm.DB) error {
				keeps("a nested Transaction", tx)
				return nil
			})
		})
		if err != nil {
			t.Error(err)
		}
		tx = gdb.Begin()
		keeps("Tables of a transaction", lease.Tables(tx, "app_"))
		if err := tx.Rollback().Error; err != nil {
			t.Error(err)
		}
		_, err = lease.Find(t.Context(), gdb, "job")
		mustBe(t, err, gorm.ErrRecordNotFound) // the handle that Tables was given is as before
	})
}

func TestTheSearchPathChoosesTheSchema(t *testing.T) {
	db := dbtest.Postgres(t)
	admin := db.Open(t)
	exec(t, admin, "CREATE SCHEMA one")
	exec(t, admin, "CREATE SCHEMA two")
	on := func(path string) *gorm.DB {
		gdb := db.OpenDSN(t, db.DSNVia("", "search_path="+path))
		ensure(t, gdb)
		ensure(t, gdb)
		return gdb
	}
	one, two := on("one"), on("two,one")
	if names := tables(t, admin); !slices.Equal(names, []string{"one.lease_items", "one.leases"}) {
		t.Fatalf("the tables are %q", names)
	}
	granted(t, one, "A", noon)
	refused(t, two, "B", noon) // it sees the same table
	alone := on("two")
	if names := tables(t, admin); !slices.Equal(names, []string{"one.lease_items", "one.leases", "two.lease_items", "two.leases"}) {
		t.Fatalf("the tables are %q", names)
	}
	granted(t, alone, "B", noon)
	refused(t, two, "C", noon)
}

func TestASchemaThatDoesNotExistIsAnErrorAtOnce(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := lease.Tables(db.Open(t), "nowhere.")
		if _, err := lease.TryAcquire(t.Context(), gdb, "job", "A", time.Minute, noon); err == nil || !strings.Contains(err.Error(), "EnsureSchema") {
			t.Errorf("TryAcquire is %v", err)
		}
		if err := lease.EnsureSchema(gdb); err == nil || !strings.Contains(err.Error(), "nowhere") {
			t.Errorf("EnsureSchema is %v", err)
		}
	})
}

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
