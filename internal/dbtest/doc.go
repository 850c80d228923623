// Package dbtest gives a test a fresh database on each backend.
//
// A test package that uses it hands its TestMain over:
//
//	func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }
//
// and then writes one specification for every database:
//
//	func TestALeaseIsHeldByOne(t *testing.T) {
//		dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
//			gdb := db.Open(t)
//			…
//		})
//	}
//
// SQLite is a file in the test's temporary directory. Postgres comes from the
// first of these that can be had, once per test binary and only when a test
// asks for it:
//
//  1. the server that LEASE_TEST_POSTGRES, a DSN, points to; fresh databases
//     are created in it and dropped again;
//  2. a throwaway server from the machine's own binaries (Linux only), in
//     /dev/shm if there is room, in /tmp, or where TMPDIR says;
//  3. the postgres service of the repository's docker-compose.yml.
//
// Without any of them a test that needs Postgres is skipped with a line that
// says how to get one, or fails with that line if LEASE_REQUIRE_POSTGRES=1.
//
// Tests that break their server (stop it, kill it, freeze it, step its clock)
// get a private one from [NewServer].
package dbtest
