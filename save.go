package lease

import (
	"context"
	"errors"
	"slices"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
)

// A write is the work of one Save: an item, with its claim's columns as they
// will be afterwards, and the columns to write.
type write[T any] struct {
	hold
	item     T
	columns  []*schema.Field
	from, to int64 // the revisions that the row may have
	narrowed bool  // a hook, a field or a plugin added a condition
}

// writes reports whether a column is written.
func (w *write[T]) writes(column string) bool {
	return slices.ContainsFunc(w.columns, func(f *schema.Field) bool { return f.DBName == column })
}

// save writes an item, and leaves w.item as hooks and GORM left it. One UPDATE,
// unless hooks or plugins may write as well. Their writes are rolled back if
// the save fails.
func (m *items[T]) save(ctx context.Context, on *handle, w *write[T]) (ok bool, err error) {
	own, ok := any(&w.item).(*Item)
	if !ok {
		return m.update(ctx, on, w)
	}
	text := m.sql.save
	if on.inTx {
		text = m.sql.saveIn
	}
	var payload any
	if w.writes("payload") {
		payload = string(own.Payload)
	}
	n, err := on.exec(ctx, text, payload, toMicros(own.UpdatedAt), own.Revision, own.Done, own.Key, w.owner, w.epoch, w.from, w.to)
	return n == 1, err
}

// update is a save through GORM.
func (m *items[T]) update(ctx context.Context, on *handle, w *write[T]) (ok bool, err error) {
	var tried write[T]
	err = on.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) error {
		tried = *w
		send := func(s *gorm.DB, inTx bool) (err error) {
			if ok, err = m.send(s, inTx, &tried); err == nil && !ok {
				err = errNotSaved
			}
			return err
		}
		if _, isTx := pool.(gorm.TxCommitter); !isTx && (m.hooks() || m.plugged() && !m.db.SkipDefaultTransaction) {
			return m.session(ctx, pool).Transaction(func(tx *gorm.DB) error {
				on.dialect.watchNew(tx)
				return send(tx, true)
			})
		}
		return send(m.session(ctx, pool), on.inTx)
	})
	*w = tried
	return ok, ignore(err, func(err error) bool { return errors.Is(err, errNotSaved) })
}

var errNotSaved = errors.New("not saved")

// send carries out the UPDATE, and leaves w in the state after it.
func (m *items[T]) send(s *gorm.DB, inTx bool, w *write[T]) (ok bool, err error) {
	guard := condition{m.sql.guard, []any{w.key, w.owner, w.epoch, w.from, w.to}}
	if inTx {
		guard.parts = m.sql.guardIn
	}
	revision := m.claimable(&w.item).Revision
	assigned := m.sql.assigns && !m.plugged()
	s = s.Model(&w.item)
	s.Statement.Clauses["WHERE"] = clause.Clause{Name: "WHERE", Expression: clause.Where{Exprs: []clause.Expression{guard}}}
	if assigned {
		s.Statement.Clauses["SET"] = clause.Clause{Name: "SET", Expression: assignments{w.columns, revision}}
	} else {
		s = s.Select(namesOf(w.columns))
	}
	if len(m.schema.Relationships.Relations) > 0 {
		s = s.Omit(clause.Associations)
	}
	if s = s.Updates(&w.item); s.Error != nil {
		return false, s.Error
	}
	w.narrowed = m.narrowed(s.Statement, assigned)
	key, _ := m.keyOf(s.Statement.Context, &w.item)
	switch {
	case !sameKey(key, w.key):
		return false, invalid("T", "%T has a hook that changes its key", w.item)
	case m.claimable(&w.item).Revision != revision, omitting(s.Statement) && !w.leaveOut(s.Statement, assigned):
		return false, invalid("T", "%T has a hook, or its handle a plugin, that changes its claim or leaves it out", w.item)
	}
	return s.RowsAffected == 1, nil
}

// leaveOut removes the omitted columns from w. leaveOut reports whether the
// claim's columns were written. With assignments the answer is always true.
func (w *write[T]) leaveOut(s *gorm.Statement, assigned bool) bool {
	claims := true
	w.columns = slices.DeleteFunc(slices.Clone(w.columns), func(f *schema.Field) bool {
		omitted := omits(s, f) && !(assigned && ofClaim(f))
		claims = claims && !(omitted && ofClaim(f))
		return omitted
	})
	return claims
}

// narrowed reports whether an UPDATE has more conditions than the guard and
// those that GORM adds.
func (m *items[T]) narrowed(s *gorm.Statement, assigned bool) bool {
	expected := 1
	for _, c := range m.schema.UpdateClauses {
		if _, soft := c.(gorm.SoftDeleteUpdateClause); soft {
			expected++
		}
	}
	if !assigned {
		expected++ // the key, a second time
	}
	where, _ := s.Clauses["WHERE"].Expression.(clause.Where)
	return len(where.Exprs) > expected
}

// hindered returns why a save wrote nothing, or nil if the claim is the reason.
// One SELECT, if another condition may be the reason.
func (m *items[T]) hindered(ctx context.Context, on *handle, w *write[T]) error {
	if !w.narrowed {
		return nil
	}
	p, err := m.peekIn(ctx, on, w.key, time.Time{})
	if err != nil || p.owner != w.owner || p.epoch != w.epoch {
		return ignore(err, func(err error) bool { return errors.Is(err, gorm.ErrRecordNotFound) })
	}
	return errHindered
}

var errHindered = errors.New("nothing was written, though the claim stands: a hook, a field or a plugin adds a condition that the row does not meet")

// An assignments is the SET of an UPDATE. The SET gives these fields their
// values in the statement's model, as the model's hooks left them, except the
// fields that the hooks omit. The fields that GORM keeps up to date get the
// time. The revision is set too. GORM would compose the same SET out of maps of
// all columns, at a cost of up to half a round trip.
type assignments struct {
	columns  []*schema.Field
	revision int64
}

// Build implements [clause.Expression].
func (a assignments) Build(b clause.Builder) {
	s := b.(*gorm.Statement)
	written := 0
	for _, f := range a.columns {
		if omits(s, f) && !ofClaim(f) {
			continue
		}
		if written++; written > 1 {
			_ = b.WriteByte(',')
		}
		b.WriteQuoted(f.DBName)
		_ = b.WriteByte('=')
		value, _ := f.ValueOf(s.Context, s.ReflectValue)
		switch {
		case f.DBName == "claim_revision":
			value = a.revision
			_ = s.AddError(f.Set(s.Context, s.ReflectValue, value))
		case f.AutoUpdateTime > 0:
			value = updateTime(f, s.DB.NowFunc())
			_ = s.AddError(f.Set(s.Context, s.ReflectValue, value))
		}
		b.AddVar(b, value)
	}
}

// omitting reports whether a hook has told a statement to leave fields out.
func omitting(s *gorm.Statement) bool {
	return len(s.Selects) > 0 || slices.ContainsFunc(s.Omits, func(name string) bool { return name != clause.Associations })
}

// omits reports whether a statement leaves a field out.
func omits(s *gorm.Statement, f *schema.Field) bool {
	if !omitting(s) {
		return false
	}
	selected, restricted := s.SelectAndOmitColumns(false, true)
	if yes, ok := selected[f.DBName]; ok {
		return !yes
	}
	return restricted && f.AutoUpdateTime == 0
}

// updateTime returns the time of an update, in the form that a field keeps.
func updateTime(f *schema.Field, now time.Time) any {
	switch f.AutoUpdateTime {
	case schema.UnixNanosecond:
		return now.UnixNano()
	case schema.UnixMillisecond:
		return now.UnixMilli()
	case schema.UnixSecond:
		return now.Unix()
	}
	return now
}
