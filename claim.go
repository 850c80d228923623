package lease

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"
)

// maxKey is the longest key of an [Item], in characters.
const maxKey = 255

// A Claimable is what a row needs to be claimed. Embed it in a model of your own, beside its primary key of one column, and GORM's AutoMigrate
// brings its columns, claim_…, and an index for [ClaimNext]. It is this package's to write, but for Done.
//
// As in a [Record], the table keeps the times as microseconds since the Unix epoch.
type Claimable struct {
	// Who claimed it, at most 200 characters; empty once released.
	Owner string `gorm:"column:claim_owner;size:200;not null;default:''"`
	// What for, as the owner said, at most 200 characters; empty once released.
	StepID string `gorm:"column:claim_step_id;size:200;not null;default:''"`
	// Grows by one with every claim, by whomever; never reset.
	Epoch int64 `gorm:"column:claim_epoch;not null;default:0"`
	// Grows with every claim and every save.
	Revision int64 `gorm:"column:claim_revision;not null;default:0"`
	// Claims since the last clean release; many of them tell of an item that kills its workers.
	Attempts int `gorm:"column:claim_attempts;not null;default:0"`
	// The last claim.
	AcquiredAt time.Time `gorm:"column:claim_acquired_at;type:bigint;serializer:lease_unix_micro;index:,composite:claim_queue,expression:COALESCE(claim_acquired_at\\,0),where:NOT claim_done"`
	// Its last renewal.
	RenewedAt time.Time `gorm:"column:claim_renewed_at;type:bigint;serializer:lease_unix_micro"`
	// It runs out here, unless it is renewed.
	ExpiresAt time.Time `gorm:"column:claim_expires_at;type:bigint;serializer:lease_unix_micro"`
	// Yours: Save writes it. An item that is done is never claimed again.
	Done bool `gorm:"column:claim_done;not null;default:false"`
}

func (c *Claimable) claimable() *Claimable { return c }

// A Model is a pointer to a struct that embeds [Claimable].
type Model[T any] interface {
	*T
	claimable() *Claimable
}

// An Item is one row of the table lease_items: a work item that needs no table of its own.
type Item struct {
	// At most 255 characters.
	Key string `gorm:"column:key;primaryKey;not null;size:255"`
	// JSON; empty means null. Postgres keeps it as jsonb, which is the same value, not the same text.
	Payload json.RawMessage `gorm:"column:payload;not null;serializer:lease_json"`
	Claimable
	// When Create wrote it, by that process's clock.
	CreatedAt time.Time `gorm:"column:created_at;<-:create;type:bigint;serializer:lease_unix_micro;autoCreateTime:false"`
	// When Create or Save last wrote it, by that process's clock.
	UpdatedAt time.Time `gorm:"column:updated_at;type:bigint;serializer:lease_unix_micro;autoUpdateTime:false"`
}

// TableName is "lease_items", whatever GORM's naming strategy says; [Tables] puts a prefix before it.
func (Item) TableName() string { return itemsTable }

// beforeWrite is what a row of the package's own table needs before it is written.
func (it *Item) beforeWrite(now time.Time) error {
	if len(it.Payload) == 0 {
		it.Payload = json.RawMessage("null")
	}
	if !json.Valid(it.Payload) || !utf8.Valid(it.Payload) || noText(it.Payload) {
		return invalid("Payload", "is not valid JSON, or contains a NUL, or half a character")
	}
	it.Payload, it.UpdatedAt = bytes.Clone(it.Payload), now.Truncate(time.Microsecond).UTC()
	return nil
}

// Escapes that Postgres takes for no character: NUL, and a surrogate that has lost its other half.
var (
	surrogates = regexp.MustCompile(`\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}`)
	noChar     = regexp.MustCompile(`\\u(0000|[dD][89a-fA-F])`)
)

// noText reports whether JSON contains such an escape. An escaped backslash begins none.
func noText(payload []byte) bool {
	if !noChar.Match(payload) {
		return false
	}
	return noChar.Match(surrogates.ReplaceAll(bytes.ReplaceAll(payload, []byte(`\\`), []byte("_")), nil))
}

// ownRow is a model that is, or embeds, an Item.
type ownRow interface{ beforeWrite(now time.Time) error }

// Create adds an item, unclaimed, with its Key, its Payload and whether it is Done; the rest of it is not looked at.
//
// It may block on the database, as [TryAcquire] does, and on a transaction that creates the same key. On a transaction's handle it joins that
// transaction. The error is [gorm.ErrDuplicatedKey] when there is one of that key, which spoils a transaction on Postgres; [ErrInvalid] for a
// bad key, a payload that is not JSON, or a bad handle, before any SQL; else what the database said.
func Create(ctx context.Context, db *gorm.DB, it Item) error {
	op := fmt.Sprintf("create %q", it.Key)
	if err := cmp.Or(checkCtx(ctx), checkString("it.Key", it.Key, maxKey), it.beforeWrite(time.Now())); err != nil {
		return wrap(op, err)
	}
	m, err := openItems[Item](db)
	if err != nil {
		return wrap(op, err)
	}
	it.CreatedAt, it.Claimable = it.UpdatedAt, Claimable{Done: it.Done}
	return wrap(op, m.create(ctx, it))
}

// Load returns an item, claimed or not, and a string that changes with every write to it; nothing more is promised of that.
//
// It is one SELECT, on the primary; it may block on the database, as [TryAcquire] does. The error is [gorm.ErrRecordNotFound] when there is no
// such item, [ErrInvalid] for a bad key or handle, else what the database said.
func Load(ctx context.Context, db *gorm.DB, key string) (Item, string, error) {
	op := fmt.Sprintf("load %q", key)
	if err := cmp.Or(checkCtx(ctx), checkString("key", key, maxKey)); err != nil {
		return Item{}, "", wrap(op, err)
	}
	m, err := openItems[Item](db)
	if err != nil {
		return Item{}, "", wrap(op, err)
	}
	it, err := m.find(ctx, key)
	if err != nil {
		return Item{}, "", wrap(op, err)
	}
	// Whatever else writes to the row, it changes the rest.
	rest := sha256.Sum256(fmt.Appendf(nil, "%+v", it))
	return it, fmt.Sprintf("%d.%d.%x", it.Epoch, it.Revision, rest[:8]), nil
}

// Claim claims the item of that key for owner, until ttl from now: nobody else can claim it before, and this claim can only be ended, renewed
// and saved by the [Holder] that Claim returns. It begins a new epoch.
//
// An owner is one worker: give every one its own, [InstanceID] say. An owner that claims an item which it has claimed already (before a crash,
// or when a reply was lost) gets it anew, and the earlier claim is lost. stepID is for people who read the table; it may be empty.
//
// A nil now lets the database's clock decide, which is what workers with clocks of their own want. Any other is asked for the time at each
// statement; then everyone on this item must bring their own, from clocks that agree within a third of the ttl.
//
// It never waits for the item to come free, only for the database, as [TryAcquire] does, and for transactions that are fenced by a claim which
// just ran out. It sends one SELECT, and if that finds the item free one UPDATE, in no transaction: a handle that is one is [ErrInvalid].
//
// The error is [ErrHeld] when another owner's claim is live, [ErrDone] when the item is done, [gorm.ErrRecordNotFound] when there is none;
// [ErrInvalid] for a bad argument, before any SQL; else what the database said. After such an error the claim may still have been made: claim
// again, or let it run out.
func Claim(ctx context.Context, db *gorm.DB, key, owner, stepID string, ttl time.Duration, now func() time.Time) (*Holder, error) {
	if err := checkString("key", key, maxKey); err != nil {
		return nil, wrap(fmt.Sprintf("claim %q", key), err)
	}
	return ClaimAs[Item](ctx, db, key, owner, stepID, ttl, now)
}

// ClaimAs is [Claim] of a row of a model of your own, by its primary key, with the same promises. A row that is soft-deleted is not found.
// AfterFind runs on what the claim loads.
func ClaimAs[T any, M Model[T]](ctx context.Context, db *gorm.DB, key any, owner, stepID string, ttl time.Duration, now func() time.Time) (*HolderOf[T], error) {
	op := "claim " + label(key)
	m, err := openClaim[T, M](ctx, db, owner, stepID, ttl, now)
	if err != nil {
		return nil, wrap(op, err)
	}
	if key == nil {
		return nil, wrap(op, invalid("key", "is nil"))
	}
	seen, err := m.peek(ctx, key, clockNow(now))
	switch {
	case err != nil:
		return nil, wrap(op, err)
	case seen.done:
		return nil, wrap(op, ErrDone)
	case seen.held(owner):
		return nil, wrap(op, fmt.Errorf("%w: by %q, until %v", ErrHeld, seen.owner, seen.expires))
	}
	sent := machineClock()
	it, taken, err := m.take(ctx, seen, owner, stepID, ttl, clockNow(now))
	switch {
	case err != nil:
		return nil, wrap(op, err)
	case !taken:
		return nil, wrap(op, fmt.Errorf("%w: another was faster", ErrHeld))
	}
	return newHolder(ctx, m, it, sent, seen.ranOut(), ttl, now), nil
}

// ClaimNext is [ClaimAs] of the row that waited longest: of those that nobody has claimed, or whose claim ran out, the one that was claimed
// the longest ago, if ever. So a row whose workers keep dying goes to the back of the queue, and its Attempts tell.
//
// Scopes narrow the choice, by Where and Joins; anything else in them is [ErrInvalid].
//
// It never waits for another worker: on Postgres it passes over rows that somebody else is about to take, or has fenced. Where there are no
// such locks, it looks again when another was faster. The error is [gorm.ErrRecordNotFound] when there is nothing to claim; else as ClaimAs has it.
func ClaimNext[T any, M Model[T]](ctx context.Context, db *gorm.DB, owner, stepID string, ttl time.Duration, now func() time.Time, scopes ...func(*gorm.DB) *gorm.DB) (*HolderOf[T], error) {
	m, err := openClaim[T, M](ctx, db, owner, stepID, ttl, now)
	if err != nil {
		return nil, wrap("claim next", err)
	}
	op := "claim next of " + m.name
	last := peek{epoch: -1}
	for {
		sent := machineClock()
		if m.dialect.skipLocked {
			it, before, taken, err := m.takeNext(ctx, owner, stepID, ttl, clockNow(now), scopes)
			if err == nil && !taken {
				err = gorm.ErrRecordNotFound
			}
			if err != nil {
				return nil, wrap(op, err)
			}
			return newHolder(ctx, m, it, sent, before != "", ttl, now), nil
		}
		seen, err := m.peekNext(ctx, clockNow(now), scopes)
		if err != nil {
			return nil, wrap(op, err)
		}
		it, taken, err := m.take(ctx, seen, owner, stepID, ttl, clockNow(now))
		if err != nil {
			return nil, wrap(op, err)
		}
		if taken {
			return newHolder(ctx, m, it, sent, seen.ranOut(), ttl, now), nil
		}
		if seen.epoch == last.epoch && reflect.DeepEqual(seen.key, last.key) { // it is not to be had, and nobody else was faster
			return nil, wrap(op, gorm.ErrRecordNotFound)
		}
		last = seen
	}
}

// openClaim checks what all claims are given.
func openClaim[T any, M Model[T]](ctx context.Context, db *gorm.DB, owner, stepID string, ttl time.Duration, now func() time.Time) (*items[T], error) {
	err := cmp.Or(checkCtx(ctx), checkHolder("owner", owner), checkTTL("ttl", ttl), checkNow(clockNow(now)))
	if err == nil && stepID != "" {
		err = checkHolder("stepID", stepID)
	}
	if err != nil {
		return nil, err
	}
	m, err := openItems[T, M](db)
	if err == nil && m.inTx {
		err = invalid("db", "is a transaction, whose roll-back would reuse an epoch")
	}
	return m, err
}

// label is a key as errors name it.
func label(key any) string { return fmt.Sprintf("%q", fmt.Sprint(key)) }

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

func newHolder[T any](ctx context.Context, m *items[T], it T, sent instant, expired bool, ttl time.Duration, now func() time.Time) *HolderOf[T] {
	c := m.claimable(&it)
	key, _ := m.keyOf(ctx, &it)
	h := &HolderOf[T]{
		items: m, hold: hold{key: key, owner: c.Owner, epoch: c.Epoch}, stepID: c.StepID, expired: expired, ttl: ttl, now: now,
		saving: make(chan struct{}, 1), running: make(chan struct{}, 1),
		item: it, known: c.Revision, tried: c.Revision,
	}
	h.life = newClaim(h, sent, ttl, machineClock, m.count)
	m.count.claim(expired)
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
	now, ok, err := h.items.renew(ctx, h.hold, h.ttl, clockNow(h.now))
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
	now, ok, err := h.items.release(ctx, h.hold, keep, clockNow(h.now))
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
// GORM's hooks for an update run, in a transaction with it, and UpdatedAt is set; [HolderOf.Item] is then what was written.
//
// It may block on the database, as [TryAcquire] does, and on a save that was begun before. The error is [ErrLost] when the claim is lost, and
// then nothing was written; [ErrInvalid] for another row's key, an unknown column, or an [Item]'s payload that is not JSON, before any SQL;
// else what the database or a hook said. After such an error it may still have been written, now or later: save again, which replaces it whenever it lands.
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
// [HolderOf.Item] stays as it was, since the transaction may be rolled back. Until the transaction ends, it holds up the claim's renewals, and
// whoever wants to claim the row: save last. On Postgres the server ends the session if the transaction then lies idle for the TTL. Outside a
// transaction it is [ErrInvalid]. After [ErrLost] roll the transaction back.
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
	if key, given := m.keyOf(ctx, &w.item); given && key != h.hold.key && !reflect.DeepEqual(key, h.hold.key) {
		return false, invalid("it", "is the row %s, and not %s", label(key), label(h.hold.key))
	}
	if own, ok := any(&w.item).(ownRow); ok {
		now := time.Now()
		if h.now != nil {
			now = h.now()
		}
		if err := own.beforeWrite(now); err != nil {
			return false, err
		}
		if len(names) > 0 {
			w.columns = append(w.columns, "updated_at")
		}
	}
	select {
	case h.saving <- struct{}{}:
		defer func() { <-h.saving }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	if err := h.life.ended(); err != nil {
		m.count.refuse()
		return false, err
	}
	h.number(ctx, w)
	ok, err = m.save(ctx, on, w)
	switch {
	case err != nil:
		return false, err
	case !ok:
		m.count.refuse()
	case !on.inTx && len(names) == 0:
		h.keep(ctx, w, func(f *schema.Field) bool { return f.Updatable })
	case !on.inTx:
		h.keep(ctx, w, func(f *schema.Field) bool { return f.AutoUpdateTime > 0 || slices.Contains(w.columns, f.DBName) })
	}
	return ok, nil
}

// number makes a write the next one of the row: one that an earlier write of unknown outcome cannot undo, whether that has landed or will.
func (h *HolderOf[T]) number(ctx context.Context, w *write[T]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.from, w.to = h.known, h.tried
	h.tried++
	h.items.setKey(ctx, &w.item, &h.item)
	c := h.items.claimable(&w.item)
	done := c.Done
	*c = *h.items.claimable(&h.item)
	c.Revision, c.Done = h.tried, done
}

// keep makes the columns that were written part of the copy of the row.
func (h *HolderOf[T]) keep(ctx context.Context, saved *write[T], written func(*schema.Field) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.items
	c := *m.claimable(&h.item) // it may have been renewed meanwhile
	c.Revision, c.Done = m.claimable(&saved.item).Revision, m.claimable(&saved.item).Done
	h.known = c.Revision
	if own := plain(&saved.item, saved.columns); own != nil {
		it := any(&h.item).(*Item)
		it.Payload, it.UpdatedAt = own.Payload, own.UpdatedAt
	} else {
		m.merge(ctx, &h.item, &saved.item, written)
	}
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
		h.items.count.refuse()
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
	defer sending.settle(parting(h.ttl))
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
//   - nil, when work returned nil: the claim was released, as [HolderOf.Release] does. Or work had released it itself.
//   - ctx's cause, and what work returned, when ctx ended and work returned an error: the process is shutting down. The claim was released,
//     and its attempt taken back, so that it does not look like a crash. (The attempt is taken back, too, when work returned nil then.)
//   - [ErrLost], and what work returned, when the claim was lost before work returned.
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
		sending.settle(parting(h.ttl))
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

// checkedJSON is the GORM serializer of a payload, which is a text in every database.
type checkedJSON struct{}

func init() { schema.RegisterSerializer("lease_json", checkedJSON{}) }

// Scan reads a column into its field.
func (checkedJSON) Scan(ctx context.Context, field *schema.Field, dst reflect.Value, column any) error {
	var text sql.RawBytes
	switch c := column.(type) {
	case string:
		text = []byte(c)
	case []byte:
		text = bytes.Clone(c)
	case nil:
		text = []byte("null")
	default:
		return fmt.Errorf("lease: column %s is a %T, not JSON", field.DBName, column)
	}
	return field.Set(ctx, dst, json.RawMessage(text))
}

// Value writes a field into its column.
func (checkedJSON) Value(_ context.Context, field *schema.Field, _ reflect.Value, value any) (any, error) {
	payload, ok := value.(json.RawMessage)
	if !ok {
		return nil, fmt.Errorf("lease: field %s is a %T, not a json.RawMessage", field.Name, value)
	}
	if len(payload) == 0 {
		return "null", nil
	}
	return string(payload), nil
}
