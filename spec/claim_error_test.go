package spec

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

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

func TestAFailingStatementIsNeitherARefusalNorALoss(t *testing.T) {
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

func TestAnErrorNamesAKeyOfBytesAsText(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		_, err := lease.ClaimAs[lease.Item](t.Context(), db.Open(t), []byte("b\x01"), "A", "", 0, nil)
		if want := `lease: claim "b\x01": `; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v does not begin with %s", err, want)
		}
	})
}
