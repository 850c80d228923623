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

// childEnv tells the program that it is a child, and carries its settings.
const childEnv = "LEASE_TORTURE_CHILD"

// settings is what a child is told by the conductor.
type settings struct {
	Role    string // "replica", "worker" or "client"
	Name    string // "r1"
	Life    int    // counts the processes of that name
	Holder  string // of a replica; several may share one
	Dir     string // for the record
	Backend string
	DSN     string
	Direct  string // the DSN past the proxy
	TTL     time.Duration
	Seed    uint64
}

// A child is one process under torture.
type child struct {
	settings
	db     *gorm.DB
	past   *gorm.DB // nil until it is needed
	record *history.Recorder
	random *rand.Rand
	log    *slog.Logger
	seq    int64 // of its writes, unique over all lives
	trips  int   // transactions interrupted so far

	mu    sync.Mutex               // guards the fields below
	flags map[string]time.Duration // what the conductor asked for, until it is taken up
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

// openDatabase opens a handle whose pool is small, so that it can be exhausted.
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

// obey takes the conductor's orders from stdin: a name and a duration a line. The end of stdin is the end of the conductor.
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

// told takes up an order, if there is one.
func (c *child) told(order string) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, ok := c.flags[order]
	delete(c.flags, order)
	return d, ok
}

// hold stays where it is called, in the middle of a fenced transaction, so that the conductor can freeze it there.
func (c *child) hold() {
	if d, ok := c.told("hold"); ok {
		fmt.Println("holding")
		pause(context.Background(), d)
	}
}

// interrupt carries out a statement that ends the transaction by itself, and
// ignores its error, as careless work does. The statement fails in one of two
// ways, in turns.
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
	insert := "INSERT INTO torture_trips (id) VALUES (1)" // which is there
	if c.Backend == "sqlite" {
		insert = "INSERT OR ROLLBACK" + strings.TrimPrefix(insert, "INSERT")
	}
	tx.Exec(insert)
}

// holdResult stays in the middle of a result that is too large for any buffer
// on the way, so that the server waits for this process, which the conductor
// may freeze there.
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

// direct is a handle past the proxy, which takes in whatever the server sends.
func (c *child) direct() *gorm.DB {
	if c.past == nil {
		db, err := openDatabase(c.Backend, c.Direct)
		if err != nil {
			panic(err) // it sent nothing yet
		}
		c.past = db
	}
	return c.past
}

// asked tells of an order that stands until it is forgotten.
func (c *child) asked(order string) (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, ok := c.flags[order]
	return d, ok
}

// clockStep is how far the conductor has set this process's wall clock.
func (c *child) clockStep() time.Duration {
	d, _ := c.asked("clock")
	return d
}

// next numbers a write.
func (c *child) next() int64 {
	c.seq++
	return c.seq
}

// between is a random duration.
func (c *child) between(least, most time.Duration) time.Duration {
	return least + time.Duration(c.random.Int64N(int64(most-least)))
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
