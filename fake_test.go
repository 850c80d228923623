package lease

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The elector's timing is tested here against a table in memory, in a bubble of testing/synctest, where every wait is exact.

const (
	T    = 12 * time.Second // the TTL of most tests: its third, its twelfth and their halves are whole
	tick = time.Millisecond
)

// A fakeTable is a database with one lease, and a clock that can be stepped.
type fakeTable struct {
	mu   sync.Mutex
	row  *Record
	step time.Duration // of the database's clock, against the machine's
	seen []Record      // after every write that changed something
}

func (f *fakeTable) now() time.Time { return time.Now().Add(f.step) }

// stepClock makes the database's clock jump.
func (f *fakeTable) stepClock(d time.Duration) { f.edit(func(*Record) { f.step += d }) }

// edit changes the row by hand.
func (f *fakeTable) edit(change func(*Record)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f.row)
}

// delete removes the row by hand.
func (f *fakeTable) delete() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.row = nil
}

// read returns the row as it stands.
func (f *fakeTable) read() Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.row == nil {
		return Record{}
	}
	return *f.row
}

// history returns the row after every write that changed something.
func (f *fakeTable) history() []Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen)
}

func (f *fakeTable) write(r Record) {
	f.row = &r
	f.seen = append(f.seen, r)
}

// A fault is what happens to one statement on its way.
type fault struct {
	before time.Duration // until the database carries it out
	locked time.Duration // from its look at the clock until it gets the row
	after  time.Duration // until its answer arrives
	fail   error         // not carried out
	lose   bool          // carried out, but its answer is an error
	deaf   bool          // the driver ignores the context
}

// hung is a statement that is not carried out, and is never answered.
var hung = fault{before: time.Hour}

// A fakeStore is one elector's way to the table.
type fakeStore struct {
	table  *fakeTable
	holder string
	ttl    time.Duration

	mu    sync.Mutex
	fault func(statement string) fault
	sent  []string // the statements, in order
	times []time.Time
	open  int // not returned
}

func (s *fakeStore) inject(f func(statement string) fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = f
}

// cut makes every statement hang from now on.
func (s *fakeStore) cut() { s.inject(func(string) fault { return hung }) }

func (s *fakeStore) heal() { s.inject(nil) }

// count says how many statements of a kind were sent; "" is any kind.
func (s *fakeStore) count(statement string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.sent {
		if other == statement || statement == "" {
			n++
		}
	}
	return n
}

// pending says how many statements have not returned.
func (s *fakeStore) pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

// sentAt is when each statement was sent.
func (s *fakeStore) sentAt() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.times)
}

func (s *fakeStore) do(ctx context.Context, statement string, carryOut func(now time.Time)) error {
	s.mu.Lock()
	s.sent, s.times = append(s.sent, statement), append(s.times, time.Now())
	s.open++
	var f fault
	if s.fault != nil {
		f = s.fault(statement)
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
	}()
	if f.fail != nil {
		return f.fail
	}
	if f.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	if f.before > 0 && !sleep(ctx, f.before) {
		return ctx.Err()
	}
	s.table.mu.Lock()
	now := s.table.now()
	s.table.mu.Unlock()
	if f.locked > 0 {
		<-time.After(f.locked) // also if its sender has given up
	}
	s.table.mu.Lock()
	carryOut(now)
	s.table.mu.Unlock()
	if f.after > 0 && !sleep(ctx, f.after) {
		return ctx.Err()
	}
	if f.lose {
		return errors.New("connection reset by peer")
	}
	return nil
}

func (s *fakeStore) poll(ctx context.Context) (seen sighting, err error) {
	err = s.do(ctx, "poll", func(now time.Time) {
		seen.now = now
		if s.table.row != nil {
			seen.exists, seen.Record = true, *s.table.row
		}
	})
	return seen, err
}

func (s *fakeStore) take(ctx context.Context, seen sighting) (t Term, ok bool, err error) {
	t = Term{Name: "job", Holder: s.holder, Epoch: seen.Epoch + 1}
	err = s.do(ctx, "take", func(time.Time) {
		if s.table.row == nil && !seen.exists {
			s.table.row = &Record{Name: "job", Epoch: seen.Epoch}
		}
		r, now := s.table.row, s.table.now()
		if r == nil || r.Epoch != seen.Epoch {
			return
		}
		if r.Holder == "" || r.RenewedAt.Equal(seen.RenewedAt) {
			ok = true
			s.table.write(Record{"job", s.holder, r.Epoch + 1, now.Add(s.ttl), now, now})
		}
	})
	return t, ok && err == nil, err
}

func (s *fakeStore) renew(ctx context.Context, t Term) (ok bool, err error) {
	err = s.do(ctx, "renew", func(now time.Time) {
		r := s.table.row
		if r != nil && r.Holder == t.Holder && r.Epoch == t.Epoch && r.ExpiresAt.Sub(now) > s.ttl/3 {
			ok = true
			if next := r.RenewedAt.Add(time.Microsecond); next.After(now) {
				now = next
			}
			s.table.write(Record{"job", r.Holder, r.Epoch, now.Add(s.ttl), r.AcquiredAt, now})
		}
	})
	return ok && err == nil, err
}

func (s *fakeStore) release(ctx context.Context, t Term) error {
	return s.do(ctx, "release", func(time.Time) {
		if r := s.table.row; r != nil && r.Holder == t.Holder && r.Epoch == t.Epoch {
			s.table.write(Record{"job", "", r.Epoch, s.table.now(), r.AcquiredAt, r.RenewedAt})
		}
	})
}

// A logBuffer keeps log lines that several goroutines write and read.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// A replica is one process that campaigns for the lease.
type replica struct {
	*Elector
	store    *fakeStore
	log      *logBuffer
	stop     context.CancelCauseFunc
	done     chan struct{} // Run has returned
	panicked any

	mu     sync.Mutex
	spans  []span
	skewed instant // how far its clocks have jumped
}

// A span is the time in which a work was trusted: until its context ended, or it returned.
type span struct {
	begun, ended time.Time // ended is zero while it lasts
	cause        error
}

// jump makes the replica's own clocks jump, under timers that know nothing of it.
func (p *replica) jump(mono, wall time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skewed = instant{p.skewed.mono + mono, p.skewed.wall + wall}
}

func (p *replica) clock() instant {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := machineClock()
	return instant{i.mono + p.skewed.mono, i.wall + p.skewed.wall}
}

// terms says how many works began.
func (p *replica) terms() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.spans)
}

// left is how long the term may be trusted without a further renewal.
func (p *replica) left() time.Duration {
	if t := p.Elector.run.tenure(); t != nil {
		return t.left()
	}
	return 0
}

// lastEnd is when the last work that ended was no longer trusted, and why.
func (p *replica) lastEnd(t *testing.T) (time.Time, error) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range slices.Backward(p.spans) {
		if !s.ended.IsZero() {
			return s.ended, s.cause
		}
	}
	t.Fatalf("%s: no work has ended", p.store.holder)
	return time.Time{}, nil
}

// A cluster is replicas that share a table, in a bubble.
type cluster struct {
	t        *testing.T
	table    *fakeTable
	replicas []*replica
	ttl      time.Duration
}

// untilCancelled is the work of most tests.
func untilCancelled(ctx context.Context) { <-ctx.Done() }

// inBubble runs a test in a bubble, and stops every replica at its end.
func inBubble(t *testing.T, test func(t *testing.T, c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, table: &fakeTable{}, ttl: T}
		defer func() {
			for _, p := range c.replicas {
				p.store.heal()
				p.stop(nil)
				<-p.done
			}
			<-time.After(3 * time.Hour) // for deaf drivers to return
		}()
		test(t, c)
	})
}

// add prepares a replica.
func (c *cluster) add(holder string) *replica {
	p := &replica{
		store: &fakeStore{table: c.table, holder: holder, ttl: c.ttl},
		log:   &logBuffer{},
		done:  make(chan struct{}),
	}
	logger := slog.New(slog.NewTextHandler(p.log, nil))
	r := newRun(p.store, "job", holder, c.ttl, logger)
	r.clock = p.clock
	p.Elector = &Elector{run: r}
	c.replicas = append(c.replicas, p)
	return p
}

// run starts a replica with some work, and lets it settle.
func (c *cluster) run(p *replica, work func(context.Context)) *replica {
	ctx, stop := context.WithCancelCause(c.t.Context())
	p.stop = stop
	go func() {
		defer close(p.done)
		defer func() { p.panicked = recover() }()
		p.Elector.run.campaign(ctx, func(ctx context.Context) {
			begun := time.Now()
			ended := sync.OnceFunc(func() {
				cause := context.Cause(ctx)
				p.mu.Lock()
				defer p.mu.Unlock()
				p.spans[len(p.spans)-1] = span{begun, time.Now(), cause}
			})
			p.mu.Lock()
			p.spans = append(p.spans, span{begun: begun})
			p.mu.Unlock()
			defer ended()
			context.AfterFunc(ctx, ended)
			work(ctx)
		})
	}()
	synctest.Wait()
	return p
}

// start adds and runs a replica whose work lasts until it is cancelled.
func (c *cluster) start(holder string) *replica { return c.run(c.add(holder), untilCancelled) }

// pass lets time pass, checking at every step that no two replicas lead.
func (c *cluster) pass(d time.Duration) {
	c.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		<-time.After(min(c.ttl/120, time.Until(end)))
		synctest.Wait()
		c.leader()
	}
}

// leader is the replica that leads, or nil; it fails the test if there are two.
func (c *cluster) leader() (leads *replica) {
	c.t.Helper()
	for _, p := range c.replicas {
		if p.IsLeader() {
			if leads != nil {
				c.t.Fatalf("%s and %s both lead", leads.store.holder, p.store.holder)
			}
			leads = p
		}
	}
	return leads
}

// passUntil lets time pass until something holds, and returns how much did.
func (c *cluster) passUntil(limit time.Duration, what string, holds func() bool) time.Duration {
	c.t.Helper()
	begin := time.Now()
	for !holds() {
		if time.Since(begin) > limit {
			c.t.Fatalf("not within %v: %s", limit, what)
		}
		<-time.After(c.ttl / 1200)
		synctest.Wait()
		c.leader()
	}
	return time.Since(begin)
}

// leads fails the test unless p, and only p, leads.
func (c *cluster) leads(p *replica) {
	c.t.Helper()
	if c.leader() != p {
		c.t.Fatalf("%s does not lead; the row is %+v", p.store.holder, c.table.read())
	}
}

// firstly makes the first n statements of a kind suffer a fault.
func firstly(n int, statement string, f fault) func(string) fault {
	return func(s string) fault {
		if s == statement && n > 0 {
			n--
			return f
		}
		return fault{}
	}
}
