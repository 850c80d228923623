package spec

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

var quiet = slog.New(slog.DiscardHandler)

func TestSQLiteInMemoryWithSeveralConnectionsIsRefused(t *testing.T) {
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

func TestSQLiteInMemoryWorksOnOneConnectionOrASharedCache(t *testing.T) {
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
