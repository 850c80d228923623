package lease

import (
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

// A Record is one row of the table leases: who holds a lease, in which term, until when.
//
// The table keeps its times as whole microseconds since the Unix epoch, in BIGINT columns, which mean the same in every database
// and time zone. Through GORM, [Find] and [List] they read as times, in UTC; a condition written by hand must compare
// microseconds.
type Record struct {
	// At most 100 characters.
	Name string `gorm:"column:name;primaryKey;not null;size:100"`
	// At most 200 characters; empty once released.
	Holder string `gorm:"column:holder;size:200;not null;default:('')"`
	// Grows by one with every new term; never reset.
	Epoch int64 `gorm:"column:epoch;not null;default:(0)"`
	// The term ends here, unless it is renewed.
	ExpiresAt time.Time `gorm:"column:expires_at;type:bigint;not null;default:(0);serializer:lease_unix_micro"`
	// The term began here.
	AcquiredAt time.Time `gorm:"column:acquired_at;type:bigint;not null;default:(0);serializer:lease_unix_micro"`
	// The last renewal, or the acquisition. It grows with every renewal of a
	// term, by a microsecond if the clock was set back.
	RenewedAt time.Time `gorm:"column:renewed_at;type:bigint;not null;default:(0);serializer:lease_unix_micro"`
}

// TableName is "leases", whatever GORM's naming strategy says; [Tables] puts a prefix before it.
func (Record) TableName() string { return leasesTable }

// A Status is a [Record] as the database's clock sees it.
type Status struct {
	Record
	Held      bool          // somebody holds it now
	Remaining time.Duration // until it expires; 0 unless Held
}

// A sighting is what one poll saw: the row, or that there is none, and the clock that expiry is measured by.
type sighting struct {
	Record
	exists bool
	now    time.Time
}

// live reports whether somebody holds the lease.
func (s sighting) live() bool { return s.exists && s.Holder != "" && s.ExpiresAt.After(s.now) }

// everHeld reports whether there was a term; a table of an older version kept no epochs.
func (s sighting) everHeld() bool { return s.exists && (s.Epoch > 0 || s.Holder != "") }

// ttl is how long the row's last renewal was for; 0 if a table of an older version did not say.
func (s sighting) ttl() time.Duration {
	if s.RenewedAt.IsZero() {
		return 0
	}
	return s.ExpiresAt.Sub(s.RenewedAt)
}

// age is how long ago the row was renewed, by the clock that decides, if that
// was for ttl; 0 if the row says that it was not yet.
func (s sighting) age(ttl time.Duration) time.Duration {
	return max(0, ttl-s.ExpiresAt.Sub(s.now))
}

// remaining is how long the lease is still held, if it is.
func (s sighting) remaining() time.Duration {
	if !s.live() {
		return 0
	}
	return s.ExpiresAt.Sub(s.now)
}

func (s sighting) status() Status {
	return Status{Record: s.Record, Held: s.live(), Remaining: s.remaining()}
}

// statements is the SQL on one table of one dialect. Each text is sent by one method of handle below.
type statements struct {
	name, table string // the table, plain and quoted
	mend        string // what to do if it is missing

	poll, list, seed, take, renew, renewSeen, releaseHeld, releaseTerm, fence string
}

// In these texts, but for the seed, ?1 is the caller's time, or NULL for the database's clock. {clock} reads that time, anew wherever it
// stands; {now} is one reading of it for the whole statement, which some databases must take in {from}.
const (
	// The clock comes first, so that a row that is missing still brings it.
	pollSQL = `SELECT c.now, l.name, l.holder, l.epoch, l.expires_at, l.acquired_at, l.renewed_at
FROM (SELECT {clock} AS now) AS c LEFT JOIN {table} AS l ON l.name = ?2`

	listSQL = `SELECT c.now, l.name, l.holder, l.epoch, l.expires_at, l.acquired_at, l.renewed_at
FROM (SELECT {clock} AS now) AS c INNER JOIN {table} AS l ON l.epoch > 0 OR l.holder <> '' ORDER BY l.name`

	seedSQL = `INSERT INTO {table} (name, holder, epoch, expires_at, acquired_at, renewed_at) VALUES (?1, '', ?2, 0, 0, 0)
ON CONFLICT (name) DO NOTHING`

	// By hand (?6 is NULL) the lease must be released, or expired by the clock that decides. An elector takes what was released, or not renewed
	// since it was seen, whatever that clock says.
	takeSQL = `UPDATE {table} AS l SET holder = ?4, epoch = l.epoch + 1, acquired_at = {now}, renewed_at = {now}, expires_at = {now} + ?5{locked}
WHERE l.name = ?2 AND l.epoch = ?3 AND (l.holder = '' OR l.renewed_at = CAST(?6 AS BIGINT) OR CAST(?6 AS BIGINT) IS NULL AND l.expires_at <= {now})`

	// Where there are row locks, a take locks the row first: it then waits for the transactions that fenced themselves with the term
	// before. The clock is read after that wait, in the select around it, so that the new term is whole.
	lockedSQL = `
FROM (SELECT {clock} AS now{durable} FROM (
	SELECT name FROM {table} WHERE name = ?2 AND epoch = ?3
		AND (holder = '' OR renewed_at = CAST(?6 AS BIGINT) OR CAST(?6 AS BIGINT) IS NULL AND expires_at <= {clock}) FOR UPDATE
) AS g) AS lease_c`

	// An elector's renewal. It reads the clock before it waits for anything, so that one that lands late extends nothing past what its sender
	// counts on. One that lands after a newer one, or by a clock that was set back, takes nothing back, but changes the row: standbys go by that.
	renewSQL = `UPDATE {table} AS l SET expires_at = {later}(l.renewed_at + 1, {now}) + ?5, renewed_at = {later}(l.renewed_at + 1, {now}){from}
WHERE l.name = ?2 AND l.holder = ?3 AND l.epoch = ?4 AND l.expires_at > {now} + ?6`

	// A renewal by hand, of the row as it was seen: one that lands after another is refused. It takes nothing back either, unless the row was
	// renewed a whole TTL ahead of the clock, which has been put right since.
	renewSeenSQL = `UPDATE {table} AS l SET
	expires_at = CASE WHEN l.renewed_at > {now} + ?5 THEN {now} + ?5 ELSE {later}(l.expires_at, {now} + ?5) END,
	renewed_at = CASE WHEN l.renewed_at > {now} + ?5 THEN {now} ELSE {later}(l.renewed_at + 1, {now}) END{from}
WHERE l.name = ?2 AND l.holder = ?3 AND l.epoch = ?4 AND l.expires_at > {now} AND l.renewed_at = ?6`

	releaseHeldSQL = `UPDATE {table} AS l SET holder = '', expires_at = {now}{from}
WHERE l.name = ?2 AND l.holder = ?3 AND l.expires_at > {now}`

	releaseTermSQL = `UPDATE {table} AS l SET holder = '', expires_at = {now}{from}
WHERE l.name = ?2 AND l.holder = ?3 AND l.epoch = ?4`
)

// statementsOf keeps the finished texts by dialect and table, since they are needed at every call.
var statementsOf sync.Map // of string to *statements

// statements returns the SQL on the table of leases of that name.
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

// quote quotes the name of a table of this package's own.
func quote(table string) string { return `"` + strings.Replace(table, ".", `"."`, 1) + `"` }

// text finishes the SQL of a statement. What stands for something may contain what comes after it, and names come last.
func (d *dialect) text(sql string, names [][2]string) string {
	for _, r := range [][2]string{
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

// poll reads the row of a lease, and the clock. One SELECT, which writes nothing and locks nothing.
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

// seed makes the row of a lease that has none, as one that was released after epoch. What it counts is of no interest: a take
// follows, and decides.
func (h *handle) seed(ctx context.Context, name string, epoch int64) error {
	_, err := h.exec(ctx, h.statements.seed, name, epoch)
	return err
}

// take begins a new term of holder on the row as it was seen, and reports
// whether it did; the new epoch is then seen.Epoch + 1. The lease must be
// released or, by the clock that decides, expired.
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

// renew extends a term to ttl from now, or leaves a later expiry, and reports
// whether it did: if more than left of the term remains.
func (h *handle) renew(ctx context.Context, t Term, ttl time.Duration, now time.Time, left time.Duration) (bool, error) {
	n, err := h.exec(ctx, h.statements.renew, clockArg(now), t.Name, t.Holder, t.Epoch, ttlMicros(ttl), left.Microseconds())
	return n == 1, err
}

// renewSeen is like renew, for a row that is live and as it was seen.
func (h *handle) renewSeen(ctx context.Context, seen sighting, ttl time.Duration, now time.Time) (bool, error) {
	n, err := h.exec(ctx, h.statements.renewSeen,
		clockArg(now), seen.Name, seen.Holder, seen.Epoch, ttlMicros(ttl), toMicros(seen.RenewedAt))
	return n == 1, err
}

// releaseHeld ends whatever term holder is in.
func (h *handle) releaseHeld(ctx context.Context, name, holder string, now time.Time) error {
	_, err := h.exec(ctx, h.statements.releaseHeld, clockArg(now), name, holder)
	return err
}

// releaseTerm frees the row of a term, also of one that expired, unless another term followed it.
func (h *handle) releaseTerm(ctx context.Context, t Term, now time.Time) error {
	_, err := h.exec(ctx, h.statements.releaseTerm, clockArg(now), t.Name, t.Holder, t.Epoch)
	return err
}

// fence reports whether a term is in force and, in the transaction that the handle is, holds off its successor.
func (h *handle) fence(ctx context.Context, t Term, now time.Time) (bool, error) {
	n, err := h.exec(ctx, h.statements.fence, clockArg(now), t.Name, t.Holder, t.Epoch)
	return n == 1, err
}

// A row is the store of one elector: the statements on one lease, for one holder.
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

// renew of an elector comes too late to help it in the last third of the TTL,
// and must not revive the row then.
func (r *row) renew(ctx context.Context, t Term) (bool, error) {
	now := clockNow(r.now)
	defer hook.Around("renew")()
	return r.handle.renew(ctx, t, r.ttl, now, pace(r.ttl).margin())
}

func (r *row) release(ctx context.Context, t Term) error {
	return r.releaseTerm(ctx, t, clockNow(r.now))
}

// clockArg binds the caller's time, or NULL, which lets the database's clock decide.
func clockArg(now time.Time) any {
	if now.IsZero() {
		return nil
	}
	return now.UnixMicro()
}

// ttlMicros rounds down, lest a lease outlast its ttl, but not to nothing.
func ttlMicros(ttl time.Duration) int64 { return max(1, ttl.Microseconds()) }

// toMicros and fromMicros convert a column. 0 stands for no time at all, as in a row that was never held.
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
