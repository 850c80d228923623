package spec

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/leasetest"
)

func TestNamesAndHoldersAreCheckedBeforeAnySQL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		fresh(t, db)
		gdb, spy := spied(t, db)
		long := func(n int) string { return strings.Repeat("ü", n) }
		for what, bad := range map[string]struct{ name, holder string }{
			"no name":                       {"", "A"},
			"a name of 101":                 {long(101), "A"},
			"a name of 100 and two spaces":  {long(100) + "  ", "A"},
			"a name with a NUL":             {"jo\x00b", "A"},
			"a name that is not UTF-8":      {"jo\xffb", "A"},
			"no holder":                     {"job", ""},
			"a holder of 201":               {"job", long(201)},
			"a holder of 200 and a space":   {"job", long(200) + " "},
			"a holder with a NUL":           {"job", "\x00"},
			"a holder that is cut in UTF-8": {"job", "ü"[:1]},
		} {
			ok, err := lease.TryAcquire(t.Context(), gdb, bad.name, bad.holder, time.Minute, noon)
			if ok || !errors.Is(err, lease.ErrInvalid) {
				t.Errorf("%s: TryAcquire is %v, %v", what, ok, err)
			}
			if err := lease.Release(t.Context(), gdb, bad.name, bad.holder, noon); !errors.Is(err, lease.ErrInvalid) {
				t.Errorf("%s: Release is %v", what, err)
			}
			if bad.holder == "A" {
				if _, err := lease.Find(t.Context(), gdb, bad.name); !errors.Is(err, lease.ErrInvalid) {
					t.Errorf("%s: Find is %v", what, err)
				}
			}
		}
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
		for _, ok := range []struct{ name, holder string }{{long(100), long(200)}, {strings.Repeat("🔒", 100), strings.Repeat("🔑", 200)}} {
			if won, err := lease.TryAcquire(t.Context(), gdb, ok.name, ok.holder, time.Minute, noon); !won || err != nil {
				t.Errorf("the longest name and holder: %v, %v", won, err)
			}
			if s := find(t, gdb, ok.name); s.Name != ok.name || s.Holder != ok.holder {
				t.Errorf("they read %v", s)
			}
		}
	})
}

func TestATTLMustBePositive(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		for _, ttl := range []time.Duration{0, -1, -time.Minute, math.MinInt64} {
			ok, err := lease.TryAcquire(t.Context(), gdb, "job", "A", ttl, noon)
			if ok || !errors.Is(err, lease.ErrInvalid) {
				t.Errorf("ttl %v: %v, %v", ttl, ok, err)
			}
		}
		if n := leasetest.Ask[int](t, gdb, "SELECT count(*) FROM leases"); n != 0 {
			t.Errorf("there are %d rows", n)
		}
	})
}

func TestATinyTTLIsGrantedAndSoonOver(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		now := noon
		for i, ttl := range []time.Duration{1, 2, 999, time.Microsecond} {
			if ok, err := lease.TryAcquire(t.Context(), gdb, "job", fmt.Sprint(i), ttl, now); !ok || err != nil {
				t.Fatalf("ttl %v: %v, %v", ttl, ok, err)
			}
			now = now.Add(time.Microsecond)
		}
	})
}

func TestAHugeTTLDoesNotWrapAround(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		for _, now := range []time.Time{databasesClock, noon, time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)} {
			exec(t, gdb, "DELETE FROM leases")
			for range 2 { // acquire, then renew
				if ok, err := lease.TryAcquire(t.Context(), gdb, "job", "A", math.MaxInt64, now); !ok || err != nil {
					t.Fatalf("%v, %v", ok, err)
				}
			}
			refused(t, gdb, "B", now)
			if !now.IsZero() && now.Year() < 9000 {
				refused(t, gdb, "B", now.AddDate(290, 0, 0))
				granted(t, gdb, "B", now.AddDate(293, 0, 0))
			}
		}
	})
}

func TestATimeThatMicrosecondsDoNotHoldIsInvalid(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		for _, now := range []time.Time{time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(math.MaxInt64/4, 0)} {
			_, err := lease.TryAcquire(t.Context(), gdb, "job", "A", time.Minute, now)
			mustBe(t, err, lease.ErrInvalid)
			mustBe(t, lease.Release(t.Context(), gdb, "job", "A", now), lease.ErrInvalid)
		}
	})
}

func TestAClockMayStartAtTheUnixEpoch(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		start := time.Unix(0, 0)
		granted(t, gdb, "A", start)
		refused(t, gdb, "B", start)
		granted(t, gdb, "A", start)
		refused(t, gdb, "B", start.Add(time.Minute-time.Microsecond))
		granted(t, gdb, "B", start.Add(time.Minute))
	})
}
