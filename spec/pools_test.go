package spec

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/sqllease/lease/internal/dbtest"
)

// A lossy is a connection pool that loses the replies to updates.
type lossy struct {
	*sql.DB
	fate fate // of the next ones

	late []func() error // the delayed ones
}

type fate int

const (
	answered fate = iota
	unheard       // it is carried out, and the reply is lost
	delayed       // it is not carried out until the test lets it land
)

var errNoReply = errors.New("no reply")

// loses decides the fate of a statement; an error is instead of its reply.
func (l *lossy) loses(ctx context.Context, query string, args []any) error {
	carryOut := func() error {
		_, err := l.DB.ExecContext(context.WithoutCancel(ctx), query, args...)
		return err
	}
	switch {
	case l.fate == answered || !strings.HasPrefix(query, "UPDATE"):
		return nil
	case l.fate == delayed:
		l.late = append(l.late, carryOut)
		return errNoReply
	}
	return cmp.Or(carryOut(), errNoReply)
}

func (l *lossy) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := l.loses(ctx, query, args); err != nil {
		return nil, err
	}
	return l.DB.ExecContext(ctx, query, args...)
}

func (l *lossy) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := l.loses(ctx, query, args); err != nil {
		return nil, err
	}
	return l.DB.QueryContext(ctx, query, args...)
}

// land carries out a statement that was delayed, for the first time or again.
func (l *lossy) land(t *testing.T, i int) {
	t.Helper()
	must(t, l.late[i]())
}

// through is a handle on db by a pool of the test's.
func through(t *testing.T, db *dbtest.Database, pool gorm.ConnPool) *gorm.DB {
	t.Helper()
	dialector := sqlite.New(sqlite.Config{Conn: pool})
	if db.Backend == dbtest.BackendPostgres {
		dialector = postgres.New(postgres.Config{Conn: pool})
	}
	gdb, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	must(t, err)
	return gdb
}
