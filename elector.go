package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"gorm.io/gorm"
)

// An Elector runs a function in exactly one of the replicas that campaign for the same lease.
//
// An elector holds only terms that it took itself: after a restart it waits for its own row like anyone else, whatever its Holder. To
// know whether it leads, ask IsLeader; Leader may name its own Holder, from a term that it had before.
//
// Set the fields, call [Elector.Run] in a goroutine of your own, and ask the other methods from anywhere; they never block on the
// database. A zero Elector leads nothing. An Elector must not be copied once it was used.
type Elector struct {
	DB     *gorm.DB         // required; not a transaction
	Name   string           // the lease; required, at most 100 characters
	Holder string           // a label by which others see it, at most 200 characters; "" means one InstanceID for the whole process
	TTL    time.Duration    // required; a leader that vanishes is replaced after it, so it also sets the pace: renewals come every third
	Now    func() time.Time // safe for concurrent use; nil lets the database's clock decide, so that the replicas' need not agree
	Logger *slog.Logger     // nil means slog.Default()

	mu  sync.Mutex // guards run
	run *run       // nil unless Run is running
}

var processHolder = sync.OnceValue(InstanceID)

// Run campaigns for the lease until ctx ends, and runs work while it leads. It blocks until then.
//
// Work runs in one replica at a time, in a goroutine of its own. Its context is cancelled, with a [context.Cause], when the term can
// no longer be trusted ([ErrLost], at the latest two thirds of a TTL after the last good renewal was sent, whether or not the database
// answers), on [Elector.Resign] ([ErrResigned]), or when ctx ends (ctx's cause). Run then waits for work to return before it does
// anything else: it still renews the lease while work winds down, if it still has it, and only then releases it. Work that never
// returns keeps Run, and may keep the lease, for ever.
//
// Work that returns by itself gives the lease back; so does a panic in it, which comes out of Run. After that, and after Resign, the
// elector stands back for half a TTL so that another replica gets its turn.
//
// Run returns nil once ctx has ended and work has returned, whatever the database did in between. It waits for the database for at
// most a third of a TTL or five seconds, whichever is less (but 150 milliseconds for a tiny TTL). The error is [ErrInvalid], at once and
// before any SQL, for a bad field, a nil work, or a second Run of the same Elector at the same time.
func (e *Elector) Run(ctx context.Context, work func(ctx context.Context)) error {
	r, err := e.begin(ctx, work)
	if err != nil {
		return wrap(fmt.Sprintf("run %q", e.Name), err)
	}
	defer e.finish()
	r.log.Info("lease: campaigning", "ttl", r.pace.ttl())
	if r.pace.ttl() < time.Millisecond {
		r.log.Warn("lease: the TTL is too short for anyone to lead; was its unit forgotten?", "ttl", r.pace.ttl())
	}
	r.campaign(ctx, work)
	return nil
}

// begin checks everything, once, and makes the only copy of the fields that is used from here on.
func (e *Elector) begin(ctx context.Context, work func(context.Context)) (*run, error) {
	holder := e.Holder
	if holder == "" {
		holder = processHolder()
	}
	err := cmp.Or(checkCtx(ctx), checkName("Elector.Name", e.Name), checkHolder("Elector.Holder", holder), checkTTL("Elector.TTL", e.TTL))
	if err != nil {
		return nil, err
	}
	if work == nil {
		return nil, invalid("work", "is nil")
	}
	h, err := open("Elector.DB", e.DB)
	if err != nil {
		return nil, err
	}
	if h.inTx {
		return nil, invalid("Elector.DB", "is a transaction, whose roll-back would reuse an epoch")
	}
	logger := e.Logger
	if logger == nil {
		logger = slog.Default()
	}
	r := newRun(newRow(h, e.Name, holder, e.TTL, e.Now), e.Name, holder, e.TTL, logger)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.run != nil {
		return nil, invalid("Elector", "is running already")
	}
	e.run = r
	return r, nil
}

func (e *Elector) finish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.run = nil
}

func (e *Elector) current() *run {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.run
}

// IsLeader reports whether this elector's work may go on. It looks at the clock, and at nothing that could block: false from the
// instant at which the work's context ends, for whatever reason.
func (e *Elector) IsLeader() bool {
	_, ok := e.Term()
	return ok
}

// Term returns the term that this elector leads in. ok is what [Elector.IsLeader] says.
func (e *Elector) Term() (t Term, ok bool) {
	if r := e.current(); r != nil {
		if t := r.tenure(); t != nil && t.leads() {
			return t.term, true
		}
	}
	return Term{}, false
}

// Leader returns who holds the lease, as this elector last observed: up to a third of a TTL ago. ok is false when nobody does, when
// the last observation has expired, and when Run is not running. It makes no database call.
func (e *Elector) Leader() (holder string, ok bool) {
	if r := e.current(); r != nil {
		return r.leader()
	}
	return "", false
}

// Resign hands the lease over: the work's context ends with [ErrResigned], and once work has returned the lease is released. The
// elector campaigns again, after half a TTL. Resign returns at once, and does nothing unless IsLeader; work may call it.
func (e *Elector) Resign() {
	if r := e.current(); r != nil {
		if t := r.tenure(); t != nil && t.leads() {
			t.cancel(ErrResigned)
		}
	}
}

// Health is nil while Run runs, the database has answered within a TTL, and no work outlives its term. Otherwise it says which, with the
// database's last error in it. It makes no database call: it is meant for readiness probes.
func (e *Elector) Health() error {
	r := e.current()
	if r == nil {
		return wrap("elector", errors.New("is not running"))
	}
	return wrap(fmt.Sprintf("elector %q", r.name), r.health())
}

// A store is what an elector asks of the table: four statements, each of which may block until its context ends, or longer with a
// driver that ignores it.
type store interface {
	poll(ctx context.Context) (sighting, error)
	take(ctx context.Context, seen sighting) (Term, bool, error)
	renew(ctx context.Context, t Term) (bool, error)
	release(ctx context.Context, t Term) error
}

// A run is one call of Run. Its goroutine alone writes what is in it.
type run struct {
	// Set at the start.
	store  store
	name   string
	holder string
	pace   pace
	log    *slog.Logger
	tally  *tally
	flight flight
	view   // what others may see

	watch   watch
	standby instant // no takeover before
	quiet   instant // no further log line about a failing database before
}

func newRun(s store, name, holder string, ttl time.Duration, log *slog.Logger) *run {
	return &run{
		store: s, name: name, holder: holder, pace: pace(ttl),
		log:    log.With("lease", name, "holder", holder),
		flight: make(flight, maxInFlight),
		view:   view{clock: machineClock, fresh: ttl},
	}
}

// campaign alternates between following and leading until ctx ends.
func (r *run) campaign(ctx context.Context, work func(context.Context)) {
	r.tally = electors.join(r)
	defer electors.leave(r)
	defer func() { r.flight.settle(r.pace.parting()) }()
	for {
		t := r.follow(ctx)
		if t == nil {
			return
		}
		r.lead(ctx, t, work)
		sleep(ctx, leastPoll)
	}
}

// follow watches the lease until it is won, or until ctx ends; then it returns nil, and nothing is held.
func (r *run) follow(ctx context.Context) *tenure {
	failures := 0
	for {
		t, wait, err := r.consider(ctx)
		switch {
		case t != nil:
			return t
		case ctx.Err() != nil:
			return nil
		case err != nil:
			r.trouble("campaign", err)
			wait = r.pace.backOff(failures)
			failures++
		default:
			failures = 0
		}
		if !sleep(ctx, max(wait, leastPoll)) {
			return nil
		}
	}
}

// consider polls once and takes the lease if the rules of the watch allow it. Otherwise it says when to poll again.
func (r *run) consider(ctx context.Context) (t *tenure, wait time.Duration, err error) {
	row, err := ask(ctx, r.flight, r.pace.patience(), r.store.poll)
	if err == nil {
		err = ctx.Err() // nothing is taken any more
	}
	if err != nil {
		return nil, 0, err
	}
	now := r.clock()
	r.watch.note(row, now, r.pace.ttl())
	holder, until := r.watch.leader()
	r.observe(holder, until, r.watch.epoch)

	wait = r.pace.polling()
	if back := r.standby.left(now); back > 0 {
		return nil, min(wait, back), nil
	}
	if left := r.watch.wait(r.pace.ttl()); left > 0 {
		return nil, min(wait, saturatingAdd(left, r.pace.stagger())), nil
	}
	t, err = r.take(ctx)
	return t, wait, err
}

// take sends a takeover right after an answered poll, so that one that hangs cannot land much later. It returns a tenure that may be
// led, or none. It hears the answer even if ctx ends meanwhile, within bounds, and gives back at once what was won too late.
func (r *run) take(ctx context.Context) (*tenure, error) {
	seen := r.watch.row
	if !seen.exists {
		seen.Epoch = r.watch.epoch
	}
	type won struct {
		term Term
		ok   bool
		err  error
	}
	answer := make(chan won, 1)
	taking, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	limit := max(r.pace.trust(), r.pace.patience())
	sent := r.clock()
	if !r.flight.send(taking, limit, func(ctx context.Context) {
		term, ok, err := r.store.take(ctx, seen)
		answer <- won{term, ok, err}
	}) {
		return nil, errBusy
	}
	bound := time.NewTimer(limit)
	defer bound.Stop()
	for done := ctx.Done(); ; {
		select {
		case a := <-answer:
			if !a.ok {
				return nil, a.err
			}
			r.watch.lead(a.term)
			r.hear()
			t := newTenure(ctx, a.term, sent, r.pace.ttl(), r.clock)
			if t.leads() {
				return t, nil
			}
			t.end(byRelease)
			r.release(a.term)
			return nil, nil
		case <-done:
			done = nil
			bound.Reset(r.pace.parting())
		case <-bound.C:
			go func() {
				if a := <-answer; a.ok {
					r.release(a.term)
				}
			}()
			return nil, fmt.Errorf("%w to a takeover; is the row locked?", errSilent)
		}
	}
}

// lead runs work in a tenure, renews it for as long as work runs, and gives it back. It returns, or panics, when work has.
func (r *run) lead(ctx context.Context, t *tenure, work func(context.Context)) {
	r.tally.begin()
	r.publish(t)
	finished := r.start(t, work)
	r.log.Info("lease: leading", "epoch", t.term.Epoch)
	end := r.attend(ctx, t, finished)
	r.publish(nil)

	cause := context.Cause(t.ctx) // nil if work returned by itself
	t.end(byRelease)
	log := r.log.With("epoch", t.term.Epoch)
	reason, lost := t.lost()
	switch {
	case end.panicked != nil:
		log.Error("lease: work panicked", "panic", end.panicked, "stack", string(end.stack))
	case lost:
		log.Info("lease: work has ended, after its lease was lost", "reason", reason)
	case cause == nil:
		log.Info("lease: work has returned by itself; releasing")
	default:
		log.Info("lease: work has ended; releasing", "cause", cause)
	}
	if !lost || reason == byDeadline || reason == byRefusal { // the row may still be its own
		r.release(t.term)
	}
	if end.panicked != nil {
		panic(end.panicked)
	}
	if cause == nil || errors.Is(cause, ErrResigned) {
		r.standby = r.clock().plus(r.pace.standBack())
	}
}

// An ending is how work ended.
type ending struct {
	panicked any
	stack    []byte
}

// start runs work in a goroutine of its own, so that a panic or a runtime.Goexit in it ends only that.
func (r *run) start(t *tenure, work func(context.Context)) <-chan ending {
	finished := make(chan ending, 1)
	go func() {
		defer func() {
			end := ending{panicked: recover()}
			if end.panicked != nil {
				end.stack = debug.Stack()
			}
			finished <- end
		}()
		work(t.ctx)
	}()
	return finished
}

// A renewal is the answer to one attempt to renew.
type renewal struct {
	sent    instant
	took    time.Duration
	renewed bool
	row     sighting // if not renewed, what stands there instead
	err     error
}

// attend renews the tenure until work has finished. Nothing in it waits for a statement, and the tenure's deadline does not wait for it.
func (r *run) attend(ctx context.Context, t *tenure, finished <-chan ending) ending {
	attempts, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	answers := make(chan renewal)
	due := time.NewTimer(r.untilDue(t))
	defer due.Stop()
	remind := time.NewTimer(r.pace.reminding())
	defer remind.Stop()
	cancelled, over := t.ctx.Done(), t.over
	draining, overran := false, false
	lost := func() {
		reason, _ := t.lost()
		r.tally.lose(reason)
		r.log.Warn("lease: lost", "epoch", t.term.Epoch, "reason", reason)
	}
	for {
		select {
		case end := <-finished:
			if over != nil && t.left() == 0 {
				lost()
			}
			return end
		case <-due.C:
			if t.held() {
				r.renew(attempts, t, answers)
				due.Reset(r.pace.joining()) // the next attempt, unless this one is answered before
			}
		case a := <-answers:
			due.Reset(r.judge(t, a))
		case <-cancelled:
			cancelled = nil
			if over != nil {
				draining = true
				remind.Reset(r.pace.reminding())
			}
		case <-over:
			over, draining = nil, false
			lost()
			remind.Reset(r.pace.margin()) // when the row may have expired
		case <-remind.C:
			remind.Reset(r.pace.reminding())
			if draining {
				r.log.Warn("lease: work winds down, and keeps the lease", "epoch", t.term.Epoch, "cause", context.Cause(t.ctx))
			}
			if over == nil {
				r.log.Warn("lease: work goes on although its lease was lost", "epoch", t.term.Epoch)
				if !overran {
					r.tally.overrun()
				}
				overran = true
			}
		}
	}
}

// renew sends one attempt, on a connection of its own if others have not been answered. An attempt is heard for a third of a TTL, so
// that a slow database is heard as well as one with a dead connection.
func (r *run) renew(attempts context.Context, t *tenure, answers chan<- renewal) {
	sent := r.clock()
	r.flight.send(attempts, r.pace.hearing(), func(ctx context.Context) {
		a := renewal{sent: sent}
		a.renewed, a.err = r.store.renew(ctx, t.term)
		answered := r.clock()
		a.took = answered.mono - sent.mono
		if a.err == nil && !a.renewed {
			a.row, a.err = r.store.poll(ctx)
		}
		select {
		case answers <- a:
		case <-attempts.Done():
			if reason, _ := t.lost(); a.err != nil && reason == byDeadline { // it is among those that cost the lease
				r.tally.renewal(renewalFailed, 0)
			}
		}
	})
}

// judge draws the conclusions of an answer: it may extend the tenure or end it. It returns when the next attempt is due.
func (r *run) judge(t *tenure, a renewal) time.Duration {
	if a.err != nil {
		r.tally.renewal(renewalFailed, 0)
		if a.sent.mono < t.sent.mono {
			return r.untilDue(t) // a later attempt was good
		}
		r.trouble("renew", a.err)
		return r.pace.retrying()
	}
	r.hear()
	switch row := a.row; {
	case a.renewed:
		r.tally.renewal(renewalDone, a.took)
		if t.extend(a.sent.plus(r.pace.trust())) && a.sent.mono > t.sent.mono {
			t.sent = a.sent
		}
		return r.untilDue(t)
	case !row.exists:
		t.end(byDeletion)
	case row.Epoch == t.term.Epoch && row.Holder == "":
		t.end(byOthers)
	case row.Epoch != t.term.Epoch || row.Holder != t.term.Holder:
		t.end(byTakeover)
	case row.ExpiresAt.Sub(row.now) <= r.pace.margin():
		t.end(byRefusal)
	}
	r.tally.renewal(renewalRefused, a.took)
	return r.pace.doubting()
}

// untilDue is how long it is until the tenure should be renewed.
func (r *run) untilDue(t *tenure) time.Duration {
	return max(r.clock().until(t.sent.plus(r.pace.renewal())), leastPause)
}

// trouble notes an error of the database, and logs it: the first, and then at most once per TTL.
func (r *run) trouble(op string, err error) {
	r.fail(err)
	if now := r.clock(); r.quiet.left(now) == 0 {
		r.quiet = now.plus(r.pace.ttl())
		r.log.Warn("lease: trouble with the database", "op", op, "error", err)
	}
}

// release gives a term's row back, within bounds; failing that, the row expires by itself.
func (r *run) release(term Term) {
	ctx, cancel := context.WithTimeout(context.Background(), r.pace.parting())
	defer cancel()
	for {
		_, err := ask(ctx, r.flight, r.pace.parting()/2, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, r.store.release(ctx, term)
		})
		if err == nil {
			r.hear()
			return
		}
		if !sleep(ctx, spread(r.pace.parting()/8)) {
			r.log.Warn("lease: not released; it expires by itself", "epoch", term.Epoch, "error", err)
			return
		}
	}
}
