package spec

import (
	"fmt"
	"strings"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/sqllease/lease/internal/dbtest"
)

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

func TestItemsWorkOnOneConnection(t *testing.T) {
	for _, prepare := range []bool{false, true} {
		t.Run(fmt.Sprintf("PrepareStmt %v", prepare), func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := db.Open(t, &gorm.Config{PrepareStmt: prepare})
				pool(t, gdb).SetMaxOpenConns(1)
				ensure(t, gdb)
				itemsWork(t, gdb)
				must(t, gdb.Connection(func(conn *gorm.DB) error {
					exec(t, conn, "DELETE FROM lease_items")
					itemsWork(t, conn)
					return nil
				}))
			})
		})
	}
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
