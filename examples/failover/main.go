// Failover shows what package lease promises, on real processes: three replicas share nothing but a database, and one of them leads.
// The leader is killed, the next one is frozen and woken too late, the third is asked to stop; each time another replica takes over.
// Afterwards the table that the leaders wrote to must show that no two of them ever wrote at the same time.
//
//	go run ./examples/failover
//	go run ./examples/failover -ttl 1s
//	go run ./examples/failover -dsn "postgres://user@localhost/test"
//
// Without -dsn the database is a SQLite file in a temporary directory. With it, the tables have a prefix of their own and are
// dropped at the end. The exit status is 0 if everything held, 1 if not, 2 for bad arguments, 130 if interrupted.
//
// Start reading at replica.go: it is all that a service needs, and ticks.go has what it writes. The other files direct the play and check the
// result; package stage is what this example shares with others.
package main

import (
	"context"
	"flag"
	"os"
	"time"

	"github.com/sqllease/lease/examples/internal/stage"
)

func main() {
	var verbose bool
	stage.Program{
		Name:   "failover",
		Actor:  "replica",
		TTL:    3 * time.Second,
		MinTTL: 300 * time.Millisecond,
		Usage:  "how long a leader that vanished keeps the lease",
		Flags:  func(flags *flag.FlagSet) { flags.BoolVar(&verbose, "v", false, "show the replicas' logs on stderr") },
		Open:   open,
		Create: create,
		Tables: tables,
		Child:  child,
		Play: func(ctx context.Context, run stage.Run) error {
			d := newDemo(run)
			defer d.cast.Close()
			if verbose {
				d.cast.Log = os.Stderr
			}
			return d.run(ctx)
		},
	}.Main()
}
