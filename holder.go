package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"gorm.io/gorm"
)

// A Holder is a claim of an [Item].
type Holder = HolderOf[Item]

// A HolderOf is one claim of one row of a model, from [Claim], [ClaimAs] or
// [ClaimNext]. Its methods are safe for concurrent use.
//
// The claim is lost once somebody else has claimed the row, or the same owner
// has claimed the row anew, or the row is gone. From then on nothing written
// through the claim can be committed, whether or not this process has noticed
// the loss. A claim that ran out, and that nobody has taken, is not lost. It
// may still be renewed, saved and released.
type HolderOf[T any] struct {
	items   *items[T]
	hold    hold
	stepID  string
	expired bool
	ttl     time.Duration
	now     func() time.Time
	life    *claim
	saving  chan struct{} // one save at a time
	running chan struct{} // one Run at a time

	mu           sync.Mutex // guards the fields below
	item         T          // the row as the claim last wrote it
	known, tried int64      // the revision that the row had for certain, and the highest that a save has tried
}

func newHolder[T any](m *items[T], l *loaded[T], sent instant, expired bool, ttl time.Duration, now func() time.Time) *HolderOf[T] {
	c := l.claim
	h := &HolderOf[T]{
		items: m, hold: hold{key: l.key, owner: c.Owner, epoch: c.Epoch}, stepID: c.StepID, expired: expired, ttl: ttl, now: now,
		saving: make(chan struct{}, 1), running: make(chan struct{}, 1),
		item: l.item, known: c.Revision, tried: c.Revision,
	}
	h.life = newClaim(h, sent, ttl, machineClock, m.sql.count)
	m.sql.count.claim(expired)
	return h
}

func (h *HolderOf[T]) op(verb string) string { return verb + " " + label(h.hold.key) }

// String describes the claim, for logs.
func (h *HolderOf[T]) String() string {
	return fmt.Sprintf("claim %d of %s in %s by %q", h.hold.epoch, label(h.hold.key), h.items.name, h.hold.owner)
}

// Epoch returns the claim's epoch. No other claim of this row, before or after,
// has the same epoch.
func (h *HolderOf[T]) Epoch() int64 { return h.hold.epoch }

// Expired reports whether the claim took over another claim that had run out.
// The worker of that claim may have died half-way.
func (h *HolderOf[T]) Expired() bool { return h.expired }

// StepID returns the purpose of the claim, in its owner's words.
func (h *HolderOf[T]) StepID() string { return h.stepID }

// Item returns the row as this claim last wrote it: as the claim found the row,
// and then as Save, Renew and Release changed it. The result is a copy, but
// shares the data that the row's fields point to. Item makes no database call.
func (h *HolderOf[T]) Item() T {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.item
}

// Renew extends the claim to a full TTL from now. Renew changes nothing but the
// claim. [HolderOf.Run] and [HolderOf.Heartbeat] renew for you.
//
// Renew sends one UPDATE, and may block on the database, as [TryAcquire] does.
// The error is [ErrLost] if the claim is lost or was released. Any other error
// comes from the database.
func (h *HolderOf[T]) Renew(ctx context.Context) error {
	if err := checkCtx(ctx); err != nil {
		return wrap(h.op("renew"), err)
	}
	return wrap(h.op("renew"), h.life.renew(ctx))
}

// Release ends the claim. Anyone may claim the row at once. The end counts as
// clean: the row's Attempts are 0 afterwards. Release also ends a Heartbeat,
// and the context of a Run.
//
// Release sends one UPDATE, and may block on the database, as [TryAcquire]
// does. The result is nil if the claim was released before. The error is
// [ErrLost] if the claim is lost. Then nothing has changed. Any other error
// comes from the database: call Release again, or let the claim run out.
func (h *HolderOf[T]) Release(ctx context.Context) error {
	if err := checkCtx(ctx); err != nil {
		return wrap(h.op("release"), err)
	}
	return wrap(h.op("release"), h.life.release(ctx, false))
}

func (h *HolderOf[T]) sendRenewal(ctx context.Context) (bool, error) {
	clock := clockNow(h.now)
	if err := checkNow(clock); err != nil {
		return false, err
	}
	now, ok, err := h.items.renew(ctx, h.hold, h.ttl, clock)
	if ok {
		h.note(func(c *Claimable) {
			// The reply to a later renewal may have come first. Then its times
			// stay.
			if late := now.renewed.Before(c.RenewedAt) && now.expires.After(c.RenewedAt); !late {
				c.RenewedAt, c.ExpiresAt = now.renewed, now.expires
			}
		})
	}
	return ok, err
}

func (h *HolderOf[T]) sendRelease(ctx context.Context, keep bool) (bool, error) {
	clock := clockNow(h.now)
	if err := checkNow(clock); err != nil {
		return false, err
	}
	now, ok, err := h.items.release(ctx, h.hold, keep, clock)
	if ok {
		h.note(func(c *Claimable) {
			c.Owner, c.StepID, c.ExpiresAt = "", "", now.expires
			if c.Attempts--; !keep {
				c.Attempts = 0
			}
		})
	}
	return ok, err
}

// note changes the claim in the copy of the row.
func (h *HolderOf[T]) note(change func(*Claimable)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h.items.claimable(&h.item))
}

// Save writes the row, in one UPDATE that does nothing unless the claim still
// stands. Without columns, Save writes all of the model's own columns. With
// columns, named as in the table or as in Go, Save writes only those, and does
// not overwrite a column of another writer. Save always writes Done. It never
// writes the key, the claim or an association. Save needs no renewal, and does
// not renew.
//
// GORM's hooks for an update run, in a transaction with the UPDATE, and
// UpdatedAt is set. A hook's change to a column is written if the column is
// among those saved. A column that a hook omits is not written. Plugins take
// part too, in a transaction unless db skips the default transaction. An [Item]
// has neither hooks nor plugins. Afterwards [HolderOf.Item] returns the row as
// written.
//
// Save may block on the database, as [TryAcquire] does, and on a save that
// began earlier. The error is [ErrLost] if the claim is lost. Then nothing was
// written. The error is [ErrInvalid], before any SQL, for another row's key, an
// unknown column, or an [Item]'s payload that is not JSON. If a hook, a field
// or a plugin adds a condition that the row does not meet, the error says so. A
// hook or plugin that changes the key or the claim is [ErrInvalid], found after
// the SQL. Other errors come from the database or a hook. After any other error
// the row may or may not have been written: call Save again. A later Save
// always wins over an earlier one, even if the earlier save arrives late.
func (h *HolderOf[T]) Save(ctx context.Context, it T, columns ...string) error {
	err := checkCtx(ctx)
	if err == nil {
		var ok bool
		if ok, err = h.write(ctx, h.items.handle, it, columns); err == nil && !ok {
			err = h.life.gone()
		}
	}
	if err == nil {
		return nil
	}
	return wrap(h.op("save"), err)
}

// SaveIn is like Save, but within the caller's transaction. The row and the
// transaction's other writes are committed together, or not at all.
//
// [HolderOf.Item] stays as before, because the transaction may be rolled back.
// After the commit, continue with the value that you saved. A later save of
// Item would restore the old row, and the old Done.
//
// Inside a transaction, call only SaveIn. Save, Renew and Release use their own
// connection: they may block on your transaction, and they stay committed if it
// rolls back. Until the transaction ends, its lock on the row blocks the
// claim's renewals and all claims of the row: save last. On Postgres the server
// ends the session if the transaction then lies idle for the TTL.
//
// Outside a transaction the error is [ErrInvalid]. After [ErrLost], roll the
// transaction back. On SQLite, SaveIn refuses a transaction that a failed
// statement has ended, and protects tx from then on, as [Fence] does.
func (h *HolderOf[T]) SaveIn(tx *gorm.DB, it T, columns ...string) error {
	op := h.op("save")
	on, err := openTx(tx)
	if err != nil {
		return wrap(op, err)
	}
	ok, err := h.write(tx.Statement.Context, on, it, columns)
	if err == nil && !ok {
		err = ErrLost
	}
	return wrap(op, err)
}

// write sends a save and, outside a transaction, keeps the saved values. After
// an error, and inside a transaction, the outcome is unknown.
func (h *HolderOf[T]) write(ctx context.Context, on *handle, it T, names []string) (ok bool, err error) {
	m := h.items
	w := &write[T]{hold: h.hold, item: it}
	if w.columns, err = m.columnsOf(names); err != nil {
		return false, err
	}
	m.detach(&w.item) // apart from copies that others read
	key, given := m.keyOf(ctx, &w.item)
	switch {
	case !given:
		err = m.setKey(ctx, &w.item, h.hold.key)
	case !sameKey(key, h.hold.key):
		err = invalid("it", "is the row %s, and not %s", label(key), label(h.hold.key))
	}
	if err != nil {
		return false, err
	}
	if own, ok := any(&w.item).(ownRow); ok {
		now := clockNow(h.now)
		if now.IsZero() {
			now = time.Now()
		}
		if err := cmp.Or(checkNow(now), own.beforeWrite(now)); err != nil {
			return false, err
		}
	}
	select {
	case h.saving <- struct{}{}:
		defer func() { <-h.saving }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	if err := h.life.ended(); err != nil {
		m.sql.count.refuse()
		return false, err
	}
	h.number(w)
	if ok, err = m.save(ctx, on, w); err == nil && !ok {
		err = m.hindered(ctx, on, w)
	}
	switch {
	case err != nil:
		return false, err
	case !ok:
		m.sql.count.refuse()
	case !on.inTx:
		h.keep(w)
	}
	return ok, nil
}

// number gives a write the next revision. An earlier write of unknown outcome
// cannot undo this write, whether the earlier write has landed or will.
func (h *HolderOf[T]) number(w *write[T]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.from, w.to = h.known, h.tried
	h.tried++
	c := h.items.claimable(&w.item)
	done := c.Done
	*c = *h.items.claimable(&h.item)
	c.Revision, c.Done = h.tried, done
}

// keep copies the columns that were written into the copy of the row.
func (h *HolderOf[T]) keep(saved *write[T]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.items
	c := *m.claimable(&h.item) // a renewal may have changed the claim meanwhile
	c.Revision, c.Done = m.claimable(&saved.item).Revision, m.claimable(&saved.item).Done
	h.known = c.Revision
	m.merge(&h.item, &saved.item, saved.columns)
	*m.claimable(&h.item) = c
}

// Fence proves, inside the transaction tx, that the claim is in force. Fence
// holds off the next claim until the transaction ends, as [Term.Fence] does for
// a term. A claim that ran out is not in force. The error is then [ErrLost].
// Outside a transaction the error is [ErrInvalid]. Any other error comes from
// the database.
func (h *HolderOf[T]) Fence(tx *gorm.DB) error {
	op := "fence " + label(h.hold.key)
	on, err := openTx(tx)
	if err != nil {
		return wrap(op, err)
	}
	inForce, err := h.items.fence(tx.Statement.Context, on, h.hold, clockNow(h.now))
	if err == nil && !inForce {
		h.items.sql.count.refuse()
		err = ErrLost
	}
	return wrap(op, err)
}

func (h *HolderOf[T]) named() string { return label(h.hold.key) }

// over reports whether the database says that the claim is over. Without an
// answer, over returns false.
func (h *HolderOf[T]) over(ctx context.Context, _ *handle) bool {
	ctx, cancel := briefly(ctx)
	defer cancel()
	p, err := h.items.peek(ctx, h.hold.key, clockNow(h.now))
	if errors.Is(err, gorm.ErrRecordNotFound) {
		return true
	}
	return err == nil && (p.owner != h.hold.owner || p.epoch != h.hold.epoch || !p.expires.After(p.now))
}

// Heartbeat renews the claim every interval, until ctx ends, the claim is
// released, or the claim can no longer be counted on. Heartbeat blocks until
// then: call it in a goroutine of its own. [HolderOf.Run] has a heartbeat of
// its own.
//
// An interval that is not positive means a third of the TTL. An interval of
// more than half the TTL means half the TTL. Heartbeat survives errors of the
// database, or a database that does not answer, until two thirds of the TTL
// after the last good renewal was sent. Then, or at once if the claim is lost,
// Heartbeat calls onLost, once, with [ErrLost] and the cause: the work must
// stop. After renewals Heartbeat calls onRenewed with [HolderOf.Item]. Only one
// call of onRenewed runs at a time, and no renewal waits for the call. Either
// callback may be nil, and may use the claim.
func (h *HolderOf[T]) Heartbeat(ctx context.Context, interval time.Duration, onRenewed func(T), onLost func(error)) {
	op := h.op("heartbeat")
	lost := func(err error) {
		if onLost != nil {
			onLost(wrap(op, err))
		}
	}
	if err := checkCtx(ctx); err != nil {
		lost(err)
		return
	}
	t, err := h.life.begin(ctx)
	switch {
	case errors.Is(err, errReleased) || err != nil && ctx.Err() != nil:
		return
	case err != nil:
		lost(err)
		return
	}
	defer h.life.finish(t)
	sending := make(flight, maxBeats)
	defer sending.settle(h.life.pace.parting())
	renewed := make(chan struct{}, 1)
	var calls sync.WaitGroup
	defer calls.Wait()
	defer close(renewed)
	if onRenewed != nil {
		calls.Go(func() {
			for range renewed {
				onRenewed(h.Item())
			}
		})
	}
	err = h.life.beat(ctx, t, sending, interval, func() {
		select {
		case renewed <- struct{}{}:
		default:
		}
	})
	if err != nil {
		lost(err)
	}
}

// Run runs work and keeps the claim alive meanwhile. How work ends decides how
// Run ends the claim. Run blocks until work has returned.
//
// Work's context is cancelled when the claim can no longer be counted on, when
// the claim is released, and when ctx ends. In the first case the cause is
// [ErrLost]: the claim is lost, or was not renewed for two thirds of a TTL. In
// the last case the cause is ctx's cause. While work winds down, Run still
// renews the claim. The context carries the claim, so [Fence] and [Transaction]
// fence it. In a work within a work, the innermost claim counts.
//
// Run returns one of these errors, and leaves the row as follows:
//
//   - nil, if work returned nil. The claim has been released, as by
//     [HolderOf.Release] (by Run, or earlier by work itself). If ctx has ended
//     by then, the next case says how Run releases.
//   - ctx's cause, and work's error, if ctx ended and work returned an error.
//     The process is shutting down. Run has released the claim and has taken
//     its attempt back, so the claim does not look like a crash. Run takes the
//     attempt back too if ctx ended and work returned nil.
//   - [ErrLost], and work's error, if the claim was lost before work returned,
//     or was over before Run. If work deletes the row, softly or not, the claim
//     is lost too, though the deletion may be committed. To finish an item, set
//     Done.
//   - work's error, if work failed otherwise. Run lets the claim run out, so
//     nobody retries the row at once, and the next claim counts one more
//     attempt. If work panics, the claim runs out too, and the panic comes out
//     of Run. If work had released the claim itself, the claim stays released,
//     and a context.Canceled from work counts as nil.
//
// If the database does not answer, Run gives the release up after a third of
// the TTL or five seconds, whichever is less (150 milliseconds, if the TTL is
// tiny), and the error says so. Run returns [ErrInvalid] for a nil work, and
// for a second Run of the claim at the same time.
func (h *HolderOf[T]) Run(ctx context.Context, work func(ctx context.Context) error) error {
	op := h.op("run")
	if err := checkCtx(ctx); err != nil {
		return wrap(op, err)
	}
	if work == nil {
		return wrap(op, invalid("work", "is nil"))
	}
	select {
	case h.running <- struct{}{}:
		defer func() { <-h.running }()
	default:
		return wrap(op, invalid("HolderOf", "is running already"))
	}
	t, err := h.life.begin(withFence(ctx, h))
	if err != nil {
		return wrap(op, err)
	}
	if err = context.Cause(ctx); err == nil {
		err = h.attend(ctx, t, work)
	}
	h.life.finish(t)
	loss, released, stopped := h.life.loss(t), errors.Is(h.life.ended(), errReleased), ctx.Err() != nil
	switch {
	case loss != nil:
		return wrap(op, also(loss, err))
	case released:
		// The release cancelled work's context, so this error is no failure.
		return ignore(err, func(err error) bool { return errors.Is(err, context.Canceled) })
	case err != nil && !stopped:
		return err
	}
	left := h.life.leave(ctx, stopped)
	switch {
	case errors.Is(left, ErrLost):
		return wrap(op, also(left, err))
	case left != nil:
		left = fmt.Errorf("the claim was not released, and runs out: %w", left)
	}
	if err != nil {
		left = also(also(context.Cause(ctx), err), left)
	}
	return wrap(op, left)
}

// attend runs work with a heartbeat.
func (h *HolderOf[T]) attend(ctx context.Context, t *tenure, work func(context.Context) error) error {
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	sending := make(flight, maxBeats)
	var beat sync.WaitGroup
	beat.Go(func() { _ = h.life.beat(beating, t, sending, 0, func() {}) })
	defer func() {
		h.life.finish(t)
		stop()
		beat.Wait()
		sending.settle(h.life.pace.parting())
	}()
	return work(t.ctx)
}

// also joins err to first. An err that already matches first stays as it is.
func also(first, err error) error {
	switch {
	case err == nil:
		return first
	case errors.Is(err, first):
		return err
	}
	return fmt.Errorf("%w: %w", first, err)
}
