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

// The errors to compare with, through [errors.Is]. The package wraps them with
// the operation and the name.
var (
	ErrHeld     = errors.New("held by another")  // another owner has a live claim
	ErrLost     = errors.New("lease lost")       // the term or the claim is over: expired, taken over, or released
	ErrInvalid  = errors.New("invalid argument") // found before any change, and the message names the argument
	ErrResigned = errors.New("lease resigned")   // the cause of the end of a work's context after [Elector.Resign]
	ErrDone     = errors.New("item done")        // the item is done and cannot be claimed again
)

// The longest strings that a row can hold, in characters.
const (
	maxName   = 100
	maxHolder = 200
)

// byHand is the timeout of each attempt of a statement sent by hand. Without
// byHand, a dead connection could block a caller forever if the context never
// ends.
const byHand = 10 * time.Second

// TryAcquire acquires or renews the lease name for holder. It reports whether
// holder now has the lease, until ttl from now.
//
// TryAcquire returns true in two cases. If the lease was free, released or
// expired, a new term begins, with the next epoch. If holder already held the
// lease, TryAcquire renews the lease under the same epoch. TryAcquire returns
// false, without an error and without a write, if somebody else holds the
// lease. Contenders may call TryAcquire at the same time: exactly one of them
// gets true.
//
// A renewal never shortens the lease: a later expiry stays. There is one
// exception: a lease that was renewed by a clock more than ttl ahead of now.
// That clock has been corrected since, and the renewal corrects the lease.
//
// If electors also campaign for the lease, use a holder that no elector uses.
//
// If now is zero, the database's clock decides. Pass zero if the replicas have
// clocks of their own. Any other now is taken as the current time. Then
// everyone on this lease must pass their own time, from clocks that agree
// within a third of the ttl.
//
// TryAcquire never waits for the lease to come free. It may block on the
// database until ctx ends. An attempt without an answer fails after ten
// seconds. An attempt that only contention stops, such as a locked SQLite file,
// is retried. A driver may ignore ctx for a while: SQLite's driver does so for
// its busy_timeout.
//
// If TryAcquire returns true, stop working ttl after the moment you called it.
// To fence writes, read the term's epoch with [Find], and make a [Term].
//
// On a transaction's handle, TryAcquire joins the transaction. Nothing is
// retried there, and a term counts only after the commit.
//
// The error is [ErrInvalid] for a bad name, holder, ttl, now or handle, before
// any SQL. Any other error is the database's. After such an error the database
// may still have carried out the statement: call TryAcquire again.
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

// acquire looks at the row and sends the statement for the row's state. The
// statement's own guard decides. If the guard fails, the row has changed, and
// acquire looks again.
func (h *handle) acquire(ctx context.Context, name, holder string, ttl time.Duration, now time.Time) (got bool, err error) {
	for range 100 { // holder may renew in several places at once, and a failed try means that another succeeded
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

// Release ends the term in which holder holds the lease name. Anyone may
// acquire the lease at once. The row and its epoch stay.
//
// Release does nothing and returns nil if holder does not hold the lease,
// because holder never did, lost the lease, or let the lease expire. If now is
// zero, the database's clock decides, as in [TryAcquire]. Release may block on
// the database, as TryAcquire does.
//
// The error is [ErrInvalid] for a bad name, holder, now or handle, before any
// SQL. Any other error is the database's.
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
// Find sends one SELECT to the primary. It may block on the database, as
// [TryAcquire] does. The error is [gorm.ErrRecordNotFound] if nobody ever held
// the lease, and [ErrInvalid] for a bad name or handle. Any other error is the
// database's.
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

// List returns every lease that was ever held, ordered by name, as the
// database's clock sees them.
//
// List sends one SELECT to the primary. It may block on the database, as
// [TryAcquire] does. The error is [ErrInvalid] for a bad handle. Any other
// error is the database's.
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

// InstanceID returns a name for this process that no other process has. The
// name is the host's name and a random suffix, new at every call. It fits a
// holder: it is never empty and has at most 200 characters.
func InstanceID() string {
	host, err := os.Hostname()
	if err != nil || checkName("host", host) != nil {
		host = "unknown"
	}
	return host + "-" + strings.ToLower(rand.Text()[:12])
}

// wrap names the operation that failed, once. It keeps nil as nil.
func wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("lease: %s: %w", op, err)
}

// invalid returns an ErrInvalid that names the argument and its fault.
func invalid(argument, format string, args ...any) error {
	return fmt.Errorf("%w: %s %s", ErrInvalid, argument, fmt.Sprintf(format, args...))
}

func checkName(argument, s string) error   { return checkString(argument, s, maxName) }
func checkHolder(argument, s string) error { return checkString(argument, s, maxHolder) }

// checkString is the one rule for names and holders, on every database.
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

// checkNow refuses a time outside the years 1 to 9999, because a count of
// microseconds does not hold every time.
func checkNow(now time.Time) error {
	if y := now.Year(); y < 1 || y > 9999 {
		return invalid("now", "is in the year %d, outside 1 to 9999", y)
	}
	return nil
}
