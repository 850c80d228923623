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

// A HolderOf is one claim of one row of a model, from [Claim], [ClaimAs] or [ClaimNext]. Its methods are safe for concurrent use.
//
// The claim is lost once somebody else has claimed the row, or the same owner anew, or the row is gone. Then nothing that is written through
// the claim can be committed, whether or not this process has noticed. A claim that ran out, and that nobody has taken, is not lost: it may
// still be renewed, saved and released.
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
	item         T          // as the claim last wrote it
	known, tried int64      // the revision that the row had for certain; the highest that a save has tried to give it
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

// String is for logs.
func (h *HolderOf[T]) String() string {
	return fmt.Sprintf("claim %d of %s in %s by %q", h.hold.epoch, label(h.hold.key), h.items.name, h.hold.owner)
}

// Epoch is the claim's: no other claim of this row, before or after, has it.
func (h *HolderOf[T]) Epoch() int64 { return h.hold.epoch }

// Expired reports whether the claim took over another that had run out: its worker may have died in the middle of things.
func (h *HolderOf[T]) Expired() bool { return h.expired }

// StepID is what the claim was made for, as its owner said.
func (h *HolderOf[T]) StepID() string { return h.stepID }

// Item returns the row as this claim last wrote it: as it found the row, and then as Save, Renew and Release changed it. It is a copy, but
// what the row's fields point to is shared. It makes no database call.
func (h *HolderOf[T]) Item() T {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.item
}

// Renew extends the claim to a full TTL from now. It touches the claim alone. [HolderOf.Run] and [HolderOf.Heartbeat] do it for you.
//
// It is one UPDATE, and may block on the database, as [TryAcquire] does. The error is [ErrLost] when the claim is lost, or was released; else
// what the database said.
func (h *HolderOf[T]) Renew(ctx context.Context) error {
	if err := checkCtx(ctx); err != nil {
		return wrap(h.op("renew"), err)
	}
	return wrap(h.op("renew"), h.life.renew(ctx))
}

// Release ends the claim, so that anyone may claim the row at once, and counts it as a clean one: the row's Attempts are 0. It ends a
// Heartbeat, and the context of a Run.
//
// It is one UPDATE, and may block on the database, as [TryAcquire] does. It is nil when the claim was released before. The error is [ErrLost]
// when the claim is lost, and then nothing is changed; else what the database said: repeat it, or let the claim run out.
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
			if late := now.renewed.Before(c.RenewedAt) && now.expires.After(c.RenewedAt); !late { // than another's reply
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

// Save writes the row, in one UPDATE that does nothing unless the claim still stands: all of the model's own columns, or those that are named
// (as in the table or as in Go), so that a column which another writer owns is not overwritten. With either it writes whether it is Done. It
// never writes the key, the claim or an association. It neither needs nor makes a renewal.
//
// GORM's hooks for an update run, in a transaction with it, and UpdatedAt is set; what a hook changes is written if it is among the columns, and
// what it omits is not. Plugins have their say, in a transaction unless db skips the default one. An [Item] has neither. [HolderOf.Item] is then
// what was written.
//
// It may block on the database, as [TryAcquire] does, and on a save that was begun before. The error is [ErrLost] when the claim is lost, and
// then nothing was written; [ErrInvalid] for another row's key, an unknown column, or an [Item]'s payload that is not JSON, before any SQL;
// another if a hook, a field or a plugin adds a condition that the row does not meet; else what the database or a hook said. After such an error
// it may still have been written, now or later: save again, which replaces it whenever it lands.
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

// SaveIn is like Save, but within the caller's transaction: what else that writes, and the row, are committed together, or neither is.
//
// [HolderOf.Item] stays as it was, since the transaction may be rolled back. After the commit go on with the value that was saved: a later save
// of Item would put back what it was, and Done. Save, Renew and Release are not part of the transaction: they commit on their own, at once or, if
// they have to wait for it, after it. Until the transaction ends, it holds up the claim's renewals, and whoever wants to claim the row: save
// last. On Postgres the server ends the session if the transaction then lies idle for the TTL. Outside a transaction it is [ErrInvalid]. After
// [ErrLost] roll the transaction back. On SQLite, SaveIn refuses a transaction
// that a failed statement has ended, and protects tx from then on, as [Fence]
// does.
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

// write sends a save, and keeps what was saved. Its outcome is unknown if there is an error, or a transaction.
func (h *HolderOf[T]) write(ctx context.Context, on *handle, it T, names []string) (ok bool, err error) {
	m := h.items
	w := &write[T]{hold: h.hold, item: it}
	if w.columns, err = m.columnsOf(names); err != nil {
		return false, err
	}
	m.detach(&w.item) // from copies that others read
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

// number makes a write the next one of the row: one that an earlier write of unknown outcome cannot undo, whether that has landed or will.
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

// keep makes the columns that were written part of the copy of the row.
func (h *HolderOf[T]) keep(saved *write[T]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.items
	c := *m.claimable(&h.item) // it may have been renewed meanwhile
	c.Revision, c.Done = m.claimable(&saved.item).Revision, m.claimable(&saved.item).Done
	h.known = c.Revision
	m.merge(&h.item, &saved.item, saved.columns)
	*m.claimable(&h.item) = c
}

// Fence proves, inside the transaction tx, that the claim is in force, and holds off the next one until the transaction ends, as [Term.Fence]
// does for a term. A claim that ran out is not in force. The error is [ErrLost] then; [ErrInvalid] outside a transaction; else what the database said.
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

// over looks whether the claim is. If the database does not say, it is not known to be.
func (h *HolderOf[T]) over(ctx context.Context, _ *handle) bool {
	ctx, cancel := briefly(ctx)
	defer cancel()
	p, err := h.items.peek(ctx, h.hold.key, clockNow(h.now))
	if errors.Is(err, gorm.ErrRecordNotFound) {
		return true
	}
	return err == nil && (p.owner != h.hold.owner || p.epoch != h.hold.epoch || !p.expires.After(p.now))
}

// Heartbeat renews the claim every interval, until ctx ends, the claim is released, or it can no longer be counted on. It blocks until then:
// give it a goroutine. [HolderOf.Run] has a heartbeat of its own.
//
// An interval that is not positive means a third of the TTL; one that is longer than half of it means that. Errors of the database, or a
// database that does not answer, are survived until two thirds of the TTL after the last good renewal was sent. Then, or at once if the claim
// is lost, Heartbeat calls onLost, once, with [ErrLost] and what led to it: the work must stop. It calls onRenewed after renewals, with
// [HolderOf.Item]; not again while a call lasts, so that it holds up no renewal. Either may be nil, and may use the claim.
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

// Run runs work while it keeps the claim alive, and ends the claim as the work's end demands. It blocks until work has returned.
//
// Work's context ends when the claim can no longer be counted on (cause [ErrLost]: it is lost, or was not renewed for two thirds of a TTL),
// when it was released, and when ctx ends (ctx's cause). While work winds down, the claim is still renewed. The context carries the claim, so
// that [Fence] and [Transaction] fence it; in a work within a work, the innermost.
//
// What Run returns, and what becomes of the row:
//
//   - nil, when work returned nil: the claim was released, as [HolderOf.Release] does, but see the next. Or work had released it itself.
//   - ctx's cause, and what work returned, when ctx ended and work returned an error: the process is shutting down. The claim was released,
//     and its attempt taken back, so that it does not look like a crash. (The attempt is taken back, too, when work returned nil then.)
//   - [ErrLost], and what work returned, when the claim was lost before work returned. So it is when work deletes the row, softly or not, though
//     that may be committed: to finish an item, set Done.
//   - What work returned, when it failed otherwise. The claim is left to run out, so that the row is not tried again at once, and its next
//     claim counts one more attempt. So it is when work panics, and the panic comes out of Run.
//
// If the database does not answer, the release is given up after a third of a TTL or five seconds, whichever is less (150 milliseconds, if the
// TTL is tiny), and the error says so. It is [ErrInvalid] for a nil work, or a second Run of the claim at the same time.
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
		return ignore(err, func(err error) bool { return errors.Is(err, context.Canceled) }) // as its context was
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

// also joins an error to the first, unless that says it all.
func also(first, err error) error {
	switch {
	case err == nil:
		return first
	case errors.Is(err, first):
		return err
	}
	return fmt.Errorf("%w: %w", first, err)
}
