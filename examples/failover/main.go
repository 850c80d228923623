// Failover shows on real processes what package lease promises. Three replicas
// share only a database, and one of them leads. The leader is killed, the next
// leader is frozen and woken too late, and the third is asked to stop. Each
// time another replica takes over. Afterwards the table of the leaders' writes
// must show that no two leaders ever wrote at the same time.
//
//	go run ./examples/failover
//	go run ./examples/failover -ttl 1s
//	go run ./examples/failover -dsn "postgres://user@localhost/test"
//
// Without -dsn the database is a SQLite file in a temporary directory. With
// -dsn, the tables have a prefix of their own and are dropped at the end. The
// exit status is 0 if everything held, 1 if not, 2 for bad arguments, 130 if
// interrupted.
//
// Start reading at replica.go, which is all that a service needs. ticks.go has
// the model of its writes. The other files direct the play and check the
// result. This example shares package stage with others.
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
