package spec

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// A version is a column that counts its row's updates, in the way of GORM's optimistic locks.
type version int64

func (version) UpdateClauses(f *schema.Field) []clause.Interface {
	return []clause.Interface{counting{f}}
}

type counting struct{ field *schema.Field }

func (counting) Name() string               { return "" }
func (counting) Build(clause.Builder)       {}
func (counting) MergeClause(*clause.Clause) {}

func (c counting) ModifyStatement(s *gorm.Statement) {
	if _, counted := s.Clauses["counted"]; counted {
		return
	}
	s.Clauses["counted"] = clause.Clause{}
	values := map[string]any{}
	selected, _ := s.SelectAndOmitColumns(false, true)
	for name, f := range s.Schema.FieldsByDBName {
		if selected[name] {
			values[name], _ = f.ValueOf(s.Context, s.ReflectValue)
		}
	}
	values[c.field.DBName] = gorm.Expr(c.field.DBName + " + 1")
	s.Dest = values
}

type counted struct {
	ID      int
	Text    string
	Version version
	lease.Claimable
}

func TestAFieldWithAWayOfItsOwnToBeUpdatedIsUpdatedSo(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		must(t, gdb.AutoMigrate(&counted{}))
		must(t, gdb.Create(&counted{ID: 1}).Error)
		h, err := lease.ClaimAs[counted](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		for i := range 3 {
			row := h.Item()
			row.Text = fmt.Sprint(i)
			must(t, h.Save(t.Context(), row))
			var got counted
			must(t, gdb.Take(&got).Error)
			if got.Text != row.Text || got.Version != version(i+1) {
				t.Errorf("after %d saves the row is %+v", i+1, got)
			}
		}
	})
}

// A lockedVersion is a version that must be as it was read, if it was.
type lockedVersion int64

func (lockedVersion) UpdateClauses(f *schema.Field) []clause.Interface {
	return []clause.Interface{locking{counting{f}}}
}

type locking struct{ counting }

func (l locking) ModifyStatement(s *gorm.Statement) {
	if _, counted := s.Clauses["counted"]; counted {
		return
	}
	if v, zero := l.field.ValueOf(s.Context, s.ReflectValue); !zero {
		s.AddClause(clause.Where{Exprs: []clause.Expression{clause.Eq{Column: l.field.DBName, Value: v}}})
	}
	l.counting.ModifyStatement(s)
}

type versioned struct {
	ID      int
	Text    string
	Version lockedVersion
	lease.Claimable
}

func TestASaveThatAnOptimisticLockStopsIsAnErrorAndNoLoss(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, versioned{ID: 1, Version: 1})
		h, err := lease.ClaimAs[versioned](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		statements(t, gdb, "UPDATE versioneds SET version = 2, text = 'by another'")
		stale := versioned{Version: 1, Text: "stale"}
		in := func(tx *gorm.DB) error { return h.SaveIn(tx, stale) }
		for what, save := range map[string]func() error{
			"Save": func() error { return h.Save(t.Context(), stale) }, "SaveIn": func() error { return gdb.Transaction(in) },
		} {
			if err := save(); err == nil || errors.Is(err, lease.ErrLost) {
				t.Errorf("%s is %v", what, err)
			}
			must(t, h.Renew(t.Context()))
		}
		if text := ask[string](t, gdb, "SELECT text FROM versioneds"); text != "by another" {
			t.Errorf("the row says %q", text)
		}
		must(t, h.Save(t.Context(), versioned{Version: 2, Text: "fresh"}))
		must(t, h.Save(t.Context(), versioned{Text: "whatever the version"}))
		if n := ask[int](t, gdb, "SELECT count(*) FROM versioneds WHERE version = 4 AND text = 'whatever the version'"); n != 1 {
			t.Error("the later saves were not written")
		}
		_, err = lease.ClaimAs[versioned](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		mustBe(t, gdb.Transaction(in), lease.ErrLost)
		mustBe(t, h.Save(t.Context(), stale), lease.ErrLost)
	})
}
