package lease

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestAnyPositiveTTLWorksOrWaitsButNeverPanics(t *testing.T) {
	for _, ttl := range []time.Duration{1, 2, 3, time.Microsecond, time.Millisecond, 1<<63 - 1} {
		t.Run(ttl.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.ttl = ttl
				a := c.start("A")
				<-time.After(time.Second)
				if ttl == 1<<63-1 {
					c.leads(a)
					if term, _ := a.Term(); term.Epoch != 1 {
						t.Errorf("epoch %d", term.Epoch)
					}
				}
				if n := a.store.count(""); n > 500 {
					t.Errorf("%d statements in a second", n)
				}
			})
		})
	}
}

func TestAHugeTTLNeitherWrapsNorFloods(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.ttl = math.MaxInt64
		a, b := c.start("A"), c.start("B")
		<-time.After(time.Hour)
		synctest.Wait()
		if polls := b.store.count("poll"); !a.IsLeader() || b.IsLeader() || polls > 2 {
			t.Errorf("A leads: %v, B leads: %v, after %d polls of B", a.IsLeader(), b.IsLeader(), polls)
		}
	})
}

func TestATTLWhoseUnitWasForgottenIsWarnedOf(t *testing.T) {
	db := withSchema(t, dbtest.SQLite(t))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for ttl, wanted := range map[time.Duration]bool{15: true, time.Millisecond: false} {
		var log logBuffer
		e := &Elector{DB: db, Name: "job", TTL: ttl, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		if err := e.Run(ended, func(context.Context) {}); err != nil {
			t.Fatal(err)
		}
		if warned := strings.Contains(log.String(), "was its unit forgotten?"); warned != wanted {
			t.Errorf("with a TTL of %v it logged\n%v", ttl, log.String())
		}
	}
}

func TestEightyMillisecondsPerStatementDoNotMakeAShortTTLFlap(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.ttl = 300 * time.Millisecond
		slow := func(string) fault { return fault{before: 40 * time.Millisecond, after: 40 * time.Millisecond} }
		a, b := c.add("A"), c.add("B")
		a.store.inject(slow)
		b.store.inject(slow)
		c.run(a, untilCancelled)
		c.pass(c.ttl)
		c.run(b, untilCancelled)
		c.pass(time.Minute)
		if c.leads(a); a.terms() != 1 {
			t.Errorf("%d terms", a.terms())
		}
	})
}

func TestAnElectorWithAShortTTLGivesTheDatabaseFiftyMilliseconds(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.ttl = 30 * time.Millisecond
		a := c.add("A")
		a.store.inject(firstly(1, "poll", fault{after: 20 * time.Millisecond}))
		c.run(a, untilCancelled)
		<-time.After(21 * time.Millisecond)
		synctest.Wait()
		if !a.IsLeader() || strings.Contains(a.log.String(), "trouble") {
			t.Errorf("after a poll of 20 ms the log is\n%s", a.log)
		}
		a.store.inject(func(string) fault { return fault{before: 20 * time.Millisecond} })
		a.stop(nil)
		<-a.done
		if row := c.table.read(); row.Holder != "" {
			t.Errorf("after a release of 20 ms the row is %+v", row)
		}
	})
}

func TestATakeoverWithATinyTTLIsStillHeard(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.ttl = 12 * time.Millisecond
		a := c.add("A")
		a.store.inject(firstly(1, "take", fault{after: 20 * time.Millisecond}))
		c.run(a, untilCancelled)
		<-time.After(25 * time.Millisecond)
		synctest.Wait()
		if log := a.log.String(); strings.Contains(log, "trouble") || a.store.count("release") != 1 {
			t.Errorf("%d releases; the log is\n%s", a.store.count("release"), log)
		}
	})
}

func TestAStandbyWithATinyTTLIsPaced(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.ttl = time.Millisecond
		c.table.row = &Record{Name: "job", Holder: "B", Epoch: 1, RenewedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour)}
		a := c.start("A")
		<-time.After(time.Second)
		if n := a.store.count("poll"); n > 101 {
			t.Errorf("%d polls in a second", n)
		}
	})
}

func TestRemindersComeOnceASecondAtMost(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.ttl = 30 * time.Millisecond
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(1500 * time.Millisecond)
		})
		a.stop(nil)
		<-a.done
		if n := strings.Count(a.log.String(), "winds down"); n != 1 {
			t.Errorf("said %d times in a second and a half", n)
		}
	})
}

func TestAnElectorWithALongTTLLeavesWithinFiveSeconds(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.ttl = time.Hour
		a := c.start("A")
		a.store.cut()
		begin := time.Now()
		a.stop(nil)
		<-a.done
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("Run returned after %v", took)
		}
	})
}
