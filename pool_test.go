package lease

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestAnErrorOfTimeSaysThatThePoolIsUsedUpIfItIs(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		if err := EnsureSchema(gdb); err != nil {
			t.Fatal(err)
		}
		pool, err := gdb.DB()
		if err != nil {
			t.Fatal(err)
		}
		pool.SetMaxOpenConns(2)
		var taken []*sql.Conn
		take := func() {
			t.Helper()
			conn, err := pool.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			taken = append(taken, conn)
		}
		const says = "all 2 connections of the pool are in use"
		take()
		take()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, _, err := Load(ctx, gdb, "k"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), says) {
			t.Errorf("with none left: %v", err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if _, _, err := Load(ended, gdb, "k"); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "connections") {
			t.Errorf("with none left, in a context that has ended: %v", err)
		}
		for _, conn := range taken {
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
		}
		pool.SetMaxOpenConns(0)
		take()
		defer taken[2].Close()
		late, cancel := context.WithDeadline(t.Context(), time.Now())
		defer cancel()
		if _, _, err := Load(late, gdb, "k"); !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "connections") {
			t.Errorf("with any number left: %v", err)
		}
	})
}
