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

// A Claimable holds the columns that make a row claimable. Embed Claimable in a
// model of your own, beside a primary key of one column. Embed the struct
// itself, without a prefix. GORM's AutoMigrate then creates the columns,
// claim_…, and an index for [ClaimNext]. AutoMigrate is not for several
// processes at once.
//
// Only this package writes these columns, except Done. GORM sets them when it
// creates a row and never updates them, so db.Save on a claimed row does not
// release the claim. Revision is an exception: db.Save puts an old Revision
// back, and the next Save of a live claim is then refused. Prefer to update
// only the columns that you mean. In a model with a Done of its own, set
// Claimable.Done to finish an item.
//
// As in a [Record], the table keeps the times as microseconds since the Unix
// epoch.
type Claimable struct {
	// The owner of the claim, at most 200 characters. Empty once released.
	Owner string `gorm:"column:claim_owner;<-:create;size:200;not null;default:''"`
	// The purpose of the claim, in the owner's words, at most 200 characters.
	// Empty once released.
	StepID string `gorm:"column:claim_step_id;<-:create;size:200;not null;default:''"`
	// Grows by one with every claim of any owner. Never reset.
	Epoch int64 `gorm:"column:claim_epoch;<-:create;not null;default:0"`
	// Grows with every claim and every save.
	Revision int64 `gorm:"column:claim_revision;not null;default:0"`
	// Claims since the last clean release. A high count marks an item that
	// kills its workers.
	Attempts int `gorm:"column:claim_attempts;<-:create;not null;default:0"`
	// When the last claim was made.
	AcquiredAt time.Time `gorm:"column:claim_acquired_at;<-:create;type:bigint;serializer:lease_unix_micro;index:,composite:claim_queue,expression:COALESCE(claim_acquired_at\\,0),where:NOT claim_done"`
	// When the claim was last renewed.
	RenewedAt time.Time `gorm:"column:claim_renewed_at;<-:create;type:bigint;serializer:lease_unix_micro"`
	// When the claim runs out, unless it is renewed.
	ExpiresAt time.Time `gorm:"column:claim_expires_at;<-:create;type:bigint;serializer:lease_unix_micro"`
	// Yours to set. Save writes Done. An item that is done is never claimed
	// again.
	Done bool `gorm:"column:claim_done;not null;default:false"`
}

func (c *Claimable) claimable() *Claimable { return c }

// A Model is a pointer to a struct that embeds [Claimable].
type Model[T any] interface {
	*T
	claimable() *Claimable
}

// An Item is one row of the table lease_items, a work item without a table of
// its own.
type Item struct {
	// At most 255 characters.
	Key string `gorm:"column:key;primaryKey;not null;size:255"`
	// JSON. An empty Payload means null. Postgres stores jsonb, which preserves
	// the value but not the text.
	Payload json.RawMessage `gorm:"column:payload;not null;serializer:lease_json"`
	Claimable
	// When Create wrote the item, by the clock of the calling process.
	CreatedAt time.Time `gorm:"column:created_at;<-:create;type:bigint;serializer:lease_unix_micro;autoCreateTime:false"`
	// When Create or Save last wrote the item, by the caller's clock: the
	// claim's now, if given, otherwise the process's clock.
	UpdatedAt time.Time `gorm:"column:updated_at;type:bigint;serializer:lease_unix_micro;autoUpdateTime:false"`
}

// TableName is "lease_items", whatever GORM's naming strategy says. [Tables]
// adds a prefix.
func (Item) TableName() string { return itemsTable }

// beforeWrite checks and completes a row of the package's own table before each
// write.
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

// Escapes for which Postgres has no character: NUL, and a surrogate without its
// other half.
var (
	surrogates = regexp.MustCompile(`\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}`)
	noChar     = regexp.MustCompile(`\\u(0000|[dD][89a-fA-F])`)
)

// noText reports whether JSON contains such an escape. An escaped backslash
// does not begin an escape.
func noText(payload []byte) bool {
	if !bytes.Contains(payload, []byte(`\u`)) {
		return false
	}
	return noChar.Match(surrogates.ReplaceAll(bytes.ReplaceAll(payload, []byte(`\\`), []byte("_")), nil))
}

// An ownRow is a model that is, or embeds, an Item.
type ownRow interface{ beforeWrite(now time.Time) error }

// Create adds an unclaimed item with this Key, this Payload and this Done.
// Create ignores the other fields.
//
// Create may block on the database, as [TryAcquire] does, and on a transaction
// that creates the same key. If db is a transaction, Create joins the
// transaction.
//
// The error is [gorm.ErrDuplicatedKey] if the key exists already. On Postgres
// this error aborts a transaction. The error is [ErrInvalid], before any SQL,
// for a bad key, a payload that is not JSON, or a bad handle. Any other error
// comes from the database.
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

// Load returns an item, claimed or not, and a string that changes with every
// write to the item. Nothing else about the string is promised.
//
// Load sends one SELECT, to the primary, and may block on the database, as
// [TryAcquire] does. The error is [gorm.ErrRecordNotFound] if the item does not
// exist, and [ErrInvalid] for a bad key or handle. Any other error comes from
// the database.
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
	// A write may leave both counters alone. Such a write changes the rest of
	// the row, so the string has a hash of the rest.
	rest, hash := it, sha256.New()
	rest.Payload = nil
	fmt.Fprintf(hash, "%+v", rest)
	hash.Write(it.Payload)
	return it, fmt.Sprintf("%d.%d.%x", it.Epoch, it.Revision, hash.Sum(nil)[:8]), nil
}

// Claim claims the item with this key for owner, until ttl from now, and begins
// a new epoch. Until then nobody else can claim the item. Only the [Holder]
// that Claim returns can end, renew or save this claim.
//
// An owner is one worker. Give every worker an owner of its own, such as
// [InstanceID]. If the item is already owner's (from before a crash, or when a
// reply was lost), Claim claims the item anew and the earlier claim is lost.
// stepID is for readers of the table and may be empty.
//
// If now is nil, the database's clock decides. Choose nil for workers with
// clocks of their own. Any other now is called for the time at each statement.
// A zero time from now means the database's clock. With a now of your own,
// everyone on this item must pass one, from clocks that agree within a third of
// the ttl.
//
// Claim never waits for the item to come free. Claim waits only for the
// database, as [TryAcquire] does, and for open transactions that an earlier
// claim has fenced, such as a claim that just ran out. Claim sends one SELECT
// and, if the item is free, one UPDATE. Neither runs in a transaction: if db is
// a transaction, the error is [ErrInvalid].
//
// The error is [ErrHeld] if another owner's claim is live, [ErrDone] if the
// item is done, [gorm.ErrRecordNotFound] if the item does not exist, and
// [ErrInvalid] for a bad argument, before any SQL. Any other error comes from
// the database. After such an error the claim may or may not have been made:
// claim again, or let the claim run out.
func Claim(ctx context.Context, db *gorm.DB, key, owner, stepID string, ttl time.Duration, now func() time.Time) (*Holder, error) {
	if err := checkString("key", key, maxKey); err != nil {
		return nil, wrap(fmt.Sprintf("claim %q", key), err)
	}
	return ClaimAs[Item](ctx, db, key, owner, stepID, ttl, now)
}

// ClaimAs is like [Claim], for a row of your own model, found by its primary
// key. The promises are the same. A soft-deleted row is not found. AfterFind
// runs on the row that ClaimAs loads. If AfterFind returns an error, so does
// ClaimAs, and the claim may have been made.
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

// ClaimNext is like [ClaimAs] (or [Claim], for an [Item]), for the row that has
// waited longest. ClaimNext considers rows that nobody has claimed and rows
// whose claim ran out. ClaimNext takes the row whose last claim is the oldest,
// and rows that were never claimed first. A row whose workers die moves to the
// back of the queue, and Attempts counts its claims since the last clean
// release.
//
// ClaimNext never takes a live claim, not even the owner's own. Scopes narrow
// the choice, by Where and Joins. Anything else in a scope is [ErrInvalid].
//
// ClaimNext never waits for another worker. On Postgres ClaimNext skips rows
// that somebody else is about to take, or has fenced. On SQLite, which has no
// row locks, ClaimNext retries when another worker takes the row first.
//
// The error is [gorm.ErrRecordNotFound] if there is no row to claim. ClaimNext
// returns neither [ErrHeld] nor [ErrDone]. The other errors are those of
// ClaimAs.
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
		// The same row again: it cannot be taken, and no other worker took it
		// first.
		if seen.epoch == last.epoch && reflect.DeepEqual(seen.key, last.key) {
			return nil, wrap(op, gorm.ErrRecordNotFound)
		}
		last = seen
	}
}

// openClaim checks the arguments that all claims share.
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

// checkedJSON is the GORM serializer of a payload. The payload is text in every
// database.
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
