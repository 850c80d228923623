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

// A Term is one unbroken time in which a holder holds a lease. No other term of that lease, before or after, has its epoch.
//
// An [Elector] puts its term into its work's context. A term made by hand, from what [Find] said, is one of the tables of the handle that it
// fences, by the database's clock.
type Term struct {
	Name   string
	Holder string
	Epoch  int64

	origin *origin // nil for a term made by hand
}

// An origin is where a term was won.
type origin struct {
	table string           // plain
	now   func() time.Time // the clock that decides; nil for the database's
}

// String is for logs.
func (t Term) String() string {
	return fmt.Sprintf("term %d of lease %q held by %q", t.Epoch, t.Name, t.Holder)
}

type (
	termKey  struct{}
	fenceKey struct{}
)

// A fencer is what a context can carry for Fence and Transaction: a term, or a claim.
type fencer interface {
	Fence(tx *gorm.DB) error
	named() string
	over(ctx context.Context, h *handle) bool // as far as the database says
}

func withFence(ctx context.Context, f fencer) context.Context {
	return context.WithValue(ctx, fenceKey{}, f)
}

func fenceFrom(ctx context.Context) (f fencer, ok bool) {
	f, ok = ctx.Value(fenceKey{}).(fencer)
	return f, ok
}

// WithTerm returns a context that carries t, for [Fence] and [Transaction]. Of several terms and claims the innermost counts.
func WithTerm(ctx context.Context, t Term) context.Context {
	return withFence(context.WithValue(ctx, termKey{}, t), t)
}

// TermFrom returns the term that ctx carries: in an [Elector]'s work, the one that the work runs in. It tells nothing of whether
// the term is still in force; [Fence] does.
func TermFrom(ctx context.Context) (Term, bool) {
	t, ok := ctx.Value(termKey{}).(Term)
	return t, ok
}

// Fence proves, inside the transaction tx, that the term which tx's context carries is in force, and holds off the next one until the
// transaction ends. So what the transaction writes is written by the leader, or not at all. In the work of [HolderOf.Run] it is the claim
// that the context carries, and everything said here of a term is true of that.
//
// The context reaches tx through [Transaction], tx.WithContext, and GORM's Begin and Transaction on a handle that has it; a handle
// kept from start-up does not carry it.
//
// Take the fence first. On Postgres it lets renewals pass, and the server ends the session if the transaction then lies idle between two
// statements for the lease's TTL. On SQLite it takes the one write lock, which renewals wait for: keep such transactions well under a third
// of the TTL. A roll-back to an earlier savepoint undoes it.
//
// On SQLite a failed statement can end its whole transaction: SQLite does so
// when the statement is interrupted, says OR ROLLBACK, or meets a full disk.
// Fence refuses such a transaction. Once the fence is taken, every later
// statement through tx, and its commit, is refused too. To check for that, Fence
// replaces tx.Statement.ConnPool on SQLite. Write through the handle that was
// fenced, or through one derived from it afterwards. An ended transaction that
// then meets a savepoint before its fence cannot be told from a live one: return
// the first error.
//
// It blocks while a takeover is being decided. The error is [ErrLost] when the term is over, which should roll the transaction back;
// [ErrInvalid] outside a transaction or without a term; else what the database said.
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

// Fence is like the function [Fence], for this term, whatever tx's context carries.
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

// Transaction runs fn in a transaction of db that is fenced by the term, or the claim, which ctx carries: what fn writes through its tx is committed
// while that term is in force, or not at all.
//
// It begins the transaction, takes the [Fence] before fn can write, commits when fn returns nil, and rolls back when fn fails or
// panics. fn's tx carries ctx. On a db that is a transaction already it uses a savepoint in it.
//
// Everything that fn writes must go through its tx: tx.Create, or gorm.G[T](tx). What goes through db is neither fenced nor rolled back. A term
// that an [Elector] won is looked up in that elector's own table, whichever handle of the database this one is.
//
// If a failed statement ends the whole transaction, as SQLite does when the
// statement is interrupted, says OR ROLLBACK, or meets a full disk, then every
// later statement through fn's tx fails, and so does Transaction, even if fn
// returns nil.
//
// The end of ctx rolls the transaction back. While a work winds down, its term is still in force: a last write takes
// context.WithoutCancel(ctx).
//
// It blocks until fn has returned. The error is what fn returned, or what the commit did; [ErrLost] and that, whenever the term was found to
// be over, since its end surfaces as anything ([sql.ErrTxDone], say). Without a term in ctx it is [ErrInvalid]. After a failed commit
// the outcome is unknown, as with any transaction, also if the error says that the term is over by now.
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
		h.dialect.watch(db) // before the savepoint, which would begin a transaction where there is none
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
			err = checkLive(tx) // since no commit follows, which would
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

// cutOff matches the end of a session that lay idle for too long: idle_in_transaction_session_timeout.
var cutOff = states("25P03")

// over looks whether a term that cannot tell by its context is over. If the database does not say, it is not known to be.
func (t Term) over(ctx context.Context, h *handle) bool {
	h, now := t.at(h)
	ctx, cancel := briefly(ctx)
	defer cancel()
	row, err := h.poll(ctx, t.Name, now)
	return err == nil && !(row.live() && row.Holder == t.Holder && row.Epoch == t.Epoch)
}

// briefly is a context for a question after ctx may have ended.
func briefly(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Second)
}

// at is where a term is looked up, and by which clock.
func (t Term) at(h *handle) (*handle, time.Time) {
	if t.origin == nil {
		return h, time.Time{}
	}
	there := *h
	there.statements = h.dialect.statements(t.origin.table)
	return &there, clockNow(t.origin.now)
}

// ctxLost reports whether ctx ended because its term did. Asking the term's own context makes it look at the clock.
func ctxLost(ctx context.Context) bool {
	if own, ok := ctx.Value(termContextKey{}).(context.Context); ok && own.Err() != nil && errors.Is(context.Cause(own), ErrLost) {
		return true
	}
	return errors.Is(context.Cause(ctx), ErrLost)
}

// clockNow reads a caller's clock; without one the zero time lets the database's decide.
func clockNow(now func() time.Time) time.Time {
	if now == nil {
		return time.Time{}
	}
	return now()
}
