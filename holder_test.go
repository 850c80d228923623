package lease

import (
	"context"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestAClaimIsOverByWhatItsRowSays(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb, now := withSchema(t, db), time.Now().Truncate(time.Microsecond)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for name, tc := range map[string]struct {
			change string
			clock  time.Duration
			over   bool
		}{
			"in force":                              {"UPDATE lease_items SET claim_epoch = claim_epoch", time.Minute - time.Microsecond, false},
			"in another epoch":                      {"UPDATE lease_items SET claim_epoch = 2", 0, true},
			"another owner's":                       {"UPDATE lease_items SET claim_owner = 'B'", 0, true},
			"run out":                               {"UPDATE lease_items SET claim_epoch = claim_epoch", time.Minute, true},
			"deleted":                               {"DELETE FROM lease_items", 0, true},
			"of which the database will not say it": {"DROP TABLE lease_items", 0, false},
		} {
			for ctxIs, ctx := range map[string]context.Context{"alive": t.Context(), "ended": ended} {
				clock := now
				if err := Create(t.Context(), gdb, Item{Key: "k"}); err != nil {
					t.Fatal(err)
				}
				h, err := Claim(t.Context(), gdb, "k", "A", "", time.Minute, func() time.Time { return clock })
				if err != nil {
					t.Fatal(err)
				}
				if err := gdb.Exec(tc.change).Error; err != nil {
					t.Fatal(err)
				}
				clock = now.Add(tc.clock)
				if over := h.over(ctx, nil); over != tc.over {
					t.Errorf("%s, in a context that is %s: over is %v", name, ctxIs, over)
				}
				if err := EnsureSchema(gdb); err != nil {
					t.Fatal(err)
				}
				if err := gdb.Exec("DELETE FROM lease_items").Error; err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

func TestTheTrustInAClaimCountsFromItsSending(t *testing.T) {
	for how, claim := range map[string]func(ctx context.Context, db *gorm.DB) (*Holder, error){
		"Claim": func(ctx context.Context, db *gorm.DB) (*Holder, error) {
			return Claim(ctx, db, "k", "A", "", time.Minute, nil)
		},
		"ClaimNext": func(ctx context.Context, db *gorm.DB) (*Holder, error) {
			return ClaimNext[Item](ctx, db, "A", "", time.Minute, nil)
		},
	} {
		t.Run(how, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				withSchema(t, db)
				gdb, statements := recording(t, db, db.SQL(t))
				if err := Create(t.Context(), gdb, Item{Key: "k"}); err != nil {
					t.Fatal(err)
				}
				h, err := claim(t.Context(), gdb)
				if err != nil {
					t.Fatal(err)
				}
				if late := h.life.sent.mono - statements.last("UPDATE ").sent.mono; late > 0 {
					t.Errorf("it counts from %v after the statement was sent", late)
				}
			})
		})
	}
}
