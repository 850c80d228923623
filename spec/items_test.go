package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// A world is a database with the item "item" in it, and a clock that only the test moves.
type world struct {
	db    *dbtest.Database
	gdb   *gorm.DB
	table string
	now   func() time.Time // what the workers pass; nil lets the database's clock decide
	pass  func(d time.Duration)
}

// everyClock runs spec on every database, by its own clock and by the callers'.
func everyClock(t *testing.T, spec func(t *testing.T, w *world)) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		t.Run("its clock", func(t *testing.T) {
			spec(t, newWorld(t, db, gdb).byTheDatabase(t))
		})
		t.Run("callers' clocks", func(t *testing.T) {
			spec(t, newWorld(t, db, gdb).byTheCallers())
		})
	})
}

// newWorld begins with a new item.
func newWorld(t *testing.T, db *dbtest.Database, gdb *gorm.DB) *world {
	t.Helper()
	exec(t, gdb, "DELETE FROM lease_items")
	must(t, lease.Create(t.Context(), gdb, lease.Item{Key: "item", Payload: payload(0)}))
	return &world{db: db, gdb: gdb, table: "lease_items"}
}

// byTheDatabase lets time pass by dating back what the table says.
func (w *world) byTheDatabase(t *testing.T) *world {
	w.pass = func(d time.Duration) {
		us := d.Microseconds()
		exec(t, w.gdb, "UPDATE "+w.table+` SET claim_acquired_at = claim_acquired_at - ?, claim_renewed_at = claim_renewed_at - ?,
claim_expires_at = claim_expires_at - ?`, us, us, us)
	}
	return w
}

// byTheCallers has a clock that stands still until it is moved.
func (w *world) byTheCallers() *world {
	var passed atomic.Int64
	w.now = func() time.Time { return noon.Add(time.Duration(passed.Load())) }
	w.pass = func(d time.Duration) { passed.Add(int64(d)) }
	return w
}

// try claims the item for a minute.
func (w *world) try(t *testing.T, owner string) (*lease.Holder, error) {
	t.Helper()
	return lease.Claim(t.Context(), w.gdb, "item", owner, "step of "+owner, time.Minute, w.now)
}

func (w *world) claim(t *testing.T, owner string) *lease.Holder {
	t.Helper()
	h, err := w.try(t, owner)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// refuses fails t unless a claim of the item is refused with that error, and changes nothing.
func (w *world) refuses(t *testing.T, owner string, want error) {
	t.Helper()
	before := w.row(t)
	h, err := w.try(t, owner)
	if h != nil || !errors.Is(err, want) {
		t.Errorf("%s's claim is %v, %v, not: %v", owner, h, err, want)
	}
	w.unchanged(t, "a refused claim", before)
}

// row is the item as it stands in the table.
func (w *world) row(t *testing.T) string {
	t.Helper()
	columns := map[string]any{}
	must(t, w.gdb.Table(w.table).Take(&columns).Error)
	return fmt.Sprint(columns)
}

func (w *world) unchanged(t *testing.T, what, before string) {
	t.Helper()
	if after := w.row(t); after != before {
		t.Errorf("%s changed the row from\n%s to\n%s", what, before, after)
	}
}

func (w *world) load(t *testing.T) lease.Item {
	t.Helper()
	it, _, err := lease.Load(t.Context(), w.gdb, "item")
	if err != nil {
		t.Fatal(err)
	}
	return it
}

// payload is JSON as both databases write it.
func payload(n int) json.RawMessage { return json.RawMessage(fmt.Sprintf(`{"n": %d}`, n)) }

// with returns the holder's item with another payload.
func with(h *lease.Holder, n int) lease.Item {
	it := h.Item()
	it.Payload = payload(n)
	return it
}

// is fails t unless an item has that payload.
func is(t *testing.T, it lease.Item, n int) {
	t.Helper()
	if string(it.Payload) != string(payload(n)) {
		t.Errorf("the payload is %s, not %s", it.Payload, payload(n))
	}
}

// shows is all of an item, for people and for comparisons.
func shows(it lease.Item) string {
	return fmt.Sprintf("%q %s %+v, created %v, updated %v", it.Key, it.Payload, it.Claimable, it.CreatedAt, it.UpdatedAt)
}

// agrees fails t unless a holder's copy of the item is the row.
func (w *world) agrees(t *testing.T, when string, h *lease.Holder) {
	t.Helper()
	if own, row := h.Item(), w.load(t); shows(own) != shows(row) {
		t.Errorf("%s, Item is\n%s, and the row\n%s", when, shows(own), shows(row))
	}
}

// contents is every row of the table.
func (w *world) contents(t *testing.T) string {
	t.Helper()
	return strings.Join(contents(t, w.gdb, w.table), "\n")
}

// heldIsFalse makes a result of a claim that another was faster with.
func heldIsFalse[T any](h *lease.HolderOf[T], err error) (bool, error) {
	if errors.Is(err, lease.ErrHeld) {
		return false, nil
	}
	return h != nil, err
}
