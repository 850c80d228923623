// Package stage is the common part of the examples. Each example is a play. A
// program starts itself several times, as children that share only a database.
// Then the program does something to the children, and tells the outcome. The
// work of the children, the scenes, and the judgement of the written data are
// the example's own.
package stage

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"gorm.io/gorm"
)

// A Program is an example. All fields except Flags are needed.
type Program struct {
	// The command's name. Names of the tables and of the temporary directory
	// begin with it.
	Name  string
	Actor string // the word for a child

	TTL    time.Duration // the default
	MinTTL time.Duration // with a shorter TTL, the machine's own hiccups would be the demonstration
	Usage  string        // of -ttl

	Flags func(*flag.FlagSet) // adds flags that only this program has, or nil

	Open   func(context.Context, Location) (*gorm.DB, error) // connects, in the parent and in every child
	Create func(context.Context, *gorm.DB) error             // makes the tables
	Tables func(prefix string) []any                         // their names or models, to drop them

	Child func(context.Context, *gorm.DB, Settings) error // the work of a child, until the context ends
	Play  func(context.Context, Run) error                // the work of the parent. No child may be left at its return
}

// A Run is everything that one run of a program plays with.
type Run struct {
	TTL   time.Duration
	Where Location
	DB    *gorm.DB
	Out   *Timeline

	env   string // see Program.env
	actor string // see Program.Actor
}

// A Scene is a part of the play.
type Scene struct {
	Title string
	Play  func(context.Context) error
}

// Scenes plays the scenes in order, up to the first failure.
func (r Run) Scenes(ctx context.Context, scenes []Scene) error {
	for _, s := range scenes {
		r.Out.Step(s.Title)
		if err := s.Play(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Limit is the time allowed for anything. A takeover takes a TTL, or two if
// PostgreSQL had to cut off a frozen transaction.
func (r Run) Limit() time.Duration { return 3*r.TTL + 15*time.Second }

// Main runs the program, or one of its children, and exits. The exit status is
// 0 if everything held, 1 if not, 2 for bad arguments, 130 if interrupted.
func (p Program) Main() {
	if os.Getenv(p.env()) != "" {
		os.Exit(p.child())
	}
	os.Exit(p.main(os.Args[1:], os.Stdout, os.Stderr))
}

// env returns the variable that makes the program a child, such as
// LEASE_EXAMPLE_FAILOVER_REPLICA.
func (p Program) env() string {
	return "LEASE_EXAMPLE_" + strings.ToUpper(p.Name+"_"+p.Actor)
}

func (p Program) main(args []string, stdout *os.File, stderr io.Writer) int {
	o, err := p.parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	return p.demonstrate(o, stdout, stderr)
}

type options struct {
	ttl time.Duration
	dsn string
}

// parse reads the arguments. If parse returns an error, the error has already
// been written to stderr.
func (p Program) parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.DurationVar(&o.ttl, "ttl", p.TTL, p.Usage)
	flags.StringVar(&o.dsn, "dsn", "",
		"PostgreSQL connection string or URL; a password may come from PGPASSWORD (default a SQLite file in a temporary directory)")
	if p.Flags != nil {
		p.Flags(flags)
	}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	err := p.check(o, flags.Args())
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
	}
	return o, err
}

func (p Program) check(o options, rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case o.ttl < p.MinTTL:
		return fmt.Errorf("-ttl must be at least %v, not %v", p.MinTTL, o.ttl)
	}
	return checkDSN(o.dsn)
}

// demonstrate runs everything, cleans up whatever happened, and returns the
// exit status.
func (p Program) demonstrate(o options, stdout *os.File, stderr io.Writer) int {
	// SIGPIPE is for `failover | head`: the end of the pipe must not stop the
	// clean-up.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()

	out := NewTimeline(stdout, p.Actor)
	err := p.play(ctx, o, out)
	if err == nil {
		return 0
	}
	defer fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
	if ctx.Err() != nil {
		return 130
	}
	out.Verdict(false)
	return 1
}

// play prepares the database, plays on it, and leaves nothing behind.
func (p Program) play(ctx context.Context, o options, out *Timeline) (err error) {
	where, remove, err := choose(p.Name, o.dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()

	db, err := p.Open(ctx, where)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, where.dropAndClose(db, p.Tables(where.Prefix))) }()
	if err := p.Create(ctx, db); err != nil {
		return err
	}
	return p.Play(ctx, Run{TTL: o.ttl, Where: where, DB: db, Out: out, env: p.env(), actor: p.Actor})
}
