package lease

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/callbacks"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/schema"
)

const itemsTable = "lease_items"

// These texts follow the rules of record.go. {key} is the primary key.
// {visible} ends a WHERE with the model's soft delete, if the model has one.
// {columns} is every column of the model that can be read. No table has an
// alias, because {visible} may name the table.
const (
	peekItemSQL = `SELECT {clock}, claim_owner, claim_epoch, COALESCE(claim_expires_at, 0), claim_done FROM {table} WHERE {key} = ?2{visible}`

	takeItemSQL = `UPDATE {table} SET claim_owner = ?4, claim_step_id = ?5, claim_epoch = claim_epoch + 1, claim_revision = claim_revision + 1,
	claim_attempts = claim_attempts + 1, claim_acquired_at = {now}, claim_renewed_at = {now}, claim_expires_at = {now} + ?6{lockedItem}
WHERE {key} = ?2 AND claim_epoch = ?3 AND ` + claimableSQL + `{visible} RETURNING {columns}`

	// An owner may claim its own row again. Write IS NOT TRUE, not NOT
	// claim_done: the latter matches the queue's partial index, and Postgres
	// would use it to find a single row while the index is short.
	claimableSQL = `claim_done IS NOT TRUE AND (claim_owner = '' OR claim_owner = ?4 OR COALESCE(claim_expires_at, 0) <= {now})`

	// The lock waits for the transactions that the earlier claim has fenced.
	// The clock is read after that wait, as in lockedSQL.
	lockedItemSQL = `
FROM (SELECT {clock} AS now{durable} FROM (
	SELECT 1 FROM {table} WHERE {key} = ?2 AND claim_epoch = ?3 AND claim_done IS NOT TRUE
		AND (claim_owner = '' OR claim_owner = ?4 OR COALESCE(claim_expires_at, 0) <= {clock}){visible} FOR UPDATE
) AS lease_g) AS lease_c`

	// {next} is the query for the item, composed by GORM. The query's own
	// parameters come after these. The last column of the result is the owner
	// before. Postgres carries out a WITH that calls a volatile function once.
	// A sub-query in its place could run for each row of the table, if Postgres
	// expects the table to have a single row, and would claim another row each
	// time.
	takeNextItemSQL = `WITH lease_c AS (SELECT lease_key, lease_owner, {clock} AS now{durable} FROM ({next}) AS lease_g)
UPDATE {table} SET claim_owner = ?2, claim_step_id = ?3, claim_epoch = claim_epoch + 1, claim_revision = claim_revision + 1,
	claim_attempts = claim_attempts + 1, claim_acquired_at = lease_c.now, claim_renewed_at = lease_c.now, claim_expires_at = lease_c.now + ?4
FROM lease_c WHERE {key} = lease_c.lease_key RETURNING {columns}, lease_c.lease_owner`

	// The items that may be claimed. The longest-waiting item comes first. The
	// limit is no parameter: when Postgres plans without a look at the
	// parameters, it would plan for a tenth of the table.
	freeSQL  = `(NOT {bare}.claim_done AND ({bare}.claim_owner = '' OR COALESCE({bare}.claim_expires_at, 0) <= {clock}))`
	orderSQL = `COALESCE({bare}.claim_acquired_at, 0) LIMIT 1`

	pickNextSQL = `{key} AS lease_key, {bare}.claim_owner AS lease_owner`
	peekNextSQL = `{key}, {clock}, {bare}.claim_owner, {bare}.claim_epoch, COALESCE({bare}.claim_expires_at, 0), {bare}.claim_done`

	// A claim that ran out may be renewed for as long as nobody took the row. A
	// renewal that lands after a later renewal must not take the expiry back.
	// The same holds for a clock that was set back a little. After a clock that
	// was far ahead, a renewal must take the expiry back.
	renewItemSQL = `UPDATE {table} SET
	claim_expires_at = CASE WHEN claim_renewed_at > {now} AND claim_renewed_at <= {now} + ?5 THEN claim_expires_at ELSE {now} + ?5 END,
	claim_renewed_at = CASE WHEN claim_renewed_at > {now} AND claim_renewed_at <= {now} + ?5 THEN claim_renewed_at ELSE {now} END{from}
WHERE {key} = ?2 AND claim_owner = ?3 AND claim_epoch = ?4{visible} RETURNING claim_renewed_at, claim_expires_at`

	releaseItemSQL = `UPDATE {table} SET claim_owner = '', claim_step_id = '', claim_attempts = (claim_attempts - 1) * ?5, claim_expires_at = {now}{from}
WHERE {key} = ?2 AND claim_owner = ?3 AND claim_epoch = ?4{visible} RETURNING claim_renewed_at, claim_expires_at`

	findItemSQL = `SELECT {columns} FROM {table} WHERE {key} = ?1{visible}`

	// No save of an earlier claim matches. A save that lands after a later save
	// of the same claim does not match either. GORM numbers the parameters.
	saveGuardSQL = `{key} = ? AND claim_owner = ? AND claim_epoch = ? AND claim_revision BETWEEN ? AND ?`

	// The package's own table has no hooks and no soft delete. Its rows need
	// nothing from GORM. A NULL leaves the payload unchanged.
	saveItemSQL = `UPDATE {table} SET payload = COALESCE(?1, payload), updated_at = ?2, claim_revision = ?3, claim_done = ?4
WHERE {key} = ?5 AND claim_owner = ?6 AND claim_epoch = ?7 AND claim_revision BETWEEN ?8 AND ?9`
)

// claimColumns lists the columns that Claimable adds to a table.
var claimColumns = []string{
	"claim_owner", "claim_step_id", "claim_epoch", "claim_revision", "claim_attempts",
	"claim_acquired_at", "claim_renewed_at", "claim_expires_at", "claim_done",
}

// An items is a table of items: the handle on its database, and GORM's mapping
// of a model to the table. A statement on a row's claim is fixed SQL. GORM
// reads and writes the model's own columns, for the model's hooks, serializers
// and scopes.
type items[T any] struct {
	*handle
	db        *gorm.DB // the caller's, to begin sessions from
	isItem    bool     // T is Item
	name      string   // of the table, unquoted
	schema    *schema.Schema
	key       *schema.Field
	claimable func(*T) *Claimable
	sql       *itemStatements
}

// An itemStatements holds everything that depends only on a table and on a
// model's mapping to the table: the finished SQL, and the columns.
type itemStatements struct {
	find, peek, take, renew, release, fence string

	takeFirst                       string // takeNext of an Item, without scopes
	beforeNext, afterNext           string // the parts of takeNext
	free, order, pickNext, peekNext clause.Expr

	save, saveIn   string   // of an Item, outside and inside the caller's transaction
	guard, guardIn []string // of a save through GORM, cut at its parameters
	// Whether a save through GORM may use assignments. The condition is that no
	// field has a say in its update, except a soft delete.
	assigns bool

	read, saved []*schema.Field // the fields behind {columns}, and those that Save writes
	// The paths, as in StructField.Index, at which the model embeds structs by
	// pointers. The outermost come first.
	embedded [][]int
	mend     string
	count    *claimCounts
}

// itemStatementsOf keeps the finished statements, because every call needs
// them.
var itemStatementsOf sync.Map // of itemStatementsKey to *itemStatements

type itemStatementsKey struct {
	model                   reflect.Type
	dialect                 *dialect
	table, columns, visible string
}

// A condition is finished SQL with parameters, as a part of a statement that
// GORM composes. One parameter follows each part except the last.
type condition struct {
	parts []string
	args  []any
}

// Build implements [clause.Expression].
func (c condition) Build(b clause.Builder) {
	for i, arg := range c.args {
		_, _ = b.WriteString(c.parts[i])
		b.AddVar(b, arg)
	}
	_, _ = b.WriteString(c.parts[len(c.args)])
}

// openItems checks db and the model, and finds the parts of an items. openItems
// sends no SQL.
func openItems[T any, M Model[T]](db *gorm.DB) (*items[T], error) {
	h, err := open("db", db)
	if err != nil {
		return nil, err
	}
	model := (*T)(nil)
	parsed := &gorm.Statement{DB: db}
	if err := parsed.Parse(model); err != nil {
		return nil, invalid("T", "is no model for GORM: %v", err)
	}
	m := &items[T]{handle: h, db: db, name: parsed.Schema.Table, schema: parsed.Schema, claimable: func(it *T) *Claimable { return M(it).claimable() }}
	if n := len(m.schema.PrimaryFields); n != 1 {
		return nil, invalid("T", "%T has %d columns in its primary key, not one", *new(T), n)
	}
	m.key = m.schema.PrimaryFields[0]
	h.pool, h.inTx = primary(h.dialect, db, model)
	if _, m.isItem = any(model).(*Item); m.isItem {
		m.name = h.prefix + itemsTable
	}
	if m.sql, err = m.finished(); err != nil {
		return nil, err
	}
	h.mend = m.sql.mend
	return m, nil
}

// finished returns the statements, and finishes them on the first call.
func (m *items[T]) finished() (*itemStatements, error) {
	visible, err := m.visible()
	if err != nil {
		return nil, err
	}
	key := itemStatementsKey{m.schema.ModelType, m.dialect, m.table(), strings.Join(m.schema.DBNames, ","), visible}
	known, ok := itemStatementsOf.Load(key)
	if !ok {
		if err := m.check(); err != nil {
			return nil, err
		}
		known, _ = itemStatementsOf.LoadOrStore(key, m.finish(visible))
	}
	return known.(*itemStatements), nil
}

func (m *items[T]) finish(visible string) *itemStatements {
	text := func(sql string) string { return m.text(sql, visible) }
	part := func(sql string) clause.Expr { return clause.Expr{SQL: text(sql)} } // of a statement that GORM composes
	s := &itemStatements{
		find: text(findItemSQL), peek: text(peekItemSQL), take: text(takeItemSQL),
		renew: text(renewItemSQL), release: text(releaseItemSQL), fence: text(m.dialect.fence),
		free: part(freeSQL), order: part(orderSQL), pickNext: part(pickNextSQL), peekNext: part(peekNextSQL),
		save: text(saveItemSQL), saveIn: text(saveItemSQL),
		mend:  "the table " + m.table() + " is missing, or lacks a column that is named; AutoMigrate brings those of the model",
		count: claimCountsOf(m.name),
	}
	if m.isItem {
		s.mend = "the table " + m.table() + " is missing, or of an older version; EnsureSchema mends that"
	}
	s.beforeNext, s.afterNext, _ = strings.Cut(text(takeNextItemSQL), "{next}")
	s.takeFirst = s.takeNext(text("SELECT " + pickNextSQL + " FROM {table} WHERE " + freeSQL + "{visible} ORDER BY " + orderSQL + " FOR UPDATE SKIP LOCKED"))
	for _, part := range strings.Split(saveGuardSQL, "?") {
		s.guard = append(s.guard, text(part))
	}
	s.guardIn = slices.Clone(s.guard)
	if m.dialect.brief != "" {
		brief := " AND (" + text(m.dialect.brief) + ") IS NOT NULL"
		s.saveIn += brief
		s.guardIn[len(s.guardIn)-1] += brief
	}
	for _, name := range m.schema.DBNames {
		f := m.schema.FieldsByDBName[name]
		if f.Readable {
			s.read = append(s.read, f)
		}
		if own(f) || name == "claim_revision" || name == "claim_done" {
			s.saved = append(s.saved, f)
		}
		for i, step := range f.StructField.Index {
			path := f.StructField.Index[:i+1]
			if behindPointer(step) && !slices.ContainsFunc(s.embedded, func(p []int) bool { return slices.Equal(p, path) }) {
				s.embedded = append(s.embedded, path)
			}
		}
	}
	s.assigns = !slices.ContainsFunc(m.schema.UpdateClauses, func(c clause.Interface) bool {
		_, soft := c.(gorm.SoftDeleteUpdateClause)
		return !soft
	})
	return s
}

// takeNext returns the statement with the query for the item in it.
func (s *itemStatements) takeNext(next string) string { return s.beforeNext + next + s.afterNext }

// table is the table's name, quoted.
func (m *items[T]) table() string { return m.db.Statement.Quote(m.name) }

// text finishes the SQL of a statement on this table.
func (m *items[T]) text(sql, visible string) string {
	return m.dialect.text(sql, [][2]string{
		{"{columns}", m.columns()}, {"{visible}", visible}, {"{table}", m.table()}, {"{bare}", m.bare()},
		{"{key}", m.column(m.key.DBName)}, {"{holder}", "claim_owner"}, {"{epoch}", "claim_epoch"},
		{"{renewed}", "claim_renewed_at"}, {"{expires}", "claim_expires_at"},
	})
}

// bare is the table's name, quoted, without its schema. SQL uses this name
// after the first mention of the table.
func (m *items[T]) bare() string {
	return m.db.Statement.Quote(m.name[strings.LastIndex(m.name, ".")+1:])
}

// column is a column's name, quoted, and qualified with its table.
func (m *items[T]) column(name string) string { return m.bare() + "." + m.db.Statement.Quote(name) }

// columns lists the readable columns, in the form that GORM reads.
func (m *items[T]) columns() string {
	var list []string
	for _, name := range m.schema.DBNames {
		if m.schema.FieldsByDBName[name].Readable {
			list = append(list, m.column(name)+" AS "+m.db.Statement.Quote(name))
		}
	}
	return strings.Join(list, ", ")
}

// session begins a clean session, on a pool or in a transaction.
func (m *items[T]) session(ctx context.Context, pool gorm.ConnPool) *gorm.DB {
	s := m.db.Session(&gorm.Session{NewDB: true, Logger: logger.Discard, SkipDefaultTransaction: true})
	s.Error, s.PropagateUnscoped = nil, false
	// New statements begin with these values, and nothing of the caller's.
	s.Statement = &gorm.Statement{DB: s, ConnPool: pool, Context: ctx}
	if m.db.Plugins["gorm:db_resolver"] == nil && m.name == m.schema.Table {
		return s
	}
	s = s.Set("gorm:db_resolver:write", struct{}{})
	if m.name != m.schema.Table {
		s = s.Table(m.name)
	}
	return s.Session(&gorm.Session{})
}

// create adds a row.
func (m *items[T]) create(ctx context.Context, it T) error {
	return m.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) error {
		s, row := m.session(ctx, pool), it
		err := s.Create(&row).Error
		if t, ok := m.db.Dialector.(gorm.ErrorTranslator); ok && err != nil && errors.Is(t.Translate(err), gorm.ErrDuplicatedKey) {
			err = gorm.ErrDuplicatedKey
		}
		return err
	})
}

// find reads a row. One SELECT.
func (m *items[T]) find(ctx context.Context, key any) (it T, err error) {
	err = m.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) error {
		l, err := m.load(ctx, pool, nil, m.sql.find, key)
		if err == nil && l == nil {
			err = gorm.ErrRecordNotFound
		}
		if err == nil {
			it = l.item
		}
		return err
	})
	return it, err
}

// A peek is what a claim knows of an item beforehand.
type peek struct {
	key     any
	now     time.Time
	owner   string
	epoch   int64
	expires time.Time
	done    bool
}

// held reports whether another owner has a live claim.
func (p peek) held(owner string) bool {
	return p.owner != "" && p.owner != owner && p.expires.After(p.now)
}

// ranOut reports whether the item has a claim that ran out.
func (p peek) ranOut() bool { return p.owner != "" && !p.expires.After(p.now) }

// peek reads the state of an item. One SELECT, which writes nothing and locks
// nothing.
func (m *items[T]) peek(ctx context.Context, key any, now time.Time) (peek, error) {
	return m.peekIn(ctx, m.handle, key, now)
}

// peekIn is like peek, on another handle, such as a transaction.
func (m *items[T]) peekIn(ctx context.Context, on *handle, key any, now time.Time) (peek, error) {
	seen, err := query(ctx, on, func(rows *sql.Rows) (peek, error) {
		p := peek{key: key}
		return p, p.scan(rows)
	}, m.sql.peek, clockArg(now), key)
	if err == nil && len(seen) == 0 {
		err = gorm.ErrRecordNotFound
	}
	if err != nil {
		return peek{}, err
	}
	return seen[0], nil
}

func (p *peek) scan(rows *sql.Rows, before ...any) error {
	var now, expires int64
	err := rows.Scan(append(before, &now, &p.owner, &p.epoch, &expires, &p.done)...)
	p.now, p.expires = fromMicros(now), fromMicros(expires)
	return err
}

// take claims an item that still is as seen, and returns the item. If the row
// no longer allows the claim, take returns nil. One UPDATE.
func (m *items[T]) take(ctx context.Context, seen peek, owner, stepID string, ttl time.Duration, now time.Time) (l *loaded[T], err error) {
	err = m.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) (err error) {
		l, err = m.load(ctx, pool, nil, m.sql.take, clockArg(now), seen.key, seen.epoch, owner, stepID, ttlMicros(ttl))
		return err
	})
	return l, err
}

// A loaded is an item as loaded. AfterFind may change the item, but not key and
// claim.
type loaded[T any] struct {
	item  T
	key   any
	claim Claimable
}

// load runs finished SQL and makes an item of its only row. Without a row, load
// returns nil. After {columns} the row has a column for each of more.
func (m *items[T]) load(ctx context.Context, pool gorm.ConnPool, more []any, text string, args ...any) (*loaded[T], error) {
	rows, err := pool.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	if !rows.Next() {
		return nil, rows.Err()
	}
	l := new(loaded[T])
	if err := cmp.Or(m.scan(ctx, rows, &l.item, more), rows.Close(), rows.Err()); err != nil {
		return nil, err
	}
	l.key, _ = m.keyOf(ctx, &l.item)
	l.claim = *m.claimable(&l.item)
	if hook, ok := any(&l.item).(callbacks.AfterFindInterface); ok && m.schema.AfterFind {
		err = hook.AfterFind(m.session(ctx, pool))
	}
	return l, err
}

// scan reads {columns} of a row into an item, as GORM does, and the columns
// after them into more.
func (m *items[T]) scan(ctx context.Context, rows *sql.Rows, it *T, more []any) error {
	values := make([]any, len(m.sql.read))
	for i, f := range m.sql.read {
		values[i] = f.NewValuePool.Get()
	}
	err := rows.Scan(append(values, more...)...)
	into := reflect.ValueOf(it).Elem()
	for i, f := range m.sql.read {
		if err == nil {
			err = f.Set(ctx, into, values[i])
		}
		f.NewValuePool.Put(values[i])
	}
	return err
}

// A hold identifies one claim of one item in statements.
type hold struct {
	key   any
	owner string
	epoch int64
}

// times holds when a claim was renewed, and when it expires.
type times struct{ renewed, expires time.Time }

// renew extends a claim by ttl from now. One UPDATE.
func (m *items[T]) renew(ctx context.Context, c hold, ttl time.Duration, now time.Time) (times, bool, error) {
	return m.change(ctx, m.sql.renew, clockArg(now), c.key, c.owner, c.epoch, ttlMicros(ttl))
}

// release ends a claim. With keep, release takes back this attempt and keeps
// those before. Without keep, the attempt counts as clean, and release forgets
// those before. One UPDATE.
func (m *items[T]) release(ctx context.Context, c hold, keep bool, now time.Time) (times, bool, error) {
	kept := 0
	if keep {
		kept = 1
	}
	return m.change(ctx, m.sql.release, clockArg(now), c.key, c.owner, c.epoch, kept)
}

// change carries out a statement on a claim. If the row bore the claim, change
// returns the row's new times.
func (m *items[T]) change(ctx context.Context, text string, args ...any) (t times, ok bool, err error) {
	found, err := query(ctx, m.handle, func(rows *sql.Rows) (times, error) {
		var renewed, expires sql.NullInt64
		err := rows.Scan(&renewed, &expires)
		return times{fromMicros(renewed.Int64), fromMicros(expires.Int64)}, err
	}, text, args...)
	if err != nil || len(found) == 0 {
		return times{}, false, err
	}
	return found[0], true, nil
}

// fence reports whether a claim is in force. If so, no other claim can begin
// before the transaction tx ends.
func (m *items[T]) fence(ctx context.Context, tx *handle, c hold, now time.Time) (bool, error) {
	n, err := tx.exec(ctx, m.sql.fence, clockArg(now), c.key, c.owner, c.epoch)
	return n == 1, err
}
