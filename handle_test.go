package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestStatementCachesAreTakenOffHoweverManyThereAre(t *testing.T) {
	db := dbtest.SQLite(t).Open(t, &gorm.Config{PrepareStmt: true})
	for range 3 {
		h := opened(t, db)
		if _, ok := h.pool.(*sql.DB); !ok {
			t.Errorf("the pool is a %T", h.pool)
		}
		tx := db.Begin()
		if h, err := open("tx", tx); err != nil {
			t.Error(err)
		} else if live, ok := h.pool.(*liveGORMTx); !ok || !h.inTx {
			t.Errorf("in a transaction the pool is a %T", h.pool)
		} else if _, ok := live.ConnPool.(*sql.Tx); !ok {
			t.Errorf("in a transaction the pool is one of a %T", live.ConnPool)
		}
		tx.Rollback()
		db = db.Session(&gorm.Session{PrepareStmt: true})
	}
}

func TestLeasesElectionsAndFencesWorkOnOtherTables(t *testing.T) {
	onOtherTables(t, func(t *testing.T, db *gorm.DB, table string) {
		ctx := t.Context()
		if _, err := Find(ctx, db, "job"); !errors.Is(err, gorm.ErrRecordNotFound) {
			t.Errorf("Find: %v", err)
		}
		won := make(chan bool)
		for i := range 12 {
			go func() {
				ok, err := TryAcquire(ctx, db, "job", fmt.Sprint(i), time.Minute, time.Time{})
				won <- ok && err == nil
			}()
		}
		winners := 0
		for range 12 {
			if <-won {
				winners++
			}
		}
		row, err := Find(ctx, db, "job")
		if winners != 1 || err != nil || !row.Held || row.Epoch != 1 {
			t.Fatalf("%d winners; %+v, %v", winners, row, err)
		}
		old := Term{Name: "job", Holder: row.Holder, Epoch: 1}
		if err := Transaction(WithTerm(ctx, old), db, func(*gorm.DB) error { return nil }); err != nil {
			t.Error(err)
		}
		if err := Release(ctx, db, "job", row.Holder, time.Time{}); err != nil {
			t.Error(err)
		}
		if err := Transaction(WithTerm(ctx, old), db, func(*gorm.DB) error { return nil }); !errors.Is(err, ErrLost) {
			t.Errorf("after the release: %v", err)
		}
		ctx, stop := context.WithCancel(ctx)
		e := &Elector{DB: db, Name: "job", Holder: "elector", TTL: time.Minute, Logger: slog.New(slog.DiscardHandler)}
		err = e.Run(ctx, func(ctx context.Context) {
			defer stop()
			if term, ok := e.Term(); !ok || term.Epoch != 2 {
				t.Errorf("%v, %v", term, ok)
			}
			plain := Tables(db, "") // the elector's term knows its own table
			if err := Transaction(ctx, plain, func(*gorm.DB) error { return nil }); err != nil {
				t.Error(err)
			}
		})
		all, listed := List(t.Context(), db)
		if err != nil || listed != nil || len(all) != 1 || all[0].Held || all[0].Epoch != 2 {
			t.Errorf("%v; %+v, %v", err, all, listed)
		}
		var rows int64
		if err := db.Table(table).Count(&rows).Error; err != nil || rows != 1 {
			t.Errorf("%d rows in %s, %v", rows, table, err)
		}
	})
}

// A fakePool answers every statement with itself.
type fakePool struct {
	gorm.ConnPool
	err error
}

func (p fakePool) ExecContext(context.Context, string, ...any) (sql.Result, error) { return p, nil }
func (p fakePool) LastInsertId() (int64, error)                                    { return 0, nil }
func (p fakePool) RowsAffected() (int64, error)                                    { return 1, p.err }

func TestACountThatTheDriverCannotGiveIsAnError(t *testing.T) {
	h := &handle{pool: fakePool{err: errRefused}, dialect: dialects[0]}
	if n, err := h.exec(t.Context(), ""); !errors.Is(err, errRefused) {
		t.Errorf("%d, %v", n, err)
	}
}

func TestARowThatCannotBeReadIsAnErrorAndNotTheLast(t *testing.T) {
	for backend, failing := range map[string]string{
		"sqlite":   "SELECT CASE x WHEN 1 THEN 1 ELSE abs(-9223372036854775807 - 1) END FROM (SELECT 1 AS x UNION ALL SELECT 2)",
		"postgres": "SELECT 1 / (2 - x) FROM generate_series(1, 2) AS x",
	} {
		t.Run(backend, func(t *testing.T) {
			database := map[string]func(testing.TB) *dbtest.Database{"sqlite": dbtest.SQLite, "postgres": dbtest.Postgres}[backend](t)
			h := opened(t, database.Open(t))
			got, err := query(t.Context(), h, func(rows *sql.Rows) (n int, err error) { return n, rows.Scan(&n) }, failing)
			if err == nil {
				t.Errorf("%v", got)
			}
		})
	}
}

// contended is contention in either dialect.
type contended struct{}

func (contended) Error() string    { return "database is locked" }
func (contended) SQLState() string { return "40P01" }

func TestAQueryThatIsRepeatedMidwayReturnsEachRowOnceOnOneConnection(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, database *dbtest.Database) {
		db := database.Open(t)
		pool, err := db.DB()
		if err != nil {
			t.Fatal(err)
		}
		pool.SetMaxOpenConns(1)
		h := opened(t, db)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		scans := 0
		got, err := query(ctx, h, func(rows *sql.Rows) (n int, err error) {
			if scans++; scans == 2 {
				return 0, contended{}
			}
			return n, rows.Scan(&n)
		}, "SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3")
		if err != nil || !slices.Equal(got, []int{1, 2, 3}) {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// Where transactions are serializable by default, a statement that met a conflict
// could meet the next one for ever.
func TestARepeatedStatementRunsReadCommittedAndLeavesNothingOpen(t *testing.T) {
	database := dbtest.Postgres(t)
	db := database.OpenDSN(t, database.DSNVia("", "default_transaction_isolation=serializable"))
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxOpenConns(1)
	h := opened(t, db)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var level string
	for range 2 { // the second needs the connection of the first
		err := h.readCommitted(func(ctx context.Context, tx gorm.ConnPool) error {
			return errors.Join(tx.QueryRowContext(ctx, "SHOW transaction_isolation").Scan(&level), errRefused)
		})(ctx, h.pool)
		if !errors.Is(err, errRefused) || level != "read committed" {
			t.Errorf("at %q: %v", level, err)
		}
	}
}

func TestAClientThatFreezesBeforeTheCommitOfARepeatedStatementIsCutOff(t *testing.T) {
	db := withSchema(t, dbtest.Postgres(t))
	if ok, err := TryAcquire(t.Context(), db, "job", "A", time.Second, time.Time{}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	h := opened(t, db)
	frozen, thaw, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- h.readCommitted(func(ctx context.Context, pool gorm.ConnPool) error {
			_, err := pool.ExecContext(ctx, h.statements.renew, nil, "job", "A", 1, ttlMicros(time.Second), 0)
			close(frozen)
			<-thaw
			return err
		})(t.Context(), h.pool)
	}()
	<-frozen
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for got := false; !got; {
		var err error
		if got, err = TryAcquire(ctx, db, "job", "B", time.Minute, time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	close(thaw)
	if err := <-done; err == nil {
		t.Error("the frozen client committed")
	}
}

func TestContentionInACallersTransactionIsTheirsToHear(t *testing.T) {
	db := withSchema(t, dbtest.Postgres(t))
	if ok, err := TryAcquire(t.Context(), db, "job", "A", time.Minute, time.Time{}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	other := db.Begin()
	defer other.Rollback()
	if err := other.Exec("SELECT 1 FROM leases FOR UPDATE").Error; err != nil {
		t.Fatal(err)
	}
	tx := db.Begin()
	defer tx.Rollback()
	if err := tx.Exec("SET LOCAL lock_timeout = '50ms'").Error; err != nil {
		t.Fatal(err)
	}
	_, err := TryAcquire(t.Context(), tx, "job", "A", time.Minute, time.Time{})
	if !states("55P03")(err) { // not 25P02, which a second attempt would give
		t.Errorf("the error is %v", err)
	}
}

func TestAStatementByHandIsBounded(t *testing.T) {
	db := withSchema(t, dbtest.Postgres(t))
	h, err := open("db", db)
	if err != nil || h.timeout != byHand {
		t.Fatal(h, err)
	}
	if ok, err := TryAcquire(t.Context(), db, "job", "A", time.Minute, time.Time{}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	other := db.Begin()
	defer other.Rollback()
	if err := other.Exec("SELECT 1 FROM leases FOR UPDATE").Error; err != nil {
		t.Fatal(err)
	}
	h.timeout = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = h.acquire(ctx, "job", "A", time.Minute, time.Time{})
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("the error is %v; the caller's context: %v", err, ctx.Err())
	}
}

// After a fail-over, an idle connection may lead to a server that only reads.
func TestAConnectionToAServerThatOnlyReadsIsNotUsedAgain(t *testing.T) {
	db := withSchema(t, dbtest.Postgres(t))
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	pool.SetMaxOpenConns(1)
	if err := db.Exec("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY").Error; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := TryAcquire(ctx, db, "job", "A", time.Minute, time.Time{}); !states("25006")(err) || ctx.Err() != nil {
		t.Errorf("the first error is %v", err)
	}
	if ok, err := TryAcquire(ctx, db, "job", "A", time.Minute, time.Time{}); err != nil || !ok {
		t.Errorf("on the next connection: %v, %v", ok, err)
	}
}

// The writer holds up the probe that would tell whether the connections share
// their database.
func TestSQLiteInMemoryThatSomebodyWritesToIsNotRefused(t *testing.T) {
	db := withSchema(t, &dbtest.Database{Backend: dbtest.BackendSQLite, DSN: "file:" + t.Name() + "?mode=memory&cache=shared"})
	tx := db.Begin()
	defer tx.Rollback()
	if err := tx.Exec("DELETE FROM leases").Error; err != nil {
		t.Fatal(err)
	}
	h := opened(t, db)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := h.checkMemory(ctx); err != nil {
		t.Errorf("the error is %v", err)
	}
}
