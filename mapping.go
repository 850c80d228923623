package lease

import (
	"cmp"
	"context"
	"database/sql/driver"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
)

// check returns an error for a model that cannot be claimed.
func (m *items[T]) check() error {
	var model T
	if m.key.Serializer != nil {
		return invalid("T", "%T has a serializer on its primary key", model)
	}
	for _, name := range claimColumns {
		f := m.schema.FieldsByDBName[name]
		switch {
		case f == nil || !ofClaim(f):
			return invalid("T", "%T has no column %s of Claimable's", model, name)
		case slices.ContainsFunc(f.StructField.Index, behindPointer):
			return invalid("T", "%T reaches Claimable by a pointer; embed the struct itself", model)
		}
	}
	return nil
}

// own reports whether a field belongs to the model itself, and Save may write
// it.
func own(f *schema.Field) bool { return f.DBName != "" && !ofClaim(f) && !f.PrimaryKey && f.Updatable }

// ofClaim reports whether a field came from Claimable.
func ofClaim(f *schema.Field) bool {
	in := f.Schema.ModelType
	path := f.StructField.Index
	for _, step := range path[:len(path)-1] {
		if behindPointer(step) {
			in = in.Field(-step - 1).Type.Elem()
		} else {
			in = in.Field(step).Type
		}
	}
	return in == reflect.TypeFor[Claimable]()
}

// behindPointer reports whether a step of GORM's StructField.Index leads to a
// struct that is embedded by a pointer. The number of the field is then
// -step-1.
func behindPointer(step int) bool { return step < 0 }

// hooks reports whether the model has hooks for an update.
func (m *items[T]) hooks() bool {
	return m.schema.BeforeSave || m.schema.BeforeUpdate || m.schema.AfterSave || m.schema.AfterUpdate
}

// plugged reports whether the caller's plugins may change what GORM sends.
func (m *items[T]) plugged() bool {
	for name := range m.db.Plugins {
		if name != "gorm:db_resolver" && name != tablesPlugin("").Name() {
			return true
		}
	}
	return false
}

// visible returns the condition of the model's soft delete, or of any other
// field with a demand on queries. The text follows other conditions.
func (m *items[T]) visible() (string, error) {
	if len(m.schema.QueryClauses) == 0 {
		return "", nil
	}
	// On a statement of its own, untouched by plugins.
	db := m.session(context.Background(), m.pool)
	written := &literals{Dialector: db.Dialector}
	db.Dialector = written // in a Config that belongs to the session
	s := &gorm.Statement{DB: db, Table: m.name, Schema: m.schema, Clauses: map[string]clause.Clause{}}
	for _, c := range m.schema.QueryClauses {
		s.AddClause(c)
	}
	s.Build("WHERE")
	if written.err != nil {
		return "", invalid("T", "%T has a field that demands more of a query than constants: %v", *new(T), written.err)
	}
	condition, ok := strings.CutPrefix(s.SQL.String(), "WHERE ")
	if !ok {
		return "", nil
	}
	return " AND (" + condition + ")", nil
}

// A literals is a GORM dialect that writes constants into the statement instead
// of parameters.
type literals struct {
	gorm.Dialector
	err error
}

// BindVarTo implements [gorm.Dialector].
func (l *literals) BindVarTo(w clause.Writer, _ *gorm.Statement, value any) {
	value, err := driver.DefaultParameterConverter.ConvertValue(value)
	text := "NULL"
	switch v := value.(type) {
	case nil:
	case bool:
		text = strings.ToUpper(strconv.FormatBool(v))
	case int64:
		text = strconv.FormatInt(v, 10)
	case string:
		// Under some settings, Postgres does not take these characters
		// literally.
		if strings.ContainsAny(v, "\x00\\") {
			err = fmt.Errorf("%q", v)
		}
		text = "'" + strings.ReplaceAll(v, "'", "''") + "'"
	default:
		err = fmt.Errorf("a %T", v)
	}
	l.err = cmp.Or(l.err, err)
	_, _ = w.WriteString(text)
}

// columnsOf resolves the columns for a Save, by their names in the table or in
// Go. Without names, columnsOf returns all of the model's own columns. The
// revision, Done and the times of updates are always included.
func (m *items[T]) columnsOf(names []string) (columns []*schema.Field, err error) {
	if len(names) == 0 {
		return m.sql.saved, nil
	}
	for _, name := range names {
		f, err := m.columnNamed(name)
		switch {
		case err != nil:
			return nil, err
		case f != nil && !slices.Contains(columns, f):
			columns = append(columns, f)
		}
	}
	_, item := any(new(T)).(ownRow)
	for _, f := range m.sql.saved {
		f = m.schema.FieldsByDBName[f.DBName]
		always := f.DBName == "claim_revision" || f.DBName == "claim_done" || f.AutoUpdateTime > 0 || item && f.DBName == "updated_at"
		if always && !slices.Contains(columns, f) {
			columns = append(columns, f)
		}
	}
	return columns, nil
}

// columnNamed finds a column for a Save by its name. For Done it returns nil,
// because Save writes Done anyway.
func (m *items[T]) columnNamed(name string) (*schema.Field, error) {
	f := m.schema.FieldsByDBName[name]
	if f == nil {
		var named []*schema.Field
		for _, f := range m.schema.Fields {
			shadowed := f.DBName != "" && m.schema.FieldsByDBName[f.DBName] != f
			if f.Name == name && !shadowed && !ofClaim(f) {
				named = append(named, f)
			}
		}
		switch len(named) {
		case 0:
		case 1:
			f = named[0]
		default:
			return nil, invalid("columns", "%q may be any of %q", name, namesOf(named))
		}
	}
	switch {
	case name == "claim_done" || f == nil && name == "Done":
		return nil, nil
	case f == nil:
		return nil, invalid("columns", "%q is none of the table %s", name, m.name)
	case !own(f):
		return nil, invalid("columns", "%q is not for Save to write", name)
	}
	return f, nil
}

func namesOf(columns []*schema.Field) (names []string) {
	for _, f := range columns {
		names = append(names, f.DBName)
	}
	return names
}

// keyOf returns the value of an item's key, and whether the item has a key.
// keyOf copies the data behind a pointer or a slice, because the caller may
// change the data.
func (m *items[T]) keyOf(ctx context.Context, it *T) (key any, ok bool) {
	key, zero := m.key.ValueOf(ctx, reflect.ValueOf(it).Elem())
	switch k := reflect.ValueOf(key); {
	case k.Kind() == reflect.Pointer && !k.IsNil():
		key = k.Elem().Interface()
	case k.Kind() == reflect.Slice:
		key = reflect.AppendSlice(reflect.MakeSlice(k.Type(), 0, k.Len()), k).Interface()
	}
	return key, !zero
}

// sameKey compares two keys of a model. Times are the same if they are the same
// instant, in any zone.
func sameKey(a, b any) bool {
	if t, ok := a.(time.Time); ok {
		other, ok := b.(time.Time)
		return ok && t.Equal(other)
	}
	return reflect.DeepEqual(a, b)
}

// setKey sets an item's key.
func (m *items[T]) setKey(ctx context.Context, it *T, key any) error {
	return m.key.Set(ctx, reflect.ValueOf(it).Elem(), key)
}

// merge copies some fields of one item to another.
func (m *items[T]) merge(into, from *T, fields []*schema.Field) {
	m.detach(into)
	dst, src := reflect.ValueOf(into).Elem(), reflect.ValueOf(from).Elem()
	if len(fields) == len(m.sql.saved) {
		for _, path := range m.sql.embedded {
			if s, d := fieldAt(src, path), fieldAt(dst, path); d.IsValid() && (!s.IsValid() || s.IsNil()) {
				// GORM loads such a struct as nil if its columns are all NULL.
				d.SetZero()
			}
		}
	}
	for _, f := range fields {
		if s := fieldAt(src, f.StructField.Index); s.IsValid() {
			f.ReflectValueOf(context.Background(), dst).Set(s)
		} else if d := fieldAt(dst, f.StructField.Index); d.IsValid() {
			d.SetZero()
		}
	}
}

// detach gives an item its own structs where it embeds structs by pointers.
// Copies of the item share the old structs.
func (m *items[T]) detach(it *T) {
	for _, path := range m.sql.embedded {
		if p := fieldAt(reflect.ValueOf(it).Elem(), path); p.IsValid() && !p.IsNil() {
			own := reflect.New(p.Type().Elem())
			own.Elem().Set(p.Elem())
			p.Set(own)
		}
	}
}

// fieldAt returns the field at a path in a struct. If a struct on the path is
// nil, the result is invalid.
func fieldAt(v reflect.Value, path []int) reflect.Value {
	for i, step := range path {
		if !behindPointer(step) {
			v = v.Field(step)
			continue
		}
		if v = v.Field(-step - 1); i == len(path)-1 {
			break
		}
		if v.IsNil() {
			return reflect.Value{}
		}
		v = v.Elem()
	}
	return v
}
