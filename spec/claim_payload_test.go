package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

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

func TestAPayloadIsGoodOnEveryDatabaseOrOnNone(t *testing.T) {
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

func TestACharacterIsEscapedInEitherCaseAndByBothOfItsHalves(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		if err := lease.EnsureSchema(gdb); err != nil {
			t.Fatal(err)
		}
		for payload, valid := range map[string]bool{
			`"\ud83d\ude00"`: true, `"\uD83D\uDE00"`: true, `"\udabc\udc00"`: true, `"\uDABC\uDFFF"`: true, `"\uDBFF\udfff"`: true,
			`"\ud83d"`: false, `"\uD83D"`: false, `"\ude00"`: false, `"\uDE00"`: false, `"\uDFFF\uDBFF"`: false, `"\udc00"`: false,
			`"\ud83d\\\ude00"`: false, `"\ud83d\ud83d\ude00\ude00"`: false, `"\\\ude00"`: false, `"\\ude00"`: true,
		} {
			err := lease.Create(t.Context(), gdb, lease.Item{Key: payload, Payload: json.RawMessage(payload)})
			if valid && err != nil || !valid && !errors.Is(err, lease.ErrInvalid) {
				t.Errorf("%s: %v", payload, err)
			}
		}
	})
}

func TestAnItemOfGORMsHasAPayloadThatIsNull(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		must(t, lease.EnsureSchema(gdb))
		must(t, gdb.Create(&lease.Item{Key: "k"}).Error)
		it, _, err := lease.Load(t.Context(), gdb, "k")
		if err != nil || string(it.Payload) != "null" {
			t.Errorf("written without one: %q, %v", it.Payload, err)
		}
		var none lease.Item
		if err := gdb.Raw("SELECT 'k' AS key, NULL AS payload").Scan(&none).Error; err != nil || string(none.Payload) != "null" {
			t.Errorf("read where there is none, as an outer join does: %q, %v", none.Payload, err)
		}
	})
}
