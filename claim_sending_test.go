package lease

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/sqllease/lease/internal/dbtest"
)

// A timed pool notes when the last UPDATE was sent.
type timed struct {
	*sql.DB
	updated instant
}

func (p *timed) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if strings.Contains(query, "UPDATE ") {
		p.updated = machineClock()
	}
	return p.DB.QueryContext(ctx, query, args...)
}

func TestTheTrustInAClaimCountsFromItsSending(t *testing.T) { // C36
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
				pool := &timed{DB: db.SQL(t)}
				dialector := sqlite.New(sqlite.Config{Conn: pool})
				if db.Backend == dbtest.BackendPostgres {
					dialector = postgres.New(postgres.Config{Conn: pool})
				}
				gdb, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
				if err != nil {
					t.Fatal(err)
				}
				if err := EnsureSchema(db.Open(t)); err != nil {
					t.Fatal(err)
				}
				if err := Create(t.Context(), gdb, Item{Key: "k"}); err != nil {
					t.Fatal(err)
				}
				h, err := claim(t.Context(), gdb)
				if err != nil {
					t.Fatal(err)
				}
				if late := h.life.sent.mono - pool.updated.mono; late > 0 {
					t.Errorf("it counts from %v after the statement was sent", late)
				}
			})
		})
	}
}
