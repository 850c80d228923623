package lease

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"time"
	"unicode/utf8"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"
)

// maxKey is the longest key of an [Item], in characters.
const maxKey = 255

// A Claimable is what a row needs to be claimed. Embed it in a model of your own, beside its primary key of one column, and GORM's AutoMigrate
// (which is not for several processes at once) brings its columns, claim_…, and an index for [ClaimNext]. Embed the struct itself, without a
// prefix. It is this package's to write, but for Done: GORM writes the other columns when it creates a row, and then leaves them, so that a Save
// of your own frees no claim. (It does put Revision back, which costs a claim that is held its next save: prefer to update the columns that you
// mean.) A model with a Done of its own finishes an item by Claimable.Done.
//
// As in a [Record], the table keeps the times as microseconds since the Unix epoch.
type Claimable struct {
	// Who claimed it, at most 200 characters; empty once released.
	Owner string `gorm:"column:claim_owner;<-:create;size:200;not null;default:''"`
	// What for, as the owner said, at most 200 characters; empty once released.
	StepID string `gorm:"column:claim_step_id;<-:create;size:200;not null;default:''"`
	// Grows by one with every claim, by whomever; never reset.
	Epoch int64 `gorm:"column:claim_epoch;<-:create;not null;default:0"`
	// Grows with every claim and every save.
	Revision int64 `gorm:"column:claim_revision;not null;default:0"`
	// Claims since the last clean release; many of them tell of an item that kills its workers.
	Attempts int `gorm:"column:claim_attempts;<-:create;not null;default:0"`
	// The last claim.
	AcquiredAt time.Time `gorm:"column:claim_acquired_at;<-:create;type:bigint;serializer:lease_unix_micro;index:,composite:claim_queue,expression:COALESCE(claim_acquired_at\\,0),where:NOT claim_done"`
	// Its last renewal.
	RenewedAt time.Time `gorm:"column:claim_renewed_at;<-:create;type:bigint;serializer:lease_unix_micro"`
	// It runs out here, unless it is renewed.
	ExpiresAt time.Time `gorm:"column:claim_expires_at;<-:create;type:bigint;serializer:lease_unix_micro"`
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
	if !bytes.Contains(payload, []byte(`\u`)) {
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
	rest, hash := it, sha256.New()
	rest.Payload = nil
	fmt.Fprintf(hash, "%+v", rest)
	hash.Write(it.Payload)
	return it, fmt.Sprintf("%d.%d.%x", it.Epoch, it.Revision, hash.Sum(nil)[:8]), nil
}

// Claim claims the item of that key for owner, until ttl from now: nobody else can claim it before, and this claim can only be ended, renewed
// and saved by the [Holder] that Claim returns. It begins a new epoch.
//
// An owner is one worker: give every one its own, [InstanceID] say. An owner that claims an item which it has claimed already (before a crash,
// or when a reply was lost) gets it anew, and the earlier claim is lost. stepID is for people who read the table; it may be empty.
//
// A nil now lets the database's clock decide, which is what workers with clocks of their own want. Any other is asked for the time at each
// statement, and its zero time means the database's; then everyone on this item must bring their own, from clocks that agree within a third
// of the ttl.
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
	if k := reflect.ValueOf(key); key == nil || k.Kind() == reflect.Pointer && k.IsNil() {
		return nil, wrap(op, invalid("key", "is nil"))
	}
	if err := m.setKey(ctx, new(T), key); err != nil {
		return nil, wrap(op, invalid("key", "is a %T, and none for %s: %v", key, m.name, err))
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
	l, err := m.take(ctx, seen, owner, stepID, ttl, clockNow(now))
	switch {
	case err != nil:
		return nil, wrap(op, err)
	case l == nil:
		return nil, wrap(op, fmt.Errorf("%w: another was faster", ErrHeld))
	}
	return newHolder(m, l, sent, seen.ranOut(), ttl, now), nil
}

// ClaimNext is [ClaimAs], or with an [Item] [Claim], of the row that waited longest: of those that nobody has claimed, or whose claim ran out,
// the one that was claimed the longest ago, if ever. So a row whose workers keep dying goes to the back of the queue, and its Attempts tell.
//
// It never takes a live claim, the owner's own included. Scopes narrow the choice, by Where and Joins; anything else in them is [ErrInvalid].
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
			l, before, err := m.takeNext(ctx, owner, stepID, ttl, clockNow(now), scopes)
			if err == nil && l == nil {
				err = gorm.ErrRecordNotFound
			}
			if err != nil {
				return nil, wrap(op, err)
			}
			return newHolder(m, l, sent, before != "", ttl, now), nil
		}
		seen, err := m.peekNext(ctx, clockNow(now), scopes)
		if err != nil {
			return nil, wrap(op, err)
		}
		l, err := m.take(ctx, seen, owner, stepID, ttl, clockNow(now))
		if err != nil {
			return nil, wrap(op, err)
		}
		if l != nil {
			return newHolder(m, l, sent, seen.ranOut(), ttl, now), nil
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
func label(key any) string {
	if bytes, ok := key.([]byte); ok {
		return fmt.Sprintf("%q", bytes)
	}
	return fmt.Sprintf("%q", fmt.Sprint(key))
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
