package lease

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gorm.io/gorm/schema"

	"github.com/sqllease/lease/internal/hook"
)

const leasesTable = "leases"

// A Record is one row of the table leases: the holder of a lease, the term, and
// the expiry.
//
// The table keeps its times as whole microseconds since the Unix epoch, in
// BIGINT columns. Such columns mean the same in every database and time zone.
// GORM, [Find] and [List] return the times in UTC. A condition written by hand
// must compare microseconds.
type Record struct {
	// At most 100 characters.
	Name string `gorm:"column:name;primaryKey;not null;size:100"`
	// At most 200 characters. Empty once released.
	Holder string `gorm:"column:holder;size:200;not null;default:('')"`
	// Grows by one with every new term. Never reset.
	Epoch int64 `gorm:"column:epoch;not null;default:(0)"`
	// The term ends here, unless it is renewed.
	ExpiresAt time.Time `gorm:"column:expires_at;type:bigint;not null;default:(0);serializer:lease_unix_micro"`
	// The term began here.
	AcquiredAt time.Time `gorm:"column:acquired_at;type:bigint;not null;default:(0);serializer:lease_unix_micro"`
	// The last renewal, or the acquisition. Grows with every renewal of a term,
	// by a microsecond if the clock was set back. Only [TryAcquire] may set it
	// back, if a clock was more than a TTL ahead.
	RenewedAt time.Time `gorm:"column:renewed_at;type:bigint;not null;default:(0);serializer:lease_unix_micro"`
}

// TableName returns "leases", whatever GORM's naming strategy says. [Tables]
// puts a prefix before the name.
func (Record) TableName() string { return leasesTable }

// A Status is a [Record] as the database's clock sees it.
type Status struct {
	Record
	Held      bool          // somebody holds the lease now
	Remaining time.Duration // until the lease expires, 0 unless Held
}

// A sighting is the answer to a poll: the row, if there is a row, and the time
// by the clock that measures expiry.
type sighting struct {
	Record
	exists bool
	now    time.Time
}

// live reports whether somebody holds the lease.
func (s sighting) live() bool { return s.exists && s.Holder != "" && s.ExpiresAt.After(s.now) }

// everHeld reports whether the lease ever had a term. A table of an older
// version kept no epochs, so a holder counts too.
func (s sighting) everHeld() bool { return s.exists && (s.Epoch > 0 || s.Holder != "") }

// ttl returns the TTL of the row's last renewal, or 0 if a table of an older
// version did not record the renewal.
func (s sighting) ttl() time.Duration {
	if s.RenewedAt.IsZero() {
		return 0
	}
	return s.ExpiresAt.Sub(s.RenewedAt)
}

// lasts returns the TTL of the row's last renewal. A row that does not say lasts
// at least ttl, and as long as the row has left.
func (s sighting) lasts(ttl time.Duration) time.Duration {
	return cmp.Or(s.ttl(), max(ttl, s.ExpiresAt.Sub(s.now)))
}

// age returns how long ago the row was renewed, by the deciding clock, if the
// renewal was for ttl. A renewal in the future has the age 0.
func (s sighting) age(ttl time.Duration) time.Duration {
	return max(0, saturatingAdd(ttl, s.now.Sub(s.ExpiresAt)))
}

// remaining returns how long the lease is still held, or 0 if it is not held.
func (s sighting) remaining() time.Duration {
	if !s.live() {
		return 0
	}
	return s.ExpiresAt.Sub(s.now)
}

func (s sighting) status() Status {
	return Status{Record: s.Record, Held: s.live(), Remaining: s.remaining()}
}

// statements is the SQL on a table in a dialect. A method of handle below sends
// each text.
type statements struct {
	name, table string // the table, plain and quoted
	mend        string // what to do if the table is missing

	poll, list, seed, take, renew, renewSeen, releaseHeld, releaseTerm, fence string
}

// In these texts, except the seed, ?1 is the caller's time, or NULL for the
// database's clock. {clock} reads the time, anew in each place. {now} is one
// reading of {clock} for the whole statement. Some databases must take the
// reading in {from}.
const (
	// The clock comes first: even without a row, the answer brings the time.
	pollSQL = `SELECT c.now, l.name, l.holder, l.epoch, l.expires_at, l.acquired_at, l.renewed_at
FROM (SELECT {clock} AS now) AS c LEFT JOIN {table} AS l ON l.name = ?2`

	listSQL = `SELECT c.now, l.name, l.holder, l.epoch, l.expires_at, l.acquired_at, l.renewed_at
FROM (SELECT {clock} AS now) AS c INNER JOIN {table} AS l ON l.epoch > 0 OR l.holder <> '' ORDER BY l.name`

	seedSQL = `INSERT INTO {table} (name, holder, epoch, expires_at, acquired_at, renewed_at) VALUES (?1, '', ?2, 0, 0, 0)
ON CONFLICT (name) DO NOTHING`

	// By hand (?6 is NULL) the lease must be released, or expired by the
	// deciding clock. For an elector the lease must be released, or not renewed
	// since the elector saw the row, whatever the clock says.
	takeSQL = `UPDATE {table} AS l SET holder = ?4, epoch = l.epoch + 1, acquired_at = {now}, renewed_at = {now}, expires_at = {now} + ?5{locked}
WHERE l.name = ?2 AND l.epoch = ?3 AND (l.holder = '' OR l.renewed_at = CAST(?6 AS BIGINT) OR CAST(?6 AS BIGINT) IS NULL AND l.expires_at <= {now})`

	// On a database with row locks, a take locks the row first. The take then
	// waits for the transactions that fenced themselves with the previous term.
	// The outer select reads the clock after this wait, so the new term is
	// whole.
	lockedSQL = `
FROM (SELECT {clock} AS now{durable} FROM (
	SELECT name FROM {table} WHERE name = ?2 AND epoch = ?3
		AND (holder = '' OR renewed_at = CAST(?6 AS BIGINT) OR CAST(?6 AS BIGINT) IS NULL AND expires_at <= {clock}) FOR UPDATE
) AS g) AS lease_c`

	// An elector's renewal reads the clock before it waits for anything. So a
	// late renewal does not extend the term further than its sender counts on.
	// A renewal that lands after a newer renewal, or by a clock that was set
	// back, shortens nothing. But such a renewal changes the row, because
	// standbys watch for changes.
	renewSQL = `UPDATE {table} AS l SET expires_at = {later}(l.renewed_at + 1, {now}) + ?5, renewed_at = {later}(l.renewed_at + 1, {now}){from}
WHERE l.name = ?2 AND l.holder = ?3 AND l.epoch = ?4 AND l.expires_at > {now} + ?6`

	// A renewal by hand renews the row as seen: a renewal that lands after
	// another is refused. It shortens nothing either, except for a row that was
	// renewed more than a TTL ahead of the clock: that clock has been corrected
	// since.
	renewSeenSQL = `UPDATE {table} AS l SET
	expires_at = CASE WHEN {ahead} THEN {now} + ?5 ELSE {later}(l.expires_at, {later}(l.renewed_at, {now}) + ?5) END,
	renewed_at = CASE WHEN {ahead} THEN {now} ELSE {later}(l.renewed_at + 1, {now}) END{from}
WHERE l.name = ?2 AND l.holder = ?3 AND l.epoch = ?4 AND l.expires_at > {now} AND l.renewed_at = ?6`

	releaseHeldSQL = `UPDATE {table} AS l SET holder = '', expires_at = {now}{from}
WHERE l.name = ?2 AND l.holder = ?3 AND l.expires_at > {now}`

	releaseTermSQL = `UPDATE {table} AS l SET holder = '', expires_at = {now}{from}
WHERE l.name = ?2 AND l.holder = ?3 AND l.epoch = ?4`
)

// statementsOf keeps the finished texts by dialect and table, because every
// call needs them.
var statementsOf sync.Map // of string to *statements

// statements returns the SQL on the table of leases with the given name.
func (d *dialect) statements(table string) *statements {
	key := d.name + " " + table
	if known, ok := statementsOf.Load(key); ok {
		return known.(*statements)
	}
	quoted := quote(table)
	text := func(sql string) string {
		return d.text(sql, [][2]string{
			{"{table}", quoted}, {"{key}", "name"}, {"{holder}", "holder"}, {"{epoch}", "epoch"}, {"{renewed}", "renewed_at"}, {"{expires}", "expires_at"},
		})
	}
	known, _ := statementsOf.LoadOrStore(key, &statements{
		name: table, table: quoted, mend: "the table " + quoted + " is missing, or of an older version; EnsureSchema mends that",
		poll: text(pollSQL), list: text(listSQL), seed: text(seedSQL), take: text(takeSQL), renew: text(renewSQL), renewSeen: text(renewSeenSQL),
		releaseHeld: text(releaseHeldSQL), releaseTerm: text(releaseTermSQL), fence: text(d.fence),
	})
	return known.(*statements)
}

// quote quotes the name of a table of this package.
func quote(table string) string { return `"` + strings.Replace(table, ".", `"."`, 1) + `"` }

// text finishes the SQL of a statement. A replacement may contain the
// placeholders of later replacements. Names come last.
func (d *dialect) text(sql string, names [][2]string) string {
	for _, r := range [][2]string{
		{"{ahead}", "l.renewed_at > {now} + {later}(?5, l.expires_at - l.renewed_at)"}, // by a TTL, of the row or of its renewal
		{"{locked}", d.locked}, {"{lockedItem}", d.lockedItem}, {"{from}", d.from}, {"{now}", d.now}, {"{durable}", d.durable}, {"{brief}", d.brief}, {"{later}", d.later},
		{"{clock}", d.clock},
		{"?", d.parameter},
	} {
		sql = strings.ReplaceAll(sql, r[0], r[1])
	}
	for _, r := range names {
		sql = strings.ReplaceAll(sql, r[0], r[1])
	}
	return sql
}

// poll reads the row of a lease, and the clock. It sends a single SELECT,
// writes nothing and locks nothing.
func (h *handle) poll(ctx context.Context, name string, now time.Time) (sighting, error) {
	seen, err := query(ctx, h, scanSighting, h.statements.poll, clockArg(now), name)
	if err != nil || len(seen) == 0 {
		return sighting{}, err
	}
	return seen[0], nil
}

// list reads every row that was ever held.
func (h *handle) list(ctx context.Context) ([]Status, error) {
	return query(ctx, h, func(rows *sql.Rows) (Status, error) {
		s, err := scanSighting(rows)
		return s.status(), err
	}, h.statements.list, nil)
}

func scanSighting(rows *sql.Rows) (s sighting, err error) {
	var now int64
	var name, holder sql.NullString
	var epoch, expires, acquired, renewed sql.NullInt64
	if err := rows.Scan(&now, &name, &holder, &epoch, &expires, &acquired, &renewed); err != nil {
		return sighting{}, err
	}
	return sighting{
		now:    fromMicros(now),
		exists: name.Valid,
		Record: Record{
			Name: name.String, Holder: holder.String, Epoch: epoch.Int64,
			ExpiresAt: fromMicros(expires.Int64), AcquiredAt: fromMicros(acquired.Int64), RenewedAt: fromMicros(renewed.Int64),
		},
	}, nil
}

// seed makes the row of a lease without a row, as a row that was released after
// epoch. The count of rows does not matter, because a take follows and decides.
func (h *handle) seed(ctx context.Context, name string, epoch int64) error {
	_, err := h.exec(ctx, h.statements.seed, name, epoch)
	return err
}

// take begins a new term of holder on the row as seen, and reports whether the
// term began. The new epoch is then seen.Epoch + 1. The lease must be released
// or, by the clock that decides, expired.
func (h *handle) take(ctx context.Context, name, holder string, ttl time.Duration, now time.Time, seen sighting) (bool, error) {
	n, err := h.exec(ctx, h.statements.take, clockArg(now), name, seen.Epoch, holder, ttlMicros(ttl), nil)
	return n == 1, err
}

// takeUnchanged is like take, but the lease must be released, or not renewed
// since it was seen, whatever the clock says.
func (h *handle) takeUnchanged(ctx context.Context, name, holder string, ttl time.Duration, now time.Time, seen sighting) (bool, error) {
	n, err := h.exec(ctx, h.statements.take, clockArg(now), name, seen.Epoch, holder, ttlMicros(ttl), toMicros(seen.RenewedAt))
	return n == 1, err
}

// renew extends a term to ttl from now, or by a microsecond if the term ends
// later anyway. It requires more than left of the term to remain, and reports
// whether the row was renewed.
func (h *handle) renew(ctx context.Context, t Term, ttl time.Duration, now time.Time, left time.Duration) (bool, error) {
	n, err := h.exec(ctx, h.statements.renew, clockArg(now), t.Name, t.Holder, t.Epoch, ttlMicros(ttl), left.Microseconds())
	return n == 1, err
}

// renewSeen is like renew, for a live row that has not changed since it was
// seen. See renewSeenSQL for the expiry.
func (h *handle) renewSeen(ctx context.Context, seen sighting, ttl time.Duration, now time.Time) (bool, error) {
	n, err := h.exec(ctx, h.statements.renewSeen,
		clockArg(now), seen.Name, seen.Holder, seen.Epoch, ttlMicros(ttl), toMicros(seen.RenewedAt))
	return n == 1, err
}

// releaseHeld ends holder's term, whatever its epoch.
func (h *handle) releaseHeld(ctx context.Context, name, holder string, now time.Time) error {
	_, err := h.exec(ctx, h.statements.releaseHeld, clockArg(now), name, holder)
	return err
}

// releaseTerm frees the row of a term, even an expired term, unless another
// term followed.
func (h *handle) releaseTerm(ctx context.Context, t Term, now time.Time) error {
	_, err := h.exec(ctx, h.statements.releaseTerm, clockArg(now), t.Name, t.Holder, t.Epoch)
	return err
}

// fence reports whether a term is in force. In the handle's transaction, fence
// holds off the next term until the transaction ends.
func (h *handle) fence(ctx context.Context, t Term, now time.Time) (bool, error) {
	n, err := h.exec(ctx, h.statements.fence, clockArg(now), t.Name, t.Holder, t.Epoch)
	return n == 1, err
}

// A row is the store of an elector: the statements on one lease, for one
// holder.
type row struct {
	*handle
	name, holder string
	ttl          time.Duration
	now          func() time.Time
	origin       *origin
	checked      atomic.Bool
}

func newRow(h *handle, name, holder string, ttl time.Duration, now func() time.Time) *row {
	h.timeout = 0 // an elector bounds each statement itself
	return &row{handle: h, name: name, holder: holder, ttl: ttl, now: now, origin: &origin{table: h.statements.name, now: now}}
}

func (r *row) poll(ctx context.Context) (sighting, error) {
	if !r.checked.Load() {
		if err := r.checkMemory(ctx); err != nil {
			return sighting{}, err
		}
		r.checked.Store(true)
	}
	defer hook.Around("poll")()
	return r.handle.poll(ctx, r.name, clockNow(r.now))
}

func (r *row) take(ctx context.Context, seen sighting) (Term, bool, error) {
	if !seen.exists {
		if err := r.seed(ctx, r.name, seen.Epoch); err != nil {
			return Term{}, false, err
		}
	}
	defer hook.Around("take")()
	ok, err := r.handle.takeUnchanged(ctx, r.name, r.holder, r.ttl, clockNow(r.now), seen)
	return Term{Name: r.name, Holder: r.holder, Epoch: seen.Epoch + 1, origin: r.origin}, ok, err
}

// renew refuses a renewal in the last third of the TTL. Such a renewal comes
// too late to help its elector, and must not revive the row.
func (r *row) renew(ctx context.Context, t Term) (bool, error) {
	now := clockNow(r.now)
	defer hook.Around("renew")()
	return r.handle.renew(ctx, t, r.ttl, now, pace(r.ttl).margin())
}

func (r *row) release(ctx context.Context, t Term) error {
	return r.releaseTerm(ctx, t, clockNow(r.now))
}

// clockArg binds the caller's time, or NULL, which lets the database's clock
// decide.
func clockArg(now time.Time) any {
	if now.IsZero() {
		return nil
	}
	return now.UnixMicro()
}

// ttlMicros rounds down, because a lease must not outlast its ttl. It returns
// at least 1.
func ttlMicros(ttl time.Duration) int64 { return max(1, ttl.Microseconds()) }

// toMicros and fromMicros convert a column. 0 means no time at all, as in a row
// that was never held.
func toMicros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}

// unixMicro is the GORM serializer of the columns that hold a time.
type unixMicro struct{}

func init() { schema.RegisterSerializer("lease_unix_micro", unixMicro{}) }

// Scan reads a column into its field.
func (unixMicro) Scan(ctx context.Context, field *schema.Field, dst reflect.Value, column any) error {
	var n sql.NullInt64
	if err := n.Scan(column); err != nil {
		return fmt.Errorf("lease: column %s: %w", field.DBName, err)
	}
	return field.Set(ctx, dst, fromMicros(n.Int64))
}

// Value writes a field into its column.
func (unixMicro) Value(_ context.Context, field *schema.Field, _ reflect.Value, value any) (any, error) {
	t, ok := value.(time.Time)
	if !ok {
		return nil, fmt.Errorf("lease: field %s is a %T, not a time.Time", field.Name, value)
	}
	return toMicros(t), nil
}
