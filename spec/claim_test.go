package spec

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/schema"

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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
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

// Creating and loading

func TestAnItemIsCreatedUnclaimedWhateverItsClaimSays(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		claimed := lease.Claimable{
			Owner: "A", StepID: "s", Epoch: 7, Revision: 8, Attempts: 9, AcquiredAt: noon, RenewedAt: noon, ExpiresAt: noon.AddDate(100, 0, 0),
		}
		before := time.Now().Add(-time.Microsecond)
		must(t, lease.Create(t.Context(), gdb, lease.Item{Key: "open", Payload: payload(1), Claimable: claimed, CreatedAt: noon, UpdatedAt: noon}))
		claimed.Done = true
		must(t, lease.Create(t.Context(), gdb, lease.Item{Key: "done", Payload: payload(2), Claimable: claimed}))
		for key, want := range map[string]lease.Claimable{"open": {}, "done": {Done: true}} {
			it, _, err := lease.Load(t.Context(), gdb, key)
			must(t, err)
			if it.Key != key || it.Claimable != want {
				t.Errorf("%q reads %s", key, shows(it))
			}
			if it.CreatedAt != it.UpdatedAt || it.CreatedAt.Before(before) || it.CreatedAt.After(time.Now()) || it.CreatedAt.Location() != time.UTC {
				t.Errorf("%q was created at %v, and updated at %v", key, it.CreatedAt, it.UpdatedAt)
			}
		}
	})
}

func TestAKeyIsCreatedOnce(t *testing.T) {
	for _, translate := range []bool{false, true} {
		t.Run(fmt.Sprintf("TranslateError %v", translate), func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := fresh(t, db, &gorm.Config{TranslateError: translate})
				w := newWorld(t, db, gdb)
				before := w.row(t)
				err := lease.Create(t.Context(), gdb, lease.Item{Key: "item", Payload: payload(1)})
				mustBe(t, err, gorm.ErrDuplicatedKey)
				if err == nil || !strings.Contains(err.Error(), `"item"`) {
					t.Errorf("the error does not name the key: %v", err)
				}
				w.unchanged(t, "a second Create", before)
				winners := race(t, 8, func(i int) (bool, error) {
					err := lease.Create(t.Context(), gdb, lease.Item{Key: "contended", Payload: payload(i)})
					if errors.Is(err, gorm.ErrDuplicatedKey) {
						return false, nil
					}
					return err == nil, err
				})
				if len(winners) != 1 {
					t.Errorf("%v created it", winners)
				}
			})
		})
	}
}

func TestKeysThatLookAlikeAreDifferent(t *testing.T) { // C15
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		keys := []string{"item", "Item", "item ", " item", "ítem", "i\u0301tem", "item\n", "item'", `item"`, "item?", "$1", "@item", "%", strings.Repeat("🔒", 255)}
		for i, key := range keys {
			must(t, lease.Create(t.Context(), gdb, lease.Item{Key: key, Payload: payload(i)}))
		}
		for i, key := range keys {
			h, err := lease.Claim(t.Context(), gdb, key, "A", "", time.Minute, nil)
			must(t, err)
			if h.Item().Key != key || h.Epoch() != 1 {
				t.Errorf("%q is claimed as %s", key, shows(h.Item()))
			}
			is(t, h.Item(), i)
			must(t, h.Save(t.Context(), with(h, 100+i)))
			it, _, err := lease.Load(t.Context(), gdb, key)
			must(t, err)
			is(t, it, 100+i)
		}
	})
}

func TestWhatIsNotThereIsRecordNotFound(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		it, version, err := lease.Load(t.Context(), gdb, "nothing")
		mustBe(t, err, gorm.ErrRecordNotFound)
		if version != "" || !reflect.DeepEqual(it, lease.Item{}) {
			t.Errorf("Load returns %s, %q", shows(it), version)
		}
		h, err := lease.Claim(t.Context(), gdb, "nothing", "A", "", time.Minute, nil)
		mustBe(t, err, gorm.ErrRecordNotFound)
		if h != nil || errors.Is(err, lease.ErrHeld) {
			t.Errorf("Claim is %v, %v", h, err)
		}
		if n := ask[int](t, gdb, "SELECT count(*) FROM lease_items"); n != 0 {
			t.Errorf("there are %d rows", n)
		}
	})
}

func TestCreateAndLoadJoinTheCallersTransaction(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		for how, want := range map[string]error{"commit": nil, "roll-back": gorm.ErrRecordNotFound} {
			tx := gdb.Begin()
			defer tx.Rollback()
			must(t, lease.Create(t.Context(), tx, lease.Item{Key: how, Payload: payload(1)}))
			it, _, err := lease.Load(t.Context(), tx, how)
			must(t, err)
			is(t, it, 1)
			_, _, err = lease.Load(t.Context(), gdb, how)
			mustBe(t, err, gorm.ErrRecordNotFound) // not committed yet
			if how == "commit" {
				must(t, tx.Commit().Error)
			} else {
				must(t, tx.Rollback().Error)
			}
			if _, _, err = lease.Load(t.Context(), gdb, how); !errors.Is(err, want) {
				t.Errorf("after the %s: %v", how, err)
			}
		}
	})
}

func TestEveryWriteChangesTheStringOfLoad(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		seen := map[string]string{}
		changed := func(by string) {
			t.Helper()
			w.pass(time.Second)
			_, version, err := lease.Load(t.Context(), w.gdb, "item")
			must(t, err)
			if before, ok := seen[version]; ok || version == "" {
				t.Errorf("after %s it is %q, as after %s", by, version, before)
			}
			seen[version] = by
			if _, again, _ := lease.Load(t.Context(), w.gdb, "item"); again != version {
				t.Errorf("without a write it changed from %q to %q", version, again)
			}
		}
		changed("Create")
		h := w.claim(t, "A")
		changed("Claim")
		must(t, h.Renew(t.Context()))
		changed("Renew")
		must(t, h.Save(t.Context(), with(h, 1)))
		changed("Save")
		must(t, h.Save(t.Context(), with(h, 1)))
		changed("a Save of the same")
		must(t, h.Release(t.Context()))
		changed("Release")
		w.claim(t, "A")
		changed("the next Claim")
		exec(t, w.gdb, "UPDATE lease_items SET payload = '5'")
		changed("an UPDATE of the payload by hand")
		exec(t, w.gdb, "UPDATE lease_items SET claim_attempts = 0")
		changed("an UPDATE of the claim by hand")
	})
}

// Payloads

func TestAPayloadReadsAsItWasWritten(t *testing.T) {
	big := []byte(`{"text":"` + strings.Repeat("ü🔒", (1<<20-12)/6) + `"}`)
	big = append(big, bytes.Repeat([]byte(" "), 1<<20-len(big))...)
	texts := map[string]string{
		"an object":                      `{"b":[1,2.5,-3e2,true,null],"a":{"":""}}`,
		"a string":                       `"x"`,
		"a number of 30 digits":          `123456789012345678901234567890`,
		"false":                          `false`,
		"an empty array":                 `[]`,
		"unicode":                        `"日本語 🔑 é e\u0301 \u00fc \ud83d\udd11"`,
		"escapes":                        `"\" \\ \/ \b \f \n \r \t"`,
		"an escaped backslash and u0000": `"\\u0000"`,
		"two of them":                    `["\\\\u0000", "\\\\\\u0000"]`,
		"what looks like a parameter":    `"? $1 @name {key} {}"`,
		"spaces around":                  "\n\t {} \r",
		"1 MiB":                          string(big),
	}
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		for what, text := range texts {
			t.Run(what, func(t *testing.T) {
				same := func(call string, it lease.Item) {
					t.Helper()
					if a, b := decoded(t, it.Payload), decoded(t, []byte(text)); !reflect.DeepEqual(a, b) {
						t.Errorf("%s: the payload is %.200s", call, it.Payload)
					}
				}
				w := newWorld(t, db, gdb)
				exec(t, gdb, "DELETE FROM lease_items")
				must(t, lease.Create(t.Context(), gdb, lease.Item{Key: "item", Payload: json.RawMessage(text)}))
				same("Load", w.load(t))
				h := w.claim(t, "A")
				same("Claim", h.Item())
				must(t, h.Save(t.Context(), with(h, 1)))
				must(t, h.Save(t.Context(), lease.Item{Payload: json.RawMessage(text)}))
				same("Item", h.Item())
				same("Load after Save", w.load(t))
			})
		}
	})
}

// decoded is the value of a JSON text, with its numbers as they are written.
func decoded(t *testing.T, text []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%.200s: %v", text, err)
	}
	return plainNumbers(v)
}

// plainNumbers writes -3e2 as -300, as Postgres does.
func plainNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if f, err := v.Float64(); err == nil && strings.ContainsAny(v.String(), "eE") {
			return json.Number(fmt.Sprint(f))
		}
	case []any:
		for i := range v {
			v[i] = plainNumbers(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = plainNumbers(v[key])
		}
	}
	return v
}

func TestAnEmptyPayloadIsNull(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		for i, empty := range []json.RawMessage{nil, {}} {
			key := fmt.Sprint(i)
			null := func(call string, p json.RawMessage) {
				t.Helper()
				if string(p) != "null" {
					t.Errorf("%s: the payload is %q", call, p)
				}
			}
			must(t, lease.Create(t.Context(), gdb, lease.Item{Key: key, Payload: empty}))
			it, _, err := lease.Load(t.Context(), gdb, key)
			must(t, err)
			null("Load", it.Payload)
			h, err := lease.Claim(t.Context(), gdb, key, "A", "", time.Minute, nil)
			must(t, err)
			null("Claim", h.Item().Payload)
			must(t, h.Save(t.Context(), with(h, 1)))
			must(t, h.Save(t.Context(), lease.Item{Payload: empty}))
			null("Item", h.Item().Payload)
			it, _, err = lease.Load(t.Context(), gdb, key)
			must(t, err)
			null("Load after Save", it.Payload)
		}
	})
}

func TestAPayloadThatIsNotJSONIsInvalidBeforeAnySQL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		fresh(t, db)
		gdb, spy := spied(t, db)
		must(t, lease.Create(t.Context(), gdb, lease.Item{Key: "item"}))
		h, err := lease.Claim(t.Context(), gdb, "item", "A", "", time.Minute, nil)
		must(t, err)
		spy.sent()
		tx := gdb.Begin()
		defer tx.Rollback()
		spy.sent()
		for _, bad := range []string{
			`{`, ` `, `{} {}`, `nul`, `'x'`, `{a:1}`, `[1,]`, `"` + "\n" + `"`, `"\x"`, `01`, `NaN`, "\x00", `"` + "\x00" + `"`,
			`"` + "\xff" + `"`, `"` + "ü"[:1] + `"`, `"\u0000"`, `{"\u0000":1}`, `"\\\u0000"`, `["\\u0000","\u0000"]`, "\ufeff{}",
		} {
			p := json.RawMessage(bad)
			for call, err := range map[string]error{
				"Create":                 lease.Create(t.Context(), gdb, lease.Item{Key: "other", Payload: p}),
				"Save":                   h.Save(t.Context(), lease.Item{Payload: p}),
				"Save of another column": h.Save(t.Context(), lease.Item{Payload: p}, "claim_done"),
				"SaveIn":                 h.SaveIn(tx, lease.Item{Payload: p}),
			} {
				if !errors.Is(err, lease.ErrInvalid) {
					t.Errorf("%s of %q is %v", call, bad, err)
				}
			}
		}
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
		must(t, tx.Rollback().Error)
		must(t, h.Save(t.Context(), with(h, 1))) // the claim still works
	})
}

func TestAPayloadIsGoodOnEveryDatabaseOrOnNone(t *testing.T) { // the spirit of C17
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		for what, text := range map[string]string{
			"half a surrogate pair":      `"\ud800"`,
			"the other half":             `"\udc00"`,
			"a surrogate pair swapped":   `"\udc00\ud800"`,
			"half of one in a key":       `{"\ud83d":1}`,
			"arrays nested 9,000 deep":   strings.Repeat("[", 9000) + strings.Repeat("]", 9000),
			"a noncharacter":             `"\uffff"`,
			"a delete and other control": `"\u007f\u0001"`,
		} {
			err := lease.Create(t.Context(), gdb, lease.Item{Key: what, Payload: json.RawMessage(text)})
			if err != nil && !errors.Is(err, lease.ErrInvalid) {
				t.Errorf("%s is neither stored nor ErrInvalid: %v", what, err)
			}
		}
		if db.Backend == dbtest.BackendSQLite {
			for _, refused := range []string{`"\ud800"`, `"\udc00"`} {
				err := lease.Create(t.Context(), gdb, lease.Item{Key: "again " + refused, Payload: json.RawMessage(refused)})
				if err == nil {
					t.Errorf("SQLite takes %s, which Postgres cannot", refused)
				}
			}
		}
	})
}

func TestACallerMayReuseItsPayload(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db))
		h := w.claim(t, "A")
		it := with(h, 1)
		must(t, h.Save(t.Context(), it))
		copy(it.Payload, payload(7))
		is(t, h.Item(), 1)
		it.Payload = nil
		must(t, h.Save(t.Context(), it))
		if it.Payload != nil {
			t.Errorf("Save changed its caller's item: %s", shows(it))
		}
	})
}

// Exclusive claims

func TestALiveClaimIsHeldAgainstOthersUntilItRunsOut(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		a := w.claim(t, "A")
		for _, d := range []time.Duration{0, 30 * time.Second, 29 * time.Second} {
			w.pass(d)
			w.refuses(t, "B", lease.ErrHeld)
		}
		w.pass(time.Second)
		b := w.claim(t, "B")
		if !b.Expired() || a.Expired() || b.Epoch() != a.Epoch()+1 {
			t.Errorf("Expired is %v, and then %v; the epochs are %d and %d", a.Expired(), b.Expired(), a.Epoch(), b.Epoch())
		}
		w.refuses(t, "A", lease.ErrHeld)
		_, err := w.try(t, "C")
		if err == nil || !strings.Contains(err.Error(), `"item"`) || !strings.Contains(err.Error(), `"B"`) {
			t.Errorf("the error names not both the item and its owner: %v", err)
		}
	})
}

func TestAClaimRunsOutToTheMicrosecond(t *testing.T) { // C01
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db)).byTheCallers()
		w.claim(t, "A")
		w.pass(time.Minute - time.Microsecond)
		w.refuses(t, "B", lease.ErrHeld)
		w.pass(time.Microsecond)
		w.claim(t, "B")
		w.refuses(t, "A", lease.ErrHeld)
	})
}

func TestTheZoneOfACallersClockMeansNothing(t *testing.T) { // C05
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db)).byTheCallers()
		plain, zone := w.now, time.FixedZone("", 5*3600+1800)
		w.now = func() time.Time { return plain().In(zone) }
		h := w.claim(t, "A")
		want := lease.Claimable{
			Owner: "A", StepID: "step of A", Epoch: 1, Revision: 1, Attempts: 1, AcquiredAt: noon, RenewedAt: noon, ExpiresAt: noon.Add(time.Minute),
		}
		if got := h.Item().Claimable; got != want {
			t.Errorf("the claim reads %+v", got)
		}
		zone = time.FixedZone("", -8*3600)
		w.refuses(t, "B", lease.ErrHeld)
		w.pass(time.Minute)
		w.claim(t, "B")
	})
}

func TestWithoutACallersClockClaimsGoByTheDatabases(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db))
		before := time.Now()
		c := w.claim(t, "A").Item().Claimable
		if early, late := before.Add(-time.Millisecond), time.Now().Add(time.Millisecond); c.AcquiredAt.Before(early) || c.AcquiredAt.After(late) {
			t.Errorf("claimed at %v, which is not between %v and %v", c.AcquiredAt, early, late)
		}
		if c.AcquiredAt != c.RenewedAt || c.ExpiresAt.Sub(c.AcquiredAt) != time.Minute || c.AcquiredAt.Location() != time.UTC {
			t.Errorf("the claim reads %+v", c)
		}
	})
}

func TestAnOwnerClaimsAnewAndItsEarlierClaimIsLost(t *testing.T) { // C50
	for what, pass := range map[string]time.Duration{"live": 0, "run out": 2 * time.Minute} {
		t.Run(what, func(t *testing.T) {
			everyClock(t, func(t *testing.T, w *world) {
				old := w.claim(t, "A")
				w.pass(pass)
				h := w.claim(t, "A")
				if h.Epoch() != old.Epoch()+1 || h.Expired() != (pass > 0) || h.Item().Attempts != 2 {
					t.Errorf("the claim is %s, Expired %v", shows(h.Item()), h.Expired())
				}
				before := w.row(t)
				mustBe(t, old.Save(t.Context(), with(old, 1)), lease.ErrLost)
				mustBe(t, old.Renew(t.Context()), lease.ErrLost)
				mustBe(t, old.Release(t.Context()), lease.ErrLost)
				w.unchanged(t, "the earlier claim", before)
				must(t, h.Save(t.Context(), with(h, 2)))
				must(t, h.Renew(t.Context()))
				must(t, h.Release(t.Context()))
			})
		})
	}
}

func TestTheEpochGrowsByOneWithEveryClaimAndNeverGoesBack(t *testing.T) { // C49, C50
	everyClock(t, func(t *testing.T, w *world) {
		claims := int64(0)
		claim := func(owner string, expired bool) *lease.Holder {
			t.Helper()
			claims++
			h := w.claim(t, owner)
			if h.Epoch() != claims || h.Expired() != expired {
				t.Errorf("claim %d has epoch %d, Expired %v", claims, h.Epoch(), h.Expired())
			}
			w.agrees(t, "after a claim", h)
			return h
		}
		release := func(h *lease.Holder) {
			t.Helper()
			must(t, h.Release(t.Context()))
			if it := w.load(t); it.Epoch != claims || it.Owner != "" || it.StepID != "" || it.Attempts != 0 {
				t.Errorf("after a release it reads %s", shows(it))
			}
		}
		release(claim("A", false))
		claim("A", false)
		h := claim("A", false)
		must(t, h.Renew(t.Context()))
		must(t, h.Save(t.Context(), with(h, 1)))
		release(h)
		claim("B", false)
		w.pass(time.Minute)
		release(claim("C", true))
		w.pass(time.Hour)
		claim("D", false) // what was released has not run out
		w.refuses(t, "A", lease.ErrHeld)
		w.pass(time.Minute)
		claim("D", true)
	})
}

func TestAnItemThatIsDoneIsNeverClaimedAgain(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		it := with(h, 1)
		it.Done = true
		must(t, h.Save(t.Context(), it))
		for _, owner := range []string{"A", "B"} {
			w.refuses(t, owner, lease.ErrDone)
		}
		must(t, h.Renew(t.Context())) // the claim of it goes on
		must(t, h.Save(t.Context(), with(h, 2)))
		if !h.Item().Done || !w.load(t).Done {
			t.Error("it is not done any more")
		}
		w.pass(time.Hour)
		w.refuses(t, "A", lease.ErrDone)
		must(t, h.Release(t.Context()))
		for _, owner := range []string{"A", "B"} {
			w.refuses(t, owner, lease.ErrDone)
		}
		must(t, lease.Create(t.Context(), w.gdb, lease.Item{Key: "done", Claimable: lease.Claimable{Done: true}}))
		_, err := lease.Claim(t.Context(), w.gdb, "done", "A", "", time.Minute, w.now)
		mustBe(t, err, lease.ErrDone)
		if _, err := lease.ClaimNext[lease.Item](t.Context(), w.gdb, "A", "", time.Minute, w.now); !errors.Is(err, gorm.ErrRecordNotFound) {
			t.Errorf("ClaimNext is %v", err)
		}
	})
}

func TestAHolderMayTakeBackThatItsItemIsDone(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		for _, done := range []bool{true, false} {
			it := h.Item()
			it.Done = done
			must(t, h.Save(t.Context(), it))
			if h.Item().Done != done || w.load(t).Done != done {
				t.Errorf("Done is %v and %v, not %v", h.Item().Done, w.load(t).Done, done)
			}
		}
		must(t, h.Release(t.Context()))
		w.claim(t, "B")
	})
}

func TestEveryClaimCountsInTheAttemptsUntilACleanRelease(t *testing.T) { // C58
	everyClock(t, func(t *testing.T, w *world) {
		for round := range 2 {
			for i, owner := range []string{"A", "A", "B", "B", "A"} {
				h := w.claim(t, owner)
				if it := h.Item(); it.Attempts != i+1 || h.Epoch() != int64(6*round+i+1) || h.Expired() != (i > 0) {
					t.Errorf("claim %d of round %d reads %s, Expired %v", i, round, shows(it), h.Expired())
				}
				w.pass(time.Minute)
			}
			h := w.claim(t, "A") // five workers vanished
			if it := w.load(t); it.Attempts != 6 {
				t.Errorf("%d attempts are counted", it.Attempts)
			}
			must(t, h.Release(t.Context()))
			if it := w.load(t); it.Attempts != 0 || h.Item().Attempts != 0 {
				t.Errorf("after a clean release %d attempts are counted, and in Item %d", it.Attempts, h.Item().Attempts)
			}
		}
	})
}

func TestTheNextClaimHasTheLastSavedState(t *testing.T) { // C59
	everyClock(t, func(t *testing.T, w *world) {
		a := w.claim(t, "A")
		is(t, a.Item(), 0)
		must(t, a.Save(t.Context(), with(a, 1)))
		must(t, a.Save(t.Context(), with(a, 2)))
		w.pass(time.Minute) // it vanished
		b := w.claim(t, "B")
		is(t, b.Item(), 2)
		if it := b.Item(); it.UpdatedAt != a.Item().UpdatedAt || it.CreatedAt != a.Item().CreatedAt || it.Revision != a.Item().Revision+1 {
			t.Errorf("B finds %s, and A left %s", shows(it), shows(a.Item()))
		}
	})
}

func TestAClaimTellsWhatItIs(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h, err := lease.Claim(t.Context(), w.gdb, "item", "A", "", time.Minute, w.now)
		must(t, err)
		if h.StepID() != "" || h.Item().StepID != "" {
			t.Errorf("without a step, it is %q, %q", h.StepID(), h.Item().StepID)
		}
		must(t, h.Release(t.Context()))
		h = w.claim(t, "A")
		must(t, h.Save(t.Context(), with(h, 1)))
		must(t, h.Release(t.Context()))
		if h.StepID() != "step of A" || h.Epoch() != 2 || h.Expired() {
			t.Errorf("after its release the claim is %q, epoch %d, Expired %v", h.StepID(), h.Epoch(), h.Expired())
		}
		if s := fmt.Sprint(h); !strings.Contains(s, `"item"`) || !strings.Contains(s, `"A"`) {
			t.Errorf("it prints as %q", s)
		}
	})
}

// Arguments

func TestKeysOwnersAndStepsAreCheckedBeforeAnySQL(t *testing.T) { // C17
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

func TestAClaimsTTLMustBePositive(t *testing.T) { // C10
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

func TestATinyOrHugeTTLOfAClaimIsKept(t *testing.T) { // C10
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

// Contention

// repeatableToo is everyIsolation, and Postgres with transactions that read one snapshot.
func repeatableToo(t *testing.T, spec func(t *testing.T, db *dbtest.Database)) {
	everyIsolation(t, spec)
	t.Run("postgres repeatable read", func(t *testing.T) {
		db := dbtest.Postgres(t)
		spec(t, &dbtest.Database{Backend: db.Backend, DSN: db.DSNVia("", "default_transaction_isolation=repeatable read")})
	})
}

func TestOneOfTwelveContendersWinsAnExpiredItem(t *testing.T) { // C18, C19
	repeatableToo(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, keepConnections(t, fresh(t, db))).byTheCallers()
		for round := range 60 {
			w.pass(time.Hour)
			winners := race(t, 12, func(i int) (bool, error) { return heldIsFalse(w.try(t, fmt.Sprint(i))) })
			it := w.load(t)
			if len(winners) != 1 || it.Owner != fmt.Sprint(winners[0]) || it.Epoch != int64(round+1) || it.Attempts != round+1 {
				t.Fatalf("round %d: %v won; the row is %s", round, winners, shows(it))
			}
		}
	})
}

// heldIsFalse makes a result of a claim that another was faster with.
func heldIsFalse[T any](h *lease.HolderOf[T], err error) (bool, error) {
	if errors.Is(err, lease.ErrHeld) {
		return false, nil
	}
	return h != nil, err
}

func TestWhatChangedSinceItWasLookedAtIsNotTaken(t *testing.T) {
	changes := map[string]func(t *testing.T, w *world, a *lease.Holder){
		"renewed":            func(t *testing.T, _ *world, a *lease.Holder) { must(t, a.Renew(t.Context())) },
		"claimed":            func(t *testing.T, w *world, _ *lease.Holder) { w.claim(t, "C") },
		"claimed anew":       func(t *testing.T, w *world, _ *lease.Holder) { w.claim(t, "A") },
		"claimed by itself":  func(t *testing.T, w *world, _ *lease.Holder) { w.claim(t, "B") },
		"claimed and undone": func(t *testing.T, w *world, _ *lease.Holder) { must(t, w.claim(t, "C").Release(t.Context())) },
		"deleted":            func(t *testing.T, w *world, _ *lease.Holder) { exec(t, w.gdb, "DELETE FROM lease_items") },
		"done": func(t *testing.T, _ *world, a *lease.Holder) {
			it := a.Item()
			it.Done = true
			must(t, a.Save(t.Context(), it))
		},
	}
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		slow, spy := spied(t, db)
		for what, change := range changes {
			t.Run(what, func(t *testing.T) {
				w := newWorld(t, db, gdb).byTheCallers()
				a := w.claim(t, "A")
				w.pass(time.Minute)
				changed, after := false, ""
				spy.fail = func(query string) error {
					if strings.HasPrefix(query, "UPDATE") && !changed { // B has looked, and is about to take what it saw
						changed = true
						change(t, w, a)
						after = w.contents(t)
					}
					return nil
				}
				h, err := lease.Claim(t.Context(), slow, "item", "B", "", time.Minute, w.now)
				if h != nil || !errors.Is(err, lease.ErrHeld) || !changed {
					t.Errorf("the claim is %v, %v", h, err)
				}
				if now := w.contents(t); now != after {
					t.Errorf("the row was\n%s and is\n%s", after, now)
				}
			})
		}
	})
}

func TestAnOwnerThatClaimsTwiceAtOnceHasOneClaimThatStands(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, keepConnections(t, fresh(t, db)))
		for round := range 20 {
			var holders [4]*lease.Holder
			winners := race(t, len(holders), func(i int) (ok bool, err error) {
				holders[i], err = w.try(t, "A")
				return heldIsFalse(holders[i], err)
			})
			stands := 0
			for _, i := range winners {
				switch err := holders[i].Save(t.Context(), with(holders[i], i)); {
				case err == nil:
					stands++
					if holders[i].Epoch() != w.load(t).Epoch {
						t.Errorf("round %d: claim %d was saved, and the row is %s", round, holders[i].Epoch(), shows(w.load(t)))
					}
				case !errors.Is(err, lease.ErrLost):
					t.Error(err)
				}
			}
			if stands != 1 {
				t.Fatalf("round %d: %d of %d claims stand", round, stands, len(winners))
			}
		}
	})
}

func TestASaveThatRacesAClaimIsInItOrRefused(t *testing.T) { // C55
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, keepConnections(t, fresh(t, db))).byTheCallers()
		for round := range 200 {
			stale := w.claim(t, "A")
			w.pass(time.Minute)
			var b *lease.Holder
			n := 2*round + 1
			saved := slices.Contains(race(t, 2, func(i int) (ok bool, err error) {
				if i == 0 {
					b, err = w.try(t, "B")
					return err == nil, err
				}
				err = stale.Save(t.Context(), with(stale, n))
				if errors.Is(err, lease.ErrLost) {
					return false, nil
				}
				return err == nil, err
			}), 1)
			if b == nil {
				t.Fatalf("round %d: B has no claim", round)
			}
			// A save that was good came before the claim, which has found it; one that came after the claim has written nothing.
			if found := string(b.Item().Payload) == string(payload(n)); found != saved {
				t.Fatalf("round %d: saved is %v, and the claim has %s", round, saved, b.Item().Payload)
			}
			w.agrees(t, "after the race", b)
			mustBe(t, stale.Save(t.Context(), with(stale, n)), lease.ErrLost)
			must(t, b.Save(t.Context(), with(b, n+1)))
			mustBe(t, stale.Save(t.Context(), with(stale, n)), lease.ErrLost)
			is(t, w.load(t), n+1)
			w.pass(time.Minute)
		}
	})
}

func TestClaimsOfDifferentItemsDoNotMeet(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		gdb := keepConnections(t, fresh(t, db))
		const workers = 8
		for i := range workers {
			must(t, lease.Create(t.Context(), gdb, lease.Item{Key: fmt.Sprint(i)}))
		}
		winners := race(t, workers, func(i int) (bool, error) {
			for n := range 5 {
				h, err := lease.Claim(t.Context(), gdb, fmt.Sprint(i), fmt.Sprint(i), "", time.Minute, nil)
				if err != nil {
					return false, err
				}
				if err := errors.Join(h.Renew(t.Context()), h.Save(t.Context(), with(h, n)), h.Release(t.Context())); err != nil {
					return false, err
				}
			}
			return true, nil
		})
		if len(winners) != workers {
			t.Errorf("only %v went through", winners)
		}
	})
}

// Renewing

func TestARenewalExtendsTheClaimAndTouchesNothingElse(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		must(t, h.Save(t.Context(), with(h, 1)))
		for range 3 {
			w.pass(40 * time.Second)
			before := w.load(t)
			must(t, h.Renew(t.Context()))
			after := w.load(t)
			if d := after.RenewedAt.Sub(before.RenewedAt); d < 40*time.Second || after.ExpiresAt.Sub(after.RenewedAt) != time.Minute {
				t.Errorf("40 seconds later the renewal is %v later, for %v", d, after.ExpiresAt.Sub(after.RenewedAt))
			}
			if got := h.Item(); got.RenewedAt != after.RenewedAt || got.ExpiresAt != after.ExpiresAt {
				t.Errorf("Item reads %s, and the row %s", shows(got), shows(after))
			}
			after.RenewedAt, after.ExpiresAt = before.RenewedAt, before.ExpiresAt
			if shows(before) != shows(after) {
				t.Errorf("the renewal changed\n%s into\n%s", shows(before), shows(after))
			}
			w.refuses(t, "B", lease.ErrHeld)
		}
	})
}

func TestARenewalDoesNotSaveWhatItsHolderHas(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		exec(t, w.gdb, "UPDATE lease_items SET payload = ?, claim_attempts = 7", string(payload(5)))
		must(t, h.Renew(t.Context()))
		is(t, w.load(t), 5)
		is(t, h.Item(), 0)
	})
}

func TestAClaimThatRanOutAndNobodyTookMayBeUsed(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		ranOut := func() *lease.Holder {
			newWorld(t, w.db, w.gdb)
			h := w.claim(t, "A")
			w.pass(time.Hour)
			return h
		}
		must(t, ranOut().Renew(t.Context()))
		w.refuses(t, "B", lease.ErrHeld)
		h := ranOut()
		must(t, h.Save(t.Context(), with(h, 1)))
		is(t, w.load(t), 1)
		if b := w.claim(t, "B"); !b.Expired() { // a save is no renewal
			t.Error("B's claim took over nothing that had run out")
		}
		must(t, ranOut().Release(t.Context()))
		if b := w.claim(t, "B"); b.Expired() || b.Item().Attempts != 1 {
			t.Errorf("B's claim is %s, Expired %v", shows(b.Item()), b.Expired())
		}
	})
}

// aClaimEnds is every way in which A's claim is lost.
var aClaimEnds = map[string]func(t *testing.T, w *world){
	"another took it":           func(t *testing.T, w *world) { w.pass(time.Minute); w.claim(t, "B") },
	"its owner claimed anew":    func(t *testing.T, w *world) { w.claim(t, "A") },
	"its owner took it again":   func(t *testing.T, w *world) { w.pass(time.Minute); w.claim(t, "A") },
	"its row was deleted":       func(t *testing.T, w *world) { exec(t, w.gdb, "DELETE FROM lease_items") },
	"its owner was overwritten": func(t *testing.T, w *world) { exec(t, w.gdb, "UPDATE lease_items SET claim_owner = 'B'") },
	"its row was made again": func(t *testing.T, w *world) {
		exec(t, w.gdb, "DELETE FROM lease_items")
		must(t, lease.Create(t.Context(), w.gdb, lease.Item{Key: "item"}))
	},
	"another took it and released": func(t *testing.T, w *world) {
		w.pass(time.Minute)
		must(t, w.claim(t, "B").Release(t.Context()))
	},
}

func TestAClaimThatIsLostChangesNothing(t *testing.T) { // C50, C54
	uses := map[string]func(t *testing.T, w *world, h *lease.Holder) error{
		"Renew":   func(t *testing.T, _ *world, h *lease.Holder) error { return h.Renew(t.Context()) },
		"Save":    func(t *testing.T, _ *world, h *lease.Holder) error { return h.Save(t.Context(), with(h, 1)) },
		"Release": func(t *testing.T, _ *world, h *lease.Holder) error { return h.Release(t.Context()) },
		"Fence":   func(_ *testing.T, w *world, h *lease.Holder) error { return w.gdb.Transaction(h.Fence) },
		"SaveIn": func(_ *testing.T, w *world, h *lease.Holder) error {
			return w.gdb.Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, with(h, 1)) })
		},
	}
	everyClock(t, func(t *testing.T, w *world) {
		for how, ends := range aClaimEnds {
			t.Run(how, func(t *testing.T) {
				for first := range uses {
					newItem := newWorld(t, w.db, w.gdb)
					h := w.claim(t, "A")
					ends(t, w)
					left := newItem.contents(t)
					// The first use finds out, and the others know.
					mustBeLost(t, first, uses[first](t, w, h))
					for other, use := range uses {
						mustBeLost(t, other+" after "+first, use(t, w, h))
					}
					if after := newItem.contents(t); after != left {
						t.Errorf("the table was\n%s and is\n%s", left, after)
					}
				}
			})
		}
	})
}

// contents is every row of the table.
func (w *world) contents(t *testing.T) string {
	t.Helper()
	var rows []map[string]any
	must(t, w.gdb.Table(w.table).Order("1").Find(&rows).Error)
	return fmt.Sprint(rows)
}

func mustBeLost(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, lease.ErrLost) || errors.Is(err, lease.ErrInvalid) {
		t.Errorf("%s: %v", what, err)
	}
}

func TestARenewalBesideALaterOneIsNoLoss(t *testing.T) { // C69
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db)).byTheCallers()
		h := w.claim(t, "A")
		w.pass(20 * time.Second)
		must(t, h.Renew(t.Context()))
		w.pass(-5 * time.Second) // the caller's clock was put right, or an earlier renewal lands only now
		if err := h.Renew(t.Context()); err != nil {
			t.Errorf("the claim stands, and its renewal is %v", err)
		}
		w.pass(10 * time.Second)
		if err := h.Renew(t.Context()); err != nil {
			t.Errorf("the claim stands, and its next renewal is %v", err)
		}
		if err := h.Save(t.Context(), with(h, 1)); err != nil {
			t.Errorf("the claim stands, and its save is %v", err)
		}
	})
}

func TestRenewalsAtOnceAreAllGood(t *testing.T) { // C69
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		winners := race(t, 6, func(int) (bool, error) {
			for range 10 {
				if w.now != nil {
					w.pass(time.Millisecond)
				}
				if err := h.Renew(t.Context()); err != nil {
					return false, err
				}
			}
			return true, nil
		})
		if len(winners) != 6 {
			t.Errorf("only %v were always good", winners)
		}
		w.agrees(t, "after the renewals", h)
	})
}

// Saving

func TestASaveWritesThePayloadAndDoneAndNotTheClaim(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		w.pass(10 * time.Second)
		before := w.load(t)
		saved := lease.Item{Key: "item", Payload: payload(1), CreatedAt: noon, UpdatedAt: noon, Claimable: lease.Claimable{
			Owner: "B", StepID: "x", Epoch: 70, Revision: 80, Attempts: 90, ExpiresAt: noon.AddDate(50, 0, 0), Done: true,
		}}
		began := time.Now().Add(-time.Microsecond)
		must(t, h.Save(t.Context(), saved))
		after := w.load(t)
		is(t, after, 1)
		if !after.Done || after.Revision != before.Revision+1 || after.CreatedAt != before.CreatedAt {
			t.Errorf("the save changed\n%s into\n%s", shows(before), shows(after))
		}
		if w.now == nil && (after.UpdatedAt.Before(began) || after.UpdatedAt.After(time.Now())) || w.now != nil && !after.UpdatedAt.Equal(w.now()) {
			t.Errorf("it was updated at %v", after.UpdatedAt)
		}
		claim := after.Claimable
		claim.Done, claim.Revision = before.Done, before.Revision
		if claim != before.Claimable {
			t.Errorf("the save changed the claim from %+v to %+v", before.Claimable, claim)
		}
		if w.now != nil { // by the database's clock the test has dated back the row
			w.agrees(t, "after a save", h)
		}
	})
}

func TestASaveOfNamedColumnsLeavesTheOthers(t *testing.T) { // C85
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		exec(t, w.gdb, "UPDATE lease_items SET payload = ?", string(payload(5)))
		it := with(h, 1)
		it.Done = true
		for _, name := range []string{"claim_done", "Done", "updated_at", "UpdatedAt"} {
			w.pass(time.Second)
			must(t, h.Save(t.Context(), it, name))
			if row := w.load(t); !row.Done || row.Revision != h.Item().Revision || string(row.Payload) != string(payload(5)) {
				t.Errorf("after a save of %s the row is %s", name, shows(row))
			}
			is(t, h.Item(), 0)
			if !h.Item().Done {
				t.Errorf("after a save of %s Item is not done", name)
			}
		}
		for _, name := range []string{"payload", "Payload"} {
			it.Payload = payload(len(name) + int(name[0]))
			must(t, h.Save(t.Context(), it, name))
			is(t, w.load(t), len(name)+int(name[0]))
			is(t, h.Item(), len(name)+int(name[0]))
		}
	})
}

func TestASaveOfWhatIsNotForItToWriteIsInvalidBeforeAnySQL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		newWorld(t, db, fresh(t, db))
		gdb, spy := spied(t, db)
		h, err := lease.Claim(t.Context(), gdb, "item", "A", "", time.Minute, nil)
		must(t, err)
		spy.sent()
		for _, name := range []string{
			"key", "Key", "created_at", "claim_owner", "Owner", "claim_step_id", "StepID", "claim_epoch", "Epoch", "claim_revision", "Revision",
			"claim_attempts", "claim_acquired_at", "claim_renewed_at", "claim_expires_at", "ExpiresAt", "", "*", "nothing", "payload ", "PAYLOAD, claim_owner",
			"Claimable", "lease_items.payload", clause.Associations,
		} {
			if err := h.Save(t.Context(), with(h, 1), "payload", name); !errors.Is(err, lease.ErrInvalid) {
				t.Errorf("a save of %q is %v", name, err)
			}
		}
		other := with(h, 1)
		other.Key = "other"
		mustBe(t, h.Save(t.Context(), other), lease.ErrInvalid)
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
		must(t, h.Save(t.Context(), lease.Item{Payload: payload(1)})) // without a key it is this item
		if it := h.Item(); it.Key != "item" || it.Epoch != 1 || it.Owner != "A" {
			t.Errorf("Item is %s", shows(it))
		}
	})
}

func TestItemIsTheRowAsTheClaimLastWroteIt(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		w.agrees(t, "after Claim", h)
		must(t, h.Save(t.Context(), with(h, 1)))
		w.agrees(t, "after Save", h)
		must(t, h.Renew(t.Context()))
		w.agrees(t, "after Renew", h)
		must(t, h.Save(t.Context(), with(h, 2), "payload"))
		w.agrees(t, "after a Save of one column", h)
		it := h.Item()
		exec(t, w.gdb, "UPDATE lease_items SET claim_epoch = claim_epoch + 1")
		mustBe(t, h.Save(t.Context(), with(h, 3)), lease.ErrLost)
		if shows(h.Item()) != shows(it) {
			t.Errorf("a save that is lost changed Item to %s", shows(h.Item()))
		}
		h = w.claim(t, "A")
		if w.now != nil {
			w.pass(time.Second)
		}
		must(t, h.Release(t.Context()))
		w.agrees(t, "after Release", h)
	})
}

func TestARunningRenewalDoesNotUndoASaveInItem(t *testing.T) { // C69
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		const saves = 25
		race(t, 4, func(i int) (bool, error) {
			for n := range saves {
				var err error
				if i == 0 {
					err = h.Save(t.Context(), with(h, n))
				} else {
					err = h.Renew(t.Context())
				}
				if err != nil {
					return false, err
				}
				_ = h.Item()
			}
			return true, nil
		})
		w.agrees(t, "in the end", h)
		is(t, h.Item(), saves-1)
	})
}

func TestSavesAtOnceAreOneAfterTheOther(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, keepConnections(t, fresh(t, db)))
		h := w.claim(t, "A")
		winners := race(t, 6, func(i int) (bool, error) {
			for n := range 10 {
				if err := h.Save(t.Context(), with(h, 100*i+n)); err != nil {
					return false, err
				}
			}
			return true, nil
		})
		if len(winners) != 6 {
			t.Errorf("only %v were always good", winners)
		}
		w.agrees(t, "in the end", h)
		if r := w.load(t).Revision; r != 61 {
			t.Errorf("after a claim and 60 saves the revision is %d", r)
		}
	})
}

func TestASaveWaitsForTheOneBeforeAndForItsContext(t *testing.T) {
	db := dbtest.Postgres(t)
	w := newWorld(t, db, fresh(t, db))
	h := w.claim(t, "A")
	other := w.gdb.Begin()
	defer other.Rollback()
	exec(t, other, "SELECT * FROM lease_items FOR UPDATE")
	first := make(chan error, 1)
	go func() { first <- h.Save(t.Context(), with(h, 1)) }()
	waitUntil(t, "the first save waits", func() bool { return waiters(t, w.gdb) == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	mustBe(t, h.Save(ctx, with(h, 2)), context.DeadlineExceeded)
	must(t, other.Rollback().Error)
	must(t, <-first)
	is(t, w.load(t), 1)
	must(t, h.Save(t.Context(), with(h, 3)))
}

func TestSavesRenewalsAndAReleaseAtOnceNeverReadAsALossBeforeIt(t *testing.T) { // C69
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, keepConnections(t, fresh(t, db)))
		for range 10 {
			h := w.claim(t, "A")
			var releasing atomic.Bool
			race(t, 5, func(i int) (bool, error) {
				for n := range 6 {
					var err error
					switch {
					case i == 0 && n < 5:
						continue
					case i == 0:
						releasing.Store(true)
						return true, h.Release(t.Context())
					case i%2 == 0:
						err = h.Renew(t.Context())
					default:
						err = h.Save(t.Context(), with(h, n))
					}
					if err != nil && !(errors.Is(err, lease.ErrLost) && releasing.Load()) {
						return false, err
					}
				}
				return true, nil
			})
			must(t, h.Release(t.Context()))
			if it := w.load(t); it.Owner != "" || it.Attempts != 0 {
				t.Fatalf("after the release it reads %s", shows(it))
			}
		}
	})
}

// Saves of unknown outcome

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
	dialector := sqlite.New(sqlite.Config{Conn: pool})
	if db.Backend == dbtest.BackendPostgres {
		dialector = postgres.New(postgres.Config{Conn: pool})
	}
	gdb, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	must(t, err)
	w.gdb = gdb
	return w, pool, w.claim(t, "A")
}

func TestALateSaveNeverReplacesANewerOne(t *testing.T) { // C80
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

func TestASaveIsGoodAfterOneThatLandedUnheard(t *testing.T) { // C80
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

func TestWhateverIsLostTheNewestSaveThatLandedStays(t *testing.T) { // C80
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

func TestALateSaveDoesNotReplaceWhatATransactionSaved(t *testing.T) { // C80
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

// Saving in a transaction

func TestSaveInCommitsWithItsTransactionOrNotAtAll(t *testing.T) {
	for how, want := range map[string]int{"commit": 1, "roll-back": 0} {
		t.Run(how, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				w := newWorld(t, db, withNotes(t, db))
				h := w.claim(t, "A")
				before := shows(h.Item())
				tx := w.gdb.Begin()
				defer tx.Rollback()
				must(t, write(tx))
				it := with(h, 1)
				it.Done = true
				must(t, h.SaveIn(tx, it))
				is(t, w.load(t), 0) // not committed yet
				if how == "commit" {
					must(t, tx.Commit().Error)
				} else {
					must(t, tx.Rollback().Error)
				}
				row := w.load(t)
				is(t, row, want)
				if n := notes(t, w.gdb); n != want || row.Done != (want == 1) {
					t.Errorf("after the %s there are %d notes, and the row is %s", how, n, shows(row))
				}
				if after := shows(h.Item()); after != before {
					t.Errorf("SaveIn changed Item from\n%s to\n%s", before, after)
				}
				must(t, h.Save(t.Context(), with(h, 2)))
				w.agrees(t, "after the next Save", h)
				is(t, w.load(t), 2)
				must(t, w.gdb.Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, with(h, 3)) }))
				is(t, w.load(t), 3)
				must(t, h.Renew(t.Context()))
				must(t, h.Release(t.Context()))
			})
		})
	}
}

func TestSaveInMayBeCalledTwiceInOneTransaction(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db))
		h := w.claim(t, "A")
		for n := range 3 {
			must(t, w.gdb.Transaction(func(tx *gorm.DB) error {
				return errors.Join(h.Fence(tx), h.SaveIn(tx, with(h, 2*n)), h.SaveIn(tx, with(h, 2*n+1), "payload"))
			}))
			is(t, w.load(t), 2*n+1)
		}
		must(t, h.Save(t.Context(), with(h, 9)))
		w.agrees(t, "after a Save", h)
	})
}

func TestSaveInIsRolledBackToASavepoint(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db))
		h := w.claim(t, "A")
		failure := errors.New("out of paper")
		must(t, w.gdb.Transaction(func(tx *gorm.DB) error {
			must(t, h.SaveIn(tx, with(h, 1)))
			mustBe(t, tx.Transaction(func(tx *gorm.DB) error { return errors.Join(h.SaveIn(tx, with(h, 2)), failure) }), failure)
			return nil
		}))
		is(t, w.load(t), 1)
		must(t, h.Save(t.Context(), with(h, 3)))
	})
}

func TestASaveInThatIsLostLeavesTheTransactionToItsCaller(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, withNotes(t, db)).byTheCallers()
		h := w.claim(t, "A")
		w.pass(time.Minute)
		w.claim(t, "B")
		err := w.gdb.Transaction(func(tx *gorm.DB) error {
			return errors.Join(write(tx), h.SaveIn(tx, with(h, 1)))
		})
		mustBe(t, err, lease.ErrLost)
		if n := notes(t, w.gdb); n != 0 {
			t.Errorf("%d notes were committed", n)
		}
		is(t, w.load(t), 0)
	})
}

// Releasing

func TestAReleaseFreesTheItemAtOnceAndMayBeRepeated(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		must(t, h.Save(t.Context(), with(h, 1)))
		before := w.load(t)
		must(t, h.Release(t.Context()))
		after := w.load(t)
		if after.Owner != "" || after.StepID != "" || after.Epoch != before.Epoch || after.Revision < before.Revision || after.Done {
			t.Errorf("the release changed\n%s into\n%s", shows(before), shows(after))
		}
		is(t, after, 1)
		row := w.row(t)
		must(t, h.Release(t.Context()))
		mustBe(t, h.Renew(t.Context()), lease.ErrLost)
		mustBe(t, h.Save(t.Context(), with(h, 2)), lease.ErrLost)
		mustBe(t, w.gdb.Transaction(h.Fence), lease.ErrLost)
		mustBe(t, w.gdb.Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, with(h, 2)) }), lease.ErrLost)
		w.unchanged(t, "a claim that was released", row)
		w.claim(t, "B")
		row = w.row(t)
		must(t, h.Release(t.Context())) // it was, before
		w.unchanged(t, "a repeated release", row)
	})
}

// Fencing

func TestAClaimIsFencedWhileItIsInForce(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		before := w.row(t)
		must(t, w.gdb.Transaction(func(tx *gorm.DB) error { return errors.Join(h.Fence(tx), h.Fence(tx)) }))
		w.unchanged(t, "a fence", before)
		w.pass(time.Minute)
		mustBe(t, w.gdb.Transaction(h.Fence), lease.ErrLost) // it ran out
		must(t, h.Renew(t.Context()))
		must(t, w.gdb.Transaction(h.Fence))
		it := h.Item()
		it.Done = true
		must(t, h.Save(t.Context(), it))
		must(t, w.gdb.Transaction(h.Fence)) // what is done is still its
	})
}

// claimant lets B claim the item as soon as A's claim of it has run out by the callers' clock, and notes whether it waits.
func claimant(t *testing.T, w *world) rival {
	t.Helper()
	r, gdb := rival{outcome: make(chan error, 1)}, w.db.Open(t)
	if w.db.Backend == dbtest.BackendPostgres {
		r.waits = func() { waitUntil(t, "the rival waits", func() bool { return waiters(t, w.gdb) > 0 }) }
	} else {
		file, _, _ := strings.Cut(w.db.DSN, "?")
		var spy *spy
		gdb, spy = spied(t, &dbtest.Database{Backend: w.db.Backend, DSN: file + "?_journal_mode=WAL&_busy_timeout=0"})
		sent := make(chan struct{}, 100)
		spy.fail = func(query string) error {
			if strings.HasPrefix(query, "UPDATE") {
				select {
				case sent <- struct{}{}:
				default:
				}
			}
			return nil
		}
		r.waits = func() {
			for range 3 { // so the first two were refused
				<-sent
			}
		}
	}
	go func() {
		_, err := lease.Claim(t.Context(), gdb, "item", "B", "", time.Minute, w.now)
		r.outcome <- err
	}()
	return r
}

func TestAFenceHoldsOffTheNextClaimUntilItsTransactionEnds(t *testing.T) { // C77
	for how, end := range map[string]func(*gorm.DB) *gorm.DB{"commit": (*gorm.DB).Commit, "roll-back": (*gorm.DB).Rollback} {
		t.Run(how, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				w := newWorld(t, db, withNotes(t, db)).byTheCallers()
				h := w.claim(t, "A")
				tx := w.gdb.Begin()
				defer tx.Rollback()
				must(t, h.Fence(tx))
				w.pass(time.Minute)
				r := claimant(t, w)
				r.stillWaits(t)
				must(t, write(tx))
				if it := w.load(t); it.Epoch != h.Epoch() {
					t.Errorf("the row is %s", shows(it))
				}
				must(t, end(tx).Error)
				must(t, <-r.outcome)
				if it := w.load(t); it.Owner != "B" || it.Epoch != h.Epoch()+1 {
					t.Errorf("the row is %s", shows(it))
				}
			})
		})
	}
}

func TestAClaimThatWaitedForAFenceIsWhole(t *testing.T) {
	db := dbtest.Postgres(t)
	w := newWorld(t, db, fresh(t, db))
	h := w.claim(t, "A")
	tx := w.gdb.Begin()
	defer tx.Rollback()
	must(t, h.Fence(tx))
	must(t, h.Release(t.Context()))
	r := claimant(t, w)
	r.stillWaits(t)
	released := ask[int64](t, w.gdb, "SELECT (extract(epoch from clock_timestamp())*1000000)::bigint")
	must(t, tx.Rollback().Error)
	must(t, <-r.outcome)
	if it := w.load(t); it.AcquiredAt.UnixMicro() < released {
		t.Errorf("the claim counts from %v, before the fence's end at %v", it.AcquiredAt, time.UnixMicro(released))
	}
}

func TestAClaimThatWasRenewedWhileAnotherWaitedIsNotTaken(t *testing.T) {
	db := dbtest.Postgres(t)
	w := newWorld(t, db, fresh(t, db)).byTheCallers()
	h := w.claim(t, "A")
	tx := w.gdb.Begin()
	defer tx.Rollback()
	must(t, h.Fence(tx))
	w.pass(time.Minute)
	r := claimant(t, w)
	r.stillWaits(t)
	must(t, h.Renew(t.Context())) // the fence lets it pass
	must(t, tx.Commit().Error)
	mustBe(t, <-r.outcome, lease.ErrHeld)
	must(t, h.Save(t.Context(), with(h, 1)))
}

func TestAFenceLetsRenewalsSavesAndOtherFencesPassOnPostgres(t *testing.T) {
	db := dbtest.Postgres(t)
	newWorld(t, db, fresh(t, db))
	impatient := db.OpenDSN(t, db.DSNVia("", "lock_timeout=1ms"))
	w := &world{db: db, gdb: impatient, table: "lease_items"}
	h := w.claim(t, "A")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	must(t, impatient.Transaction(func(tx *gorm.DB) error {
		must(t, h.Fence(tx))
		for n := range 5 {
			must(t, h.Renew(ctx))
			must(t, h.Save(ctx, with(h, n)))
			must(t, impatient.WithContext(ctx).Transaction(h.Fence))
		}
		return nil
	}))
}

func TestInRunTransactionsAreFencedByTheClaim(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, withNotes(t, db))
		h := w.claim(t, "A")
		must(t, h.Run(t.Context(), func(ctx context.Context) error {
			must(t, lease.Transaction(ctx, w.gdb, func(tx *gorm.DB) error {
				return errors.Join(lease.Fence(tx), write(tx), h.SaveIn(tx, with(h, 1)))
			}))
			must(t, w.gdb.WithContext(ctx).Transaction(lease.Fence))
			exec(t, w.gdb, "UPDATE lease_items SET claim_epoch = claim_epoch + 1")
			err := lease.Transaction(ctx, w.gdb, func(*gorm.DB) error { t.Error("its function was called"); return nil })
			mustBe(t, err, lease.ErrLost)
			if err != nil && !strings.Contains(err.Error(), `"item"`) {
				t.Errorf("the error does not name the item: %v", err)
			}
			mustBe(t, w.gdb.WithContext(ctx).Transaction(lease.Fence), lease.ErrLost)
			exec(t, w.gdb, "UPDATE lease_items SET claim_epoch = claim_epoch - 1")
			return nil
		}))
		if n := notes(t, w.gdb); n != 1 {
			t.Errorf("%d notes were committed", n)
		}
		is(t, w.load(t), 1)
	})
}

func TestTheInnermostOfTermsAndClaimsCounts(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, withNotes(t, db))
		must(t, lease.Create(t.Context(), w.gdb, lease.Item{Key: "other"}))
		term := hold(t, w.gdb, "A")
		stale := term
		stale.Epoch--
		fences := func(what string, ctx context.Context, want error) {
			t.Helper()
			if err := lease.Transaction(ctx, w.gdb, write); !errors.Is(err, want) {
				t.Errorf("%s: %v", what, err)
			}
		}
		h := w.claim(t, "A")
		must(t, h.Run(lease.WithTerm(t.Context(), stale), func(ctx context.Context) error {
			fences("a claim in a stale term", ctx, nil)
			if got, ok := lease.TermFrom(ctx); !ok || got != stale {
				t.Errorf("the term is %v, %v", got, ok)
			}
			fences("a stale term in a claim", lease.WithTerm(ctx, stale), lease.ErrLost)
			fences("a term in a claim", lease.WithTerm(ctx, term), nil)
			other, err := lease.Claim(t.Context(), w.gdb, "other", "A", "", time.Minute, nil)
			must(t, err)
			return other.Run(ctx, func(ctx context.Context) error {
				fences("a claim in a claim", ctx, nil)
				exec(t, w.gdb, "UPDATE lease_items SET claim_epoch = claim_epoch + 1 WHERE key = 'other'")
				fences("a lost claim in a claim", ctx, lease.ErrLost)
				exec(t, w.gdb, "UPDATE lease_items SET claim_epoch = claim_epoch - 1 WHERE key = 'other'")
				return nil
			})
		}))
		must(t, w.claim(t, "A").Run(lease.WithTerm(t.Context(), term), func(ctx context.Context) error {
			exec(t, w.gdb, "UPDATE lease_items SET claim_epoch = claim_epoch + 1 WHERE key = 'item'")
			fences("a lost claim in a term", ctx, lease.ErrLost)
			exec(t, w.gdb, "UPDATE lease_items SET claim_epoch = claim_epoch - 1 WHERE key = 'item'")
			return nil
		}))
	})
}

func TestAFenceUndoneByASavepointHoldsNobodyOff(t *testing.T) { // C77: as documented
	db := dbtest.Postgres(t)
	w := newWorld(t, db, fresh(t, db)).byTheCallers()
	h := w.claim(t, "A")
	tx := w.gdb.Begin()
	defer tx.Rollback()
	must(t, tx.SavePoint("before").Error)
	must(t, h.Fence(tx))
	must(t, tx.RollbackTo("before").Error)
	w.pass(time.Minute)
	must(t, <-claimant(t, w).outcome)
}

// The cost

func TestClaimsCostAsFewStatementsAsTheyCan(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		var spy *spy
		w.gdb, spy = spied(t, w.db)
		costs := func(what string, want ...string) {
			t.Helper()
			var verbs []string
			for _, query := range spy.sent() {
				verbs = append(verbs, strings.Fields(query)[0])
			}
			if !slices.Equal(verbs, want) {
				t.Errorf("%s sent %q, not %q", what, verbs, want)
			}
		}
		claims := func(owner string) *lease.Holder {
			t.Helper()
			h := w.claim(t, owner)
			costs("a claim", "SELECT", "UPDATE")
			return h
		}
		refused := func(owner string, want error) {
			t.Helper()
			_, err := w.try(t, owner)
			mustBe(t, err, want)
			costs("a refusal", "SELECT")
		}
		_, _, err := lease.Load(t.Context(), w.gdb, "item")
		must(t, err)
		costs("a Load", "SELECT")
		must(t, lease.Create(t.Context(), w.gdb, lease.Item{Key: "other"}))
		costs("a Create", "INSERT")
		h := claims("A")
		refused("B", lease.ErrHeld)
		must(t, h.Renew(t.Context()))
		costs("a renewal", "UPDATE")
		must(t, h.Save(t.Context(), with(h, 1)))
		costs("a save", "UPDATE")
		must(t, h.Save(t.Context(), with(h, 1), "payload"))
		costs("a save of one column", "UPDATE")
		must(t, h.Release(t.Context()))
		costs("a release", "UPDATE")
		must(t, h.Release(t.Context()))
		mustBe(t, h.Renew(t.Context()), lease.ErrLost)
		mustBe(t, h.Save(t.Context(), with(h, 1)), lease.ErrLost)
		costs("what comes after a release")
		claims("A")
		h = claims("A")
		w.pass(time.Hour)
		spy.sent()
		claims("B")
		for what, use := range map[string]func(context.Context) error{
			"a renewal": h.Renew, "a release": h.Release, "a save": func(ctx context.Context) error { return h.Save(ctx, with(h, 1)) },
		} {
			mustBe(t, use(t.Context()), lease.ErrLost)
			if sent := spy.sent(); len(sent) > 1 {
				t.Errorf("%s that was lost sent %q", what, sent)
			}
		}
		_, err = lease.Claim(t.Context(), w.gdb, "nothing", "A", "", time.Minute, w.now)
		mustBe(t, err, gorm.ErrRecordNotFound)
		costs("a claim of nothing", "SELECT")
		next := 2
		if w.db.Backend == dbtest.BackendPostgres {
			next = 1
		}
		done, err := lease.ClaimNext[lease.Item](t.Context(), w.gdb, "A", "", time.Minute, w.now)
		must(t, err)
		if n := len(spy.sent()); n != next {
			t.Errorf("ClaimNext sent %d statements", n)
		}
		_, err = lease.ClaimNext[lease.Item](t.Context(), w.gdb, "A", "", time.Minute, w.now)
		mustBe(t, err, gorm.ErrRecordNotFound)
		if n := len(spy.sent()); n != 1 {
			t.Errorf("ClaimNext of nothing sent %d statements", n)
		}
		tx := w.gdb.Begin()
		defer tx.Rollback()
		spy.sent()
		must(t, done.Fence(tx))
		must(t, done.SaveIn(tx, with(done, 1)))
		sent := slices.DeleteFunc(spy.sent(), func(s string) bool { return s == "BEGIN" }) // by which SQLite is asked for the transaction
		if n := len(sent); n != 2 {
			t.Errorf("a fence and a save in a transaction sent %d statements", n)
		}
		must(t, tx.Rollback().Error)
		it := done.Item()
		it.Done = true
		must(t, done.Save(t.Context(), it))
		spy.sent()
		_, err = lease.Claim(t.Context(), w.gdb, "other", "A", "", time.Minute, w.now)
		mustBe(t, err, lease.ErrDone)
		costs("a claim of what is done", "SELECT")
	})
}

func TestTheLosersOfARaceSendTwoStatementsAtMost(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		file := db
		if db.Backend == dbtest.BackendSQLite { // wait in SQLite, and not by trying again
			name, _, _ := strings.Cut(db.DSN, "?")
			file = &dbtest.Database{Backend: db.Backend, DSN: name + "?_journal_mode=WAL&_busy_timeout=20000"}
		}
		w := newWorld(t, db, fresh(t, db)).byTheCallers()
		for range 10 {
			w.pass(time.Hour)
			winners := race(t, 6, func(i int) (bool, error) {
				gdb, spy := spied(t, file)
				ok, err := heldIsFalse(lease.Claim(t.Context(), gdb, "item", fmt.Sprint(i), "", time.Minute, w.now))
				if sent := spy.sent(); len(sent) > 2 {
					t.Errorf("a claim sent %q", sent)
				}
				return ok, err
			})
			if len(winners) != 1 {
				t.Errorf("%v won", winners)
			}
		}
	})
}

func TestARefusedClaimWaitsForNoLock(t *testing.T) {
	db := dbtest.Postgres(t)
	w := newWorld(t, db, fresh(t, db))
	w.claim(t, "A")
	tx := w.gdb.Begin()
	defer tx.Rollback()
	exec(t, tx, "SELECT * FROM lease_items FOR UPDATE")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := lease.Claim(ctx, db.OpenDSN(t, db.DSNVia("", "lock_timeout=1ms")), "item", "B", "", time.Minute, nil)
	mustBe(t, err, lease.ErrHeld)
}

func TestAllRenewalsOfAClaimAreHeapOnly(t *testing.T) { // C72
	db := dbtest.Postgres(t)
	w := newWorld(t, db, fresh(t, db))
	pool(t, w.gdb).SetMaxOpenConns(1) // statistics are kept by session until they are flushed
	h := w.claim(t, "A")
	updates := func() (all, heapOnly int) {
		exec(t, w.gdb, "SELECT pg_stat_force_next_flush()")
		return ask[int](t, w.gdb, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'lease_items'"),
			ask[int](t, w.gdb, "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'lease_items'")
	}
	all, heapOnly := updates()
	const renewals = 300
	for n := range renewals {
		must(t, h.Renew(t.Context()))
		if n%10 == 0 {
			must(t, h.Save(t.Context(), with(h, n)))
		}
	}
	allAfter, heapOnlyAfter := updates()
	if n := allAfter - all; n != renewals+renewals/10 || heapOnlyAfter-heapOnly != n {
		t.Errorf("of %d updates, %d are heap-only", n, heapOnlyAfter-heapOnly)
	}
}

// Handles

// itemsWork runs items through their lives on a handle: whatever the handle carries, it must behave as a clean one.
func itemsWork(t *testing.T, gdb *gorm.DB) {
	t.Helper()
	ctx := t.Context()
	var passed atomic.Int64
	now := func() time.Time { return noon.Add(time.Duration(passed.Load())) }
	claim := func(owner string, want error) *lease.Holder {
		t.Helper()
		h, err := lease.Claim(ctx, gdb, "life", owner, "s", time.Minute, now)
		if !errors.Is(err, want) {
			t.Fatalf("the claim of %s is %v", owner, err)
		}
		return h
	}
	must(t, lease.Create(ctx, gdb, lease.Item{Key: "life", Payload: payload(1)}))
	mustBe(t, lease.Create(ctx, gdb, lease.Item{Key: "life", Payload: payload(2)}), gorm.ErrDuplicatedKey)
	h := claim("A", nil)
	claim("B", lease.ErrHeld)
	passed.Store(int64(40 * time.Second))
	must(t, h.Renew(ctx))
	must(t, h.Save(ctx, with(h, 3)))
	passed.Store(int64(80 * time.Second))
	claim("B", lease.ErrHeld)
	is(t, h.Item(), 3)
	passed.Store(int64(100 * time.Second))
	next, err := lease.ClaimNext[lease.Item](ctx, gdb, "B", "s", time.Minute, now)
	must(t, err)
	if it := next.Item(); it.Key != "life" || it.Owner != "B" || it.Epoch != 2 || it.Attempts != 2 || !it.AcquiredAt.Equal(now()) || !next.Expired() {
		t.Errorf("ClaimNext is %s, Expired %v", shows(it), next.Expired())
	}
	is(t, next.Item(), 3)
	mustBe(t, h.Save(ctx, with(h, 4)), lease.ErrLost)
	mustBe(t, h.Release(ctx), lease.ErrLost)
	it := with(next, 5)
	it.Done = true
	must(t, next.Save(ctx, it, "payload"))
	must(t, next.Release(ctx))
	claim("A", lease.ErrDone)
	_, err = lease.ClaimNext[lease.Item](ctx, gdb, "A", "", time.Minute, now)
	mustBe(t, err, gorm.ErrRecordNotFound)
	it, _, err = lease.Load(ctx, gdb, "life")
	must(t, err)
	want := lease.Claimable{Epoch: 2, Revision: 4, AcquiredAt: now(), RenewedAt: now(), ExpiresAt: now(), Done: true}
	if string(it.Payload) != string(payload(5)) || it.Claimable != want {
		t.Errorf("in the end it is %s", shows(it))
	}
}

// strange is what a caller's handle may carry.
var strange = map[string]func(db *gorm.DB) *gorm.DB{
	"nothing":      func(db *gorm.DB) *gorm.DB { return db },
	"Where":        func(db *gorm.DB) *gorm.DB { return db.Where("1 = 0") },
	"Model":        func(db *gorm.DB) *gorm.DB { return db.Model(&lease.Record{}) },
	"Limit":        func(db *gorm.DB) *gorm.DB { return db.Limit(0).Offset(5) },
	"Table":        func(db *gorm.DB) *gorm.DB { return db.Table("strangers") },
	"Select":       func(db *gorm.DB) *gorm.DB { return db.Select("key") },
	"Omit":         func(db *gorm.DB) *gorm.DB { return db.Omit("payload", "claim_epoch", "Done") },
	"Joins, Group": func(db *gorm.DB) *gorm.DB { return db.Joins("JOIN strangers ON 1 = 0").Group("id").Having("1 = 0") },
	"Scopes":       func(db *gorm.DB) *gorm.DB { return db.Scopes(func(db *gorm.DB) *gorm.DB { return db.Where("1 = 0") }) },
	"Clauses": func(db *gorm.DB) *gorm.DB {
		return db.Clauses(clause.OnConflict{DoNothing: true}, clause.Returning{}, clause.Locking{Strength: "UPDATE"})
	},
	"Unscoped, Order": func(db *gorm.DB) *gorm.DB { return db.Unscoped().Order("nowhere").Distinct() },
	"Attrs, Assign":   func(db *gorm.DB) *gorm.DB { return db.Attrs("key", "x").Assign("claim_owner", "x") },
	"Raw":             func(db *gorm.DB) *gorm.DB { return db.Raw("SELECT 1") },
	"Preload":         func(db *gorm.DB) *gorm.DB { return db.Preload("Nothing") },
	"a sticky error": func(db *gorm.DB) *gorm.DB {
		tx := db.Session(&gorm.Session{})
		_ = tx.AddError(errors.New("sticky"))
		return tx
	},
	"a failed statement's error": func(db *gorm.DB) *gorm.DB { return db.Exec("nonsense") },
	"a cancelled context": func(db *gorm.DB) *gorm.DB {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return db.WithContext(ctx)
	},
	"PrepareStmt":            func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{PrepareStmt: true}) },
	"SkipDefaultTransaction": func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{SkipDefaultTransaction: true}) },
	"SkipHooks":              func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{SkipHooks: true}) },
	"every other setting": func(db *gorm.DB) *gorm.DB {
		return db.Session(&gorm.Session{
			NewDB: true, Initialized: true, DisableNestedTransaction: true, AllowGlobalUpdate: true,
			FullSaveAssociations: true, PropagateUnscoped: true, QueryFields: true, CreateBatchSize: 1,
		})
	},
	"PropagateUnscoped and Unscoped": func(db *gorm.DB) *gorm.DB { return db.Session(&gorm.Session{PropagateUnscoped: true}).Unscoped() },
}

func TestWhateverTheHandleCarriesItemsWorkAsOnACleanOne(t *testing.T) { // C24
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		for what, carry := range strange {
			t.Run(what, func(t *testing.T) {
				exec(t, gdb, "DELETE FROM lease_items")
				itemsWork(t, carry(db.Open(t)))
			})
		}
	})
}

func TestAPluginThatAddsConditionsDoesNotReachItems(t *testing.T) { // C24, as for leases
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		none := func(db *gorm.DB) { db.Where("tenant = 0") }
		must(t, gdb.Callback().Query().Before("gorm:query").Register("none", none))
		must(t, gdb.Callback().Row().Before("gorm:row").Register("none", none))
		must(t, gdb.Callback().Update().Before("gorm:update").Register("none", none))
		itemsWork(t, gdb)
	})
}

func TestWhateverTheConfigSaysItemsKeepToTheirTable(t *testing.T) { // C24, C26
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		for what, config := range map[string]*gorm.Config{
			"PrepareStmt":             {PrepareStmt: true},
			"SkipDefaultTransaction":  {SkipDefaultTransaction: true},
			"TranslateError":          {TranslateError: true},
			"a naming strategy":       {NamingStrategy: schema.NamingStrategy{TablePrefix: "app_", SingularTable: true, NameReplacer: strings.NewReplacer("e", "3")}},
			"a prefix with a schema":  {NamingStrategy: schema.NamingStrategy{TablePrefix: "infra.", NoLowerCase: true}},
			"CreateBatchSize and all": {CreateBatchSize: 1, QueryFields: true, FullSaveAssociations: true},
		} {
			t.Run(what, func(t *testing.T) {
				gdb := fresh(t, db, config)
				ensure(t, gdb)
				exec(t, gdb, "DELETE FROM lease_items")
				itemsWork(t, gdb)
				if names := tables(t, db.Open(t)); len(names) != 2 {
					t.Errorf("the tables are %q", names)
				}
			})
		}
	})
}

func TestItemsWorkOnOneConnection(t *testing.T) { // C34, C35
	for _, prepare := range []bool{false, true} {
		t.Run(fmt.Sprintf("PrepareStmt %v", prepare), func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := db.Open(t, &gorm.Config{PrepareStmt: prepare})
				pool(t, gdb).SetMaxOpenConns(1)
				ensure(t, gdb)
				itemsWork(t, gdb)
				must(t, gdb.Connection(func(conn *gorm.DB) error {
					exec(t, conn, "DELETE FROM lease_items")
					itemsWork(t, conn)
					return nil
				}))
			})
		})
	}
}

func TestItemsWorkInAnotherProtocolOrSessionOfPostgres(t *testing.T) { // C33
	db := dbtest.Postgres(t)
	fresh(t, db)
	for _, param := range []string{
		"default_query_exec_mode=simple_protocol", "default_query_exec_mode=exec", "default_query_exec_mode=describe_exec",
		"DateStyle=German", "IntervalStyle=sql_standard", "standard_conforming_strings=off", "timezone=Asia/Tokyo",
		"default_transaction_isolation=serializable", "synchronous_commit=off", "search_path=public,pg_catalog",
	} {
		t.Run(param, func(t *testing.T) {
			gdb := db.OpenDSN(t, db.DSNVia("", param))
			exec(t, gdb, "DELETE FROM lease_items")
			itemsWork(t, gdb)
		})
	}
}

func TestOtherTablesAreOtherItems(t *testing.T) { // C26, C82
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		run(t, db, "CREATE TABLE lease_items (tenant varchar(20));\nINSERT INTO lease_items VALUES ('Smith')")
		gdb := db.Open(t)
		prefixes := []string{"app_", "x"}
		if db.Backend == dbtest.BackendPostgres {
			exec(t, gdb, "CREATE SCHEMA infra")
			prefixes = append(prefixes, "infra.", "infra.app_", "public.b_")
		} else {
			prefixes = append(prefixes, "main.b_")
		}
		for _, prefix := range prefixes {
			mine := lease.Tables(gdb, prefix)
			ensure(t, mine)
			itemsWork(t, mine)
		}
		for _, prefix := range prefixes {
			mine := lease.Tables(gdb, prefix)
			must(t, lease.Create(t.Context(), mine, lease.Item{Key: "item"}))
			h, err := lease.Claim(t.Context(), mine, "item", "A", "", time.Minute, nil)
			must(t, err)
			must(t, h.Run(t.Context(), func(ctx context.Context) error {
				return lease.Transaction(ctx, gdb, func(tx *gorm.DB) error { return h.SaveIn(tx, with(h, 1)) }) // wherever the claim was made
			}))
			it, _, err := lease.Load(t.Context(), mine, "item")
			must(t, err)
			is(t, it, 1)
		}
		if _, err := lease.Claim(t.Context(), gdb, "item", "A", "", time.Minute, nil); err == nil || errors.Is(err, lease.ErrHeld) {
			t.Errorf("a claim in the stranger's table is %v", err)
		}
		if tenant := ask[string](t, gdb, "SELECT * FROM lease_items"); tenant != "Smith" {
			t.Errorf("the stranger's table has %q", tenant)
		}
	})
}

func TestAMissingTableIsAnErrorThatTellsTheWayOut(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		_, claimErr := lease.Claim(t.Context(), gdb, "item", "A", "", time.Minute, nil)
		_, nextErr := lease.ClaimNext[lease.Item](t.Context(), gdb, "A", "", time.Minute, nil)
		_, _, loadErr := lease.Load(t.Context(), gdb, "item")
		for call, err := range map[string]error{
			"Claim": claimErr, "ClaimNext": nextErr, "Load": loadErr, "Create": lease.Create(t.Context(), gdb, lease.Item{Key: "item"}),
		} {
			if err == nil || !strings.Contains(err.Error(), "EnsureSchema") || errors.Is(err, gorm.ErrRecordNotFound) {
				t.Errorf("%s: %v", call, err)
			}
		}
	})
}

func TestAFailingStatementIsNeitherARefusalNorALoss(t *testing.T) { // C27, C44
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db))
		gdb, spy := spied(t, db)
		w.gdb = gdb
		h, failure := w.claim(t, "A"), errors.New("the network is down")
		for verb, calls := range map[string]map[string]func() error{
			"SELECT": {
				"Claim": func() error { _, err := w.try(t, "B"); return err },
				"Load":  func() error { _, _, err := lease.Load(t.Context(), gdb, "item"); return err },
			},
			"UPDATE": {
				"Claim":   func() error { _, err := w.try(t, "A"); return err },
				"Renew":   func() error { return h.Renew(t.Context()) },
				"Save":    func() error { return h.Save(t.Context(), with(h, 1)) },
				"Release": func() error { return h.Release(t.Context()) },
			},
			"": {"ClaimNext": func() error {
				_, err := lease.ClaimNext[lease.Item](t.Context(), gdb, "B", "", time.Minute, nil)
				return err
			}},
		} {
			spy.fail = func(query string) error {
				if strings.HasPrefix(query, verb) {
					return failure
				}
				return nil
			}
			for call, fails := range calls {
				err := fails()
				for _, wrong := range []error{lease.ErrHeld, lease.ErrLost, lease.ErrDone, gorm.ErrRecordNotFound} {
					if !errors.Is(err, failure) || errors.Is(err, wrong) {
						t.Errorf("%s: %v", call, err)
					}
				}
			}
		}
		spy.fail = nil
		must(t, h.Renew(t.Context()))
		must(t, h.Save(t.Context(), with(h, 2)))
		must(t, h.Release(t.Context()))
	})
}

func TestClaimsLogNothingThroughGORM(t *testing.T) { // C27
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		fresh(t, db)
		var lines lockedBuffer
		gdb := db.Open(t, &gorm.Config{Logger: logger.New(&lines, logger.Config{LogLevel: logger.Info, SlowThreshold: 1})})
		lines.take()
		itemsWork(t, gdb)
		_, _, err := lease.Load(t.Context(), gdb, "nothing")
		mustBe(t, err, gorm.ErrRecordNotFound)
		if logged := lines.take(); logged != "" {
			t.Errorf("logged: %s", logged)
		}
		exec(t, gdb, "SELECT 1")
		if lines.take() == "" {
			t.Error("the logger records nothing, so this test checks nothing")
		}
	})
}

// A lockedBuffer is what GORM's logger writes to.
type lockedBuffer struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (b *lockedBuffer) Printf(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintf(&b.text, format+"\n", args...)
}

// take returns what was written since the last call.
func (b *lockedBuffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return b.text.String()
}
