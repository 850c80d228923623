package lease

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"
)

// The timing of electors and of claims is tested against a table in memory, in a
// bubble of testing/synctest, where every wait is exact.

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

// always is a fault of every statement.
func always(f fault) func(string) fault { return func(string) fault { return f } }

// of is a fault of every statement of one kind.
func of(statement string, f fault) func(string) fault { return firstly(math.MaxInt, statement, f) }

var errRefused = errors.New("connection refused")

// A blockingWriter is the writer of a log. It may block.
type blockingWriter func()

func (b blockingWriter) Write(p []byte) (int, error) { b(); return len(p), nil }

// at is an instant of an elector's own clock, and clockAt one of the clock that decides.
func at(d time.Duration) instant        { return instant{mono: d + time.Hour, wall: d + time.Hour} }
func clockAt(d time.Duration) time.Time { return time.Unix(1e9, 0).Add(d) }

// A jumpingClock is the clock of a machine, which can jump, under timers that know
// nothing of it.
type jumpingClock struct {
	jumps  sync.Mutex // guards skewed
	skewed instant    // how far it has jumped
}

func (c *jumpingClock) jump(mono, wall time.Duration) {
	c.jumps.Lock()
	defer c.jumps.Unlock()
	c.skewed = instant{c.skewed.mono + mono, c.skewed.wall + wall}
}

func (c *jumpingClock) clock() instant {
	c.jumps.Lock()
	defer c.jumps.Unlock()
	i := machineClock()
	return instant{i.mono + c.skewed.mono, i.wall + c.skewed.wall}
}

// orders calls do with every order of n things.
func orders(n int, do func(order []int)) {
	order := make([]int, n)
	var place func(k int)
	place = func(k int) {
		if k == n {
			do(order)
			return
		}
		for i := k; i < n; i++ {
			order[k], order[i] = order[i], order[k]
			place(k + 1)
			order[k], order[i] = order[i], order[k]
		}
	}
	for i := range order {
		order[i] = i
	}
	place(0)
}
