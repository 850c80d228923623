package lease

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/sqllease/lease/internal/hook"
)

// An instant is one reading of both clocks of this machine. The monotonic clock
// is never stepped, but stands still while the machine is suspended. The wall
// clock may be stepped, but runs on. A deadline has passed once either clock
// says so: see until.
type instant struct {
	mono time.Duration // since an arbitrary start
	wall time.Duration // since the Unix epoch
}

var processStart = time.Now()

func machineClock() instant {
	now := time.Now()
	i := instant{mono: now.Sub(processStart), wall: time.Duration(now.UnixNano())}
	if hook.Clock != nil {
		i.mono, i.wall = hook.Clock(i.mono, i.wall)
	}
	return i
}

// plus saturates: a huge TTL never wraps around.
func (i instant) plus(d time.Duration) instant {
	return instant{mono: saturatingAdd(i.mono, d), wall: saturatingAdd(i.wall, d)}
}

// until returns the time from i to deadline, by the clock that says less.
func (i instant) until(deadline instant) time.Duration {
	return min(deadline.mono-i.mono, deadline.wall-i.wall)
}

// left returns the time from now to i by the monotonic clock, or 0 if i has
// passed. The zero instant has always passed.
func (i instant) left(now instant) time.Duration {
	if i == (instant{}) {
		return 0
	}
	return max(0, i.mono-now.mono)
}

func saturatingAdd(a, b time.Duration) time.Duration {
	if b > 0 && a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// A tenure is one term of this process, or one claim with a heartbeat, while
// the term or claim lasts. Run changes it, the work trusts it, and anyone may
// ask it.
//
// A tenure is held from its beginning to its end. The end is the deadline, or
// an earlier end that Run saw, whichever comes first. Whoever sees the end
// first, a timer or a question, makes the end final: nothing revives a tenure.
// A tenure keeps its own deadline, by a timer that waits for no statement, no
// database lock and no log.
//
// The work's context ends with its tenure, or before. When the elector resigns
// or stops, the work is cancelled while the tenure is still held. Then the
// elector renews the tenure until the work has returned.
type tenure struct {
	term   Term
	ctx    context.Context // the work's context
	cancel context.CancelCauseFunc
	over   chan struct{} // closed at the tenure's end
	clock  func() instant
	pace   pace
	sent   instant // when the last good statement was sent, for Run's goroutine only

	mu       sync.Mutex // guards the fields below
	deadline instant
	ended    bool
	reason   string
	cause    error // of the end of the work's context
	timer    *time.Timer
}

// The reasons why a tenure ends, as the metrics and the log name them.
const (
	byDeadline = "deadline" // no renewal in time
	byTakeover = "taken"    // the row names another term
	byOthers   = "released" // released by hand
	byDeletion = "deleted"  // the row is gone
	byRefusal  = "expired"  // by the deciding clock, the term can no longer be renewed
	byRelease  = ""         // not lost: given back
)

// newTenure begins the tenure of a term. sent is when the acquisition was sent.
// The work's context is a child of parent. The tenure may be over already.
func newTenure(parent context.Context, term Term, sent instant, ttl time.Duration, clock func() instant) *tenure {
	return startTenure(WithTerm(parent, term), term, sent, ttl, clock)
}

// startTenure begins a tenure, whatever parent carries. Only a lease has a
// term: for a claim, term is zero.
func startTenure(parent context.Context, term Term, sent instant, ttl time.Duration, clock func() instant) *tenure {
	p := pace(ttl)
	t := &tenure{
		term: term, over: make(chan struct{}), clock: clock, pace: p,
		sent: sent, deadline: sent.plus(p.trust()),
	}
	ctx, cancel := context.WithCancelCause(parent)
	t.ctx, t.cancel = &workContext{Context: ctx, parent: parent, tenure: t}, cancel
	t.tell(hook.Begin, t.deadline)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(0, t.watch)
	return t
}

// watch ends the tenure in time. It looks at both clocks now and then, because
// a timer follows only the monotonic clock.
func (t *tenure) watch() {
	left := t.left()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.timer.Reset(min(left, t.pace.glance()))
	}
}

// left returns how long the tenure is held without another renewal. It returns
// 0 once the tenure is over. If the deadline has passed, left ends the tenure.
func (t *tenure) left() time.Duration {
	t.mu.Lock()
	left := t.clock().until(t.deadline)
	if t.ended {
		left = 0
	}
	t.mu.Unlock()
	if left <= 0 {
		t.end(byDeadline)
	}
	return max(0, left)
}

func (t *tenure) held() bool { return t.left() > 0 }

// leads reports whether the work may go on.
func (t *tenure) leads() bool { return t.ctx.Err() == nil }

// extend moves the deadline, if the new deadline is later and the tenure is
// still held. It reports whether the tenure is held.
func (t *tenure) extend(deadline instant) bool {
	if !t.held() {
		return false
	}
	t.tell(hook.Extend, deadline)
	t.mu.Lock()
	defer t.mu.Unlock()
	if deadline.mono > t.deadline.mono {
		t.deadline = deadline
	}
	return !t.ended
}

// end makes the tenure over, for good. The first reason stays. When end
// returns, the work's context has ended, even if another call ended the tenure
// first.
func (t *tenure) end(reason string) {
	t.mu.Lock()
	if !t.ended {
		t.ended, t.reason, t.cause = true, reason, ErrLost
		if reason == byRelease {
			t.cause = context.Canceled
		}
		t.timer.Stop()
		close(t.over)
		t.tell(hook.End, instant{}) // under the lock: from here on nobody may see the tenure as held
	}
	cause := t.cause
	t.mu.Unlock()
	t.cancel(cause) // not under the lock: cancel calls functions that the work hung on its context
}

// tell reports to an outside observer for how long a term of a lease is
// trusted.
func (t *tenure) tell(step hook.Step, deadline instant) {
	if hook.Trust != nil && t.term != (Term{}) {
		hook.Trust(step, t.term.Name, t.term.Epoch, func() time.Duration { return deadline.left(t.clock()) })
	}
}

// lost returns why the tenure is over. ok is false if the tenure is still held,
// or was given back.
func (t *tenure) lost() (reason string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reason, t.ended && t.reason != byRelease
}

// A workContext is the work's context. Its Err looks at the clock. So work that
// was frozen past its deadline learns the truth, even before the timer's
// goroutine runs.
type workContext struct {
	context.Context
	parent context.Context
	tenure *tenure
}

// Err returns nil while the work may go on.
func (c *workContext) Err() error {
	_ = c.parent.Err() // parent may be the context of other work, and look at a clock of its own
	c.tenure.held()    // ends the context if the tenure is over
	return c.Context.Err()
}

type termContextKey struct{}

// Value lets any derived context find the work's context itself.
func (c *workContext) Value(key any) any {
	if key == (termContextKey{}) {
		return c
	}
	return c.Context.Value(key)
}
