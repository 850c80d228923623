package dbtest

import (
	"os"
	"testing"
)

const (
	howToGetPostgres = "no Postgres: install its server (Debian: apt-get install postgresql), start Docker," +
		" or set LEASE_TEST_POSTGRES to the DSN of a server in which databases may be created"
	howToGetServer = "no Postgres binaries (initdb, postgres) to run a private server from:" +
		" on Linux, install the server (Debian: apt-get install postgresql)"
	howToGetFakeClock = "no libfaketime to step the server's clock with: apt-get install libfaketime"
)

// missing ends a test for want of something: skipped, or failed if
// LEASE_REQUIRE_POSTGRES=1.
func missing(t testing.TB, how string) {
	t.Helper()
	if required() {
		t.Fatalf("dbtest: LEASE_REQUIRE_POSTGRES=1, but %s", how)
	}
	skipped.Add(1)
	t.Skipf("dbtest: %s", how)
}

func required() bool {
	switch os.Getenv("LEASE_REQUIRE_POSTGRES") {
	case "", "0", "false":
		return false
	}
	return true
}
