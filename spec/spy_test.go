package spec

import (
	"context"
	"database/sql"
	"sync"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/sqllease/lease/internal/dbtest"
)

// A spy is a connection pool that notes every statement that passes through it, and can fail it.
type spy struct {
	*sql.DB
	fail  func(query string) error      // nil fails nothing
	after func(query string, err error) // nil does nothing

	mu         sync.Mutex // guards statements
	statements []string
}

// spied opens a handle on db whose pool is a spy.
func spied(t *testing.T, db *dbtest.Database, opts ...gorm.Option) (*gorm.DB, *spy) {
	t.Helper()
	s := &spy{DB: db.SQL(t)}
	dialector := sqlite.New(sqlite.Config{Conn: s})
	if db.Backend == dbtest.BackendPostgres {
		dialector = postgres.New(postgres.Config{Conn: s})
	}
	gdb, err := gorm.Open(dialector, append(opts, &gorm.Config{Logger: logger.Discard})...)
	if err != nil {
		t.Fatal(err)
	}
	s.sent() // what gorm asks when it opens
	return gdb, s
}

// sent returns the statements since the last call.
func (s *spy) sent() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.statements = nil }()
	return s.statements
}

func (s *spy) note(query string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements = append(s.statements, query)
	if s.fail != nil {
		return s.fail(query)
	}
	return nil
}

func (s *spy) exec(ctx context.Context, to gorm.ConnPool, query string, args []any) (sql.Result, error) {
	if err := s.note(query); err != nil {
		return nil, err
	}
	result, err := to.ExecContext(ctx, query, args...)
	if s.after != nil {
		s.after(query, err)
	}
	return result, err
}

func (s *spy) query(ctx context.Context, from gorm.ConnPool, query string, args []any) (*sql.Rows, error) {
	if err := s.note(query); err != nil {
		return nil, err
	}
	return from.QueryContext(ctx, query, args...)
}

func (s *spy) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return s.exec(ctx, s.DB, query, args)
}

func (s *spy) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return s.query(ctx, s.DB, query, args)
}

func (s *spy) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	_ = s.note(query)
	return s.DB.QueryRowContext(ctx, query, args...)
}

func (s *spy) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	_ = s.note("PREPARE " + query)
	return s.DB.PrepareContext(ctx, query)
}

func (s *spy) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	if err := s.note("BEGIN"); err != nil {
		return nil, err
	}
	tx, err := s.DB.BeginTx(ctx, opts)
	return &spiedTx{Tx: tx, spy: s}, err
}

type spiedTx struct {
	*sql.Tx
	spy *spy
}

func (tx *spiedTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return tx.spy.exec(ctx, tx.Tx, query, args)
}

func (tx *spiedTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return tx.spy.query(ctx, tx.Tx, query, args)
}
