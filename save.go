package lease

import (
	"context"
	"errors"
	"reflect"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
)

// A write is what Save writes: an item, whose claim columns are as they will stand, and which of its columns.
type write[T any] struct {
	hold
	item     T
	columns  []string
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
	var it T
	err = on.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) error {
		it = w.item
		update := func(s *gorm.DB) error {
			s = s.Model(&it).Where(clause.Eq{Column: clause.Column{Table: clause.CurrentTable, Name: m.key.DBName}, Value: w.key}).
				Where(saveGuardSQL, w.owner, w.epoch, w.from, w.to)
			if on.inTx && m.sql.brief != "" {
				s = s.Where(text(m.sql.brief))
			}
			s = s.Select(w.columns)
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

// plain is the item, if it is one of the package's own table, of which the columns are all that Save writes.
func plain(it any, columns []string) *Item {
	if own, ok := it.(*Item); ok && slices.Contains(columns, "payload") {
		return own
	}
	return nil
}

var errNotSaved = errors.New("not saved")

// columnsOf resolves the columns that Save is told to write, by their names in the table or in Go; all of the model's own if it is told none.
func (m *items[T]) columnsOf(names []string) (columns []string, err error) {
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
		default:
			columns = append(columns, f.DBName)
		}
	}
	return append(columns, "claim_revision", "claim_done"), nil
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
	if k := reflect.ValueOf(key); k.Kind() == reflect.Pointer && !k.IsNil() {
		key = k.Elem().Interface() // what it points to may be changed
	}
	return key, !zero
}

// setKey gives an item a key.
func (m *items[T]) setKey(ctx context.Context, it *T, key any) error {
	return m.key.Set(ctx, reflect.ValueOf(it).Elem(), key)
}
