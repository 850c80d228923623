// Package leasetest holds the helpers that lease_test.go shares with the tests
// in spec.
package leasetest

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// Noon is the caller's clock wherever a test passes its own.
var Noon = time.Date(2024, 3, 1, 12, 0, 0, 0, time.UTC)

// DatabasesClock lets the database's clock decide.
var DatabasesClock time.Time

// Fresh returns a handle on an empty database, with the schema made.
func Fresh(t *testing.T, db *dbtest.Database, opts ...gorm.Option) *gorm.DB {
	t.Helper()
	gdb := db.Open(t, opts...)
	Ensure(t, gdb)
	return gdb
}

// Ensure makes the schema.
func Ensure(t *testing.T, gdb *gorm.DB) {
	t.Helper()
	if err := lease.EnsureSchema(gdb); err != nil {
		t.Fatal(err)
	}
}

// Acquire is TryAcquire on the lease "job" for a minute, where no error is expected.
func Acquire(t *testing.T, gdb *gorm.DB, holder string, now time.Time) bool {
	t.Helper()
	ok, err := lease.TryAcquire(t.Context(), gdb, "job", holder, time.Minute, now)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// Granted fails t unless holder gets or renews the lease "job".
func Granted(t *testing.T, gdb *gorm.DB, holder string, now time.Time) {
	t.Helper()
	if !Acquire(t, gdb, holder, now) {
		t.Fatalf("%s was refused at %v", holder, now)
	}
}

// Refused fails t unless holder is refused the lease "job".
func Refused(t *testing.T, gdb *gorm.DB, holder string, now time.Time) {
	t.Helper()
	if Acquire(t, gdb, holder, now) {
		t.Fatalf("%s was granted the lease at %v", holder, now)
	}
}

// Release releases the lease "job".
func Release(t *testing.T, gdb *gorm.DB, holder string, now time.Time) {
	t.Helper()
	if err := lease.Release(t.Context(), gdb, "job", holder, now); err != nil {
		t.Fatal(err)
	}
}

// Find is lease.Find, where no error is expected.
func Find(t *testing.T, gdb *gorm.DB, name string) lease.Status {
	t.Helper()
	s, err := lease.Find(t.Context(), gdb, name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Row is the row of the lease "job", as it stands in the table.
func Row(t *testing.T, gdb *gorm.DB) string {
	t.Helper()
	columns := map[string]any{}
	if err := gdb.Table("leases").Where("name = ?", "job").Take(&columns).Error; err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(columns)
}

// Exec runs the caller's own SQL.
func Exec(t *testing.T, gdb *gorm.DB, sql string, args ...any) {
	t.Helper()
	if err := gdb.Exec(sql, args...).Error; err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Ask returns the one value that the caller's own SELECT gives.
func Ask[V any](t *testing.T, gdb *gorm.DB, sql string, args ...any) (v V) {
	t.Helper()
	if err := gdb.Raw(sql, args...).Row().Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// MustBe reports an error other than want, as errors.Is compares them.
func MustBe(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("the error is %v, not: %v", err, want)
	}
}

// KeepConnections spares contenders from dialling again in every round.
func KeepConnections(t *testing.T, gdb *gorm.DB) *gorm.DB {
	t.Helper()
	Pool(t, gdb).SetMaxIdleConns(50)
	return gdb
}

// Pool returns the connection pool of a handle.
func Pool(t *testing.T, gdb *gorm.DB) *sql.DB {
	t.Helper()
	p, err := gdb.DB()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Race lets n contenders go at once, and returns those who were told true. An error of any of them fails the test.
func Race(t *testing.T, n int, try func(contender int) (bool, error)) (winners []int) {
	t.Helper()
	var mu sync.Mutex // guards winners
	var ready, done sync.WaitGroup
	gate := make(chan struct{})
	for i := range n {
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-gate
			ok, err := try(i)
			if err != nil {
				t.Errorf("contender %d: %v", i, err)
			}
			if ok {
				mu.Lock()
				defer mu.Unlock()
				winners = append(winners, i)
			}
		})
	}
	ready.Wait()
	close(gate)
	done.Wait()
	return winners
}

// EveryIsolation runs spec on every database, and on Postgres again with transactions that are serializable unless they say otherwise.
func EveryIsolation(t *testing.T, spec func(t *testing.T, db *dbtest.Database)) {
	dbtest.Run(t, spec)
	t.Run("postgres serializable", func(t *testing.T) {
		db := dbtest.Postgres(t)
		spec(t, &dbtest.Database{Backend: db.Backend, DSN: db.DSNVia("", "default_transaction_isolation=serializable")})
	})
}
