package lease

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
)

var update = flag.Bool("update", false, "rewrite the golden files of statements")

// The golden files show every statement as the package sends it, for whoever
// reads SQL, and for reviews of a change. After one:
//
//	go test -run TestTheStatementsAreTheGoldenOnes -update .
func TestTheStatementsAreTheGoldenOnes(t *testing.T) {
	type Job struct {
		ID        uint
		Tenant    string
		DeletedAt gorm.DeletedAt
		Claimable
	}
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		jobs, err := openItems[Job](gdb)
		if err != nil {
			t.Fatal(err)
		}
		items, err := openItems[Item](gdb)
		if err != nil {
			t.Fatal(err)
		}
		next, err := jobs.next(jobs.dry(t.Context(), jobs.pool), jobs.sql.peekNext, nil)
		if err != nil {
			t.Fatal(err)
		}
		next.Statement.Vars = []any{nil}
		if err := jobs.build(next); err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		text.WriteString(`-- Every statement that the package sends, as it is sent. The first parameter is the
-- caller's time, or NULL for the database's clock (but of seed, find and save).
`)
		show := func(name, sql string) { fmt.Fprintf(&text, "\n-- %s\n%s;\n", name, sql) }
		s := jobs.statements
		show("a lease: poll", s.poll)
		show("a lease: list", s.list)
		show("a lease: seed the row of a lease that has none", s.seed)
		show("a lease: take it, by hand (the last parameter is NULL) or as an elector", s.take)
		show("a lease: renew it, as an elector", s.renew)
		show("a lease: renew it by hand, as it was seen", s.renewSeen)
		show("a lease: release it by hand", s.releaseHeld)
		show("a lease: release a term", s.releaseTerm)
		show("a lease: fence a term", s.fence)
		j := jobs.sql
		show("a row of a model: find", j.find)
		show("a row of a model: look before a claim", j.peek)
		show("a row of a model: claim it, as it was seen", j.take)
		show("a row of a model: look for the next", next.Statement.SQL.String())
		if jobs.dialect.skipLocked {
			claimed, _, err := jobs.composeNext(t.Context(), jobs.pool, nil, nil, "A", "", int64(1))
			if err != nil {
				t.Fatal(err)
			}
			show("a row of a model: claim the next", claimed)
		}
		show("a row of a model: renew a claim", j.renew)
		show("a row of a model: release a claim", j.release)
		show("a row of a model: fence a claim", j.fence)
		if items.dialect.skipLocked {
			show("an item: claim the next", items.sql.takeFirst)
		}
		show("an item: save", items.sql.save)
		show("an item: save in a transaction", items.sql.saveIn)
		golden := filepath.Join("testdata", "statements."+db.Backend+".sql")
		if *update {
			if err := os.WriteFile(golden, []byte(text.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if text.String() != string(want) {
			t.Errorf("the statements are not those of %s; read what has changed, and rewrite it with -update:\n%s", golden, text.String())
		}
	})
}
