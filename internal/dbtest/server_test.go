//go:build linux

package dbtest

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestAServerKeepsItsDataAndPortOverEveryWayToEndIt(t *testing.T) {
	s := NewServer(t)
	db := s.Database(t)
	addr := s.Addr()
	pool := db.SQL(t)
	mustExec(t, pool, "CREATE TABLE ends (how text)")
	ends := map[string]func(){
		"fast":      func() { s.Stop(t, "fast") },
		"immediate": func() { s.Stop(t, "immediate") },
		"smart":     func() { pool.Close(); s.Stop(t, "smart") },
		"kill":      func() { s.Kill(t) },
		"frozen":    func() { s.Freeze(t); s.Kill(t) },
	}
	for how, end := range ends {
		mustExec(t, pool, "INSERT INTO ends VALUES ('"+how+"')")
		end()
		if err := db.SQL(t).Ping(); err == nil {
			t.Fatalf("after %s the server answers", how)
		}
		if left := processesIn(s.cluster.dir); len(left) > 0 {
			t.Fatalf("after %s these processes are left: %v", how, left)
		}
		s.Start(t)
		pool = db.SQL(t)
	}
	var n int
	if err := pool.QueryRow("SELECT count(*) FROM ends").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != len(ends) || s.Addr() != addr || db.Addr() != addr {
		t.Fatalf("%d rows of %d survived; address %s, was %s", n, len(ends), s.Addr(), addr)
	}
}

func TestAFrozenServerAnswersOnceThawed(t *testing.T) {
	s := NewServer(t)
	pool := s.Database(t).SQL(t)
	conn, err := pool.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s.Freeze(t)
	reply := make(chan error, 1)
	go func() {
		_, err := conn.ExecContext(context.Background(), "SELECT 1")
		reply <- err
	}()
	for _, pid := range processesIn(s.cluster.dir) {
		if !standsStill(pid) {
			t.Fatalf("process %d runs", pid)
		}
	}
	select {
	case err := <-reply:
		t.Fatalf("a frozen server answered: %v", err)
	default:
	}
	s.Thaw(t)
	if err := <-reply; err != nil {
		t.Fatal(err)
	}
}

func TestTheClockStepsAtOnceInAnOpenSession(t *testing.T) {
	s := NewServer(t, WithFakeClock())
	db := s.Database(t)
	open := db.SQL(t)
	open.SetMaxOpenConns(1)
	for _, offset := range []time.Duration{
		0, 16 * time.Second, -time.Hour, 500 * time.Millisecond, 24 * time.Hour, -1500 * time.Millisecond, 0,
	} {
		s.SetClock(t, offset)
		for name, pool := range map[string]*sql.DB{"an open session": open, "a new session": db.SQL(t)} {
			clockIsAhead(t, pool, name, offset)
		}
	}
	mustExec(t, open, "CREATE TABLE healthy (id integer)")
	s.SetClock(t, -time.Hour)
	s.Kill(t)
	s.Start(t)
	mustExec(t, db.SQL(t), "INSERT INTO healthy VALUES (1)")
	clockIsAhead(t, db.SQL(t), "a session after a restart", -time.Hour)
}

// clockIsAhead fails the test unless the server's clock, as a session reads it,
// is ahead of the machine's by offset.
func clockIsAhead(t *testing.T, pool *sql.DB, session string, offset time.Duration) {
	t.Helper()
	const precision = time.Millisecond
	earliest := time.Now().Add(offset - precision)
	var got time.Time
	if err := pool.QueryRow("SELECT clock_timestamp()").Scan(&got); err != nil {
		t.Fatal(err)
	}
	latest := time.Now().Add(offset + precision)
	if got.Before(earliest) || got.After(latest) {
		t.Errorf("with the clock at %v %s reads %v, want it between %v and %v", offset, session, got, earliest, latest)
	}
}

func TestMeasuredTimesIgnoreTheClock(t *testing.T) {
	s := NewServer(t, WithFakeClock())
	conn, err := s.Database(t).SQL(t).Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := context.Background()
	if _, err := conn.ExecContext(ctx, "SET statement_timeout = '1min'"); err != nil {
		t.Fatal(err)
	}
	for _, offset := range []time.Duration{time.Hour, -time.Hour} {
		s.SetClock(t, offset)
		if _, err := conn.ExecContext(ctx, "SELECT pg_sleep(0.05)"); err != nil {
			t.Fatalf("after a step to %v: %v", offset, err)
		}
	}
}

func TestTheGoroutineOfARunningServerHasAName(t *testing.T) {
	NewServer(t)
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	if !strings.Contains(string(stacks), ServerGoroutine+"(") {
		t.Fatalf("no %s among\n%s", ServerGoroutine, stacks)
	}
}

func TestSettingsReachTheServer(t *testing.T) {
	s := NewServer(t, WithSetting("synchronous_commit", "off"), WithSetting("log_line_prefix", "it's %m "))
	s.Exec(t, "CREATE ROLE app LOGIN; CREATE ROLE other LOGIN")
	pool := s.Database(t).SQL(t)
	for name, want := range map[string]string{"synchronous_commit": "off", "log_line_prefix": "it's %m "} {
		if got := show(t, pool, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
}

func TestAServerThatDoesNotStartSaysWhy(t *testing.T) {
	bin, ok := findBinaries()
	if !ok {
		missing(t, howToGetServer)
	}
	c, err := newCluster(bin, "broken", []setting{{"no_such_setting", "1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.remove()
	if err := c.start(); err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Fatalf("start: %v", err)
	}
}

func TestATakenPortIsAnotherTry(t *testing.T) {
	taken := NewServer(t)
	bin, _ := findBinaries()
	c, err := newCluster(bin, "late", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.remove()
	c.port = taken.cluster.port
	if err := c.startOnPort(); !errors.Is(err, errPortTaken) {
		t.Fatalf("start on a taken port: %v", err)
	}
	taken.Exec(t, "SELECT 1")
}

func mustExec(t *testing.T, pool *sql.DB, statement string) {
	t.Helper()
	if _, err := pool.Exec(statement); err != nil {
		t.Fatal(err)
	}
}

func show(t *testing.T, pool *sql.DB, name string) (value string) {
	t.Helper()
	if err := pool.QueryRow("SHOW " + name).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}
