package spec

import (
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// A uid is a key that is neither a number nor a string.
type uid [4]byte

func (u uid) Value() (driver.Value, error) { return hex.EncodeToString(u[:]), nil }
func (uid) GormDataType() string           { return "text" }

func (u *uid) Scan(v any) error {
	_, err := hex.Decode(u[:], []byte(fmt.Sprintf("%s", v)))
	return err
}

type code string

type (
	byUint struct {
		ID   uint
		Name string
		lease.Claimable
	}
	byString struct {
		Code string `gorm:"primaryKey;size:50"`
		Name string
		lease.Claimable
	}
	byNamedString struct {
		ID   code
		Name string
		lease.Claimable
	}
	byUID struct {
		ID   uid `gorm:"primaryKey"`
		Name string
		lease.Claimable
	}
	byNumber struct {
		No   int64 `gorm:"primaryKey;autoIncrement:false;column:Number Of It"`
		Name string
		lease.Claimable
	}
	byBase struct {
		Base
		Name string
	}
	Base struct {
		ID uint
		lease.Claimable
	}
	odd struct {
		ID    uint
		Name  string
		Group string `gorm:"column:order"`
		Now   string `gorm:"column:now"`
		Key   string `gorm:"column:lease_key"`
		C     string `gorm:"column:c"`
		Quest string `gorm:"column:what is Ünïcode"`
		lease.Claimable
	}
)

func TestAKeyMayBeOfAnyType(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Run("uint", func(t *testing.T) { keyed(t, db, byUint{ID: 3}, uint(3), uint(4)) })
		t.Run("uint given as int", func(t *testing.T) { keyed(t, db, byUint{ID: 3}, 3, 4) })
		t.Run("string", func(t *testing.T) { keyed(t, db, byString{Code: "a'b"}, "a'b", "a") })
		t.Run("a named string", func(t *testing.T) { keyed(t, db, byNamedString{ID: "x"}, code("x"), code("y")) })
		t.Run("one with Value and Scan", func(t *testing.T) { keyed(t, db, byUID{ID: uid{1, 2, 3, 4}}, uid{1, 2, 3, 4}, uid{4, 3, 2, 1}) })
		t.Run("a column with spaces", func(t *testing.T) { keyed(t, db, byNumber{No: 5}, int64(5), int64(6)) })
		t.Run("zero", func(t *testing.T) { keyed(t, db, byNumber{No: 0}, int64(0), int64(6)) })
		t.Run("in a base", func(t *testing.T) { keyed(t, db, byBase{Base: Base{ID: 3}}, uint(3), uint(4)) })
		t.Run("odd columns", func(t *testing.T) {
			keyed(t, db, odd{ID: 3, Group: "g", Now: "n", Key: "k", C: "c", Quest: "?"}, uint(3), uint(4))
		})
	})
}

func TestAKeyOfTheWrongKindIsInvalidBeforeAnySQL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb, spy := spied(t, db)
		for _, key := range []any{"abc", struct{}{}, []int{1}, nil, (*uint)(nil)} {
			_, err := lease.ClaimAs[byUint](t.Context(), gdb, key, "A", "", time.Minute, nil)
			mustBe(t, err, lease.ErrInvalid)
			if !strings.Contains(err.Error(), "key is ") {
				t.Errorf("%#v: %v", key, err)
			}
		}
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
	})
}

func TestAKeyThatIsChangedInsideACopySavesNoOtherRow(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, byBytes{ID: []byte("aa")})
		must(t, gdb.Create(&byBytes{ID: []byte("bb")}).Error)
		h, err := lease.ClaimAs[byBytes](t.Context(), gdb, []byte("aa"), "A", "", time.Minute, nil)
		must(t, err)
		_, err = lease.ClaimAs[byBytes](t.Context(), gdb, []byte("bb"), "A", "", time.Minute, nil) // so that nothing but the key tells them apart
		must(t, err)
		it := h.Item()
		copy(it.ID, "bb")
		it.Text = "elsewhere"
		mustBe(t, h.Save(t.Context(), it), lease.ErrInvalid)
		must(t, h.Save(t.Context(), byBytes{Text: "here"}))
		must(t, h.Renew(t.Context()))
		if a, b := ask[string](t, gdb, "SELECT text FROM by_bytes WHERE id = ?", []byte("aa")), ask[string](t, gdb, "SELECT text FROM by_bytes WHERE id = ?", []byte("bb")); a != "here" || b != "" {
			t.Errorf("the rows say %q and %q", a, b)
		}
	})
}

type byTime struct {
	ID   time.Time `gorm:"primaryKey"`
	Text string
	lease.Claimable
}

func TestAKeyThatIsATimeIsTheSameInAnyZone(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, byTime{ID: noon})
		h, err := lease.ClaimAs[byTime](t.Context(), gdb, noon, "A", "", time.Minute, nil)
		must(t, err)
		must(t, h.Save(t.Context(), h.Item()))
		for _, at := range []time.Time{noon, noon.Local(), noon.In(time.FixedZone("Graz", 3600))} {
			must(t, h.Save(t.Context(), byTime{ID: at, Text: at.String()}))
			if text := ask[string](t, gdb, "SELECT text FROM by_times"); text != at.String() {
				t.Errorf("the row says %q, not %q", text, at)
			}
		}
		mustBe(t, h.Save(t.Context(), byTime{ID: noon.Add(time.Second)}), lease.ErrInvalid)
	})
}

// An outspoken row's key is not what it was, once it is found.
type outspoken struct {
	ID   string
	Text string
	lease.Claimable
}

func (o *outspoken) AfterFind(*gorm.DB) error {
	o.ID, o.Claimable = strings.ToUpper(o.ID), lease.Claimable{}
	return nil
}

func TestAnAfterFindThatChangesTheKeyLosesNoClaim(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, outspoken{ID: "a"})
		for i, claim := range []func() (*lease.HolderOf[outspoken], error){
			func() (*lease.HolderOf[outspoken], error) {
				return lease.ClaimAs[outspoken](t.Context(), gdb, "a", "A", "", time.Minute, nil)
			},
			func() (*lease.HolderOf[outspoken], error) {
				return lease.ClaimNext[outspoken](t.Context(), gdb, "A", "", time.Minute, nil)
			},
		} {
			h, err := claim()
			must(t, err)
			must(t, h.Renew(t.Context()))
			text := fmt.Sprint("saved ", i)
			must(t, h.Save(t.Context(), outspoken{Text: text}))
			must(t, h.Release(t.Context()))
			if n := ask[int](t, gdb, "SELECT count(*) FROM outspokens WHERE claim_owner = '' AND text = ? AND claim_epoch = ?", text, i+1); n != 1 || h.Epoch() != int64(i+1) {
				t.Errorf("claim %d is %+v, and its row is not as it should be", i+1, h.Item())
			}
		}
	})
}

func TestAKeyMayBeBytes(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, byBytes{ID: []byte("key")})
		h, err := lease.ClaimAs[byBytes](t.Context(), gdb, []byte("key"), "A", "", time.Minute, nil)
		must(t, err)
		it := h.Item()
		it.Text = "saved"
		must(t, h.Save(t.Context(), it))
		mustBe(t, h.Save(t.Context(), byBytes{ID: []byte("other")}), lease.ErrInvalid)
		must(t, h.Release(t.Context()))
		if text := ask[string](t, gdb, "SELECT text FROM by_bytes WHERE claim_owner = ''"); text != "saved" {
			t.Errorf("the row says %q", text)
		}
	})
}

type pointedTo struct {
	ID   *int64 `gorm:"primaryKey;autoIncrement:false"`
	Text string
	lease.Claimable
}

func TestAClaimIsOfTheRowThatItClaimedWhateverBecomesOfAPointerToItsKey(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		one, two := int64(1), int64(2)
		gdb := withRow(t, db, pointedTo{ID: &one})
		must(t, gdb.Create(&pointedTo{ID: &two}).Error)
		_, err := lease.ClaimAs[pointedTo](t.Context(), gdb, (*int64)(nil), "A", "", time.Minute, nil)
		mustBe(t, err, lease.ErrInvalid)
		h, err := lease.ClaimAs[pointedTo](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		it := h.Item()
		*it.ID, it.Text = 2, "elsewhere"
		mustBe(t, h.Save(t.Context(), it), lease.ErrInvalid)
		must(t, h.Save(t.Context(), pointedTo{Text: "here"}))
		must(t, h.Renew(t.Context()))
		if n := ask[int](t, gdb, "SELECT count(*) FROM pointed_tos WHERE id = 1 AND text = 'here' OR id = 2 AND text = ''"); n != 2 {
			t.Errorf("%d rows are as they should be", n)
		}
	})
}

type renamesItself struct {
	ID   int64 `gorm:"primaryKey;autoIncrement:false"`
	Text string
	lease.Claimable
}

func (r *renamesItself) BeforeUpdate(*gorm.DB) error {
	r.ID = 77
	return nil
}

func TestAHookThatChangesTheKeyIsInvalidAndCostsNoClaim(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, renamesItself{ID: 1})
		h, err := lease.ClaimAs[renamesItself](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		mustBe(t, h.Save(t.Context(), h.Item()), lease.ErrInvalid)
		must(t, h.Renew(t.Context()))
	})
}

func TestAHookThatChangesTheKeyAndFailsIsToldByItsOwnError(t *testing.T) {
	failure := errors.New("out of paper")
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		h := claimHooked(t, withHooks(t, db), "A")
		ctx := hookedBy(t, func(_ string, h *hooked, _ *gorm.DB) error {
			h.ID = 77
			return failure
		})
		err := h.Save(ctx, h.Item())
		if !errors.Is(err, failure) || errors.Is(err, lease.ErrInvalid) {
			t.Errorf("the error is %v", err)
		}
		must(t, h.Save(t.Context(), h.Item()))
	})
}
