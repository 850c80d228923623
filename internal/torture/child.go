package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/sqllease/lease/internal/torture/history"
)

// childEnv makes the program a child, and carries the child's settings.
const childEnv = "LEASE_TORTURE_CHILD"

// settings are the conductor's settings for a child.
type settings struct {
	Role    string // "replica", "worker" or "client"
	Name    string // "r1"
	Life    int    // counts the processes of that name
	Holder  string // of a replica. Several may share a holder
	Dir     string // for the record
	Backend string
	DSN     string
	Direct  string // the DSN past the proxy
	TTL     time.Duration
	Seed    uint64
}

// A child is a process under torture.
type child struct {
	settings
	db     *gorm.DB
	past   *gorm.DB // nil until needed
	record *history.Recorder
	random *rand.Rand
	log    *slog.Logger
	seq    int64 // of its writes, unique over all lives
	trips  int   // transactions interrupted so far

	mu    sync.Mutex               // guards the fields below
	flags map[string]time.Duration // the conductor's orders, until followed or forgotten
}

// childMain runs a child until it is told to stop.
func childMain(encoded string) int {
	c := &child{flags: map[string]time.Duration{}}
	if err := errors.Join(json.Unmarshal([]byte(encoded), &c.settings), c.open()); err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go c.obey()
	run := map[string]func(context.Context) error{"replica": c.replica, "worker": c.worker, "client": c.client}[c.Role]
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		return 1
	}
	return 0
}

func (c *child) open() error {
	var err error
	if c.record, err = history.NewRecorder(c.Dir, c.Name, c.Life); err != nil {
		return err
	}
	logFile, err := os.Create(filepath.Join(c.Dir, fmt.Sprintf("%s.%d.log", c.Name, c.Life)))
	if err != nil {
		return err
	}
	c.log = slog.New(slog.NewTextHandler(logFile, nil))
	c.random = rand.New(rand.NewPCG(c.Seed, uint64(c.Life)))
	c.seq = int64(c.Life) * 1_000_000
	c.db, err = openDatabase(c.Backend, c.DSN)
	return err
}

// openDatabase opens a handle with a small pool. Such a pool can be exhausted.
func openDatabase(backend, dsn string) (*gorm.DB, error) {
	dialector := sqlite.Open(dsn)
	if backend == "postgres" {
		dialector = postgres.Open(dsn)
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard, DisableAutomaticPing: true})
	if err != nil {
		return nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	pool.SetMaxOpenConns(6)
	pool.SetMaxIdleConns(6)
	return db, nil
}

// obey takes the conductor's orders from stdin. A line has a name and a
// duration. stdin ends when the conductor ends, and then obey ends the process.
func (c *child) obey() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		order, argument, _ := strings.Cut(lines.Text(), " ")
		d, err := time.ParseDuration(argument)
		if err != nil {
			fmt.Fprintf(os.Stderr, "torture: order %q: %v\n", lines.Text(), err)
			os.Exit(1)
		}
		c.mu.Lock()
		if order == "forget" {
			clear(c.flags)
		} else {
			c.flags[order] = d
		}
		c.mu.Unlock()
	}
	os.Exit(1)
}

// told takes up an order, if there is such an order.
func (c *child) told(order string) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, ok := c.flags[order]
	delete(c.flags, order)
	return d, ok
}

// hold pauses in the middle of a fenced transaction, where the conductor can
// freeze the process.
func (c *child) hold() {
	if d, ok := c.told("hold"); ok {
		fmt.Println("holding")
		pause(context.Background(), d)
	}
}

// interrupt runs a statement that ends the transaction by itself, and ignores
// the statement's error, as careless work does. The statement fails in one of
// two ways, in turns.
func (c *child) interrupt(tx *gorm.DB) {
	if _, ok := c.told("interrupt"); !ok {
		return
	}
	if c.trips++; c.trips%2 == 0 {
		ctx, cancel := context.WithTimeout(tx.Statement.Context, 5*time.Millisecond)
		defer cancel()
		tx.WithContext(ctx).Exec(`INSERT INTO torture_trips (id)
WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000) SELECT i FROM n`)
		return
	}
	insert := "INSERT INTO torture_trips (id) VALUES (1)" // the row exists already
	if c.Backend == "sqlite" {
		insert = "INSERT OR ROLLBACK" + strings.TrimPrefix(insert, "INSERT")
	}
	tx.Exec(insert)
}

// holdResult pauses in the middle of a result that is too large for any buffer
// on the way. The server then waits for this process, and the conductor may
// freeze the process there.
func (c *child) holdResult(tx *gorm.DB, d time.Duration) {
	rows, err := tx.Raw("SELECT repeat('x', 1000000) FROM generate_series(1, 100)").Rows()
	if err != nil {
		return
	}
	defer rows.Close()
	for range 3 {
		rows.Next()
	}
	fmt.Println("holding")
	pause(context.Background(), d)
}

// direct returns a handle past the proxy, because the proxy takes in whatever
// the server sends.
func (c *child) direct() *gorm.DB {
	if c.past == nil {
		db, err := openDatabase(c.Backend, c.Direct)
		if err != nil {
			panic(err) // not the connection's error: nothing was sent yet
		}
		c.past = db
	}
	return c.past
}

// asked returns an order without taking it up. The order stands until the
// conductor says forget.
func (c *child) asked(order string) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, ok := c.flags[order]
	return d, ok
}

// clockStep returns how far the conductor has set this process's wall clock.
func (c *child) clockStep() time.Duration {
	d, _ := c.asked("clock")
	return d
}

// next returns the number of the next write.
func (c *child) next() int64 {
	c.seq++
	return c.seq
}

// between returns a random duration.
func (c *child) between(least, most time.Duration) time.Duration {
	return least + time.Duration(c.random.Int64N(int64(most-least)))
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
