package lease

import (
	"cmp"
	"context"
	"reflect"
	"strings"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/callbacks"
	"gorm.io/gorm/clause"
)

// takeNext claims the longest-waiting item, among the items that nobody else is
// about to take. takeNext returns the item, or nil if there is none, and the
// owner before. One UPDATE.
func (m *items[T]) takeNext(ctx context.Context, owner, stepID string, ttl time.Duration, now time.Time, scopes []func(*gorm.DB) *gorm.DB) (l *loaded[T], before string, err error) {
	err = m.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) error {
		text, args, err := m.composeNext(ctx, pool, scopes, clockArg(now), owner, stepID, ttlMicros(ttl))
		if err == nil {
			l, err = m.load(ctx, pool, []any{&before}, text, args...)
		}
		return err
	})
	return l, before, err
}

// composeNext returns takeNext's statement and its parameters. Callbacks and
// plugins of the user's may narrow a query for rows of the user's model, so
// GORM composes it. Nothing but scopes narrows a query for an Item.
func (m *items[T]) composeNext(ctx context.Context, pool gorm.ConnPool, scopes []func(*gorm.DB) *gorm.DB, args ...any) (string, []any, error) {
	if len(scopes) == 0 && m.isItem {
		return m.sql.takeFirst, args, nil
	}
	next, err := m.next(m.dry(ctx, pool), m.sql.pickNext, scopes)
	if err != nil {
		return "", nil, err
	}
	lock := clause.Locking{Strength: "UPDATE", Options: "SKIP LOCKED"}
	if len(next.Statement.Joins) > 0 {
		lock.Table = clause.Table{Name: m.name[strings.LastIndex(m.name, ".")+1:]}
	}
	next = next.Clauses(lock)
	next.Statement.Vars = args
	if err := m.build(next); err != nil {
		return "", nil, err
	}
	return m.sql.takeNext(next.Statement.SQL.String()), next.Statement.Vars, nil
}

// peekNext reads the state of the item that waited longest. One SELECT.
func (m *items[T]) peekNext(ctx context.Context, now time.Time, scopes []func(*gorm.DB) *gorm.DB) (p peek, err error) {
	err = m.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) error {
		next, err := m.next(m.dry(ctx, pool), m.sql.peekNext, scopes)
		if err != nil {
			return err
		}
		next.Statement.Vars = []any{clockArg(now)}
		if err := m.build(next); err != nil {
			return err
		}
		rows, err := pool.QueryContext(ctx, next.Statement.SQL.String(), next.Statement.Vars...)
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

// next is the query, on a session, for the items that may be claimed. The
// longest-waiting item comes first. Scopes narrow the query with conditions and
// joins. Other clauses are ErrInvalid. The query's first parameter is the
// clock.
func (m *items[T]) next(s *gorm.DB, columns clause.Expr, scopes []func(*gorm.DB) *gorm.DB) (*gorm.DB, error) {
	next := s.Model(new(T))
	clauses := next.Statement.Clauses
	// GORM would select columns of its own, for a join as well.
	clauses["SELECT"] = clause.Clause{Name: "SELECT", Expression: columns}
	clauses["WHERE"] = clause.Clause{Name: "WHERE", Expression: clause.Where{Exprs: []clause.Expression{m.sql.free}}}
	clauses["ORDER BY"] = clause.Clause{Name: "ORDER BY", Expression: m.sql.order}
	if len(scopes) == 0 {
		return next, nil
	}
	narrow := m.session(s.Statement.Context, s.Statement.ConnPool).Model(new(T))
	model, table, expr := narrow.Statement.Model, narrow.Statement.Table, narrow.Statement.TableExpr
	for _, scope := range scopes {
		if scope == nil {
			return nil, invalid("scopes", "has a nil")
		}
		if narrow = scope(narrow); narrow == nil || narrow.Statement == nil {
			return nil, invalid("scopes", "return no *gorm.DB")
		}
	}
	where := next.Statement.BuildCondition(narrow) // also carries out the scopes within the scopes
	adds := narrow.Statement
	for name := range adds.Clauses {
		if name != "WHERE" {
			return nil, invalid("scopes", "may only narrow, by Where and Joins, and not add %s", name)
		}
	}
	if adds.Unscoped || adds.Distinct || len(adds.Selects)+len(adds.Omits)+len(adds.Preloads)+adds.SQL.Len() > 0 ||
		adds.Model != model || adds.Table != table || adds.TableExpr != expr {
		return nil, invalid("scopes", "may only narrow, by Where and Joins")
	}
	if len(where) > 0 {
		// In parentheses, because GORM does not notice every OR.
		next = next.Where(clause.Expr{SQL: "(?)", Vars: []any{clause.And(where...)}})
	}
	next.Statement.Joins = adds.Joins
	return next, narrow.Error
}

// dry begins a session that composes statements and sends nothing.
func (m *items[T]) dry(ctx context.Context, pool gorm.ConnPool) *gorm.DB {
	s := m.session(ctx, pool)
	s.DryRun = true
	return s
}

// build composes a query. On a model of the caller's own, the caller's plugins
// take part.
func (m *items[T]) build(query *gorm.DB) error {
	model := query.Statement.Model
	if !m.isItem {
		return query.Find(model).Error
	}
	if err := query.Statement.Parse(model); err != nil {
		return err
	}
	query.Statement.Dest, query.Statement.ReflectValue = model, reflect.ValueOf(model).Elem()
	callbacks.BuildQuerySQL(query)
	query.Statement.Build("SELECT", "FROM", "WHERE", "ORDER BY", "FOR")
	return query.Error
}
