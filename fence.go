package lease

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"
)

// A Term is one unbroken time in which a holder holds a lease. No other term of
// the lease, before or after, has its epoch.
//
// An [Elector] puts its term into its work's context. If you make a term by
// hand, from [Find], the term belongs to the tables of the handle that it
// fences, and the database's clock decides.
type Term struct {
	Name   string
	Holder string
	Epoch  int64

	origin *origin // nil for a term made by hand
}

// An origin is where a term was won.
type origin struct {
	table string           // plain, without quotes
	now   func() time.Time // the clock that decides, nil for the database's
}

// String is for logs.
func (t Term) String() string {
	return fmt.Sprintf("term %d of lease %q held by %q", t.Epoch, t.Name, t.Holder)
}

type (
	termKey  struct{}
	fenceKey struct{}
)

// A fencer is a term or a claim, which a context carries for Fence and
// Transaction.
type fencer interface {
	Fence(tx *gorm.DB) error
	named() string
	over(ctx context.Context, h *handle) bool // whether the database says that the term or claim is over
}

func withFence(ctx context.Context, f fencer) context.Context {
	return context.WithValue(ctx, fenceKey{}, f)
}

func fenceFrom(ctx context.Context) (f fencer, ok bool) {
	f, ok = ctx.Value(fenceKey{}).(fencer)
	return f, ok
}

// WithTerm returns a context that carries t, for [Fence] and [Transaction]. If
// a context carries several terms and claims, the innermost counts.
func WithTerm(ctx context.Context, t Term) context.Context {
	return withFence(context.WithValue(ctx, termKey{}, t), t)
}

// TermFrom returns the term that ctx carries. In an [Elector]'s work, this is
// the term of the work. TermFrom does not check whether the term is still in
// force: call [Fence] for this.
func TermFrom(ctx context.Context) (Term, bool) {
	t, ok := ctx.Value(termKey{}).(Term)
	return t, ok
}

// Fence proves, inside the transaction tx, that the term in tx's context is in
// force. It holds off the next term until the transaction ends. So the leader
// makes the transaction's writes, or they are not committed. In the work of
// [HolderOf.Run] the context carries the claim. Everything here about a term is
// true of the claim.
//
// The context reaches tx through [Transaction], tx.WithContext, and GORM's
// Begin and Transaction on a handle with the context. A handle kept from
// start-up does not carry the context.
//
// Take the fence first. On Postgres the fence lets renewals pass. Postgres ends
// the session if the transaction then lies idle between two statements for the
// lease's TTL. On SQLite the fence takes the only write lock, and renewals wait
// for the lock: keep such transactions well under a third of the TTL. A
// rollback to an earlier savepoint undoes the fence.
//
// On SQLite a failed statement can end its whole transaction: SQLite does so
// when the statement is interrupted, says OR ROLLBACK, or meets a full disk.
// Fence refuses such a transaction. If the transaction ends after the fence,
// every later statement through tx is refused, and the commit too. To check for
// such an end, Fence replaces tx.Statement.ConnPool on SQLite: take the fence
// before other goroutines use tx. Write through the handle that was fenced, or
// through a handle derived from it afterwards. A [sql.Stmt] that you prepare
// yourself is not checked.
// If a transaction ends and then meets a savepoint before its fence, Fence
// cannot tell it from a live transaction: return the first error.
//
// Fence blocks while a takeover is being decided. The error is [ErrLost] if the
// term is over: roll the transaction back. It is [ErrInvalid] outside a
// transaction or without a term. Any other error is the database's.
func Fence(tx *gorm.DB) error {
	if tx == nil || tx.Statement == nil || tx.Statement.Context == nil {
		return wrap("fence", invalid("tx", "is nil, or not opened"))
	}
	f, ok := fenceFrom(tx.Statement.Context)
	if !ok {
		return wrap("fence", invalid("tx", "has a context without a term or a claim; use tx.WithContext with the work's context"))
	}
	return f.Fence(tx)
}

// Fence is like the function [Fence], for this term, whatever tx's context
// carries.
func (t Term) Fence(tx *gorm.DB) error {
	op := fmt.Sprintf("fence %q", t.Name)
	if err := cmp.Or(checkName("Term.Name", t.Name), checkHolder("Term.Holder", t.Holder)); err != nil {
		return wrap(op, err)
	}
	h, err := openTx(tx)
	if err != nil {
		return wrap(op, err)
	}
	h, now := t.at(h)
	inForce, err := h.fence(tx.Statement.Context, t, now)
	if err == nil && !inForce {
		err = ErrLost
	}
	return wrap(op, err)
}

// openTx opens a transaction, and watches it from now on.
func openTx(tx *gorm.DB) (*handle, error) {
	h, err := open("tx", tx)
	if err == nil && !h.inTx {
		err = invalid("tx", "is not a transaction, so that nothing would be fenced")
	}
	if err == nil {
		h.dialect.watch(tx)
		h.pool = bare(tx.Statement.ConnPool)
	}
	return h, err
}

func (t Term) named() string { return fmt.Sprintf("%q", t.Name) }

// Transaction runs fn in a transaction of db that is fenced by the term or
// claim in ctx. The writes of fn through its tx are committed while the term is
// in force, or not at all.
//
// Transaction begins the transaction, and takes the [Fence] before fn can
// write. It commits if fn returns nil, and rolls back if fn fails or panics.
// fn's tx carries ctx. If db is a transaction already, Transaction uses a
// savepoint in it.
//
// Everything that fn writes must go through its tx: tx.Create, or
// gorm.G[T](tx). A write through db is neither fenced nor rolled back. A term
// of an [Elector] is looked up in the elector's own table, whichever handle of
// the database db is.
//
// On SQLite a failed statement can end the whole transaction: SQLite does so
// when the statement is interrupted, says OR ROLLBACK, or meets a full disk.
// Then every later statement through fn's tx fails. Transaction fails too, even
// if fn returns nil.
//
// The end of ctx rolls the transaction back. While work winds down, its term is
// still in force: for a last write, use context.WithoutCancel(ctx).
//
// Transaction blocks until fn has returned. It returns fn's error or the
// commit's. If the term was found to be over, the error also matches [ErrLost],
// because a lost term can surface as almost any error, such as [sql.ErrTxDone].
// Without a term or claim in ctx, the error is [ErrInvalid]. After a failed
// commit the outcome is unknown, as with any transaction, even if the error
// says that the term is over by now.
func Transaction(ctx context.Context, db *gorm.DB, fn func(tx *gorm.DB) error, opts ...*sql.TxOptions) error {
	if err := checkCtx(ctx); err != nil {
		return wrap("transaction", err)
	}
	f, ok := fenceFrom(ctx)
	if !ok {
		return wrap("transaction", invalid("ctx", "carries no term, and no claim"))
	}
	op := "transaction " + f.named()
	if fn == nil {
		return wrap(op, invalid("fn", "is nil"))
	}
	h, err := open("db", db)
	if err != nil {
		return wrap(op, err)
	}
	if h.inTx {
		h.dialect.watch(db) // before the savepoint, which would begin a transaction if none is open
	}
	s := db.Session(&gorm.Session{NewDB: true, Context: ctx})
	s.Error = nil
	err = s.Transaction(func(tx *gorm.DB) error {
		if !h.inTx {
			h.dialect.watchNew(tx)
		}
		if err := f.Fence(tx); err != nil {
			return err
		}
		err := fn(tx)
		if err == nil && h.inTx {
			err = checkLive(tx) // no commit follows here to check this
		}
		return err
	}, opts...)
	if err == errEnded { // from the commit, or from a statement of fn
		err = wrap(op, err)
	}
	if err != nil && !errors.Is(err, ErrLost) && (ctxLost(ctx) || cutOff(err) && f.over(ctx, h)) {
		err = wrap(op, fmt.Errorf("%w: %w", ErrLost, err))
	}
	return err
}

// cutOff matches the end of a session that lay idle for too long:
// idle_in_transaction_session_timeout.
var cutOff = states("25P03")

// over asks the database whether a term is over, when the context cannot tell.
// It returns false if the database does not answer.
func (t Term) over(ctx context.Context, h *handle) bool {
	h, now := t.at(h)
	ctx, cancel := briefly(ctx)
	defer cancel()
	row, err := h.poll(ctx, t.Name, now)
	return err == nil && !(row.live() && row.Holder == t.Holder && row.Epoch == t.Epoch)
}

// briefly returns a context of one second, for a question after ctx may have
// ended.
func briefly(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Second)
}

// at returns where a term is looked up, and by which clock.
func (t Term) at(h *handle) (*handle, time.Time) {
	if t.origin == nil {
		return h, time.Time{}
	}
	there := *h
	there.statements = h.dialect.statements(t.origin.table)
	return &there, clockNow(t.origin.now)
}

// ctxLost reports whether ctx ended because its term ended. The question makes
// the term's own context look at the clock.
func ctxLost(ctx context.Context) bool {
	if own, ok := ctx.Value(termContextKey{}).(context.Context); ok && own.Err() != nil && errors.Is(context.Cause(own), ErrLost) {
		return true
	}
	return errors.Is(context.Cause(ctx), ErrLost)
}

// clockNow reads a caller's clock. Without a clock it returns the zero time,
// which lets the database's clock decide.
func clockNow(now func() time.Time) time.Time {
	if now == nil {
		return time.Time{}
	}
	return now()
}
