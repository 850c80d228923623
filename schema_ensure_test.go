package lease

import (
	"strings"
	"testing"
	"time"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestOnlyANameThatIsUniqueByItselfMakesTheTableOurs(t *testing.T) {
	db := dbtest.Postgres(t).Open(t)
	const columns = `name text NOT NULL, holder text NOT NULL DEFAULT '', epoch bigint NOT NULL DEFAULT 0,
		expires_at bigint NOT NULL DEFAULT 0, acquired_at bigint NOT NULL DEFAULT 0, renewed_at bigint NOT NULL DEFAULT 0`
	for name, tc := range map[string]struct {
		more, index string
		ours        bool
	}{
		"its own primary key":            {"", "CREATE UNIQUE INDEX ON leases (name)", true},
		"unique among some rows only":    {"", "CREATE UNIQUE INDEX ON leases (name) WHERE holder <> ''", false},
		"unique with another column":     {"", "CREATE UNIQUE INDEX ON leases (name, epoch)", false},
		"not unique":                     {"", "CREATE INDEX ON leases (name)", false},
		"unique beside an identity":      {", id bigint GENERATED ALWAYS AS IDENTITY", "CREATE UNIQUE INDEX ON leases (name)", true},
		"unique with an included column": {"", "CREATE UNIQUE INDEX ON leases (name) INCLUDE (holder)", true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, statement := range []string{"DROP TABLE IF EXISTS leases", "CREATE TABLE leases (" + columns + tc.more + ")", tc.index} {
				if err := db.Exec(statement).Error; err != nil {
					t.Fatal(err)
				}
			}
			err := EnsureSchema(db)
			if (err == nil) != tc.ours {
				t.Errorf("the error is %v", err)
			}
			if ok, err := TryAcquire(t.Context(), db, "job", "A", time.Minute, time.Time{}); tc.ours && (err != nil || !ok) {
				t.Errorf("TryAcquire: %v, %v", ok, err)
			}
		})
	}
}

func TestALockedTableInACallersTransactionIsTheirsToHear(t *testing.T) {
	db := withSchema(t, dbtest.Postgres(t))
	if err := db.Exec("ALTER TABLE leases DROP COLUMN renewed_at").Error; err != nil {
		t.Fatal(err)
	}
	other := db.Begin()
	defer other.Rollback()
	if err := other.Exec("LOCK TABLE leases IN ACCESS SHARE MODE").Error; err != nil {
		t.Fatal(err)
	}
	tx := db.Begin()
	defer tx.Rollback()
	if err := tx.Exec("SET LOCAL lock_timeout = '50ms'").Error; err != nil {
		t.Fatal(err)
	}
	err := EnsureSchema(tx)
	if !states("55P03")(err) || !strings.Contains(err.Error(), "ALTER TABLE ") { // not 25P02, which a second attempt would give
		t.Errorf("the error is %v", err)
	}
}
