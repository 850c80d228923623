package lease

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"reflect"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/schema"
)

const itemsTable = "lease_items"

// These texts follow the rules of record.go. {key} is the primary key; {visible} ends a WHERE with the model's soft delete, if it has one;
// {columns} is every column of the model that can be read. No table has an alias, since {visible} may name it.
const (
	peekItemSQL = `SELECT {clock}, claim_owner, claim_epoch, COALESCE(claim_expires_at, 0), claim_done FROM {table} WHERE {key} = ?2{visible}`

	takeItemSQL = `UPDATE {table} SET claim_owner = ?4, claim_step_id = ?5, claim_epoch = claim_epoch + 1, claim_revision = claim_revision + 1,
	claim_attempts = claim_attempts + 1, claim_acquired_at = {now}, claim_renewed_at = {now}, claim_expires_at = {now} + ?6{lockedItem}
WHERE {key} = ?2 AND claim_epoch = ?3 AND ` + claimableSQL + `{visible} RETURNING {columns}`

	// An owner may claim anew what it has claimed.
	claimableSQL = `NOT claim_done AND (claim_owner = '' OR claim_owner = ?4 OR COALESCE(claim_expires_at, 0) <= {now})`

	// It waits for the transactions that fenced themselves with the claim before, and reads the clock then; compare lockedSQL.
	lockedItemSQL = `
FROM (SELECT {clock} AS now{durable} FROM (
	SELECT 1 FROM {table} WHERE {key} = ?2 AND claim_epoch = ?3 AND NOT claim_done
		AND (claim_owner = '' OR claim_owner = ?4 OR COALESCE(claim_expires_at, 0) <= {clock}){visible} FOR UPDATE
) AS g) AS c`

	// GORM composes this one, with the query for the item as a part of it, so its parameters {} are not numbered. What it returns as the owner
	// is the one before.
	takeNextItemSQL = `UPDATE {table} SET claim_owner = {}, claim_step_id = {}, claim_epoch = claim_epoch + 1, claim_revision = claim_revision + 1,
	claim_attempts = claim_attempts + 1, claim_acquired_at = c.now, claim_renewed_at = c.now, claim_expires_at = c.now + {}
FROM (SELECT g.lease_key, g.lease_owner, {} AS now{durable} FROM ({}) AS g) AS c
WHERE {key} = c.lease_key RETURNING {columnsOwnedBefore}`

	// A claim that ran out may be renewed, for as long as nobody took it.
	renewItemSQL = `UPDATE {table} SET claim_expires_at = {now} + ?5, claim_renewed_at = {now}{from}
WHERE {key} = ?2 AND claim_owner = ?3 AND claim_epoch = ?4 AND COALESCE(claim_renewed_at, 0) <= ?6{visible} RETURNING claim_renewed_at`

	releaseItemSQL = `UPDATE {table} SET claim_owner = '', claim_step_id = '', claim_attempts = (claim_attempts - 1) * ?5, claim_expires_at = {now}{from}
WHERE {key} = ?2 AND claim_owner = ?3 AND claim_epoch = ?4`

	// The claim before this one, and its earlier saves, cannot match; nor can this save, should it land after a later one.
	saveGuardSQL = `claim_owner = ? AND claim_epoch = ? AND claim_revision BETWEEN ? AND ?`
)

// claimColumns is what Claimable brings into a table.
var claimColumns = []string{
	"claim_owner", "claim_step_id", "claim_epoch", "claim_revision", "claim_attempts",
	"claim_acquired_at", "claim_renewed_at", "claim_expires_at", "claim_done",
}

// An items is a table of items: the handle on its database, and how GORM maps a model to it. A statement on a row's claim is fixed SQL; what
// reads and writes the model's own columns goes through GORM, for its hooks, serializers and scopes.
type items[T any] struct {
	*handle
	db        *gorm.DB // the caller's, for sessions of it
	name      string   // the table's, plain
	schema    *schema.Schema
	key       *schema.Field
	claimable func(*T) *Claimable
	count     *claimCounts
}

// openItems checks db and the model, and finds the parts. It sends no SQL.
func openItems[T any, M Model[T]](db *gorm.DB) (*items[T], error) {
	h, err := open("db", db)
	if err != nil {
		return nil, err
	}
	var model T
	parsed := &gorm.Statement{DB: db}
	if err := parsed.Parse(&model); err != nil {
		return nil, invalid("T", "is no model for GORM: %v", err)
	}
	m := &items[T]{handle: h, db: db, name: parsed.Schema.Table, schema: parsed.Schema, claimable: func(it *T) *Claimable { return M(it).claimable() }}
	if m.claimable(&model) == nil {
		return nil, invalid("T", "%T embeds a pointer to Claimable; embed Claimable itself", model)
	}
	if n := len(m.schema.PrimaryFields); n != 1 {
		return nil, invalid("T", "%T has %d columns in its primary key, not one", model, n)
	}
	m.key = m.schema.PrimaryFields[0]
	for _, name := range claimColumns {
		if f := m.schema.FieldsByDBName[name]; f == nil || !ofClaim(f) {
			return nil, invalid("T", "%T has no column %s of Claimable's", model, name)
		}
	}
	h.pool, h.inTx = primary(db, &model)
	h.mend = "the table " + m.table() + " is missing, or lacks a column; AutoMigrate mends that"
	if _, own := any(model).(Item); own {
		m.name = h.prefix + itemsTable
		h.mend = "the table " + m.table() + " is missing, or of an older version; EnsureSchema mends that"
	}
	m.count = claimCountsOf(m.name)
	return m, nil
}

// ofClaim reports whether a field came with Claimable.
func ofClaim(f *schema.Field) bool {
	return len(f.BindNames) > 1 && f.BindNames[len(f.BindNames)-2] == "Claimable"
}

// table is the table's name, quoted.
func (m *items[T]) table() string { return m.db.Statement.Quote(m.name) }

// text finishes the SQL of a statement on this table.
func (m *items[T]) text(sql string) string {
	return m.dialect.text(sql, [][2]string{
		{"{columns}", m.columns("")}, {"{columnsOwnedBefore}", m.columns("c.lease_owner")}, {"{visible}", m.visible()}, {"{table}", m.table()},
		{"{key}", m.column(m.key.DBName)}, {"{holder}", "claim_owner"}, {"{epoch}", "claim_epoch"},
		{"{renewed}", "claim_renewed_at"}, {"{expires}", "claim_expires_at"},
	})
}

// column is a column's name, quoted and with its table.
func (m *items[T]) column(name string) string { return m.table() + "." + m.db.Statement.Quote(name) }

// columns lists what can be read, as GORM reads it. An owner stands in for the owner's column.
func (m *items[T]) columns(owner string) string {
	var list []string
	for _, name := range m.schema.DBNames {
		column := m.column(name)
		if name == "claim_owner" && owner != "" {
			column = owner
		}
		if m.schema.FieldsByDBName[name].Readable {
			list = append(list, column+" AS "+m.db.Statement.Quote(name))
		}
	}
	return strings.Join(list, ", ")
}

// visible is the condition of the model's soft delete.
func (m *items[T]) visible() string {
	if len(m.schema.QueryClauses) == 0 {
		return ""
	}
	// On a statement of its own, which no plugin has touched.
	s := &gorm.Statement{DB: m.db.Session(&gorm.Session{NewDB: true}), Table: m.name, Schema: m.schema, Clauses: map[string]clause.Clause{}}
	for _, c := range m.schema.QueryClauses {
		s.AddClause(c)
	}
	s.Build("WHERE")
	condition, ok := strings.CutPrefix(s.SQL.String(), "WHERE ")
	if !ok {
		return ""
	}
	return " AND " + m.db.Dialector.Explain(condition, s.Vars...)
}

// session is a clean one, on a pool or in a transaction.
func (m *items[T]) session(ctx context.Context, pool gorm.ConnPool) *gorm.DB {
	s := m.db.Session(&gorm.Session{NewDB: true, Context: ctx, Logger: logger.Discard, SkipDefaultTransaction: true})
	s.Error, s.PropagateUnscoped = nil, false
	s.Statement.ConnPool, s.Statement.SkipHooks = pool, false
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

// find reads a row.
func (m *items[T]) find(ctx context.Context, key any) (it T, err error) {
	err = m.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) error {
		it = *new(T)
		s := m.session(ctx, pool)
		s.QueryFields = true
		return s.Where(clause.Eq{Column: clause.Column{Table: clause.CurrentTable, Name: m.key.DBName}, Value: key}).Take(&it).Error
	})
	return it, err
}

// A peek is what is known of an item before it is claimed.
type peek struct {
	key     any
	now     time.Time
	owner   string
	epoch   int64
	expires time.Time
	done    bool
}

// held reports whether it is claimed by another.
func (p peek) held(owner string) bool {
	return p.owner != "" && p.owner != owner && p.expires.After(p.now)
}

// ranOut reports whether somebody's claim of it has.
func (p peek) ranOut() bool { return p.owner != "" && !p.expires.After(p.now) }

// peek looks at an item. One SELECT, which writes nothing and locks nothing.
func (m *items[T]) peek(ctx context.Context, key any, now time.Time) (peek, error) {
	seen, err := query(ctx, m.handle, func(rows *sql.Rows) (peek, error) {
		p := peek{key: key}
		return p, p.scan(rows)
	}, m.text(peekItemSQL), clockArg(now), key)
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

// take claims an item as it was seen, if nobody else did since, and returns it. One UPDATE.
func (m *items[T]) take(ctx context.Context, seen peek, owner, stepID string, ttl time.Duration, now time.Time) (it T, ok bool, err error) {
	text := m.text(takeItemSQL)
	err = m.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) (err error) {
		it, ok, err = m.load(ctx, pool, text, clockArg(now), seen.key, seen.epoch, owner, stepID, ttlMicros(ttl))
		return err
	})
	return it, ok, err
}

// load runs finished SQL through GORM, which maps its one row.
func (m *items[T]) load(ctx context.Context, pool gorm.ConnPool, text string, args ...any) (it T, ok bool, err error) {
	s := m.session(ctx, pool).Raw("")
	s.Statement.SQL.WriteString(text)
	s.Statement.Vars = args
	s = s.Find(&it)
	return it, s.RowsAffected == 1, s.Error
}

// takeNext claims the item that waited longest and that nobody else is about to take, and returns it, and who owned it before. One UPDATE.
func (m *items[T]) takeNext(ctx context.Context, owner, stepID string, ttl time.Duration, now time.Time, scopes []func(*gorm.DB) *gorm.DB) (it T, before string, ok bool, err error) {
	text := strings.ReplaceAll(m.text(takeNextItemSQL), "{}", "?")
	err = m.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) error {
		it = *new(T)
		s := m.session(ctx, pool)
		next, err := m.next(s, now, scopes)
		if err != nil {
			return err
		}
		lock := clause.Locking{Strength: "UPDATE", Options: "SKIP LOCKED"}
		if len(next.Statement.Joins) > 0 {
			lock.Table = clause.Table{Name: m.name[strings.LastIndex(m.name, ".")+1:]}
		}
		next = next.Select(m.column(m.key.DBName) + " AS lease_key, " + m.column("claim_owner") + " AS lease_owner").Clauses(lock)
		found := s.Raw(text, owner, stepID, ttlMicros(ttl), m.clock(now), next).Find(&it)
		ok = found.RowsAffected == 1
		return found.Error
	})
	before = m.claimable(&it).Owner
	m.claimable(&it).Owner = owner
	return it, before, ok, err
}

// peekNext looks at the item that waited longest. One SELECT.
func (m *items[T]) peekNext(ctx context.Context, now time.Time, scopes []func(*gorm.DB) *gorm.DB) (p peek, err error) {
	err = m.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) error {
		next, err := m.next(m.session(ctx, pool), now, scopes)
		if err != nil {
			return err
		}
		columns := []string{m.column(m.key.DBName), "?"}
		for _, name := range []string{"claim_owner", "claim_epoch", "claim_expires_at", "claim_done"} {
			columns = append(columns, m.column(name))
		}
		rows, err := next.Select(strings.Join(columns, ", "), m.clock(now)).Rows()
		if err != nil {
			return err
		}
		defer rows.Close()
		if !rows.Next() {
			return cmp.Or(rows.Err(), gorm.ErrRecordNotFound)
		}
		return cmp.Or(p.scan(rows, &p.key), rows.Close())
	})
	return p, err
}

// next is the query for the items that may be claimed, the one that waited longest first. Scopes narrow it: of what they add, the conditions
// and the joins count.
func (m *items[T]) next(s *gorm.DB, now time.Time, scopes []func(*gorm.DB) *gorm.DB) (*gorm.DB, error) {
	narrow := s.Model(new(T))
	for _, scope := range scopes {
		if scope == nil {
			return nil, invalid("scopes", "has a nil")
		}
		if narrow = scope(narrow); narrow == nil || narrow.Statement == nil {
			return nil, invalid("scopes", "return no *gorm.DB")
		}
		if narrow.Error != nil {
			return nil, narrow.Error
		}
	}
	adds := narrow.Statement
	for name := range adds.Clauses {
		if name != "WHERE" {
			return nil, invalid("scopes", "may only narrow, by Where and Joins, and not add %s", name)
		}
	}
	if adds.Unscoped || adds.Distinct || len(adds.Selects)+len(adds.Omits)+len(adds.Preloads) > 0 {
		return nil, invalid("scopes", "may only narrow, by Where and Joins")
	}
	owner, expires := m.column("claim_owner"), m.column("claim_expires_at")
	next := s.Model(new(T)).Where("NOT "+m.column("claim_done")+" AND ("+owner+" = '' OR COALESCE("+expires+", 0) <= ?)", m.clock(now))
	if len(adds.Clauses) > 0 {
		next = next.Where(narrow) // in parentheses
	}
	next.Statement.Joins = adds.Joins
	return next.Order("COALESCE(" + m.column("claim_acquired_at") + ", 0)").Limit(1), nil
}

// clock is the clock that decides, in a statement that GORM composes.
func (m *items[T]) clock(now time.Time) clause.Expr {
	return gorm.Expr("COALESCE(CAST(? AS BIGINT), "+m.dialect.clock+")", clockArg(now))
}

// A hold is one claim of one item, as its statements name it.
type hold struct {
	key   any
	owner string
	epoch int64
}

// renew extends a claim by ttl from now, and returns when that was. One UPDATE.
func (m *items[T]) renew(ctx context.Context, c hold, ttl time.Duration, now time.Time) (renewed time.Time, ok bool, err error) {
	latest := anyTime
	if !now.IsZero() {
		latest = now.UnixMicro() // one that lands after a later one must not take the expiry back
	}
	found, err := query(ctx, m.handle, func(rows *sql.Rows) (at int64, err error) { return at, rows.Scan(&at) },
		m.text(renewItemSQL), clockArg(now), c.key, c.owner, c.epoch, ttlMicros(ttl), latest)
	if err != nil || len(found) == 0 {
		return time.Time{}, false, err
	}
	return fromMicros(found[0]), true, nil
}

// release ends a claim. Its attempt counts as clean, which forgets those before; or it is taken back, which keeps them. One UPDATE.
func (m *items[T]) release(ctx context.Context, c hold, keep bool, now time.Time) (bool, error) {
	kept := 0
	if keep {
		kept = 1
	}
	n, err := m.exec(ctx, m.text(releaseItemSQL), clockArg(now), c.key, c.owner, c.epoch, kept)
	return n == 1, err
}

// fence reports whether a claim is in force and, in the transaction that the handle is, holds off its successor.
func (m *items[T]) fence(ctx context.Context, tx *handle, c hold, now time.Time) (bool, error) {
	n, err := tx.exec(ctx, m.text(fencing(m.dialect.fence)), clockArg(now), c.key, c.owner, c.epoch)
	return n == 1, err
}

// A write is what Save writes: an item, whose claim columns are as they will stand, and which of its columns.
type write[T any] struct {
	hold
	item     T
	columns  []string
	from, to int64 // the revisions that the row may have
}

// save writes an item, and returns it as hooks and GORM left it. One UPDATE, unless the model's hooks may want to write as well: what they
// write is then rolled back with a save that failed.
func (m *items[T]) save(ctx context.Context, on *handle, w write[T]) (it T, ok bool, err error) {
	err = on.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) error {
		it = w.item
		update := func(s *gorm.DB) error {
			s = s.Model(&it).Where(clause.Eq{Column: clause.Column{Table: clause.CurrentTable, Name: m.key.DBName}, Value: w.key}).
				Where(saveGuardSQL, w.owner, w.epoch, w.from, w.to)
			if on.inTx && m.dialect.brief != "" {
				s = s.Where("(" + m.text(m.dialect.brief) + ") IS NOT NULL")
			}
			s = s.Select(w.columns).Omit(clause.Associations).Updates(&it)
			ok = s.RowsAffected == 1
			return s.Error
		}
		s, hooks := m.session(ctx, pool), m.schema.BeforeSave || m.schema.BeforeUpdate || m.schema.AfterSave || m.schema.AfterUpdate
		if _, isTx := pool.(gorm.TxCommitter); !hooks || isTx {
			return update(s)
		}
		err := s.Transaction(func(tx *gorm.DB) error {
			if err := update(tx); err != nil || ok {
				return err
			}
			return errNotSaved
		})
		return ignore(err, func(err error) bool { return err == errNotSaved })
	})
	return it, ok, err
}

var errNotSaved = errors.New("not saved")

// saved resolves the columns that Save is told to write, by their names in the table or in Go; all of the model's own if it is told none.
func (m *items[T]) saved(names []string) (columns []string, err error) {
	own := func(f *schema.Field) bool { return f.DBName != "" && !ofClaim(f) && !f.PrimaryKey && f.Updatable }
	if len(names) == 0 {
		for _, name := range m.schema.DBNames {
			if own(m.schema.FieldsByDBName[name]) {
				columns = append(columns, name)
			}
		}
		return columns, nil
	}
	for _, name := range names {
		f := m.schema.FieldsByDBName[name]
		if i := slices.IndexFunc(m.schema.Fields, func(f *schema.Field) bool { return f.Name == name && !ofClaim(f) }); f == nil && i >= 0 {
			f = m.schema.Fields[i]
		}
		switch {
		case name == "claim_done" || f == nil && name == "Done": // is written anyway
		case f == nil:
			return nil, invalid("columns", "%q is none of the table %s", name, m.name)
		case !own(f):
			return nil, invalid("columns", "%q is not for Save to write", name)
		default:
			columns = append(columns, f.DBName)
		}
	}
	return columns, nil
}

// merge copies some fields of one item to another.
func (m *items[T]) merge(ctx context.Context, into, from *T, which func(*schema.Field) bool) {
	dst, src := reflect.ValueOf(into).Elem(), reflect.ValueOf(from).Elem()
	for _, name := range m.schema.DBNames {
		if f := m.schema.FieldsByDBName[name]; which(f) {
			f.ReflectValueOf(ctx, dst).Set(f.ReflectValueOf(ctx, src))
		}
	}
}

// keyOf is the value of an item's key, if it has one.
func (m *items[T]) keyOf(ctx context.Context, it *T) (key any, ok bool) {
	key, zero := m.key.ValueOf(ctx, reflect.ValueOf(it).Elem())
	return key, !zero
}

// setKey gives an item the key of another.
func (m *items[T]) setKey(ctx context.Context, it, other *T) {
	m.key.ReflectValueOf(ctx, reflect.ValueOf(it).Elem()).Set(m.key.ReflectValueOf(ctx, reflect.ValueOf(other).Elem()))
}
