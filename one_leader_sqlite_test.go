package lease

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqllease/lease/internal/dbtest"
)

// Real electors run on a real SQLite in a bubble. SQLite's own clock stays real
// there, so they bring their own.
func TestAnHourOfElectionOnSQLite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := withSchema(t, dbtest.SQLite(t))
		ctx, stop := context.WithCancel(t.Context())
		var electors []*Elector
		done := make(chan error)
		for range 3 {
			e := &Elector{DB: db, Name: "job", TTL: 15 * time.Second, Now: time.Now, Logger: slog.New(slog.DiscardHandler)}
			electors = append(electors, e)
			go func() { done <- e.Run(ctx, untilCancelled) }()
		}
		for range 3600 {
			<-time.After(time.Second)
			synctest.Wait()
			leaders := 0
			for _, e := range electors {
				if e.IsLeader() {
					leaders++
				}
				if err := e.Health(); err != nil {
					t.Fatal(err)
				}
			}
			if leaders != 1 {
				t.Fatalf("%d leaders", leaders)
			}
		}
		row, err := Find(ctx, db, "job")
		if err != nil || row.Epoch != 1 {
			t.Errorf("epoch %d after an hour, %v", row.Epoch, err)
		}
		stop()
		for range electors {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		row, _ = Find(context.Background(), db, "job")
		if row.Holder != "" {
			t.Errorf("still held: %+v", row)
		}
	})
}
