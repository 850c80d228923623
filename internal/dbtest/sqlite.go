package dbtest

import (
	"path/filepath"
	"testing"
)

// SQLite returns a fresh database in a file of its own in t's temporary
// directory, in WAL mode and with a busy timeout of five seconds.
func SQLite(t testing.TB) *Database {
	t.Helper()
	file := filepath.Join(t.TempDir(), "lease.db")
	return &Database{
		Backend: BackendSQLite,
		DSN:     file + "?_journal_mode=WAL&_busy_timeout=5000",
	}
}
