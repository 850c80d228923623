//go:build unix

package faults

import (
	"context"
	"database/sql"
	"flag"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/faultproxy"
)

// The tests of real faults mostly wait for a TTL to pass, so many of them run at once, whatever the number of processors.
// A -parallel on the command line still counts.
func init() {
	testing.Init()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
}

// noise is how late a goroutine may have its turn on a busy machine.
const noise = 250 * time.Millisecond

// within asks for a state that somebody else reaches, and tells nobody.
func within(t *testing.T, limit time.Duration, what string, reached func() bool) {
	t.Helper()
	look := time.NewTicker(3 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(limit); !reached(); <-look.C {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// lasts lets a fault last.
func lasts(until time.Time) { <-time.After(time.Until(until)) }

// withTable returns a handle with a pool of its own on db, with the schema made.
func withTable(t *testing.T, db *dbtest.Database, opts ...gorm.Option) *gorm.DB {
	t.Helper()
	gdb := db.Open(t, opts...)
	if err := lease.EnsureSchema(gdb); err != nil {
		t.Fatal(err)
	}
	return gdb
}

// behind returns a proxy before db's server, and a handle with a pool of its own that leads through it.
func behind(t *testing.T, db *dbtest.Database) (*faultproxy.Proxy, *gorm.DB) {
	t.Helper()
	proxy := faultproxy.New(t, db.Addr())
	return proxy, db.OpenDSN(t, db.DSNVia(proxy.Addr()))
}

// poolOf is the pool behind a handle.
func poolOf(t *testing.T, gdb *gorm.DB) *sql.DB {
	t.Helper()
	pool, err := gdb.DB()
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// warm lets a pool have n idle connections. It uses each twice, for the driver pings one at its second use, and then not within a second.
func warm(t *testing.T, pool *sql.DB, n int) {
	t.Helper()
	pool.SetMaxIdleConns(n)
	for range 2 {
		var conns []*sql.Conn
		for range n {
			conn, err := pool.Conn(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
		}
		for _, conn := range conns {
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// mustExec runs the test's own SQL.
func mustExec(t *testing.T, gdb *gorm.DB, sql string, args ...any) {
	t.Helper()
	if err := gdb.Exec(sql, args...).Error; err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// number asks the test's own question.
func number(t *testing.T, gdb *gorm.DB, sql string, args ...any) (n int64) {
	t.Helper()
	if err := gdb.Raw(sql, args...).Row().Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// lockWaiters counts the sessions that wait for a lock in gdb's database.
func lockWaiters(t *testing.T, gdb *gorm.DB) int64 {
	t.Helper()
	return number(t, gdb, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
}

// A blocker is a session of somebody else's, in a transaction.
type blocker struct {
	t    *testing.T
	conn *sql.Conn
	once sync.Once
}

// block opens a transaction with the first statement, and runs the others in it. It ends with the test, if not before.
func block(t *testing.T, db *dbtest.Database, statements ...string) *blocker {
	t.Helper()
	conn, err := db.SQL(t).Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	b := &blocker{t: t, conn: conn}
	for _, sql := range statements {
		b.exec(sql)
	}
	t.Cleanup(func() { b.end("ROLLBACK") })
	return b
}

func (b *blocker) exec(sql string) {
	b.t.Helper()
	if _, err := b.conn.ExecContext(context.Background(), sql); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// end commits, or rolls back, and leaves.
func (b *blocker) end(how string) {
	b.t.Helper()
	b.once.Do(func() {
		b.exec(how)
		if err := b.conn.Close(); err != nil {
			b.t.Error(err)
		}
	})
}

// readOn reads a result of several gigabytes for as long as it may. It calls
// begun after the first row.
func readOn(tx *gorm.DB, begun func(), goOn func() bool) error {
	rows, err := tx.Raw("SELECT repeat('x', 10000) FROM generate_series(1, 1000) AS a, generate_series(1, 1000) AS b").Rows()
	if err != nil {
		return err
	}
	defer rows.Close()
	begun = sync.OnceFunc(begun)
	for rows.Next() && goOn() {
		begun()
	}
	return rows.Err()
}

// sendsInVain waits until a client that reads reads no more.
func sendsInVain(t *testing.T, gdb *gorm.DB) {
	t.Helper()
	within(t, 5*time.Second, "the server waits for its client to read", func() bool {
		return number(t, gdb, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND wait_event = 'ClientWrite'") == 1
	})
}

// A logBook keeps what an elector logs.
type logBook struct {
	mu      sync.Mutex // guards records
	records []slog.Record
	attrs   []slog.Attr
	parent  *logBook
}

func (b *logBook) Enabled(context.Context, slog.Level) bool { return true }
func (b *logBook) WithGroup(string) slog.Handler            { return b }
func (b *logBook) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logBook{parent: b.root(), attrs: append(slices.Clone(b.attrs), attrs...)}
}

func (b *logBook) root() *logBook {
	if b.parent != nil {
		return b.parent
	}
	return b
}

func (b *logBook) Handle(_ context.Context, r slog.Record) error {
	r = r.Clone()
	r.AddAttrs(b.attrs...)
	root := b.root()
	root.mu.Lock()
	defer root.mu.Unlock()
	root.records = append(root.records, r)
	return nil
}

// A logLine is one line, with when it was written.
type logLine struct {
	at   time.Time
	text string
}

func (b *logBook) lines() (lines []logLine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.records {
		var text strings.Builder
		if err := slog.NewTextHandler(&text, nil).Handle(context.Background(), r); err != nil {
			panic(err)
		}
		lines = append(lines, logLine{r.Time, strings.TrimSpace(text.String())})
	}
	return lines
}

func (b *logBook) String() string {
	var s strings.Builder
	for _, line := range b.lines() {
		s.WriteString("\t" + line.text + "\n")
	}
	return s.String()
}

// saying returns the lines that contain a text.
func (b *logBook) saying(text string) []logLine {
	return slices.DeleteFunc(b.lines(), func(l logLine) bool { return !strings.Contains(l.text, text) })
}
