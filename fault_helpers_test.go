//go:build unix

package lease

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

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

// A stint is one time in which a work could trust its term, as the work itself saw it.
type stint struct {
	holder string
	epoch  int64
	begun  time.Time
	ended  time.Time // zero while it goes on
	cause  error
}

// A ledger notes every stint of one lease. At the end of its test it checks the promise: no two at once, and epochs that grow.
type ledger struct {
	t *testing.T

	mu     sync.Mutex // guards stints and what they point to
	stints []*stint
}

func newLedger(t *testing.T) *ledger {
	l := &ledger{t: t}
	t.Cleanup(l.check)
	return l
}

func (l *ledger) begin(s *stint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stints = append(l.stints, s)
}

// end notes the first end of a stint.
func (l *ledger) end(s *stint, at time.Time, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.ended.IsZero() {
		s.ended, s.cause = at, cause
	}
}

// of returns copies of a holder's stints, in order.
func (l *ledger) of(holder string) (stints []stint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.stints {
		if s.holder == holder {
			stints = append(stints, *s)
		}
	}
	return stints
}

func (l *ledger) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortFunc(l.stints, func(a, b *stint) int { return a.begun.Compare(b.begun) })
	for i, s := range l.stints {
		if s.ended.IsZero() {
			l.t.Errorf("%s's work in term %d has not ended", s.holder, s.epoch)
		}
		for _, before := range l.stints[:i] {
			if before.epoch >= s.epoch {
				l.t.Errorf("after %s's term %d, %s's has the epoch %d", before.holder, before.epoch, s.holder, s.epoch)
			}
			if before.ended.After(s.begun) {
				l.t.Errorf("%s trusts its term %d until %v after %s began to trust term %d",
					before.holder, before.epoch, before.ended.Sub(s.begun), s.holder, s.epoch)
			}
		}
	}
}

// A contender is an elector whose work writes into a ledger.
type contender struct {
	*Elector
	t      *testing.T
	ledger *ledger
	log    *logBook
	stop   context.CancelFunc
	done   chan struct{} // closed when Run has returned
}

// start lets a holder campaign for the lease "job" until the test ends; nil is work that waits for its context's end.
func (l *ledger) start(gdb *gorm.DB, holder string, ttl time.Duration, work func(context.Context)) *contender {
	if work == nil {
		work = untilCancelled
	}
	log := &logBook{}
	c := &contender{
		Elector: &Elector{DB: gdb, Name: "job", Holder: holder, TTL: ttl, Logger: slog.New(log)},
		t:       l.t, ledger: l, log: log, done: make(chan struct{}),
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	go func() {
		defer close(c.done)
		if err := c.Run(ctx, func(ctx context.Context) { l.enter(ctx, holder, work) }); err != nil {
			l.t.Errorf("%s: %v", holder, err)
		}
	}()
	l.t.Cleanup(func() {
		stop()
		c.returns(30 * time.Second)
	})
	return c
}

// enter runs work, as a stint.
func (l *ledger) enter(ctx context.Context, holder string, work func(context.Context)) {
	term, ok := TermFrom(ctx)
	if !ok || term.Holder != holder {
		l.t.Errorf("%s's work has a context with %v", holder, term)
	}
	if s := (&stint{holder: holder, epoch: term.Epoch, begun: time.Now()}); ctx.Err() == nil {
		l.begin(s)
		end := func() { l.end(s, time.Now(), context.Cause(ctx)) }
		defer end()
		defer context.AfterFunc(ctx, end)()
	}
	work(ctx)
}

// returns waits until Run has, and says how long that took.
func (c *contender) returns(limit time.Duration) time.Duration {
	c.t.Helper()
	begin := time.Now()
	select {
	case <-c.done:
	case <-time.After(limit):
		c.t.Errorf("%s: Run has not returned after %v", c.Holder, limit)
	}
	return time.Since(begin)
}

// leads waits until the contender does, and returns its term.
func (c *contender) leads(limit time.Duration) (term Term) {
	c.t.Helper()
	within(c.t, limit, c.Holder+" leads", func() (ok bool) {
		term, ok = c.Term()
		return ok && len(c.ledger.of(c.Holder)) > 0 && c.stint().epoch == term.Epoch
	})
	return term
}

// stint is the contender's last one.
func (c *contender) stint() stint {
	c.t.Helper()
	stints := c.ledger.of(c.Holder)
	if len(stints) == 0 {
		c.t.Fatalf("%s has never led", c.Holder)
	}
	return stints[len(stints)-1]
}

// ends waits until the stint of an epoch is over, and returns it.
func (c *contender) ends(epoch int64, limit time.Duration) (s stint) {
	c.t.Helper()
	within(c.t, limit, fmt.Sprintf("%s's work in term %d is cancelled", c.Holder, epoch), func() bool {
		i := slices.IndexFunc(c.ledger.of(c.Holder), func(s stint) bool { return s.epoch == epoch })
		if i >= 0 {
			s = c.ledger.of(c.Holder)[i]
		}
		return !s.ended.IsZero()
	})
	return s
}

// keeps watches for a while that the contender goes on leading in a term.
func (c *contender) keeps(term Term, d time.Duration) {
	c.t.Helper()
	still := time.NewTicker(5 * time.Millisecond)
	defer still.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-still.C {
		if now, ok := c.Term(); !ok || now.Epoch != term.Epoch {
			c.t.Fatalf("%s leads no more in term %d; its stints are %+v; it logged\n%v", c.Holder, term.Epoch, c.ledger.of(c.Holder), c.log)
		}
	}
}

// renews waits for a renewal, and returns the row after it.
func (c *contender) renews(gdb *gorm.DB) Status {
	c.t.Helper()
	before := job(c.t, gdb)
	var after Status
	within(c.t, 10*time.Second, c.Holder+" renews", func() bool {
		after = job(c.t, gdb)
		return after.RenewedAt.After(before.RenewedAt)
	})
	return after
}

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

// withTable returns a handle with a pool of its own on db, with the schema made.
func withTable(t *testing.T, db *dbtest.Database, opts ...gorm.Option) *gorm.DB {
	t.Helper()
	gdb := db.Open(t, opts...)
	if err := EnsureSchema(gdb); err != nil {
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

// job is the lease of all these tests, as the database's clock sees it.
func job(t *testing.T, gdb *gorm.DB) Status {
	t.Helper()
	s, err := Find(context.Background(), gdb, "job")
	if err != nil {
		t.Fatal(err)
	}
	return s
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

// A process is a replica in a process of its own: this test binary, running TestReplicaInAProcessOfItsOwn.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	holder string
	exited chan struct{}

	mu    sync.Mutex // guards lines
	lines []string
}

const processEnv = "LEASE_TEST_REPLICA"

// startProcess starts a replica on a Postgres database. It notes its stints in l, unless it is to be frozen: then it cannot tell when its trust ends.
func startProcess(t *testing.T, l *ledger, db *dbtest.Database, mode, holder string, ttl time.Duration) *process {
	t.Helper()
	p := &process{t: t, holder: holder, exited: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0], "-test.run=^TestReplicaInAProcessOfItsOwn$", "-test.count=1", "-test.timeout=5m")
	p.cmd.Env = append(os.Environ(), processEnv+"="+strings.Join([]string{mode, holder, ttl.String(), db.DSN}, "\n"))
	p.cmd.Dir = filepath.Dir(os.Args[0])
	p.cmd.Stderr = os.Stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(stdout, l)
	t.Cleanup(p.end)
	return p
}

func (p *process) read(stdout io.Reader, l *ledger) {
	defer close(p.exited)
	stints := map[int64]*stint{}
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		var what string
		var epoch, nanos int64
		if n, _ := fmt.Sscanf(lines.Text(), "%s %d %d", &what, &epoch, &nanos); n == 3 && l != nil {
			switch at := time.Unix(0, nanos); what {
			case "begin":
				stints[epoch] = &stint{holder: p.holder, epoch: epoch, begun: at}
				l.begin(stints[epoch])
			case "end":
				l.end(stints[epoch], at, nil)
			}
		}
		p.mu.Lock()
		p.lines = append(p.lines, lines.Text())
		p.mu.Unlock()
	}
}

// says waits for a line that begins so, and returns the rest of it.
func (p *process) says(what string, limit time.Duration) (rest string) {
	p.t.Helper()
	within(p.t, limit, p.holder+" says "+what, func() (found bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, line := range p.lines {
			if after, ok := strings.CutPrefix(line, what+" "); ok {
				rest, found = after, true
			}
		}
		return found
	})
	return rest
}

// end lets the process end, and kills it if it does not.
func (p *process) end() {
	p.stdin.Close()
	select {
	case <-p.exited:
	case <-time.After(20 * time.Second):
		p.t.Errorf("the process of %s does not end", p.holder)
		p.cmd.Process.Kill()
	}
	<-p.exited
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the process of %s: %v\n%s", p.holder, err, strings.Join(p.lines, "\n"))
	}
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

// TestReplicaInAProcessOfItsOwn is no test but what startProcess starts: it campaigns until its standard input ends.
func TestReplicaInAProcessOfItsOwn(t *testing.T) {
	args := strings.SplitN(os.Getenv(processEnv), "\n", 4)
	if len(args) < 4 {
		return
	}
	mode, holder, db := args[0], args[1], &dbtest.Database{Backend: dbtest.BackendPostgres, DSN: args[3]}
	ttl, err := time.ParseDuration(args[2])
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		defer stop()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	gdb := db.Open(t, &gorm.Config{DisableAutomaticPing: true})
	e := &Elector{DB: gdb, Name: "job", Holder: holder, TTL: ttl, Logger: slog.New(slog.DiscardHandler)}
	err = e.Run(ctx, func(ctx context.Context) {
		term, _ := TermFrom(ctx)
		// The end is noted before the work returns, so before a release.
		fmt.Println("begin", term.Epoch, time.Now().UnixNano())
		end := sync.OnceFunc(func() { fmt.Println("end", term.Epoch, time.Now().UnixNano()) })
		defer end()
		defer context.AfterFunc(ctx, end)()
		if mode != "" && term.Epoch == 1 {
			trusted := time.Now()
			err := Transaction(ctx, gdb, func(tx *gorm.DB) error {
				if err := tx.Exec("INSERT INTO notes (n) VALUES (1)").Error; err != nil {
					return err
				}
				look := func() (goOn bool) {
					now := time.Now()
					if goOn = e.IsLeader(); goOn {
						trusted = now
					}
					return goOn
				}
				if mode == "reading" {
					return readOn(tx, func() { fmt.Println("fenced now") }, look)
				}
				fmt.Println("fenced now")
				for look() {
				}
				return nil
			})
			fmt.Println("trusted until", trusted.UnixNano())
			fmt.Println("committed", err == nil, "lost", errors.Is(err, ErrLost), "error", strings.ReplaceAll(fmt.Sprint(err), "\n", "; "))
		}
		<-ctx.Done()
	})
	if err != nil {
		t.Fatal(err)
	}
}
