//go:build unix

package faults

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
)

// A stint is one time in which a work could trust its term, as the work itself saw it.
type stint struct {
	holder string
	epoch  int64
	begun  time.Time
	ended  time.Time // zero while it goes on
	cause  error
}

// A ledger notes every stint of one lease. At the end of its test it checks the promise: no two at once, and epochs that grow.
type ledger struct {
	t *testing.T

	mu     sync.Mutex // guards stints and what they point to
	stints []*stint
}

func newLedger(t *testing.T) *ledger {
	l := &ledger{t: t}
	t.Cleanup(l.check)
	return l
}

func (l *ledger) begin(s *stint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stints = append(l.stints, s)
}

// end notes the first end of a stint.
func (l *ledger) end(s *stint, at time.Time, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.ended.IsZero() {
		s.ended, s.cause = at, cause
	}
}

// of returns copies of a holder's stints, in order.
func (l *ledger) of(holder string) (stints []stint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.stints {
		if s.holder == holder {
			stints = append(stints, *s)
		}
	}
	return stints
}

func (l *ledger) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortFunc(l.stints, func(a, b *stint) int { return a.begun.Compare(b.begun) })
	for i, s := range l.stints {
		if s.ended.IsZero() {
			l.t.Errorf("%s's work in term %d has not ended", s.holder, s.epoch)
		}
		for _, before := range l.stints[:i] {
			if before.epoch >= s.epoch {
				l.t.Errorf("after %s's term %d, %s's has the epoch %d", before.holder, before.epoch, s.holder, s.epoch)
			}
			if before.ended.After(s.begun) {
				l.t.Errorf("%s trusts its term %d until %v after %s began to trust term %d",
					before.holder, before.epoch, before.ended.Sub(s.begun), s.holder, s.epoch)
			}
		}
	}
}

// A contender is an elector whose work writes into a ledger.
type contender struct {
	*lease.Elector
	t      *testing.T
	ledger *ledger
	log    *logBook
	stop   context.CancelFunc
	done   chan struct{} // closed when Run has returned
}

// start lets a holder campaign for the lease "job" until the test ends; nil is work that waits for its context's end.
func (l *ledger) start(gdb *gorm.DB, holder string, ttl time.Duration, work func(context.Context)) *contender {
	if work == nil {
		work = untilCancelled
	}
	log := &logBook{}
	c := &contender{
		Elector: &lease.Elector{DB: gdb, Name: "job", Holder: holder, TTL: ttl, Logger: slog.New(log)},
		t:       l.t, ledger: l, log: log, done: make(chan struct{}),
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	go func() {
		defer close(c.done)
		if err := c.Run(ctx, func(ctx context.Context) { l.enter(ctx, holder, work) }); err != nil {
			l.t.Errorf("%s: %v", holder, err)
		}
	}()
	l.t.Cleanup(func() {
		stop()
		c.returns(30 * time.Second)
	})
	return c
}

// untilCancelled is the work of most electors.
func untilCancelled(ctx context.Context) { <-ctx.Done() }

// enter runs work, as a stint.
func (l *ledger) enter(ctx context.Context, holder string, work func(context.Context)) {
	term, ok := lease.TermFrom(ctx)
	if !ok || term.Holder != holder {
		l.t.Errorf("%s's work has a context with %v", holder, term)
	}
	if s := (&stint{holder: holder, epoch: term.Epoch, begun: time.Now()}); ctx.Err() == nil {
		l.begin(s)
		end := func() { l.end(s, time.Now(), context.Cause(ctx)) }
		defer end()
		defer context.AfterFunc(ctx, end)()
	}
	work(ctx)
}

// returns waits until Run has, and says how long that took.
func (c *contender) returns(limit time.Duration) time.Duration {
	c.t.Helper()
	begin := time.Now()
	select {
	case <-c.done:
	case <-time.After(limit):
		c.t.Errorf("%s: Run has not returned after %v", c.Holder, limit)
	}
	return time.Since(begin)
}

// leads waits until the contender does, and returns its term.
func (c *contender) leads(limit time.Duration) (term lease.Term) {
	c.t.Helper()
	within(c.t, limit, c.Holder+" leads", func() (ok bool) {
		term, ok = c.Term()
		return ok && len(c.ledger.of(c.Holder)) > 0 && c.stint().epoch == term.Epoch
	})
	return term
}

// stint is the contender's last one.
func (c *contender) stint() stint {
	c.t.Helper()
	stints := c.ledger.of(c.Holder)
	if len(stints) == 0 {
		c.t.Fatalf("%s has never led", c.Holder)
	}
	return stints[len(stints)-1]
}

// ends waits until the stint of an epoch is over, and returns it.
func (c *contender) ends(epoch int64, limit time.Duration) (s stint) {
	c.t.Helper()
	within(c.t, limit, fmt.Sprintf("%s's work in term %d is cancelled", c.Holder, epoch), func() bool {
		i := slices.IndexFunc(c.ledger.of(c.Holder), func(s stint) bool { return s.epoch == epoch })
		if i >= 0 {
			s = c.ledger.of(c.Holder)[i]
		}
		return !s.ended.IsZero()
	})
	return s
}

// keeps watches for a while that the contender goes on leading in a term.
func (c *contender) keeps(term lease.Term, d time.Duration) {
	c.t.Helper()
	still := time.NewTicker(5 * time.Millisecond)
	defer still.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-still.C {
		if now, ok := c.Term(); !ok || now.Epoch != term.Epoch {
			c.t.Fatalf("%s leads no more in term %d; its stints are %+v; it logged\n%v", c.Holder, term.Epoch, c.ledger.of(c.Holder), c.log)
		}
	}
}

// renews waits for a renewal, and returns the row after it.
func (c *contender) renews(gdb *gorm.DB) lease.Status {
	c.t.Helper()
	before := job(c.t, gdb)
	var after lease.Status
	within(c.t, 10*time.Second, c.Holder+" renews", func() bool {
		after = job(c.t, gdb)
		return after.RenewedAt.After(before.RenewedAt)
	})
	return after
}

// job is the lease of all these tests, as the database's clock sees it.
func job(t *testing.T, gdb *gorm.DB) lease.Status {
	t.Helper()
	s, err := lease.Find(context.Background(), gdb, "job")
	if err != nil {
		t.Fatal(err)
	}
	return s
}
