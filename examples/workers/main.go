// Workers shows what item claims promise, on real processes: three workers share nothing but a database, and claim orders to invoice. One is
// killed in the middle of an order, one is frozen and woken too late, one is asked to stop; each time another worker takes the order over.
// Afterwards every order must be done and have exactly one invoice, although nothing in the table forbids a second.
//
//	go run ./examples/workers
//	go run ./examples/workers -ttl 1s
//	go run ./examples/workers -dsn "postgres://user@localhost/test"
//
// Without -dsn the database is a SQLite file in a temporary directory. With it, the tables have a prefix of their own and are
// dropped at the end. The exit status is 0 if everything held, 1 if not, 2 for bad arguments, 130 if interrupted.
//
// Start reading at worker.go: it is all that a worker needs, and order.go has the models. The other files direct the play and check the result.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const minTTL = 500 * time.Millisecond // below it the machine's own hiccups would be the demonstration

type options struct {
	ttl time.Duration
	dsn string
}

func main() {
	if os.Getenv(workerEnv) != "" { // the program runs itself again for every worker
		os.Exit(workerMain())
	}
	opts, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case err != nil:
		os.Exit(2)
	}
	os.Exit(demonstrate(opts))
}

// parse reads the arguments; what is wrong with them has been written to stderr when it returns an error.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("workers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.DurationVar(&o.ttl, "ttl", 2*time.Second, "how long a worker that vanished keeps its order")
	flags.StringVar(&o.dsn, "dsn", "", "PostgreSQL connection string or URL; a password may come from PGPASSWORD (default a SQLite file in a temporary directory)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	err := o.check(flags.Args())
	if err != nil {
		fmt.Fprintln(stderr, "workers:", err)
	}
	return o, err
}

func (o options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case o.ttl < minTTL:
		return fmt.Errorf("-ttl must be at least %v, not %v", minTTL, o.ttl)
	}
	return checkDSN(o.dsn)
}

// demonstrate runs everything, cleans up whatever happened, and returns the exit status.
func demonstrate(o options) int {
	// SIGPIPE is for `workers | head`: the pipe's end must not stop the clean-up.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()

	out := newTimeline(os.Stdout)
	err := play(ctx, o, out)
	if err == nil {
		return 0
	}
	defer fmt.Fprintln(os.Stderr, "workers:", err)
	if ctx.Err() != nil {
		return 130
	}
	out.verdict(false)
	return 1
}

// play prepares the database, runs the demonstration on it, and leaves nothing behind.
func play(ctx context.Context, o options, out *timeline) (err error) {
	where, remove, err := choose(o.dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()

	db, err := where.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, where.dropAndClose(db)) }()
	if err := where.create(ctx, db); err != nil {
		return err
	}

	d := newDemo(o.ttl, where, db, out)
	defer d.killAll() // before the tables go
	return d.run(ctx)
}
