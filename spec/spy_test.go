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

// through returns a handle on db by a pool of the test's.
func through(t *testing.T, db *dbtest.Database, pool gorm.ConnPool, opts ...gorm.Option) *gorm.DB {
	t.Helper()
	dialector := sqlite.New(sqlite.Config{Conn: pool})
	if db.Backend == dbtest.BackendPostgres {
		dialector = postgres.New(postgres.Config{Conn: pool})
	}
	gdb, err := gorm.Open(dialector, append(opts, &gorm.Config{Logger: logger.Discard})...)
	must(t, err)
	return gdb
}

// A spy is a connection pool that notes every statement that passes through it, and can fail it.
type spy struct {
	*sql.DB
	fail  func(query string) error      // nil fails nothing
	after func(query string, err error) // nil does nothing

	mu        sync.Mutex // guards sentences
	sentences []sentence
}

// A sentence is a statement, with its arguments.
type sentence struct {
	text string
	args []any
}

// spied opens a handle on db whose pool is a spy.
func spied(t *testing.T, db *dbtest.Database, opts ...gorm.Option) (*gorm.DB, *spy) {
	t.Helper()
	s := &spy{DB: db.SQL(t)}
	gdb := through(t, db, s, opts...)
	s.sent() // what gorm asks when it opens
	return gdb, s
}

// sent returns the statements since the last call.
func (s *spy) sent() []string {
	var texts []string
	for _, sentence := range s.heard() {
		texts = append(texts, sentence.text)
	}
	return texts
}

// heard is sent, with the arguments.
func (s *spy) heard() []sentence {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.sentences = nil }()
	return s.sentences
}

func (s *spy) note(query string, args ...any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sentences = append(s.sentences, sentence{query, args})
	if s.fail != nil {
		return s.fail(query)
	}
	return nil
}

func (s *spy) exec(ctx context.Context, to gorm.ConnPool, query string, args []any) (sql.Result, error) {
	if err := s.note(query, args...); err != nil {
		return nil, err
	}
	result, err := to.ExecContext(ctx, query, args...)
	if s.after != nil {
		s.after(query, err)
	}
	return result, err
}

func (s *spy) query(ctx context.Context, from gorm.ConnPool, query string, args []any) (*sql.Rows, error) {
	if err := s.note(query, args...); err != nil {
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
	_ = s.note(query, args...)
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
