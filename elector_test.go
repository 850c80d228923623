package lease

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestAStoppedOrZeroElectorAnswersNothing(t *testing.T) {
	var e Elector
	if e.IsLeader() {
		t.Error("IsLeader")
	}
	if _, ok := e.Term(); ok {
		t.Error("Term")
	}
	if holder, ok := e.Leader(); ok || holder != "" {
		t.Error("Leader")
	}
	if e.Health() == nil {
		t.Error("Health is nil")
	}
	e.Resign()
}

func TestBadFieldsAreRefusedAtOnceBeforeAnySQL(t *testing.T) {
	db := dbtest.SQLite(t).Open(t) // without a table: any statement would fail
	work := func(context.Context) {}
	good := func() *Elector { return &Elector{DB: db, Name: "job", TTL: time.Second} }
	tx := db.Begin()
	defer tx.Rollback()
	for argument, e := range map[string]*Elector{
		"Elector.Name":   {DB: db, TTL: time.Second},
		"Elector.Holder": {DB: db, Name: "job", Holder: strings.Repeat("é", 201), TTL: time.Second},
		"Elector.TTL":    {DB: db, Name: "job", TTL: -1},
		"Elector.DB is":  {Name: "job", TTL: time.Second},
		"DryRun":         {DB: db.Session(&gorm.Session{DryRun: true}), Name: "job", TTL: time.Second},
		"Elector.DB":     {DB: tx, Name: "job", TTL: time.Second},
	} {
		if err := e.Run(t.Context(), work); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), argument) {
			t.Errorf("%s: %v", argument, err)
		}
	}
	if err := good().Run(t.Context(), nil); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "work") {
		t.Errorf("nil work: %v", err)
	}
	var none context.Context
	if err := good().Run(none, work); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "ctx") {
		t.Errorf("nil ctx: %v", err)
	}
}

func TestAContextThatHasEndedStartsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		ctx, stop := context.WithCancel(t.Context())
		stop()
		a.Elector.run.campaign(ctx, untilCancelled)
		a.stop, a.done = func(error) {}, make(chan struct{})
		close(a.done)
		if n := a.store.count("take"); n != 0 {
			t.Error("it took the lease")
		}
	})
}

func TestAnElectorRunsOnceAtATimeAndAgain(t *testing.T) {
	db := withSchema(t, dbtest.SQLite(t))
	e := &Elector{DB: db, Name: "job", TTL: time.Minute, Logger: slog.New(slog.DiscardHandler)}
	for range 3 {
		ctx, stop := context.WithCancel(t.Context())
		err := e.Run(ctx, func(ctx context.Context) {
			if err := e.Run(ctx, untilCancelled); !errors.Is(err, ErrInvalid) {
				t.Errorf("a second Run: %v", err)
			}
			if !e.IsLeader() {
				t.Error("the first Run was disturbed")
			}
			e.Name, e.TTL = "", 0 // Run has copied its fields
			stop()
		})
		if err != nil {
			t.Fatal(err)
		}
		e.Name, e.TTL = "job", time.Minute
	}
	if row, err := Find(t.Context(), db, "job"); err != nil || row.Epoch != 3 || row.Held {
		t.Errorf("%+v, %v", row, err)
	}
}

func TestRunReturnsOnlyAfterItsStatementsHave(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(func(string) fault { return fault{before: T / 12, deaf: true} }) // it returns, but not at once
		c.run(a, untilCancelled)
		c.pass(T/24 + tick)
		a.stop(nil)
		<-a.done
		if n := a.store.pending(); n != 0 {
			t.Errorf("%d statements are still on their way", n)
		}
	})
}

func TestRunReturnsWithinABoundWhateverTheDatabaseDoes(t *testing.T) {
	for name, f := range map[string]fault{
		"refuses":                {fail: errors.New("connection refused")},
		"hangs":                  hung,
		"hangs in a deaf driver": {before: time.Hour, deaf: true},
	} {
		for _, leading := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, c *cluster) {
					a := c.add("A")
					if !leading {
						a.store.inject(func(string) fault { return f })
					}
					c.run(a, untilCancelled)
					a.store.inject(func(string) fault { return f })
					c.pass(T / 2)
					begin := time.Now()
					a.stop(nil)
					<-a.done
					if took := time.Since(begin); took > T/3 {
						t.Errorf("Run returned after %v", took)
					}
					<-time.After(2 * time.Hour) // the deaf driver returns
				})
			})
		}
	}
}

func TestWorkThatReturnsByItselfGivesTheLeaseBackAndIsPaced(t *testing.T) {
	for name, work := range map[string]func(context.Context){
		"returns": func(context.Context) {},
		"goexits": func(context.Context) { runtime.Goexit() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				a, b := c.run(c.add("A"), work), c.run(c.add("B"), work)
				c.pass(10 * T)
				if a.terms() < 10 || a.terms() > 20 || b.terms() < 10 || b.terms() > 20 {
					t.Errorf("%d and %d terms in ten TTL", a.terms(), b.terms())
				}
				if !strings.Contains(a.log.String(), "returned by itself") {
					t.Errorf("it was not logged:\n%s", a.log)
				}
			})
		})
	}
}

func TestAPanicComesOutOfRunAndFreesTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		boom := errors.New("boom")
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-time.After(T)
			panic(boom)
		})
		<-a.done
		if a.panicked != boom {
			t.Errorf("%v came out", a.panicked)
		}
		if r := c.table.read(); r.Holder != "" {
			t.Errorf("the row is %+v", r)
		}
		renewals := a.store.count("renew")
		<-time.After(T)
		if n := a.store.count("renew"); n != renewals {
			t.Error("it renewed after the panic")
		}
		if !strings.Contains(a.log.String(), t.Name()) {
			t.Errorf("the log has no stack:\n%s", a.log)
		}
	})
}

func TestADeafDriverIsNotGivenMoreThanAFewStatements(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		before := len(a.store.sent)
		a.store.inject(func(string) fault { return fault{before: 2 * time.Hour, deaf: true} })
		c.pass(20 * T)
		if n := len(a.store.sent) - before; n > 4 {
			t.Errorf("%d statements have not been answered", n)
		}
	})
}
