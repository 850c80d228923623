package spec

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestKeysOwnersAndStepsAreCheckedBeforeAnySQL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		fresh(t, db)
		gdb, spy := spied(t, db)
		long := func(n int) string { return strings.Repeat("ü", n) }
		for what, bad := range map[string]struct{ key, owner, step string }{
			"no key":                       {"", "A", ""},
			"a key of 256":                 {long(256), "A", ""},
			"a key of 255 and a space":     {long(255) + " ", "A", ""},
			"a key with a NUL":             {"it\x00em", "A", ""},
			"a key that is not UTF-8":      {"it\xffem", "A", ""},
			"no owner":                     {"item", "", ""},
			"an owner of 201":              {"item", long(201), ""},
			"an owner of 200 and a space":  {"item", long(200) + " ", ""},
			"an owner with a NUL":          {"item", "\x00", ""},
			"an owner that is not UTF-8":   {"item", "ü"[:1], ""},
			"a step of 201":                {"item", "A", long(201)},
			"a step with a NUL":            {"item", "A", "\x00"},
			"a step that is cut in UTF-8":  {"item", "A", "ü"[:1]},
			"a step of 200 and a new line": {"item", "A", long(200) + "\n"},
		} {
			_, err := lease.Claim(t.Context(), gdb, bad.key, bad.owner, bad.step, time.Minute, nil)
			if !errors.Is(err, lease.ErrInvalid) {
				t.Errorf("%s: Claim is %v", what, err)
			}
			if bad.key == "item" {
				_, asErr := lease.ClaimAs[lease.Item](t.Context(), gdb, "item", bad.owner, bad.step, time.Minute, nil)
				_, nextErr := lease.ClaimNext[lease.Item](t.Context(), gdb, bad.owner, bad.step, time.Minute, nil)
				if !errors.Is(asErr, lease.ErrInvalid) || !errors.Is(nextErr, lease.ErrInvalid) {
					t.Errorf("%s: ClaimAs is %v, and ClaimNext %v", what, asErr, nextErr)
				}
				continue
			}
			_, _, loadErr := lease.Load(t.Context(), gdb, bad.key)
			if err := lease.Create(t.Context(), gdb, lease.Item{Key: bad.key}); !errors.Is(err, lease.ErrInvalid) || !errors.Is(loadErr, lease.ErrInvalid) {
				t.Errorf("%s: Create is %v, and Load %v", what, err, loadErr)
			}
		}
		_, err := lease.ClaimAs[lease.Item](t.Context(), gdb, nil, "A", "", time.Minute, nil)
		mustBe(t, err, lease.ErrInvalid)
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
		for _, s := range []string{"ü", "🔒"} {
			key, owner, step := strings.Repeat(s, 255), strings.Repeat(s, 200), strings.Repeat(s, 200)
			must(t, lease.Create(t.Context(), gdb, lease.Item{Key: key}))
			h, err := lease.Claim(t.Context(), gdb, key, owner, step, time.Minute, nil)
			must(t, err)
			if it := h.Item(); it.Key != key || it.Owner != owner || it.StepID != step || h.StepID() != step {
				t.Errorf("the longest names read %s", shows(it))
			}
			must(t, h.Save(t.Context(), with(h, 1)))
			must(t, h.Renew(t.Context()))
			must(t, h.Release(t.Context()))
		}
	})
}

func TestAClaimsTTLMustBePositive(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db))
		before := w.row(t)
		for _, ttl := range []time.Duration{0, -1, -time.Minute, math.MinInt64} {
			_, err := lease.Claim(t.Context(), w.gdb, "item", "A", "", ttl, nil)
			mustBe(t, err, lease.ErrInvalid)
			_, err = lease.ClaimNext[lease.Item](t.Context(), w.gdb, "A", "", ttl, nil)
			mustBe(t, err, lease.ErrInvalid)
		}
		w.unchanged(t, "an invalid claim", before)
	})
}

func TestATinyOrHugeTTLOfAClaimIsKept(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		for _, ttl := range []time.Duration{1, 2, 999, time.Microsecond} {
			h, err := lease.Claim(t.Context(), w.gdb, "item", "A", "", ttl, w.now)
			must(t, err)
			if c := h.Item().Claimable; c.ExpiresAt.Sub(c.AcquiredAt) != time.Microsecond {
				t.Errorf("a TTL of %v runs out after %v", ttl, c.ExpiresAt.Sub(c.AcquiredAt))
			}
			w.agrees(t, "after a claim", h)
			w.pass(time.Millisecond)
			w.claim(t, "B")
			w.pass(time.Minute)
		}
		h, err := lease.Claim(t.Context(), w.gdb, "item", "A", "", math.MaxInt64, w.now)
		must(t, err)
		must(t, h.Renew(t.Context()))
		w.agrees(t, "after a renewal", h)
		w.pass(290 * 365 * 24 * time.Hour)
		w.refuses(t, "B", lease.ErrHeld)
		must(t, h.Save(t.Context(), with(h, 1)))
		must(t, h.Release(t.Context()))
		w.claim(t, "B")
	})
}

func TestACallersClockOutsideTheCalendarIsInvalid(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db))
		before := w.row(t)
		for _, at := range []time.Time{time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)} {
			w.now = func() time.Time { return at }
			_, err := w.try(t, "A")
			mustBe(t, err, lease.ErrInvalid)
		}
		w.unchanged(t, "an invalid claim", before)
		w.now = func() time.Time { return time.Unix(0, 0) } // which is one
		w.claim(t, "A")
		w.refuses(t, "B", lease.ErrHeld)
	})
}

func TestAContextOrHandleThatCannotServeIsInvalid(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db))
		h, before := w.claim(t, "A"), w.row(t)
		tx := w.gdb.Begin()
		defer tx.Rollback()
		claims := func(ctx context.Context, db *gorm.DB) []error {
			_, err := lease.Claim(ctx, db, "item", "A", "", time.Minute, nil)
			_, asErr := lease.ClaimAs[lease.Item](ctx, db, "item", "A", "", time.Minute, nil)
			_, nextErr := lease.ClaimNext[lease.Item](ctx, db, "A", "", time.Minute, nil)
			return []error{err, asErr, nextErr}
		}
		others := func(ctx context.Context, db *gorm.DB) []error {
			_, _, err := lease.Load(ctx, db, "item")
			return []error{err, lease.Create(ctx, db, lease.Item{Key: "other"})}
		}
		var none context.Context
		for what, errs := range map[string][]error{
			"a transaction":                  claims(t.Context(), tx),
			"one with PrepareStmt":           claims(t.Context(), tx.Session(&gorm.Session{PrepareStmt: true})),
			"nil":                            append(claims(t.Context(), nil), others(t.Context(), nil)...),
			"zero":                           append(claims(t.Context(), &gorm.DB{}), others(t.Context(), &gorm.DB{})...),
			"DryRun":                         append(claims(t.Context(), w.gdb.Session(&gorm.Session{DryRun: true})), others(t.Context(), w.gdb.Session(&gorm.Session{DryRun: true}))...),
			"a bad prefix":                   append(claims(t.Context(), lease.Tables(w.gdb, "a b")), others(t.Context(), lease.Tables(w.gdb, "a b"))...),
			"no context":                     append(claims(none, w.gdb), others(none, w.gdb)...),
			"no context for a holder":        {h.Renew(none), h.Save(none, with(h, 1)), h.Release(none), h.Run(none, func(context.Context) error { return nil })},
			"outside a transaction":          {h.SaveIn(w.gdb, with(h, 1)), h.Fence(w.gdb)},
			"outside one, with PrepareStmt":  {h.SaveIn(w.gdb.Session(&gorm.Session{PrepareStmt: true}), with(h, 1)), h.Fence(w.gdb.Session(&gorm.Session{PrepareStmt: true}))},
			"no transaction":                 {h.SaveIn(nil, with(h, 1)), h.Fence(nil), h.SaveIn(&gorm.DB{}, with(h, 1))},
			"a transaction that is a DryRun": {h.SaveIn(tx.Session(&gorm.Session{DryRun: true}), with(h, 1)), h.Fence(tx.Session(&gorm.Session{DryRun: true}))},
			"on a connection": {
				w.gdb.Connection(func(c *gorm.DB) error { return h.SaveIn(c, with(h, 1)) }), w.gdb.Connection(h.Fence),
			},
		} {
			for i, err := range errs {
				if !errors.Is(err, lease.ErrInvalid) || errors.Is(err, lease.ErrLost) {
					t.Errorf("%s: error %d is %v", what, i, err)
				}
			}
		}
		w.unchanged(t, "an invalid call", before)
		must(t, h.Renew(t.Context()))
	})
}

func TestAContextThatHasEndedChangesNothing(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db))
		must(t, lease.Create(t.Context(), w.gdb, lease.Item{Key: "free"}))
		h := w.claim(t, "A")
		_, version, err := lease.Load(t.Context(), w.gdb, "item")
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, claimErr := lease.Claim(ctx, w.gdb, "free", "B", "", time.Minute, nil)
		_, nextErr := lease.ClaimNext[lease.Item](ctx, w.gdb, "B", "", time.Minute, nil)
		_, _, loadErr := lease.Load(ctx, w.gdb, "item")
		for call, err := range map[string]error{
			"Claim": claimErr, "ClaimNext": nextErr, "Load": loadErr, "Create": lease.Create(ctx, w.gdb, lease.Item{Key: "new"}),
			"Renew": h.Renew(ctx), "Save": h.Save(ctx, with(h, 1)), "Release": h.Release(ctx),
		} {
			if !errors.Is(err, context.Canceled) || errors.Is(err, lease.ErrLost) {
				t.Errorf("%s: %v", call, err)
			}
		}
		if _, after, err := lease.Load(t.Context(), w.gdb, "item"); err != nil || after != version {
			t.Errorf("the item changed from %q to %q, %v", version, after, err)
		}
		if n := ask[int](t, w.gdb, "SELECT count(*) FROM lease_items WHERE claim_owner = '' AND claim_epoch = 0"); n != 1 {
			t.Errorf("%d items are as new", n)
		}
		must(t, h.Renew(t.Context()))
		must(t, h.Save(t.Context(), with(h, 2)))
		must(t, h.Release(t.Context()))
		is(t, w.load(t), 2)
	})
}

func TestAClockOutOfRangeIsInvalidAtEveryStatement(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		now := noon
		must(t, lease.Create(t.Context(), gdb, lease.Item{Key: "k"}))
		h, err := lease.Claim(t.Context(), gdb, "k", "A", "", time.Minute, func() time.Time { return now })
		must(t, err)
		now = time.Date(300_000, 1, 1, 0, 0, 0, 0, time.UTC)
		mustBe(t, h.Renew(t.Context()), lease.ErrInvalid)
		mustBe(t, h.Save(t.Context(), h.Item()), lease.ErrInvalid)
		mustBe(t, h.Release(t.Context()), lease.ErrInvalid)
		now = noon
		must(t, h.Renew(t.Context()))
	})
}
