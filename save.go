package lease

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
)

// A write is what Save writes: an item, whose claim columns are as they will stand, and which of its columns.
type write[T any] struct {
	hold
	item     T
	columns  []*schema.Field
	from, to int64 // the revisions that the row may have
}

// save writes an item, and leaves it as hooks and GORM left it. One UPDATE, unless the model's hooks may want to write as well: what they write is
// then rolled back with a save that failed.
func (m *items[T]) save(ctx context.Context, on *handle, w *write[T]) (ok bool, err error) {
	if own := plain(&w.item, w.columns); own != nil {
		text := m.sql.save
		if on.inTx {
			text = m.sql.saveIn
		}
		n, err := on.exec(ctx, text, string(own.Payload), toMicros(own.UpdatedAt), own.Revision, own.Done, own.Key, w.owner, w.epoch, w.from, w.to)
		return n == 1, err
	}
	return m.update(ctx, on, w)
}

// update is a save through GORM.
func (m *items[T]) update(ctx context.Context, on *handle, w *write[T]) (ok bool, err error) {
	guard := condition{m.sql.guard, []any{w.key, w.owner, w.epoch, w.from, w.to}}
	if on.inTx {
		guard.parts = m.sql.guardIn
	}
	var it T
	err = on.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) error {
		it = w.item
		update := func(s *gorm.DB) error {
			s = s.Model(&it)
			s.Statement.Clauses["WHERE"] = clause.Clause{Name: "WHERE", Expression: clause.Where{Exprs: []clause.Expression{guard}}}
			if m.sql.assigns && !m.plugged() {
				s.Statement.Clauses["SET"] = clause.Clause{Name: "SET", Expression: assignments(w.columns)}
			} else {
				s = s.Select(namesOf(w.columns))
			}
			if len(m.schema.Relationships.Relations) > 0 {
				s = s.Omit(clause.Associations)
			}
			s = s.Updates(&it)
			ok = s.RowsAffected == 1
			if key, _ := m.keyOf(ctx, &it); s.Error == nil && !reflect.DeepEqual(key, w.key) {
				return invalid("T", "%T has a hook that changes its key", it)
			}
			return s.Error
		}
		all := func(s *gorm.DB) error {
			if err := update(s); err != nil || ok || on.inTx {
				return err
			}
			return errNotSaved
		}
		hooks := m.schema.BeforeSave || m.schema.BeforeUpdate || m.schema.AfterSave || m.schema.AfterUpdate
		if _, isTx := pool.(gorm.TxCommitter); hooks && !isTx {
			return m.session(ctx, pool).Transaction(all)
		}
		return all(m.session(ctx, pool))
	})
	err = ignore(err, func(err error) bool { return errors.Is(err, errNotSaved) })
	w.item = it
	return ok, err
}

// An assignments is the SET of an UPDATE: these fields of the statement's model, as its hooks left it, and the time for those that GORM keeps
// up to date. GORM composes the same out of maps of all columns, which costs as much as half of the round trip.
type assignments []*schema.Field

// Build implements [clause.Expression].
func (a assignments) Build(b clause.Builder) {
	s := b.(*gorm.Statement)
	for i, f := range a {
		if i > 0 {
			_ = b.WriteByte(',')
		}
		b.WriteQuoted(f.DBName)
		_ = b.WriteByte('=')
		value, _ := f.ValueOf(s.Context, s.ReflectValue)
		if f.AutoUpdateTime > 0 {
			value = updateTime(f, s.DB.NowFunc())
			_ = s.AddError(f.Set(s.Context, s.ReflectValue, value))
		}
		b.AddVar(b, value)
	}
}

// updateTime is the time of an update, as a field keeps it.
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

// plain is the item, if it is one of the package's own table, of which the columns are all that Save writes.
func plain(it any, columns []*schema.Field) *Item {
	if own, ok := it.(*Item); ok && slices.ContainsFunc(columns, func(f *schema.Field) bool { return f.DBName == "payload" }) {
		return own
	}
	return nil
}

var errNotSaved = errors.New("not saved")

// columnsOf resolves the columns that Save is told to write, by their names in the table or in Go; all of the model's own if it is told none.
// The times that GORM keeps up to date are always among them.
func (m *items[T]) columnsOf(names []string) (columns []*schema.Field, err error) {
	if len(names) == 0 {
		return m.sql.saved, nil
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
		case !slices.Contains(columns, f):
			columns = append(columns, f)
		}
	}
	_, item := any(new(T)).(ownRow)
	for _, f := range m.sql.saved {
		f = m.schema.FieldsByDBName[f.DBName]
		if (f.AutoUpdateTime > 0 || ofClaim(f) || item && f.DBName == "updated_at") && !slices.Contains(columns, f) {
			columns = append(columns, f)
		}
	}
	return columns, nil
}

func namesOf(columns []*schema.Field) (names []string) {
	for _, f := range columns {
		names = append(names, f.DBName)
	}
	return names
}

// merge copies some fields of one item to another.
func (m *items[T]) merge(ctx context.Context, into, from *T, fields []*schema.Field) {
	dst, src := reflect.ValueOf(into).Elem(), reflect.ValueOf(from).Elem()
	for _, f := range fields {
		f.ReflectValueOf(ctx, dst).Set(f.ReflectValueOf(ctx, src))
	}
}

// keyOf is the value of an item's key, if it has one.
func (m *items[T]) keyOf(ctx context.Context, it *T) (key any, ok bool) {
	key, zero := m.key.ValueOf(ctx, reflect.ValueOf(it).Elem())
	if k := reflect.ValueOf(key); k.Kind() == reflect.Pointer && !k.IsNil() {
		key = k.Elem().Interface() // what it points to may be changed
	}
	return key, !zero
}

// setKey gives an item a key.
func (m *items[T]) setKey(ctx context.Context, it *T, key any) error {
	return m.key.Set(ctx, reflect.ValueOf(it).Elem(), key)
}
