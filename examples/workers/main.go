// Workers shows on real processes what item claims promise. Three workers share
// only a database, and claim orders to invoice. A worker is killed in the
// middle of an order, another is frozen and woken too late, and another is
// asked to stop. Each time another worker takes the order over. Afterwards
// every order must be done and have exactly one invoice, although nothing in
// the table forbids a second invoice.
//
//	go run ./examples/workers
//	go run ./examples/workers -ttl 1s
//	go run ./examples/workers -dsn "postgres://user@localhost/test"
//
// Without -dsn the database is a SQLite file in a temporary directory. With
// -dsn, the tables have a prefix of their own and are dropped at the end. The
// exit status is 0 if everything held, 1 if not, 2 for bad arguments, 130 if
// interrupted.
//
// Start reading at worker.go, which is all that a worker needs. order.go has
// the models. The other files direct the play and check the result. This
// example shares package stage with others.
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
