package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

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
type liveTx struct {
	gorm.ConnPool
	gorm.TxCommitter
	dialect *dialect

	mu    sync.Mutex // one question at a time, and guards the fields below
	fresh bool       // nothing was sent yet that could have ended the transaction
	ended error
}

// alive returns the error with which a statement of the transaction must fail,
// or nil.
func (tx *liveTx) alive(ctx context.Context) error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.ended != nil {
		return tx.ended
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
	case err == nil:
		err = errEnded
	}
	tx.ended = err
	_ = tx.Rollback() // ends the transaction that was begun just now, too
	return err
}

// refuse is like alive, for a statement that is about to be sent. It returns
// nil if the owner, or the end of the context, has ended the transaction: then
// the transaction refuses the statement by itself.
func (tx *liveTx) refuse(ctx context.Context) error {
	return ignore(tx.alive(ctx), func(err error) bool { return errors.Is(err, sql.ErrTxDone) && !errors.Is(err, errEnded) })
}

func (tx *liveTx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := tx.refuse(ctx); err != nil {
		return nil, err
	}
	return tx.ConnPool.ExecContext(ctx, query, args...)
}

func (tx *liveTx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := tx.refuse(ctx); err != nil {
		return nil, err
	}
	return tx.ConnPool.QueryContext(ctx, query, args...)
}

// QueryRowContext has no error to return. The transaction below was rolled
// back, and returns an error.
func (tx *liveTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	_ = tx.refuse(ctx)
	return tx.ConnPool.QueryRowContext(ctx, query, args...)
}

func (tx *liveTx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	if err := tx.refuse(ctx); err != nil {
		return nil, err
	}
	return tx.ConnPool.PrepareContext(ctx, query)
}

func (tx *liveTx) Commit() error {
	if err := tx.refuse(context.Background()); err != nil {
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

// StmtContext has no error to return, like QueryRowContext.
func (tx *liveGORMTx) StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt {
	_ = tx.refuse(ctx)
	return tx.tx.StmtContext(ctx, stmt)
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
