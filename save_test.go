package lease

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/sqllease/lease/internal/dbtest"
)

// A motley row has fields of every kind that GORM treats in a way of its own.
type motley struct {
	ID         string
	Text       string
	Number     *int
	Flag       bool `gorm:"default:true"`
	Blob       []byte
	Maybe      sql.NullString
	When       *time.Time
	Labels     []string `gorm:"serializer:json"`
	Since      int64    `gorm:"serializer:unixtime;type:datetime"`
	Upper      shouted
	Point      located
	Updated    bool    `gorm:"<-:update"`
	Created    bool    `gorm:"<-:create"`
	Read       bool    `gorm:"->"`
	Ignored    bool    `gorm:"-"`
	Near       street  `gorm:"embedded;embeddedPrefix:near_"`
	Far        *street `gorm:"embedded;embeddedPrefix:far_"`
	Order      int     `gorm:"column:order by \"this\"?"`
	OwnerID    *string
	Owner      *motleyOwner
	UpdatedAt  time.Time
	Touched    *time.Time `gorm:"autoUpdateTime"`
	Nanos      int64      `gorm:"autoUpdateTime:nano"`
	Millis     *int64     `gorm:"autoUpdateTime:milli"`
	Seconds    uint       `gorm:"autoUpdateTime"`
	Unaffected int64      `gorm:"autoUpdateTime;<-:create"`
	DeletedAt  gorm.DeletedAt
	Claimable
}

type motleyOwner struct{ ID string }

type street struct {
	Name   string
	Number *int
}

// A shouted is written in upper case.
type shouted string

func (s shouted) Value() (driver.Value, error) { return strings.ToUpper(string(s)), nil }

// A located is written as an expression with two parameters.
type located struct{ X, Y int }

func (located) GormDataType() string { return "point" }
func (l located) GormValue(context.Context, *gorm.DB) clause.Expr {
	return clause.Expr{SQL: "point(?, ?)", Vars: []any{l.X, l.Y}}
}

func TestASaveSetsWhatGORMWould(t *testing.T) {
	seven, at, name := 7, time.Date(2024, 3, 1, 12, 0, 0, 0, time.UTC), "Ada"
	rows := map[string]motley{
		"nothing": {},
		"everything": {
			ID: "k", Text: "t", Number: &seven, Flag: true, Blob: []byte{0, 1}, Maybe: sql.NullString{String: "m", Valid: true}, When: &at, Labels: []string{"a"},
			Since: 86400, Upper: "up", Point: located{1, 2}, Updated: true, Created: true, Read: true, Ignored: true, Near: street{"n", &seven}, Far: &street{"f", nil},
			Order: 3, OwnerID: &name, Owner: &motleyOwner{"Ada"}, Claimable: Claimable{Owner: "A", Epoch: 3, Revision: 4, Done: true, ExpiresAt: at},
		},
	}
	dbtest.Run(t, func(t *testing.T, database *dbtest.Database) {
		db := database.Open(t, &gorm.Config{NowFunc: func() time.Time { return at }})
		m, err := openItems[motley](db)
		if err != nil {
			t.Fatal(err)
		}
		dry := func(it *motley) *gorm.DB {
			s := m.dry(t.Context(), m.pool).Model(it)
			s.Statement.Clauses["WHERE"] = clause.Clause{Name: "WHERE", Expression: clause.Where{Exprs: []clause.Expression{clause.Expr{SQL: "true"}}}}
			return s.Omit(clause.Associations)
		}
		set := func(s *gorm.DB) string {
			if s.Error != nil {
				t.Fatal(s.Error)
			}
			text, _, _ := strings.Cut(s.Statement.SQL.String(), " WHERE ")
			return text
		}
		for what, row := range rows {
			for _, names := range [][]string{nil, {"Text"}, {"near_name", "far_number", "Labels"}, {"Point", "Upper", "UpdatedAt", "Seconds"}} {
				columns, err := m.columnsOf(names)
				if err != nil {
					t.Fatal(err)
				}
				columns = slices.Clone(columns)
				slices.SortFunc(columns, func(a, b *schema.Field) int {
					return slices.Index(m.schema.DBNames, a.DBName) - slices.Index(m.schema.DBNames, b.DBName)
				})
				ours, theirs := row, row
				o := dry(&ours)
				o.Statement.Clauses["SET"] = clause.Clause{Name: "SET", Expression: assignments{columns, row.Revision}}
				o = o.Updates(&ours)
				g := dry(&theirs).Select(namesOf(columns)).Updates(&theirs)
				if set(o) != set(g) {
					t.Errorf("%s, %q:\n%s\n%s", what, names, set(o), set(g))
				}
				values := func(s *gorm.DB) (values []any) {
					for _, arg := range s.Statement.Vars[:len(o.Statement.Vars)] {
						v, err := driver.DefaultParameterConverter.ConvertValue(arg) // as it is sent
						if err != nil {
							t.Fatal(err)
						}
						values = append(values, v)
					}
					return values
				}
				for i, b := range values(g) {
					if a := values(o)[i]; !reflect.DeepEqual(a, b) {
						t.Errorf("%s, %q: value %d is %#v, not %#v", what, names, i+1, a, b)
					}
				}
				if ours.Far == nil {
					theirs.Far = nil // GORM makes one, though it writes none
				}
				if !reflect.DeepEqual(ours, theirs) {
					t.Errorf("%s, %q: leaves\n%+v, GORM\n%+v", what, names, ours, theirs)
				}
			}
		}
	})
}

// A remade row's hook makes it anew.
type remade struct {
	ID   uint
	Text string
	Claimable
}

func (r *remade) BeforeSave(*gorm.DB) error {
	*r = remade{ID: r.ID, Text: r.Text}
	return nil
}

func TestALateSaveReplacesNoNewerOneThoughAHookRebuildsTheRow(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, database *dbtest.Database) {
		db := database.Open(t)
		try := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		try(db.AutoMigrate(&remade{}))
		try(db.Create(&remade{ID: 1}).Error)
		h, err := ClaimAs[remade](t.Context(), db, 1, "A", "", time.Minute, nil)
		try(err)
		try(h.Save(t.Context(), remade{Text: "first"}))
		late := &write[remade]{hold: h.hold, item: remade{ID: 1, Text: "late"}, columns: h.items.sql.saved}
		h.number(late)
		try(h.Save(t.Context(), remade{Text: "newer"}))
		ok, err := h.items.save(t.Context(), h.items.handle, late)
		var got remade
		try(db.Take(&got).Error)
		if ok || err != nil || got.Text != "newer" || got.Revision != h.Item().Revision {
			t.Errorf("the late save is %v, %v, and the row %+v", ok, err, got)
		}
	})
}
