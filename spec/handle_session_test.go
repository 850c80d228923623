package spec

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestWhateverTheHandleCarriesLeasesWorkAsOnACleanOne(t *testing.T) {
	type stranger struct{ ID int }
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for what, carry := range map[string]func(db *gorm.DB) *gorm.DB{
		"nothing":      func(db *gorm.DB) *gorm.DB { return db },
		"Where":        func(db *gorm.DB) *gorm.DB { return db.Where("1 = 0") },
		"Model":        func(db *gorm.DB) *gorm.DB { return db.Model(&stranger{}) },
		"Limit":        func(db *gorm.DB) *gorm.DB { return db.Limit(0).Offset(5) },
		"Table":        func(db *gorm.DB) *gorm.DB { return db.Table("strangers") },
		"Select":       func(db *gorm.DB) *gorm.DB { return db.Select("holder") },
		"Omit":         func(db *gorm.DB) *gorm.DB { return db.Omit("epoch", "ExpiresAt") },
		"Joins, Group": func(db *gorm.DB) *gorm.DB { return db.Joins("JOIN strangers ON 1 = 0").Group("id").Having("1 = 0") },
		"Scopes":       func(db *gorm.DB) *gorm.DB { return db.Scopes(func(db *gorm.DB) *gorm.DB { return db.Where("1 = 0") }) },
		"Clauses": func(db *gorm.DB) *gorm.DB {
			return db.Clauses(clause.OnConflict{DoNothing: true}, clause.Returning{}, clause.Locking{Strength: "UPDATE"})
		},
		"Unscoped, Order, Distinct": func(db *gorm.DB) *gorm.DB { return db.Unscoped().Order("nowhere").Distinct() },
		"Attrs, Assign":             func(db *gorm.DB) *gorm.DB { return db.Attrs("name", "x").Assign("holder", "x") },
		"Raw":                       func(db *gorm.DB) *gorm.DB { return db.Raw("SELECT 1") },
		"Set":                       func(db *gorm.DB) *gorm.DB { return db.Set("gorm:table_options", "nonsense") },
		"a chain that was used": func(db *gorm.DB) *gorm.DB {
			tx := db.Table("leases").Where("1 = 0")
			tx.Find(&[]map[string]any{})
			return tx
		},
		"a sticky error": func(db *gorm.DB) *gorm.DB {
			tx := db.Session(&gorm.Session{})
			_ = tx.AddError(errors.New("sticky"))
			return tx
		},
		"a failed statement's error": func(db *gorm.DB) *gorm.DB { return db.Exec("nonsense") },
		"a cancelled context":        func(db *gorm.DB) *gorm.DB { return db.WithContext(cancelled) },
		"PrepareStmt":                func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{PrepareStmt: true}) },
		"SkipDefaultTransaction":     func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{SkipDefaultTransaction: true}) },
		"every other setting": func(db *gorm.DB) *gorm.DB {
			return db.Session(&gorm.Session{
				NewDB: true, Initialized: true, SkipHooks: true, DisableNestedTransaction: true, AllowGlobalUpdate: true,
				FullSaveAssociations: true, PropagateUnscoped: true, QueryFields: true, CreateBatchSize: 1,
				NowFunc: func() time.Time { return time.Time{} },
			})
		},
		"a plugin that adds conditions": func(db *gorm.DB) *gorm.DB {
			none := func(db *gorm.DB) { db.Where("tenant = 0") }
			for _, err := range []error{
				db.Callback().Query().Before("gorm:query").Register("none", none),
				db.Callback().Row().Before("gorm:row").Register("none", none),
				db.Callback().Update().Before("gorm:update").Register("none", none),
				db.Callback().Raw().Before("gorm:raw").Register("none", func(db *gorm.DB) { _ = db.AddError(errors.New("raw SQL is forbidden")) }),
			} {
				if err != nil {
					panic(err)
				}
			}
			return db
		},
	} {
		t.Run(what, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				fresh(t, db)
				works(t, carry(db.Open(t)))
			})
		})
	}
}

func TestWhateverTheConfigSaysLeasesKeepToTheirTable(t *testing.T) {
	for what, config := range map[string]*gorm.Config{
		"PrepareStmt":             {PrepareStmt: true},
		"SkipDefaultTransaction":  {SkipDefaultTransaction: true},
		"TranslateError":          {TranslateError: true},
		"a naming strategy":       {NamingStrategy: schema.NamingStrategy{TablePrefix: "app_", SingularTable: true, NameReplacer: strings.NewReplacer("e", "3")}},
		"a prefix with a schema":  {NamingStrategy: schema.NamingStrategy{TablePrefix: "infra.", NoLowerCase: true}},
		"CreateBatchSize and all": {CreateBatchSize: 1, QueryFields: true, FullSaveAssociations: true, DisableForeignKeyConstraintWhenMigrating: true},
	} {
		t.Run(what, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := fresh(t, db, config)
				ensure(t, gdb)
				works(t, gdb)
				if names := tables(t, db.Open(t)); strings.ReplaceAll(strings.Join(names, " "), "public.", "") != "lease_items leases" {
					t.Errorf("the tables are %q", names)
				}
			})
		})
	}
}

func TestEnsureSchemaWorksWhateverTheHandleCarries(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		carrying := gdb.Table("strangers").Where("1 = 0").Model(&struct{ ID int }{}).Select("holder").Omit("epoch").Limit(0)
		_ = carrying.AddError(errors.New("sticky"))
		ensure(t, carrying)
		works(t, gdb)
	})
}

func TestLeasesWorkInAnotherProtocolOrSessionOfPostgres(t *testing.T) {
	for _, param := range []string{
		"default_query_exec_mode=simple_protocol", "default_query_exec_mode=exec", "default_query_exec_mode=describe_exec",
		"DateStyle=German", "IntervalStyle=sql_standard", "extra_float_digits=-15", "standard_conforming_strings=off",
		"default_transaction_isolation=serializable", "default_transaction_isolation='repeatable read'",
		"idle_in_transaction_session_timeout=2d", "synchronous_commit=off", "search_path=public,pg_catalog",
	} {
		t.Run(param, func(t *testing.T) {
			db := dbtest.Postgres(t)
			name, value, _ := strings.Cut(param, "=")
			gdb := fresh(t, &dbtest.Database{Backend: db.Backend, DSN: db.DSNVia("", name+"="+strings.Trim(value, "'"))})
			works(t, gdb)
			fenced := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
			if err := lease.Transaction(fenced, gdb, func(*gorm.DB) error { return nil }); err != nil {
				t.Error(err)
			}
		})
	}
}

// strange is what a caller's handle may carry.
var strange = map[string]func(db *gorm.DB) *gorm.DB{
	"nothing":      func(db *gorm.DB) *gorm.DB { return db },
	"Where":        func(db *gorm.DB) *gorm.DB { return db.Where("1 = 0") },
	"Model":        func(db *gorm.DB) *gorm.DB { return db.Model(&lease.Record{}) },
	"Limit":        func(db *gorm.DB) *gorm.DB { return db.Limit(0).Offset(5) },
	"Table":        func(db *gorm.DB) *gorm.DB { return db.Table("strangers") },
	"Select":       func(db *gorm.DB) *gorm.DB { return db.Select("key") },
	"Omit":         func(db *gorm.DB) *gorm.DB { return db.Omit("payload", "claim_epoch", "Done") },
	"Joins, Group": func(db *gorm.DB) *gorm.DB { return db.Joins("JOIN strangers ON 1 = 0").Group("id").Having("1 = 0") },
	"Scopes":       func(db *gorm.DB) *gorm.DB { return db.Scopes(func(db *gorm.DB) *gorm.DB { return db.Where("1 = 0") }) },
	"Clauses": func(db *gorm.DB) *gorm.DB {
		return db.Clauses(clause.OnConflict{DoNothing: true}, clause.Returning{}, clause.Locking{Strength: "UPDATE"})
	},
	"Unscoped, Order": func(db *gorm.DB) *gorm.DB { return db.Unscoped().Order("nowhere").Distinct() },
	"Attrs, Assign":   func(db *gorm.DB) *gorm.DB { return db.Attrs("key", "x").Assign("claim_owner", "x") },
	"Raw":             func(db *gorm.DB) *gorm.DB { return db.Raw("SELECT 1") },
	"Preload":         func(db *gorm.DB) *gorm.DB { return db.Preload("Nothing") },
	"a sticky error": func(db *gorm.DB) *gorm.DB {
		tx := db.Session(&gorm.Session{})
		_ = tx.AddError(errors.New("sticky"))
		return tx
	},
	"a failed statement's error": func(db *gorm.DB) *gorm.DB { return db.Exec("nonsense") },
	"a cancelled context": func(db *gorm.DB) *gorm.DB {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return db.WithContext(ctx)
	},
	"PrepareStmt":            func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{PrepareStmt: true}) },
	"SkipDefaultTransaction": func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{SkipDefaultTransaction: true}) },
	"SkipHooks":              func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{SkipHooks: true}) },
	"every other setting": func(db *gorm.DB) *gorm.DB {
		return db.Session(&gorm.Session{
			NewDB: true, Initialized: true, DisableNestedTransaction: true, AllowGlobalUpdate: true,
			FullSaveAssociations: true, PropagateUnscoped: true, QueryFields: true, CreateBatchSize: 1,
		})
	},
	"PropagateUnscoped and Unscoped": func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{PropagateUnscoped: true}).Unscoped() },
}

func TestWhateverTheHandleCarriesItemsWorkAsOnACleanOne(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		for what, carry := range strange {
			t.Run(what, func(t *testing.T) {
				exec(t, gdb, "DELETE FROM lease_items")
				itemsWork(t, carry(db.Open(t)))
			})
		}
	})
}

func TestAPluginThatAddsConditionsDoesNotReachItems(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		none := func(db *gorm.DB) { db.Where("tenant = 0") }
		must(t, gdb.Callback().Query().Before("gorm:query").Register("none", none))
		must(t, gdb.Callback().Row().Before("gorm:row").Register("none", none))
		must(t, gdb.Callback().Update().Before("gorm:update").Register("none", none))
		itemsWork(t, gdb)
	})
}

func TestWhateverTheConfigSaysItemsKeepToTheirTable(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		for what, config := range map[string]*gorm.Config{
			"PrepareStmt":             {PrepareStmt: true},
			"SkipDefaultTransaction":  {SkipDefaultTransaction: true},
			"TranslateError":          {TranslateError: true},
			"a naming strategy":       {NamingStrategy: schema.NamingStrategy{TablePrefix: "app_", SingularTable: true, NameReplacer: strings.NewReplacer("e", "3")}},
			"a prefix with a schema":  {NamingStrategy: schema.NamingStrategy{TablePrefix: "infra.", NoLowerCase: true}},
			"CreateBatchSize and all": {CreateBatchSize: 1, QueryFields: true, FullSaveAssociations: true},
		} {
			t.Run(what, func(t *testing.T) {
				gdb := fresh(t, db, config)
				ensure(t, gdb)
				exec(t, gdb, "DELETE FROM lease_items")
				itemsWork(t, gdb)
				if names := tables(t, db.Open(t)); len(names) != 2 {
					t.Errorf("the tables are %q", names)
				}
			})
		}
	})
}

func TestItemsWorkInAnotherProtocolOrSessionOfPostgres(t *testing.T) {
	db := dbtest.Postgres(t)
	fresh(t, db)
	for _, param := range []string{
		"default_query_exec_mode=simple_protocol", "default_query_exec_mode=exec", "default_query_exec_mode=describe_exec",
		"DateStyle=German", "IntervalStyle=sql_standard", "standard_conforming_strings=off", "timezone=Asia/Tokyo",
		"default_transaction_isolation=serializable", "synchronous_commit=off", "search_path=public,pg_catalog",
	} {
		t.Run(param, func(t *testing.T) {
			gdb := db.OpenDSN(t, db.DSNVia("", param))
			exec(t, gdb, "DELETE FROM lease_items")
			itemsWork(t, gdb)
		})
	}
}

func TestWhateverTheHandleCarriesModelsWorkAsOnACleanOne(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		clean := migrated(t, db)
		for what, carry := range strange {
			t.Run(what, func(t *testing.T) {
				afresh(t, clean, 0)
				parcelsWork(t, carry(db.Open(t)), clean)
			})
		}
	})
}

func TestAHandleThatSkipsHooksDoesNotSkipThoseOfASave(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db).Session(&gorm.Session{SkipHooks: true})
		h := claimHooked(t, gdb, "A")
		ctx := hookedBy(t, func(_ string, _ *hooked, tx *gorm.DB) error { return note(tx) })
		must(t, h.Save(ctx, h.Item()))
		if n := notes(t, gdb); n != 4 || h.Item().Found != "A 1" {
			t.Errorf("%d hooks ran, and AfterFind saw %q", n, h.Item().Found)
		}
	})
}
