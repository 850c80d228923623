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
// Start reading at worker.go: it is all that a worker needs, and order.go has the models. The other files direct the play and check the result;
// package stage is what this example shares with others.
package main

import (
	"context"
	"time"

	"github.com/sqllease/lease/examples/internal/stage"
	"gorm.io/gorm"
)

func main() {
	stage.Program{
		Name:   "workers",
		Actor:  "worker",
		TTL:    2 * time.Second,
		MinTTL: 500 * time.Millisecond,
		Usage:  "how long a worker that vanished keeps its order",
		Open:   func(ctx context.Context, where stage.Location) (*gorm.DB, error) { return where.Open(ctx) },
		Create: create,
		Tables: tables,
		Child:  child,
		Play: func(ctx context.Context, run stage.Run) error {
			d := newDemo(run)
			defer d.cast.Close()
			return d.run(ctx)
		},
	}.Main()
}
