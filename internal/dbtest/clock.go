package dbtest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// WithFakeClock lets the test step the server's clock with SetClock. It needs
// libfaketime; without it NewServer skips its test, or fails it if
// LEASE_REQUIRE_POSTGRES=1.
func WithFakeClock() Option {
	return func(o *options) { o.fakeClock = true }
}

// SetClock sets the server's clock to the machine's plus offset, which may be
// negative. The clock has stepped when SetClock returns: the next statement
// reads the new time, in sessions that are open already too. What the server
// measures rather than reads (such as statement_timeout) is not affected.
func (s *Server) SetClock(t testing.TB, offset time.Duration) {
	t.Helper()
	if s.clock == "" {
		t.Fatal("dbtest: SetClock: the server was made without WithFakeClock")
	}
	if err := writeClock(s.clock, offset); err != nil {
		t.Fatalf("dbtest: set the server's clock: %v", err)
	}
}

// fakeClock makes the clock's file and returns the environment that makes a
// server follow it.
func (s *Server) fakeClock(t testing.TB) []string {
	t.Helper()
	lib, ok := findFaketime()
	if !ok {
		missing(t, howToGetFakeClock)
	}
	dir, err := clockDir()
	if err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s.clock = filepath.Join(dir, "clock")
	if err := writeClock(s.clock, 0); err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	return []string{
		"LD_PRELOAD=" + lib,
		"FAKETIME_TIMESTAMP_FILE=" + s.clock,
		"FAKETIME_NO_CACHE=1", // read the file at every look at the clock
		"FAKETIME_DONT_FAKE_MONOTONIC=1",
		"NO_FAKE_STAT=1", // times of files stay true
	}
}

func findFaketime() (string, bool) {
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[0], true
		}
	}
	return "", false
}

// clockDir makes a directory that servers can read.
func clockDir() (string, error) {
	base, err := rootDir()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(base, "clock-")
	if err != nil {
		return "", err
	}
	return dir, root.as.own(dir)
}

// writeClock replaces the file in one step, so that no process reads half of it.
func writeClock(file string, offset time.Duration) error {
	s := strconv.FormatFloat(offset.Seconds(), 'f', -1, 64)
	if offset >= 0 {
		s = "+" + s
	}
	err := os.WriteFile(file+".new", []byte(s+"s\n"), 0o644)
	return errors.Join(err, os.Rename(file+".new", file))
}

// HasFakeClock says whether WithFakeClock can be had.
func HasFakeClock() bool {
	_, ok := findFaketime()
	return ok
}
