package lease

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/sqllease/lease/internal/hook"
)

// An instant is one reading of both clocks of this machine. The monotonic one is not stepped, but stands still while the machine is
// suspended; the wall clock may be stepped, but runs on. Whichever says that more time has passed is believed.
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

// plus saturates, so that a huge TTL never wraps around.
func (i instant) plus(d time.Duration) instant {
	return instant{mono: saturatingAdd(i.mono, d), wall: saturatingAdd(i.wall, d)}
}

// until is how long it is from i to deadline, by the clock that says less.
func (i instant) until(deadline instant) time.Duration {
	return min(deadline.mono-i.mono, deadline.wall-i.wall)
}

// left is how long it is from now to i by the monotonic clock; the zero instant has always passed.
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

// A tenure is one term of this process, or one claim with a heartbeat, while it lasts: what its Run knows, its work trusts and everyone else
// may ask.
//
// It is held from its beginning to its end; the end is the deadline, or an earlier one that Run saw, whichever comes first. Whoever
// sees it first, a timer or a question, makes it final: nothing revives a tenure. It keeps its own deadline, by a timer that waits for
// no statement, lock or log.
//
// Its work's context ends with it, or before it: when the elector resigns or stops, the work is cancelled while the tenure is still
// held (and renewed), until the work has returned.
type tenure struct {
	term   Term
	ctx    context.Context // the work's
	cancel context.CancelCauseFunc
	over   chan struct{} // closed at the end
	clock  func() instant
	pace   pace
	sent   instant // the last good statement was, as Run's goroutine knows

	mu       sync.Mutex // guards the fields below
	deadline instant
	ended    bool
	reason   string
	cause    error // of its work's end
	timer    *time.Timer
}

// Why a tenure ended, as the metrics and the log say it.
const (
	byDeadline = "deadline" // no renewal in time
	byTakeover = "taken"    // the row names another term
	byOthers   = "released" // by hand
	byDeletion = "deleted"  // the row is gone
	byRefusal  = "expired"  // by the clock that decides, the term can no longer be renewed
	byRelease  = ""         // not lost: given back
)

// newTenure begins the tenure of a term whose acquisition was sent at sent; its work's context is a child of parent. It may be over already.
func newTenure(parent context.Context, term Term, sent instant, ttl time.Duration, clock func() instant) *tenure {
	return startTenure(WithTerm(parent, term), term, sent, ttl, clock)
}

// startTenure begins one of whatever parent carries; only a lease has a term.
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

// watch ends the tenure in time, and looks at both clocks now and then since a timer follows only the monotonic one.
func (t *tenure) watch() {
	left := t.left()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.timer.Reset(min(left, t.pace.glance()))
	}
}

// left is how long the tenure is held if it is not renewed; 0 once it is over.
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

// extend moves the deadline to a later one, if the tenure is still held, and reports whether it is.
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

// end makes the tenure over, for good; the first reason stays. When it returns the work's context has ended, whoever came first.
func (t *tenure) end(reason string) {
	t.mu.Lock()
	if !t.ended {
		t.ended, t.reason, t.cause = true, reason, ErrLost
		if reason == byRelease {
			t.cause = context.Canceled
		}
		t.timer.Stop()
		close(t.over)
		t.tell(hook.End, instant{}) // nobody is told yet that it is held: that takes the lock
	}
	cause := t.cause
	t.mu.Unlock()
	t.cancel(cause) // not under the lock: it calls what the work hung on its context
}

// tell is for whoever watches from outside what a term of a lease is trusted for.
func (t *tenure) tell(step hook.Step, deadline instant) {
	if hook.Trust != nil && t.term != (Term{}) {
		hook.Trust(step, t.term.Name, t.term.Epoch, func() time.Duration { return deadline.left(t.clock()) })
	}
}

// lost says why the tenure is over, if it was not given back.
func (t *tenure) lost() (reason string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reason, t.ended && t.reason != byRelease
}

// A workContext is the work's context: its Err looks at the clock, so that it tells the truth to work that was frozen past its
// deadline, even before the timer's goroutine had its turn.
type workContext struct {
	context.Context
	parent context.Context
	tenure *tenure
}

// Err is nil while the work may go on.
func (c *workContext) Err() error {
	_ = c.parent.Err() // it may be the context of other work, which looks at a clock of its own
	c.tenure.held()    // ends the context if not
	return c.Context.Err()
}

type termContextKey struct{}

// Value finds the work's context itself below any context derived from it.
func (c *workContext) Value(key any) any {
	if key == (termContextKey{}) {
		return c
	}
	return c.Context.Value(key)
}
