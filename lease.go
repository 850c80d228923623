package lease

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"gorm.io/gorm"
)

// The errors to compare with, through [errors.Is]. What the package returns wraps them with the operation and the name.
var (
	ErrHeld     = errors.New("held by another")  // a live claim of another owner
	ErrLost     = errors.New("lease lost")       // the term, or the claim, is over: expired, taken over, or released
	ErrInvalid  = errors.New("invalid argument") // found before anything was changed; the message names the argument
	ErrResigned = errors.New("lease resigned")   // the cause of a work's end after [Elector.Resign]
	ErrDone     = errors.New("item done")        // it is not to be claimed again
)

// The longest strings that a row can hold, in characters.
const (
	maxName   = 100
	maxHolder = 200
)

// byHand bounds each attempt of a statement that a caller sends by hand, so that a dead connection cannot hold it for ever under
// a context that never ends.
const byHand = 10 * time.Second

// TryAcquire takes or renews the lease name for holder and reports whether holder now has it, until ttl from now.
//
// It is true when the lease was free, released or expired, which begins a new term with the next epoch; and when holder already
// held it, which renews it under the same epoch. It is false, without an error and without a write, when somebody else holds it.
// Contenders may call it at the same time: exactly one of them is told true.
//
// A renewal never shortens the lease: if it would end later anyway, the later time
// stays. The exception is a lease that was renewed by a clock more than ttl ahead of
// now. That clock has been put right, and so is the lease.
//
// On a lease that electors campaign for too, use a holder of your own.
//
// A zero now lets the database's clock decide, which is what replicas with clocks of their own want. Any other now is taken as
// the time it is; then everyone on this lease must pass their own, from clocks that agree within a third of the ttl.
//
// It never waits for the lease to come free. It may block on the database until ctx ends: an attempt that gets no answer fails after ten
// seconds, but one that only contention stops (a locked SQLite file, say) is repeated. A driver may ignore ctx for a while; SQLite's does
// for its busy_timeout. A caller that acts on true must stop before now + ttl, counted from before the call. Its term, for a [Fence], is
// what [Find] then says.
//
// On a transaction's handle it joins that transaction: nothing is retried there, and a term counts only after the commit.
//
// The error is [ErrInvalid] for a bad name, holder, ttl, now or handle, before any SQL; else what the database said. After such
// an error the statement may still have been carried out: ask again.
func TryAcquire(ctx context.Context, db *gorm.DB, name, holder string, ttl time.Duration, now time.Time) (bool, error) {
	op := fmt.Sprintf("acquire %q", name)
	if err := cmp.Or(checkCtx(ctx), checkName("name", name), checkHolder("holder", holder), checkTTL("ttl", ttl), checkNow(now)); err != nil {
		return false, wrap(op, err)
	}
	h, err := open("db", db)
	if err != nil {
		return false, wrap(op, err)
	}
	got, err := h.acquire(ctx, name, holder, ttl, now)
	return got, wrap(op, err)
}

// acquire looks at the row and sends the one statement that fits it; that
// statement's own guard decides. If the guard failed, the row had changed:
// acquire looks again.
func (h *handle) acquire(ctx context.Context, name, holder string, ttl time.Duration, now time.Time) (got bool, err error) {
	for range 100 { // holder may renew in several places at once; each try that fails was another's success
		row, err := h.poll(ctx, name, now)
		switch {
		case err != nil:
			return false, err
		case row.live() && row.Holder != holder:
			return false, nil
		case row.live():
			got, err = h.renewSeen(ctx, row, ttl, now)
		case !row.exists:
			if err := h.seed(ctx, name, 0); err != nil {
				return false, err
			}
			fallthrough
		default:
			got, err = h.take(ctx, name, holder, ttl, now, row)
		}
		if got || err != nil {
			return got, err
		}
	}
	return false, nil
}

// Release ends the term in which holder holds the lease name, so that anyone may take it at once. The row stays, and its epoch.
//
// It does nothing, and returns nil, when holder does not hold the lease: never did, lost it, or let it expire. A zero now lets
// the database's clock decide, as in [TryAcquire]. It may block on the database, as TryAcquire does.
//
// The error is [ErrInvalid] for a bad name, holder, now or handle, before any SQL; else what the database said.
func Release(ctx context.Context, db *gorm.DB, name, holder string, now time.Time) error {
	op := fmt.Sprintf("release %q", name)
	if err := cmp.Or(checkCtx(ctx), checkName("name", name), checkHolder("holder", holder), checkNow(now)); err != nil {
		return wrap(op, err)
	}
	h, err := open("db", db)
	if err != nil {
		return wrap(op, err)
	}
	return wrap(op, h.releaseHeld(ctx, name, holder, now))
}

// Find returns the lease name as the database's clock sees it, held or not.
//
// It is one SELECT, on the primary; it may block on the database, as [TryAcquire] does. The error is [gorm.ErrRecordNotFound] when
// nobody ever held the lease, [ErrInvalid] for a bad name or handle, else what the database said.
func Find(ctx context.Context, db *gorm.DB, name string) (Status, error) {
	op := fmt.Sprintf("find %q", name)
	if err := cmp.Or(checkCtx(ctx), checkName("name", name)); err != nil {
		return Status{}, wrap(op, err)
	}
	h, err := open("db", db)
	if err != nil {
		return Status{}, wrap(op, err)
	}
	row, err := h.poll(ctx, name, time.Time{})
	if err == nil && !row.everHeld() {
		err = gorm.ErrRecordNotFound
	}
	if err != nil {
		return Status{}, wrap(op, err)
	}
	return row.status(), nil
}

// List returns every lease that was ever held, ordered by name, as the database's clock sees them.
//
// It is one SELECT, on the primary; it may block on the database, as [TryAcquire] does. The error is [ErrInvalid] for a bad handle,
// else what the database said.
func List(ctx context.Context, db *gorm.DB) ([]Status, error) {
	if err := checkCtx(ctx); err != nil {
		return nil, wrap("list", err)
	}
	h, err := open("db", db)
	if err != nil {
		return nil, wrap("list", err)
	}
	rows, err := h.list(ctx)
	return rows, wrap("list", err)
}

// InstanceID returns a name for this process that no other has: the host's name and a random suffix, new at every call.
// It fits a holder: never empty, at most 200 characters.
func InstanceID() string {
	host, err := os.Hostname()
	if err != nil || checkName("host", host) != nil {
		host = "unknown"
	}
	return host + "-" + strings.ToLower(rand.Text()[:12])
}

// wrap says which operation failed, once. It keeps nil as nil.
func wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("lease: %s: %w", op, err)
}

// invalid is an ErrInvalid that names the argument and what is wrong with it.
func invalid(argument, format string, args ...any) error {
	return fmt.Errorf("%w: %s %s", ErrInvalid, argument, fmt.Sprintf(format, args...))
}

func checkName(argument, s string) error   { return checkString(argument, s, maxName) }
func checkHolder(argument, s string) error { return checkString(argument, s, maxHolder) }

// checkString is the one rule for names, on every database alike.
func checkString(argument, s string, longest int) error {
	switch n := utf8.RuneCountInString(s); {
	case s == "":
		return invalid(argument, "is empty")
	case !utf8.ValidString(s):
		return invalid(argument, "is not valid UTF-8")
	case strings.ContainsRune(s, 0):
		return invalid(argument, "contains a NUL byte")
	case n > longest:
		return invalid(argument, "has %d characters, of at most %d", n, longest)
	}
	return nil
}

func checkCtx(ctx context.Context) error {
	if ctx == nil {
		return invalid("ctx", "is nil")
	}
	return nil
}

func checkTTL(argument string, ttl time.Duration) error {
	if ttl <= 0 {
		return invalid(argument, "must be positive, not %v", ttl)
	}
	return nil
}

// checkNow refuses times that a count of microseconds does not hold.
func checkNow(now time.Time) error {
	if y := now.Year(); y < 1 || y > 9999 {
		return invalid("now", "is in the year %d, outside 1 to 9999", y)
	}
	return nil
}
