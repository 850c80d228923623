package dbtest

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestEachBackendGetsAFreshDatabase(t *testing.T) {
	for range 2 {
		Run(t, func(t *testing.T, db *Database) {
			gdb := db.Open(t)
			if err := gdb.Exec("CREATE TABLE things (id integer)").Error; err != nil {
				t.Fatal(err)
			}
			if gdb.Dialector.Name() != db.Backend {
				t.Fatalf("dialect %s, backend %s", gdb.Dialector.Name(), db.Backend)
			}
		})
	}
}
