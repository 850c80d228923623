package lease

import (
	"errors"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/sqllease/lease/internal/dbtest"
)

// A passing row's condition has another time in it whenever it is asked for.
type (
	passing struct {
		ID   uint
		Gone moment
		Claimable
	}
	moment       struct{ gorm.DeletedAt }
	momentClause struct{ gorm.SoftDeleteQueryClause }
)

var moments int64

func (moment) QueryClauses(f *schema.Field) []clause.Interface {
	return []clause.Interface{momentClause{gorm.SoftDeleteQueryClause{Field: f}}}
}

func (c momentClause) ModifyStatement(s *gorm.Statement) {
	moments++
	s.AddClause(clause.Where{Exprs: []clause.Expression{clause.Gt{Column: c.Field.DBName, Value: time.Unix(moments, 0)}}})
}

func TestAConditionThatIsAlwaysAnotherDoesNotFillTheCacheOfStatements(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, database *dbtest.Database) {
		db := database.Open(t)
		size := func() (n int) {
			itemStatementsOf.Range(func(_, _ any) bool { n++; return true })
			return n
		}
		before, asked := size(), moments
		for range 20 {
			if _, err := ClaimAs[passing](t.Context(), db, 1, "A", "", time.Minute, nil); !errors.Is(err, ErrInvalid) {
				t.Errorf("the claim is %v", err)
			}
		}
		if n := size() - before; n != 0 || moments == asked {
			t.Errorf("%d conditions left %d statements", moments-asked, n)
		}
	})
}
