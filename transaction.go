package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"gorm.io/gorm"
)

// SQLite ends a whole transaction by itself if a write in it is interrupted,
// says OR ROLLBACK, or meets a full disk. database/sql does not notice: its
// *sql.Tx stays open, and each later statement commits on its own.

// errEnded also matches sql.ErrTxDone: the transaction takes no more
// statements.
var errEnded = fmt.Errorf("SQLite ended the transaction by itself after a statement in it failed, and kept nothing of it: %w", sql.ErrTxDone)

// A liveTx is a transaction that refuses every statement, and its commit, once
// the database has ended the transaction.
//
// A liveTx asks the database before every statement. The errors of statements
// are not enough: an INSERT with RETURNING may fail only while its rows are
// read. Once a liveTx has seen the end, it rolls back the *sql.Tx below. Then
// database/sql refuses the statements of every other handle, too.
//
// No statement comes between the question and the statement asked for, not even
// from another goroutine. The exception is a statement that was prepared: a
// caller who prepares statements uses the transaction in one goroutine at a
// time.
type liveTx struct {
	gorm.ConnPool
	gorm.TxCommitter
	dialect *dialect

	mu         sync.Mutex // held from the question to the end of the statement; guards the fields below
	fresh      bool       // nothing was sent yet that could have ended the transaction
	ended      bool
	rolledBack chan struct{} // closed after the roll-back; nil before the end
}

// rollBackFor is how long a statement that finds the end waits for the
// roll-back. Open rows hold up the roll-back, and their owner may be the caller
// who waits.
const rollBackFor = 100 * time.Millisecond

// ask returns the error with which a statement of the transaction must fail, or
// nil. The caller holds mu.
func (tx *liveTx) ask(ctx context.Context) error {
	if tx.ended {
		return errEnded
	}
	if tx.fresh {
		tx.fresh = false
		return nil
	}
	// The statement's context may have ended, and must not interrupt the
	// question.
	_, err := tx.ConnPool.ExecContext(context.WithoutCancel(ctx), tx.dialect.begin)
	switch {
	case tx.dialect.begun(err):
		return nil
	case err != nil:
		return err // no answer, so the next statement asks again
	}
	// The roll-back ends the transaction that was begun just now, too.
	tx.ended, tx.rolledBack = true, make(chan struct{})
	go func() {
		defer close(tx.rolledBack)
		_ = tx.Rollback()
	}()
	select {
	case <-tx.rolledBack:
	case <-time.After(rollBackFor):
	}
	return errEnded
}

// alive returns nil unless the database has ended the transaction.
func (tx *liveTx) alive(ctx context.Context) error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	return tx.ask(ctx)
}

// refuse is like ask, for a statement that is about to be sent. It returns nil
// if the owner, or the end of the context, has ended the transaction: then the
// transaction refuses the statement by itself.
func (tx *liveTx) refuse(ctx context.Context) error {
	return ignore(tx.ask(ctx), func(err error) bool { return errors.Is(err, sql.ErrTxDone) && !errors.Is(err, errEnded) })
}

// send sends a statement, unless the database has ended the transaction.
func send[T any](ctx context.Context, tx *liveTx, statement func() (T, error)) (result T, err error) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if err := tx.refuse(ctx); err != nil {
		return result, err
	}
	return statement()
}

// sendable returns a context for a statement that has no error to return. If
// the statement must not be sent, the context has ended, unless the transaction
// below was rolled back and refuses the statement by itself. The caller holds
// mu.
func (tx *liveTx) sendable(ctx context.Context) context.Context {
	if tx.refuse(ctx) == nil {
		return ctx
	}
	select {
	case <-tx.rolledBack: // never, if that is nil
		return ctx
	default:
		ended, cancel := context.WithCancel(ctx)
		cancel()
		return ended
	}
}

func (tx *liveTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return send(ctx, tx, func() (sql.Result, error) { return tx.ConnPool.ExecContext(ctx, query, args...) })
}

func (tx *liveTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return send(ctx, tx, func() (*sql.Rows, error) { return tx.ConnPool.QueryContext(ctx, query, args...) })
}

func (tx *liveTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	return tx.ConnPool.QueryRowContext(tx.sendable(ctx), query, args...)
}

func (tx *liveTx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return send(ctx, tx, func() (*sql.Stmt, error) { return tx.ConnPool.PrepareContext(ctx, query) })
}

// Commit fails if the database has ended the transaction. The commit itself
// would notice an end that comes after the question.
func (tx *liveTx) Commit() error {
	tx.mu.Lock()
	err := tx.refuse(context.Background())
	tx.mu.Unlock()
	if err != nil {
		return err
	}
	return tx.TxCommitter.Commit()
}

// GetDBConn lets GORM find the *sql.DB of the transaction, as without a liveTx.
func (tx *liveTx) GetDBConn() (*sql.DB, error) {
	return (&gorm.DB{Config: &gorm.Config{ConnPool: tx.ConnPool}}).DB()
}

// A liveGORMTx is a liveTx that GORM can use with prepared statements.
type liveGORMTx struct {
	*liveTx
	tx gorm.Tx
}

// StmtContext returns a statement that fails, if the database has ended the
// transaction.
func (tx *liveGORMTx) StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	return tx.tx.StmtContext(tx.sendable(ctx), stmt)
}

// live makes a liveTx of a transaction. It returns the pool unchanged, and
// false, if the pool is a liveTx already, or if the database needs no liveTx.
func (d *dialect) live(pool gorm.ConnPool) (gorm.ConnPool, bool) {
	if d.begin == "" {
		return pool, false
	}
	switch p := pool.(type) {
	case *liveTx, *liveGORMTx:
		return pool, false
	case *gorm.PreparedStmtTX: // stays outermost, as GORM expects
		if tx, made := d.live(p.Tx); made {
			return &gorm.PreparedStmtTX{Tx: tx.(gorm.Tx), PreparedStmtDB: p.PreparedStmtDB}, true
		}
	case gorm.Tx:
		return &liveGORMTx{&liveTx{ConnPool: p, TxCommitter: p, dialect: d}, p}, true
	case gorm.TxCommitter:
		return &liveTx{ConnPool: pool, TxCommitter: p, dialect: d}, true
	}
	return pool, false
}

// watch makes a transaction's handle send its statements through a liveTx from
// now on.
func (d *dialect) watch(tx *gorm.DB) {
	if pool, made := d.live(tx.Statement.ConnPool); made {
		tx.Statement.ConnPool = pool
	}
}

// watchNew is like watch, for a transaction that began just now.
func (d *dialect) watchNew(tx *gorm.DB) {
	d.watch(tx)
	switch live := bare(tx.Statement.ConnPool).(type) {
	case *liveTx:
		live.fresh = true
	case *liveGORMTx:
		live.fresh = true
	}
}

// checkLive returns nil unless the database has ended the transaction tx.
func checkLive(tx *gorm.DB) error {
	if live, ok := bare(tx.Statement.ConnPool).(interface{ alive(context.Context) error }); ok {
		return live.alive(tx.Statement.Context)
	}
	return nil
}
