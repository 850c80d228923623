package dbtest

import (
	"syscall"
	"testing"
)

// Server is a private Postgres server for a test that breaks it. It lives as
// long as the test it was made for and is used by one goroutine at a time.
//
// It is up or down. Start takes it from down to up; Stop and Kill from up to
// down. While it is up it may be frozen: Freeze and Thaw. Every method fails its
// test when the server is not in the state it needs.
type Server struct {
	cluster *cluster
	clock   string // the file that holds the clock's offset; "" without a fake clock
	frozen  bool
}

// An Option of NewServer.
type Option func(*options)

type options struct {
	settings  []setting
	fakeClock bool
}

// WithSetting sets a parameter of the server's configuration, such as
// synchronous_commit to off.
func WithSetting(name, value string) Option {
	return func(o *options) { o.settings = append(o.settings, setting{name, value}) }
}

// NewServer starts a private server and returns when it answers. Without
// Postgres binaries on this machine it skips t, or fails it if
// LEASE_REQUIRE_POSTGRES=1.
func NewServer(t testing.TB, opts ...Option) *Server {
	t.Helper()
	requireMain(t)
	// What the operating system has been given survives every death of the
	// server that a test can bring about, so there is nothing to wait for.
	o := options{settings: []setting{{"fsync", "off"}}}
	for _, opt := range opts {
		opt(&o)
	}
	bin, ok := findBinaries()
	if !ok {
		missing(t, howToGetServer)
	}
	s := &Server{}
	var env []string
	if o.fakeClock {
		env = s.fakeClock(t)
	}
	var err error
	if s.cluster, err = newCluster(bin, "private", o.settings, env); err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	t.Cleanup(func() {
		if s.frozen {
			s.Kill(t)
		}
		if err := s.cluster.remove(); err != nil {
			t.Errorf("dbtest: remove the server: %v", err)
		}
	})
	s.Start(t)
	return s
}

// Start starts a server that is down, on the same port and data directory, and
// returns when it answers. After Kill, or Stop with "immediate", it recovers
// first.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	if s.cluster.proc != nil {
		t.Fatal("dbtest: Start: the server is up")
	}
	if err := s.cluster.start(); err != nil {
		t.Fatalf("dbtest: start the server: %v", err)
	}
}

// Stop stops the server and returns when it is down. The mode is one of
// Postgres' own: "smart" waits for clients to leave, "fast" rolls back and
// disconnects them, "immediate" ends at once and leaves recovery to the next
// start.
func (s *Server) Stop(t testing.TB, mode string) {
	t.Helper()
	s.needsRunning(t, "Stop")
	sig, ok := map[string]syscall.Signal{
		"smart":     syscall.SIGTERM,
		"fast":      syscall.SIGINT,
		"immediate": syscall.SIGQUIT,
	}[mode]
	if !ok {
		t.Fatalf("dbtest: Stop: mode %q is not smart, fast or immediate", mode)
	}
	if err := s.cluster.stop(sig); err != nil {
		t.Fatalf("dbtest: stop the server (%s): %v", mode, err)
	}
}

// Restart is Stop and Start.
func (s *Server) Restart(t testing.TB, mode string) {
	t.Helper()
	s.Stop(t, mode)
	s.Start(t)
}

// Kill ends every process of the server with SIGKILL, frozen or not, and
// returns when they are gone.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	if s.cluster.proc == nil {
		t.Fatal("dbtest: Kill: the server is down; Start it first")
	}
	if err := s.cluster.kill(); err != nil {
		t.Fatalf("dbtest: kill the server: %v", err)
	}
	s.frozen = false
}

// Freeze stops every process of the server where it stands and returns when
// they stand still: connections stay open, and nothing answers.
func (s *Server) Freeze(t testing.TB) {
	t.Helper()
	s.needsRunning(t, "Freeze")
	s.frozen = true
	if err := s.cluster.proc.freeze(s.cluster.dir); err != nil {
		t.Fatalf("dbtest: freeze the server: %v", err)
	}
}

// Thaw lets a frozen server go on.
func (s *Server) Thaw(t testing.TB) {
	t.Helper()
	if !s.frozen {
		t.Fatal("dbtest: Thaw: the server is not frozen")
	}
	if err := s.cluster.proc.thaw(s.cluster.dir); err != nil {
		t.Fatalf("dbtest: thaw the server: %v", err)
	}
	s.frozen = false
}

// Addr returns host:port of the server, the same over all starts.
func (s *Server) Addr() string { return s.cluster.addr() }

// Database creates a fresh database in the server.
func (s *Server) Database(t testing.TB) *Database {
	t.Helper()
	s.needsRunning(t, "Database")
	// Not dropped: the whole server goes when its test ends.
	d, _, err := createDatabase(s.cluster.dsn())
	if err != nil {
		t.Fatalf("dbtest: create a database: %v", s.cluster.explain(err))
	}
	return d
}

// Exec runs SQL statements as superuser, in the database postgres.
func (s *Server) Exec(t testing.TB, sql string) {
	t.Helper()
	s.needsRunning(t, "Exec")
	if err := execOn(s.cluster.dsn(), sql); err != nil {
		t.Fatalf("dbtest: %s: %v", sql, err)
	}
}

func (s *Server) needsRunning(t testing.TB, method string) {
	t.Helper()
	switch {
	case s.cluster.proc == nil:
		t.Fatalf("dbtest: %s: the server is down; Start it first", method)
	case s.frozen:
		t.Fatalf("dbtest: %s: the server is frozen; Thaw it first", method)
	}
}
