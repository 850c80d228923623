package spec

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
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

// losing is a world, in a pool that loses replies, and A's claim in it.
func losing(t *testing.T, db *dbtest.Database) (*world, *lossy, *lease.Holder) {
	t.Helper()
	w := newWorld(t, db, fresh(t, db))
	pool := &lossy{DB: db.SQL(t)}
	w.gdb = through(t, db, pool)
	return w, pool, w.claim(t, "A")
}

// The reply to a save was lost, and its statement lands after a newer save.
func TestALateSaveNeverReplacesANewerOne(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w, pool, h := losing(t, db)
		pool.fate = delayed
		mustBe(t, h.Save(t.Context(), with(h, 1)), errNoReply)
		is(t, h.Item(), 0)
		pool.fate = answered
		must(t, h.Save(t.Context(), with(h, 2)))
		pool.land(t, 0)
		is(t, w.load(t), 2)
		w.agrees(t, "after the late save", h)
		must(t, h.Save(t.Context(), with(h, 3)))
		pool.land(t, 0)
		is(t, w.load(t), 3)
		// Nor after the claim.
		must(t, h.Release(t.Context()))
		pool.land(t, 0)
		b := w.claim(t, "A")
		pool.land(t, 0)
		is(t, w.load(t), 3)
		w.agrees(t, "after the late save", b)
	})
}

func TestASaveIsGoodAfterOneThatLandedUnheard(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w, pool, h := losing(t, db)
		pool.fate = unheard
		for n := range 3 {
			mustBe(t, h.Save(t.Context(), with(h, 1+n)), errNoReply)
			is(t, w.load(t), 1+n)
		}
		pool.fate = delayed
		mustBe(t, h.Save(t.Context(), with(h, 4)), errNoReply)
		is(t, w.load(t), 3)
		pool.fate = answered
		must(t, h.Renew(t.Context()))
		pool.land(t, 0) // before any newer one, and so it is written
		is(t, w.load(t), 4)
		must(t, h.Save(t.Context(), with(h, 5)))
		w.agrees(t, "after the save", h)
		must(t, h.Release(t.Context()))
	})
}

func TestWhateverIsLostTheNewestSaveThatLandedStays(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w, pool, h := losing(t, db)
		r := rand.New(rand.NewPCG(80, 80))
		lands, n := 0, 0 // the newest that has landed, and that was sent
		sent := []int{}  // by its place among the late
		for range 400 {
			if r.IntN(3) == 0 && len(sent) > 0 {
				i := r.IntN(len(sent))
				pool.land(t, i)
				lands = max(lands, sent[i])
				is(t, w.load(t), lands)
				continue
			}
			n++
			f := fate(r.IntN(3))
			pool.fate = f
			err := h.Save(t.Context(), with(h, n))
			pool.fate = answered
			if f == delayed {
				sent = append(sent, n)
			} else {
				lands = n
			}
			if f == answered && err != nil || f != answered && !errors.Is(err, errNoReply) {
				t.Fatalf("save %d is %v", n, err)
			}
			is(t, w.load(t), lands)
		}
	})
}

func TestALateSaveDoesNotReplaceWhatATransactionSaved(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w, pool, h := losing(t, db)
		pool.fate = delayed
		mustBe(t, h.Save(t.Context(), with(h, 1)), errNoReply)
		pool.fate = answered
		must(t, db.Open(t).Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, with(h, 2)) }))
		pool.land(t, 0)
		is(t, w.load(t), 2)
		must(t, h.Save(t.Context(), with(h, 3)))
		pool.land(t, 0)
		is(t, w.load(t), 3)
	})
}

func TestAReleaseWhoseReplyWasLostMayBeRepeated(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		for _, f := range []fate{unheard, delayed} {
			w, pool, h := losing(t, db)
			pool.fate = f
			mustBe(t, h.Release(t.Context()), errNoReply)
			pool.fate = answered
			must(t, h.Release(t.Context()))
			b := w.claim(t, "B")
			must(t, h.Release(t.Context()))
			if f == delayed {
				pool.land(t, 0)
			}
			w.agrees(t, "after late releases", b)
		}
	})
}

func TestALateSaveOfAModelNeverReplacesANewerOne(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		clean := migrated(t, db)
		parcels(t, clean, 1)
		pool := &lossy{DB: db.SQL(t)}
		h := (&world{db: db, gdb: through(t, db, pool), table: "parcels"}).parcel(t, 1, "A")
		weighing := func(n int) parcel {
			p := h.Item()
			p.Weight = n
			return p
		}
		weighs := func(n int) {
			t.Helper()
			if got := stored(t, clean, 1); got.Weight != n {
				t.Errorf("it weighs %d, not %d", got.Weight, n)
			}
		}
		pool.fate = delayed
		mustBe(t, h.Save(t.Context(), weighing(11)), errNoReply)
		pool.fate = unheard
		mustBe(t, h.Save(t.Context(), weighing(12), "weight"), errNoReply)
		pool.land(t, 0)
		weighs(12)
		pool.fate = answered
		must(t, h.Save(t.Context(), weighing(13)))
		pool.land(t, 0)
		weighs(13)
		must(t, clean.Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, weighing(14)) }))
		pool.land(t, 0)
		weighs(14)
		must(t, h.Save(t.Context(), weighing(15)))
		if got := stored(t, clean, 1); asRead(h.Item()) != asRead(got) {
			t.Errorf("Item is\n%s, and the row\n%s", asRead(h.Item()), asRead(got))
		}
	})
}
