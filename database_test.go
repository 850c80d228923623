package lease

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/sqllease/lease/internal/dbtest"
)

// within asks for a state that somebody else reaches, and tells nobody.
func within(t *testing.T, limit time.Duration, what string, reached func() bool) {
	t.Helper()
	look := time.NewTicker(3 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(limit); !reached(); <-look.C {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// withSchema opens a handle on a fresh database, and makes the schema.
func withSchema(t testing.TB, db *dbtest.Database, opts ...gorm.Option) *gorm.DB {
	t.Helper()
	gdb := db.Open(t, opts...)
	if err := EnsureSchema(gdb); err != nil {
		t.Fatal(err)
	}
	return gdb
}

// opened is what the package uses of a handle.
func opened(t testing.TB, db *gorm.DB) *handle {
	t.Helper()
	h, err := open("db", db)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// look reads the lease "job" by the clock of the caller; a zero now is the
// database's.
func (h *handle) look(t *testing.T, now time.Time) sighting {
	t.Helper()
	s, err := h.poll(t.Context(), "job", now)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// onOtherTables runs a specification on the default table and, beside a stranger's table of that name, on others.
func onOtherTables(t *testing.T, spec func(t *testing.T, db *gorm.DB, table string)) {
	dbtest.Run(t, func(t *testing.T, database *dbtest.Database) {
		for _, prefix := range []string{"", "app_", "infra."} {
			if prefix == "infra." && database.Backend != dbtest.BackendPostgres {
				continue
			}
			t.Run(prefix+"leases", func(t *testing.T) {
				db := database.Open(t)
				stranger := []string{"DROP TABLE IF EXISTS leases", "CREATE TABLE leases (tenant TEXT)", "INSERT INTO leases VALUES ('Smith')"}
				switch prefix {
				case "":
					stranger = stranger[:1]
				case "infra.":
					stranger = append(stranger, "CREATE SCHEMA infra")
				}
				for _, sql := range stranger {
					if err := db.Exec(sql).Error; err != nil {
						t.Fatal(err)
					}
				}
				mine := Tables(db, prefix)
				for range 2 {
					if err := EnsureSchema(mine); err != nil {
						t.Fatal(err)
					}
				}
				spec(t, mine, prefix+"leases")
				var tenants []string
				if prefix != "" && (db.Table("leases").Pluck("tenant", &tenants).Error != nil || len(tenants) != 1) {
					t.Errorf("the stranger's table became %v", tenants)
				}
			})
		}
	})
}

// onSQLite runs a test of a claim of a real row in a bubble, by the bubble's clock.
func onSQLite(t *testing.T, test func(t *testing.T, db *gorm.DB, h *Holder)) {
	synctest.Test(t, func(t *testing.T) {
		db := withSchema(t, dbtest.SQLite(t))
		if err := Create(t.Context(), db, Item{Key: "item", Payload: []byte("0")}); err != nil {
			t.Fatal(err)
		}
		h, err := Claim(t.Context(), db, "item", "A", "step", T, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		test(t, db, h)
	})
}

// A recorder is a connection pool that notes the statements that pass through it.
// One goroutine uses it.
type recorder struct {
	*sql.DB
	statements []recorded
}

// A recorded is a statement with its arguments as the driver gets them.
type recorded struct {
	text string
	args []any
	sent instant
}

// recording opens a handle on the pool that goes through a recorder.
func recording(t testing.TB, database *dbtest.Database, pool *sql.DB) (*gorm.DB, *recorder) {
	t.Helper()
	r := &recorder{DB: pool}
	dialector := sqlite.New(sqlite.Config{Conn: r})
	if database.Backend == dbtest.BackendPostgres {
		dialector = postgres.New(postgres.Config{Conn: r})
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	return db, r
}

func (r *recorder) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	r.note(query, args)
	return r.DB.ExecContext(ctx, query, args...)
}

func (r *recorder) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	r.note(query, args)
	return r.DB.QueryContext(ctx, query, args...)
}

func (r *recorder) note(query string, args []any) {
	s := recorded{text: query, args: slices.Clone(args), sent: machineClock()}
	for i, arg := range args {
		if v, ok := arg.(driver.Valuer); ok {
			s.args[i], _ = v.Value()
		}
	}
	r.statements = append(r.statements, s)
}

// last returns the last statement with a verb.
func (r *recorder) last(verb string) recorded {
	for _, s := range slices.Backward(r.statements) {
		if strings.Contains(s.text, verb) {
			return s
		}
	}
	return recorded{}
}

// replace puts another argument wherever one stands.
func (s recorded) replace(arg, by any) {
	for i, a := range s.args {
		if a == arg {
			s.args[i] = by
		}
	}
}
