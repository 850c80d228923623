// Torture attacks the package's promises with real processes, real databases
// and real faults. Then it checks the outcome exactly, and shows it.
//
//	go run ./internal/torture
//	go run ./internal/torture -backend sqlite -duration 10m
//	go run ./internal/torture -faults kill -seed 7
//
// Replicas campaign for one lease, and write in fenced transactions while they
// lead. Workers claim, save and end items. Clients take and release leases by
// hand. Faults strike the processes and the database at random, from a seed
// that Torture prints. Afterwards Torture checks everything that the processes
// recorded and everything that was committed. Package check describes the
// rules.
//
// The first two of several replicas share a holder, as in a careless
// deployment. Without -dsn, Postgres is a server of Torture's own. Torture
// stops, kills and freezes the server, and steps its clock. The exit status is
// 0 if every promise held, 1 if a promise was broken, 2 for bad arguments.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sqllease/lease/internal/dbtest"
)

type options struct {
	backend  string
	dsn      string
	duration time.Duration
	replicas int
	workers  int
	clients  int
	ttl      time.Duration
	faults   []string // by name
	seed     uint64
	out      string
}

func main() {
	if encoded := os.Getenv(childEnv); encoded != "" { // the program runs itself again for every process
		os.Exit(childMain(encoded))
	}
	o, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case err != nil:
		os.Exit(2)
	}
	os.Exit(torture(o))
}

// parse reads the arguments. If parse returns an error, the error has already
// been written to stderr.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var names string
	flags := flag.NewFlagSet("torture", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.backend, "backend", "postgres", "the database: sqlite or postgres")
	flags.StringVar(&o.dsn, "dsn", "", "a Postgres database with wal_level=logical, which stays up (default a server of its own, from the machine's binaries)")
	flags.DurationVar(&o.duration, "duration", time.Minute, "how long faults are injected")
	flags.IntVar(&o.replicas, "replicas", 4, "processes that campaign for the lease, at least 2")
	flags.IntVar(&o.workers, "workers", 3, "processes that work on items")
	flags.IntVar(&o.clients, "clients", 3, "processes that use leases by hand")
	flags.DurationVar(&o.ttl, "ttl", 1500*time.Millisecond, "of the lease and of claims")
	flags.StringVar(&names, "faults", "all", "all, none, or some of those below, with commas")
	flags.Uint64Var(&o.seed, "seed", 0, "of everything random (default a new one)")
	flags.StringVar(&o.out, "out", "", "a directory for the record, the summary and the picture (default a temporary one, which is kept only if there is a violation)")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "Usage of torture:")
		flags.PrintDefaults()
		describeFaults(stderr)
	}
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	err := o.check(flags.Args(), names)
	if err != nil {
		fmt.Fprintln(stderr, "torture:", err)
	}
	return o, err
}

func (o *options) check(rest []string, names string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case o.backend != "sqlite" && o.backend != "postgres":
		return fmt.Errorf("-backend must be sqlite or postgres, not %q", o.backend)
	case o.dsn != "" && o.backend == "sqlite":
		return errors.New("-dsn is for -backend postgres")
	case o.replicas < 2 || o.workers < 0 || o.clients < 0:
		return errors.New("-replicas must be at least 2, -workers and -clients not negative")
	case o.ttl < 300*time.Millisecond:
		return fmt.Errorf("-ttl must be at least 300ms, not %v: below it the machine's own hiccups are the faults", o.ttl)
	case o.duration < 0:
		return fmt.Errorf("-duration must not be negative, as %v is", o.duration)
	}
	for o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000)
	}
	switch names {
	case "all":
		o.faults = faultNames()
	case "none":
	default:
		o.faults = strings.Split(names, ",")
	}
	for _, name := range o.faults {
		if !slices.Contains(faultNames(), name) {
			return fmt.Errorf("-faults has %q, which is none of %s", name, strings.Join(faultNames(), ","))
		}
	}
	return nil
}

// torture runs everything, cleans up whatever happened, and returns the exit
// status.
func torture(o options) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	held := false
	err := dbtest.Program(ctx, func(t testing.TB) { held = newConductor(ctx, t, o).run() })
	if err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
	}
	if err != nil || !held {
		return 1
	}
	return 0
}
