package dbtest

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
)

// inMain is true while Main runs the tests; without Main nobody would take the
// servers down.
var inMain atomic.Bool

// handedOut counts the Postgres databases given to tests, skipped the tests
// that asked for one in vain.
var handedOut, skipped atomic.Int64

// ServerGoroutine is the function of the one goroutine per running server that
// outlives a test, for a leak check within a test:
//
//	goleak.VerifyNone(t, goleak.IgnoreAnyFunction(dbtest.ServerGoroutine))
const ServerGoroutine = "github.com/sqllease/lease/internal/dbtest.(*process).run"

// Run runs spec as the subtests "sqlite" and "postgres", each on a fresh
// database. The postgres subtest is skipped when there is no Postgres.
func Run(t *testing.T, spec func(t *testing.T, db *Database)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { spec(t, SQLite(t)) })
	t.Run("postgres", func(t *testing.T) { spec(t, Postgres(t)) })
}

// Main runs the tests of m and returns the exit code for os.Exit. Afterwards it
// takes down every server that this test binary started, removes what they left
// on disk, and prints one line that says how many Postgres databases were
// handed out to tests, or that Postgres tests were skipped and how to get one.
func Main(m *testing.M) int {
	inMain.Store(true)
	code := m.Run()
	inMain.Store(false)
	if err := takeDown(); err != nil {
		fmt.Fprintf(os.Stderr, "dbtest: taking down Postgres: %v\n", err)
		code = max(code, 1)
	}
	line := summary(handedOut.Load(), skipped.Load(), origin())
	fmt.Println(line)
	if handedOut.Load()+skipped.Load() > 0 {
		tellTerminal(line)
	}
	return code
}

// tellTerminal shows the line to whoever sits at the terminal, since "go test
// ./..." shows nobody what a passing package prints.
func tellTerminal(line string) {
	if info, err := os.Stdout.Stat(); err != nil || info.Mode()&os.ModeCharDevice != 0 {
		return // it was seen already
	}
	tty, err := os.OpenFile("/dev/tty", os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer tty.Close()
	fmt.Fprintln(tty, line)
}

// summary is the line that Main prints.
func summary(handedOut, skipped int64, origin string) string {
	switch {
	case handedOut > 0 && skipped > 0:
		return fmt.Sprintf("dbtest: %d Postgres databases handed out (%s), %d tests skipped", handedOut, origin, skipped)
	case handedOut > 0:
		return fmt.Sprintf("dbtest: %d Postgres databases handed out (%s)", handedOut, origin)
	case skipped > 0:
		return fmt.Sprintf("dbtest: %d Postgres tests skipped: %s", skipped, howToGetPostgres)
	default:
		return "dbtest: no test asked for Postgres"
	}
}

// requireMain fails a test whose package has no TestMain.
func requireMain(t testing.TB) {
	t.Helper()
	if !inMain.Load() {
		t.Fatal("dbtest: this package lacks: func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }")
	}
}
