package spec

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/schema"
	"gorm.io/gorm/utils/tests"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// A spy is a connection pool that notes every statement that passes through it, and can fail it.
type spy struct {
	*sql.DB
	fail  func(query string) error      // nil fails nothing
	after func(query string, err error) // nil does nothing

	mu         sync.Mutex // guards statements
	statements []string
}

// spied opens a handle on db whose pool is a spy.
func spied(t *testing.T, db *dbtest.Database, opts ...gorm.Option) (*gorm.DB, *spy) {
	t.Helper()
	s := &spy{DB: db.SQL(t)}
	dialector := sqlite.New(sqlite.Config{Conn: s})
	if db.Backend == dbtest.BackendPostgres {
		dialector = postgres.New(postgres.Config{Conn: s})
	}
	gdb, err := gorm.Open(dialector, append(opts, &gorm.Config{Logger: logger.Discard})...)
	if err != nil {
		t.Fatal(err)
	}
	s.sent() // what gorm asks when it opens
	return gdb, s
}

// sent returns the statements since the last call.
func (s *spy) sent() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.statements = nil }()
	return s.statements
}

func (s *spy) note(query string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements = append(s.statements, query)
	if s.fail != nil {
		return s.fail(query)
	}
	return nil
}

func (s *spy) exec(ctx context.Context, to gorm.ConnPool, query string, args []any) (sql.Result, error) {
	if err := s.note(query); err != nil {
		return nil, err
	}
	result, err := to.ExecContext(ctx, query, args...)
	if s.after != nil {
		s.after(query, err)
	}
	return result, err
}

func (s *spy) query(ctx context.Context, from gorm.ConnPool, query string, args []any) (*sql.Rows, error) {
	if err := s.note(query); err != nil {
		return nil, err
	}
	return from.QueryContext(ctx, query, args...)
}

func (s *spy) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return s.exec(ctx, s.DB, query, args)
}

func (s *spy) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return s.query(ctx, s.DB, query, args)
}

func (s *spy) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	_ = s.note(query)
	return s.DB.QueryRowContext(ctx, query, args...)
}

func (s *spy) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	_ = s.note("PREPARE " + query)
	return s.DB.PrepareContext(ctx, query)
}

func (s *spy) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	if err := s.note("BEGIN"); err != nil {
		return nil, err
	}
	tx, err := s.DB.BeginTx(ctx, opts)
	return &spiedTx{Tx: tx, spy: s}, err
}

type spiedTx struct {
	*sql.Tx
	spy *spy
}

func (tx *spiedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return tx.spy.exec(ctx, tx.Tx, query, args)
}

func (tx *spiedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return tx.spy.query(ctx, tx.Tx, query, args)
}

// works runs a lease through its life on a handle: whatever the handle carries, it must behave as a clean one.
func works(t *testing.T, gdb *gorm.DB) {
	t.Helper()
	ctx := t.Context()
	try := func(want bool, holder string, now time.Time) {
		t.Helper()
		if ok, err := lease.TryAcquire(ctx, gdb, "life", holder, time.Minute, now); ok != want || err != nil {
			t.Fatalf("TryAcquire by %s is %v, %v", holder, ok, err)
		}
	}
	now := time.Now()
	try(true, "A", now)
	try(false, "B", now)
	try(true, "A", now.Add(time.Minute/2))
	s, err := lease.Find(ctx, gdb, "life")
	if err != nil || s.Holder != "A" || s.Epoch != 1 || !s.Held || s.RenewedAt.Sub(s.AcquiredAt) != time.Minute/2 {
		t.Fatalf("Find is %+v, %v", s, err)
	}
	if all, err := lease.List(ctx, gdb); err != nil || len(all) != 1 || all[0].Record != s.Record {
		t.Fatalf("List is %+v, %v", all, err)
	}
	try(true, "B", now.Add(2*time.Minute))
	if err := lease.Release(ctx, gdb, "life", "B", now.Add(2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	try(true, "C", now.Add(2*time.Minute))
	if s, err = lease.Find(ctx, gdb, "life"); err != nil || s.Holder != "C" || s.Epoch != 3 || !s.AcquiredAt.Equal(now.Add(2*time.Minute).Truncate(time.Microsecond)) {
		t.Fatalf("Find is %+v, %v", s, err)
	}
}

// tables returns the names of the user's tables, schema first on Postgres.
func tables(t *testing.T, gdb *gorm.DB) (names []string) {
	t.Helper()
	query := "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
	if gdb.Name() == "postgres" {
		query = `SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
ORDER BY 1`
	}
	if err := gdb.Raw(query).Scan(&names).Error; err != nil {
		t.Fatal(err)
	}
	return names
}

// What a handle may carry

func TestWhateverTheHandleCarriesItWorksAsACleanOne(t *testing.T) { // C24
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

func TestWhateverTheConfigSaysItWorksAndKeepsToItsTable(t *testing.T) { // C24, C26
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

func TestEnsureSchemaWorksWhateverTheHandleCarries(t *testing.T) { // C24
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		carrying := gdb.Table("strangers").Where("1 = 0").Model(&struct{ ID int }{}).Select("holder").Omit("epoch").Limit(0)
		_ = carrying.AddError(errors.New("sticky"))
		ensure(t, carrying)
		works(t, gdb)
	})
}

func TestAnythingOnOneConnectionWorks(t *testing.T) { // C34, C35
	for _, prepare := range []bool{false, true} {
		t.Run(fmt.Sprintf("PrepareStmt %v", prepare), func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := db.Open(t, &gorm.Config{PrepareStmt: prepare})
				pool(t, gdb).SetMaxOpenConns(1)
				ensure(t, gdb)
				works(t, gdb)
				err := gdb.Connection(func(conn *gorm.DB) error {
					exec(t, conn, "DELETE FROM leases")
					works(t, conn)
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestAnotherProtocolOrSessionOfPostgresWorks(t *testing.T) { // C33
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

func TestWorkInATransactionOnASmallPoolHangsNobodyForGood(t *testing.T) { // C34
	for _, conns := range []int{1, 2} {
		t.Run(fmt.Sprint(conns), func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := db.Open(t, &gorm.Config{PrepareStmt: true})
				pool(t, gdb).SetMaxOpenConns(conns)
				ensure(t, gdb)
				// The whole pool is in transactions: the call waits no longer than its context.
				var busy []*gorm.DB
				for range conns {
					tx := gdb.Begin()
					exec(t, tx, "SELECT 1")
					busy = append(busy, tx)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				_, err := lease.TryAcquire(ctx, gdb, "job", "A", time.Minute, noon)
				mustBe(t, err, context.DeadlineExceeded)
				refused := busy[0].Exec("SELECT 2") // a statement that no cache knows yet
				if refused.Error != nil {
					t.Error(refused.Error)
				}
				for _, tx := range busy {
					if err := tx.Rollback().Error; err != nil {
						t.Error(err)
					}
				}
				granted(t, gdb, "A", noon)
				// Work in transactions and renewals beside it.
				ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				winners := race(t, 6, func(i int) (bool, error) {
					if i == 0 {
						ok := true
						for n := 0; ok && n < 20; n++ {
							var err error
							if ok, err = lease.TryAcquire(ctx, gdb, "job", "A", time.Minute, noon); err != nil {
								return false, err
							}
						}
						return ok, nil
					}
					return true, gdb.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
						var n int
						return tx.Raw(fmt.Sprintf("SELECT %d", i)).Scan(&n).Error
					})
				})
				if len(winners) != 6 {
					t.Errorf("only %v went through", winners)
				}
			})
		})
	}
}

// What is no handle

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

// Memory

func TestSQLiteInMemoryWithSeveralConnectionsIsRefused(t *testing.T) { // C23
	for _, dsn := range []string{":memory:", "", "file::memory:", "file:x?mode=memory"} {
		t.Run(dsn, func(t *testing.T) {
			gdb := memory(t, dsn)
			err := lease.EnsureSchema(gdb)
			mustBe(t, err, lease.ErrInvalid)
			saysSo := func(err error) bool { return err != nil && strings.Contains(err.Error(), "SetMaxOpenConns(1)") }
			if !saysSo(err) {
				t.Errorf("the error does not tell the way out: %v", err)
			}
			elector := lease.Elector{DB: gdb, Name: "job", TTL: time.Second, Logger: quiet}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- elector.Run(ctx, func(context.Context) { t.Error("it leads") }) }()
			waitUntil(t, "Health says so", func() bool { return saysSo(elector.Health()) })
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestSQLiteInMemoryWorksOnOneConnectionOrASharedCache(t *testing.T) { // C23
	t.Run("one connection", func(t *testing.T) {
		gdb := memory(t, ":memory:")
		pool(t, gdb).SetMaxOpenConns(1)
		ensure(t, gdb)
		ensure(t, gdb)
		works(t, gdb)
	})
	t.Run("a shared cache", func(t *testing.T) {
		gdb := memory(t, "file:"+strings.ReplaceAll(t.Name(), "/", "-")+"?mode=memory&cache=shared")
		ensure(t, gdb)
		ensure(t, gdb)
		works(t, gdb)
		for round := range 10 {
			winners := race(t, 8, func(i int) (bool, error) {
				return lease.TryAcquire(t.Context(), gdb, "job", fmt.Sprint(i), time.Minute, noon.Add(time.Duration(round)*time.Hour))
			})
			if len(winners) != 1 {
				t.Fatalf("%v won", winners)
			}
		}
	})
}

func memory(t *testing.T, dsn string) *gorm.DB {
	return (&dbtest.Database{Backend: dbtest.BackendSQLite, DSN: dsn}).Open(t)
}

// Tables

func TestOtherTablesAreOtherLeases(t *testing.T) { // C26
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

func TestSessionsAndTransactionsKeepTheTables(t *testing.T) { // C26
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

func TestTheSearchPathChoosesTheSchema(t *testing.T) { // C26
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

// The log

func TestNothingIsLoggedThroughGORM(t *testing.T) { // C27
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		fresh(t, db)
		var lines bytes.Buffer
		noisy := logger.New(log.New(&lines, "", 0), logger.Config{LogLevel: logger.Info, SlowThreshold: 1})
		gdb := db.Open(t, &gorm.Config{Logger: noisy})
		lines.Reset()
		granted(t, gdb, "A", noon)
		for range 100 {
			refused(t, gdb, "B", noon)
		}
		release(t, gdb, "A", noon)
		_, err := lease.Find(t.Context(), gdb, "nobody's")
		mustBe(t, err, gorm.ErrRecordNotFound)
		if lines.Len() > 0 {
			t.Errorf("logged: %s", lines.String())
		}
		exec(t, gdb, "SELECT 1")
		if lines.Len() == 0 {
			t.Error("the logger records nothing, so this test checks nothing")
		}
	})
}

func TestAFailingSelectIsAnErrorAndNotAFreeLease(t *testing.T) { // C27
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		fresh(t, db)
		gdb, spy := spied(t, db)
		failure := errors.New("the network is down")
		spy.fail = func(query string) error {
			if strings.HasPrefix(query, "SELECT") {
				return failure
			}
			return nil
		}
		ok, err := lease.TryAcquire(t.Context(), gdb, "job", "A", time.Minute, noon)
		if ok {
			t.Error("it was granted")
		}
		mustBe(t, err, failure)
		if sent := spy.sent(); len(sent) != 1 {
			t.Errorf("after the failure it went on: %q", sent)
		}
	})
}

// The cost

func TestAttemptsCostAsFewStatementsAsTheyCan(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		fresh(t, db)
		gdb, spy := spied(t, db)
		costs := func(what string, want ...string) {
			t.Helper()
			var verbs []string
			for _, query := range spy.sent() {
				verbs = append(verbs, query[:6])
			}
			if !slices.Equal(verbs, want) {
				t.Errorf("%s sent %q, not %q", what, verbs, want)
			}
		}
		granted(t, gdb, "A", noon)
		costs("the first acquisition of all", "SELECT", "INSERT", "UPDATE")
		refused(t, gdb, "B", noon)
		costs("a refusal", "SELECT")
		granted(t, gdb, "A", noon)
		costs("a renewal", "SELECT", "UPDATE")
		granted(t, gdb, "B", noon.Add(time.Hour))
		costs("a takeover", "SELECT", "UPDATE")
		release(t, gdb, "B", noon.Add(time.Hour))
		costs("a release", "UPDATE")
		find(t, gdb, "job")
		costs("a Find", "SELECT")
		if _, err := lease.List(t.Context(), gdb); err != nil {
			t.Error(err)
		}
		costs("a List", "SELECT")
	})
}

func TestARefusalWritesNothingAndLocksNoRow(t *testing.T) {
	gdb := fresh(t, dbtest.Postgres(t))
	granted(t, gdb, "A", noon)
	tx := gdb.Begin()
	defer tx.Rollback()
	refused(t, tx, "B", noon)
	if ask[bool](t, tx, "SELECT txid_current_if_assigned() IS NOT NULL") {
		t.Error("it has a transaction id, so it wrote")
	}
	if n := ask[int](t, tx, `SELECT count(*) FROM pg_locks
WHERE pid = pg_backend_pid() AND relation = 'leases'::regclass AND mode <> 'AccessShareLock'`); n != 0 {
		t.Errorf("it holds %d locks on the table", n)
	}
	exec(t, gdb, "SELECT * FROM leases FOR UPDATE NOWAIT")
}

func TestARefusalWaitsForNoLock(t *testing.T) {
	db := dbtest.Postgres(t)
	gdb := fresh(t, db)
	granted(t, gdb, "A", noon)
	tx := gdb.Begin()
	defer tx.Rollback()
	exec(t, tx, "UPDATE leases SET renewed_at = renewed_at")
	impatient := db.OpenDSN(t, db.DSNVia("", "lock_timeout=1ms"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if ok, err := lease.TryAcquire(ctx, impatient, "job", "B", time.Minute, noon); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
}

func TestATermIsNeverCommittedAsynchronously(t *testing.T) {
	for session, want := range map[string]string{
		"off": "on", "on": "on", "local": "local", "remote_write": "remote_write", "remote_apply": "remote_apply",
	} {
		t.Run(session, func(t *testing.T) {
			db := dbtest.Postgres(t)
			gdb := fresh(t, &dbtest.Database{Backend: db.Backend, DSN: db.DSNVia("", "synchronous_commit="+session)})
			pool(t, gdb).SetMaxOpenConns(1)
			is := func(what string, tx *gorm.DB, want string) {
				t.Helper()
				if got := ask[string](t, tx, "SHOW synchronous_commit"); got != want {
					t.Errorf("%s synchronous_commit is %s, not %s", what, got, want)
				}
			}
			for _, what := range []string{"after a takeover", "after a renewal"} {
				tx := gdb.Begin()
				is("before it,", tx, session)
				granted(t, tx, "A", noon)
				is(what, tx, want)
				if err := tx.Commit().Error; err != nil {
					t.Fatal(err)
				}
				is("after the commit", gdb, session)
			}
			tx := gdb.Begin()
			defer tx.Rollback()
			refused(t, tx, "B", noon)
			is("after a refusal", tx, session)
		})
	}
}

func TestATakeoverCountsFromTheEndOfItsWaitAndARenewalFromItsBeginning(t *testing.T) {
	gdb := fresh(t, dbtest.Postgres(t))
	// behind lets holder wait for the row, and returns its renewed_at and the time at which the wait was still on.
	behind := func(holder string) (renewed, waiting int64) {
		tx := gdb.Begin()
		defer tx.Rollback()
		exec(t, tx, "SELECT * FROM leases FOR UPDATE")
		done := make(chan bool, 1)
		go func() {
			ok, err := lease.TryAcquire(t.Context(), gdb, "job", holder, time.Minute, databasesClock)
			done <- ok && err == nil
		}()
		waitUntil(t, "it waits", func() bool { return waiters(t, gdb) > 0 })
		waiting = ask[int64](t, tx, "SELECT (extract(epoch FROM clock_timestamp())*1000000)::bigint")
		if err := tx.Rollback().Error; err != nil {
			t.Fatal(err)
		}
		if !<-done {
			t.Fatal("it was not granted")
		}
		return find(t, gdb, "job").RenewedAt.UnixMicro(), waiting
	}
	granted(t, gdb, "A", noon) // long ago
	if renewed, waiting := behind("B"); renewed < waiting {
		t.Errorf("a takeover counts from %d, and waited until after %d", renewed, waiting)
	}
	if renewed, waiting := behind("B"); renewed >= waiting {
		t.Errorf("a renewal counts from %d, and waited until after %d", renewed, waiting)
	}
}

// waiters counts the sessions of gdb's database that wait for a lock.
func waiters(t *testing.T, gdb *gorm.DB) int {
	t.Helper()
	return ask[int](t, gdb, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
}

// waitUntil asks for a state that the database or an elector reaches by itself and tells nobody.
func waitUntil(t *testing.T, what string, reached func() bool) {
	t.Helper()
	ask := time.NewTicker(2 * time.Millisecond)
	defer ask.Stop()
	for limit := time.Now().Add(20 * time.Second); !reached(); <-ask.C {
		if time.Now().After(limit) {
			t.Fatalf("20 seconds, and not yet: %s", what)
		}
	}
}

func TestAllRenewalsAreHeapOnly(t *testing.T) { // C72
	gdb := fresh(t, dbtest.Postgres(t))
	pool(t, gdb).SetMaxOpenConns(1) // statistics are kept by session until they are flushed
	const renewals = 1000
	granted(t, gdb, "A", databasesClock)
	for range renewals {
		granted(t, gdb, "A", databasesClock)
	}
	exec(t, gdb, "SELECT pg_stat_force_next_flush()")
	updates := ask[int](t, gdb, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'leases'")
	heapOnly := ask[int](t, gdb, "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'leases'")
	if updates != renewals+1 || heapOnly != updates { // and the acquisition
		t.Errorf("of %d updates, %d are heap-only", updates, heapOnly)
	}
}

// Read replicas: see TestWhatDecidesIsReadFromThePrimary.

// Records through GORM

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
