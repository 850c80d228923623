package spec

import (
	"testing"

	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestATermIsNeverCommittedAsynchronously(t *testing.T) {
	for session, want := range map[string]string{
		"off": "on", "on": "on", "local": "local", "remote_write": "remote_write", "remote_apply": "remote_apply",
	} {
		t.Run(session, func(t *testing.T) {
			db := dbtest.Postgres(t)
			gdb := fresh(t, &dbtest.Database{Backend: db.Backend, DSN: db.DSNVia("", "synchronous_commit="+session)})
			pool(t, gdb).SetMaxOpenConns(1)
			is := func(what string, tx *gorm.DB, want string) {
				t.Helper()
				if got := ask[string](t, tx, "SHOW synchronous_commit"); got != want {
					t.Errorf("%s synchronous_commit is %s, not %s", what, got, want)
				}
			}
			for _, what := range []string{"after a takeover", "after a renewal"} {
				tx := gdb.Begin()
				is("before it,", tx, session)
				granted(t, tx, "A", noon)
				is(what, tx, want)
				if err := tx.Commit().Error; err != nil {
					t.Fatal(err)
				}
				is("after the commit", gdb, session)
			}
			tx := gdb.Begin()
			defer tx.Rollback()
			refused(t, tx, "B", noon)
			is("after a refusal", tx, session)
		})
	}
}
