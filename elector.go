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

// An Elector runs a function in exactly one of the replicas that campaign for
// the same lease.
//
// An elector holds only terms that it took itself. After a restart it waits for
// its own row as for any other row, whatever its Holder. To know whether the
// elector leads, call IsLeader. Leader may name the elector's own Holder, from
// an earlier term.
//
// Set the fields, and call [Elector.Run] in a goroutine of your own. Call the
// other methods from anywhere: they never block on the database. A zero Elector
// leads nothing. Do not copy an Elector after its first use.
type Elector struct {
	// The database. Required. Not a transaction.
	DB *gorm.DB
	// The lease. Required, at most 100 characters.
	Name string
	// The label by which others see this elector, at most 200 characters. ""
	// means one InstanceID for the whole process.
	Holder string
	// Required. If the leader vanishes, another replica replaces it after the
	// TTL. So the TTL also sets the pace: the leader renews every third of the
	// TTL.
	TTL time.Duration
	// The clock that decides, safe for concurrent use. nil means the database's
	// clock. Then the replicas' clocks need not agree.
	Now func() time.Time
	// nil means slog.Default().
	Logger *slog.Logger

	mu  sync.Mutex // guards run
	run *run       // nil unless Run is running
}

var processHolder = sync.OnceValue(InstanceID)

// Run campaigns for the lease until ctx ends, and runs work while this elector
// leads. It blocks until ctx has ended and work has returned.
//
// Work runs in one replica at a time, in a goroutine of its own. Its context is
// cancelled, with a [context.Cause], in three cases:
//
//   - The term can no longer be trusted ([ErrLost]). This happens at the latest
//     two thirds of a TTL after the last good renewal was sent, whether or not
//     the database answers.
//   - [Elector.Resign] was called ([ErrResigned]).
//   - ctx has ended (ctx's cause).
//
// Then Run waits for work to return before it does anything else. While work
// winds down, Run still renews the lease if this elector still holds the lease.
// Run releases the lease only after work has returned. Work that never returns
// keeps Run, and may keep the lease, forever.
//
// If work returns by itself, Run gives the lease back. If work panics, Run
// gives the lease back and panics with the same value. After work has returned
// by itself, and after Resign, the elector stands back for at least half a TTL,
// to give another replica its turn.
//
// Run returns nil once ctx has ended and work has returned, whatever the
// database did in between. At the end it waits for the database for at most a
// third of a TTL or five seconds, whichever is less. For a tiny TTL the limit
// is 150 milliseconds. The error is [ErrInvalid], at once and before any SQL,
// for a bad field, a nil work, or a second Run of the same Elector at the same
// time.
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

// begin checks every argument, once, and copies the fields. From here on only
// this copy is used.
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

// IsLeader reports whether this elector's work may go on. It looks at the clock
// and never blocks. The result is false from the instant at which the work's
// context ends, for whatever reason.
func (e *Elector) IsLeader() bool {
	_, ok := e.Term()
	return ok
}

// Term returns the term in which this elector leads. ok is the result of
// [Elector.IsLeader].
func (e *Elector) Term() (t Term, ok bool) {
	if r := e.current(); r != nil {
		if t := r.tenure(); t != nil && t.leads() {
			return t.term, true
		}
	}
	return Term{}, false
}

// Leader returns the holder of the lease, as last observed by this elector.
// While the database answers promptly, the observation is at most a third of a
// TTL old. ok is false if nobody holds the lease, if the last observation has
// expired, or if Run is not running. Leader makes no database call.
func (e *Elector) Leader() (holder string, ok bool) {
	if r := e.current(); r != nil {
		return r.leader()
	}
	return "", false
}

// Resign hands the lease over. It cancels the work's context with
// [ErrResigned]. Once work has returned, Run releases the lease, and the
// elector campaigns again after at least half a TTL. Resign returns at once,
// and does nothing unless IsLeader returns true. Work may call Resign.
func (e *Elector) Resign() {
	if r := e.current(); r != nil {
		if t := r.tenure(); t != nil && t.leads() {
			t.cancel(ErrResigned)
		}
	}
}

// Health returns nil while Run runs, the database has answered within a TTL,
// and no work outlives its term. Otherwise the error names the failed
// condition, and includes the database's last error, if any. Health makes no
// database call, and is meant for readiness probes.
func (e *Elector) Health() error {
	r := e.current()
	if r == nil {
		return wrap("elector", errors.New("is not running"))
	}
	return wrap(fmt.Sprintf("elector %q", r.name), r.health())
}

// A store is what an elector asks of the table: four statements. Each may block
// until its context ends, or longer if the driver ignores the context.
type store interface {
	poll(ctx context.Context) (sighting, error)
	take(ctx context.Context, seen sighting) (Term, bool, error)
	renew(ctx context.Context, t Term) (bool, error)
	release(ctx context.Context, t Term) error
}

// A run is one call of Run.
type run struct {
	// Set at the start.
	store  store
	name   string
	holder string
	pace   pace
	log    *slog.Logger
	tally  *tally
	flight flight
	view   // what other goroutines may see, with a mutex of its own

	// Written by Run's goroutine alone.
	watch   watch
	standby instant // no takeover before this instant
	quiet   instant // no further log line about a failing database before this instant
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

// follow watches the lease until the elector has won, and returns the tenure.
// If ctx ends first, follow returns nil, and the elector holds nothing.
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

// consider polls once, and takes the lease if the watch allows a take.
// Otherwise consider returns the pause until the next poll.
func (r *run) consider(ctx context.Context) (t *tenure, wait time.Duration, err error) {
	row, err := ask(ctx, r.flight, r.pace.patience(), r.store.poll)
	if err == nil {
		err = ctx.Err() // a run whose ctx has ended takes nothing
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

// take sends a takeover right after an answered poll, and limits its time. So a
// takeover that hangs cannot land much later than the poll. take returns a
// tenure that may lead, or nil. If ctx ends meanwhile, take still waits for the
// answer, within bounds. It gives back at once a lease that was won too late.
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

// lead runs work in a tenure, renews the lease while work runs, and gives the
// lease back. It returns when work has returned, and panics if work panicked.
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
	if !lost || reason == byDeadline || reason == byRefusal { // the row may still name this term
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

// start runs work in a goroutine of its own. A panic or a runtime.Goexit in
// work ends only this goroutine.
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
	row     sighting // what stands in the table, if the attempt did not renew
	err     error
}

// attend renews the tenure until work has finished. It never waits for a
// statement, and the tenure's deadline does not wait for attend.
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
				due.Reset(r.pace.joining()) // when the next attempt joins, unless an answer comes first
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

// renew sends one attempt, on a connection of its own while earlier attempts
// have no answer. Each attempt is heard for a third of a TTL. So Run hears a
// slow database as well as a database behind a dead connection.
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
			if reason, _ := t.lost(); a.err != nil && reason == byDeadline { // this failure helped to lose the lease
				r.tally.renewal(renewalFailed, 0)
			}
		}
	})
}

// judge draws the conclusions of an answer: judge may extend or end the tenure.
// It returns the pause until the next attempt.
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

// untilDue returns the time until the next renewal is due.
func (r *run) untilDue(t *tenure) time.Duration {
	return max(r.clock().until(t.sent.plus(r.pace.renewal())), leastPause)
}

// trouble notes a database error, and logs it: the first error, and then at
// most one per TTL.
func (r *run) trouble(op string, err error) {
	r.fail(err)
	if now := r.clock(); r.quiet.left(now) == 0 {
		r.quiet = now.plus(r.pace.ttl())
		r.log.Warn("lease: trouble with the database", "op", op, "error", err)
	}
}

// release gives a term's row back, within bounds. If release fails, the row
// expires by itself.
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
