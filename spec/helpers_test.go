package spec

import (
	"testing"

	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/leasetest"
)

// What these tests share with lease_test.go.
var (
	noon, databasesClock = leasetest.Noon, leasetest.DatabasesClock

	fresh           = leasetest.Fresh
	ensure          = leasetest.Ensure
	acquire         = leasetest.Acquire
	granted         = leasetest.Granted
	refused         = leasetest.Refused
	release         = leasetest.Release
	find            = leasetest.Find
	row             = leasetest.Row
	exec            = leasetest.Exec
	mustBe          = leasetest.MustBe
	pool            = leasetest.Pool
	keepConnections = leasetest.KeepConnections
	race            = leasetest.Race
	everyIsolation  = leasetest.EveryIsolation
)

func ask[V any](t *testing.T, gdb *gorm.DB, sql string, args ...any) V {
	t.Helper()
	return leasetest.Ask[V](t, gdb, sql, args...)
}
