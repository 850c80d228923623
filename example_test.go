package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"

	"github.com/sqllease/lease"
)

// openExample opens a fresh database. A service opens its own, once, at the start.
func openExample() (db *gorm.DB, close func()) {
	dir, err := os.MkdirTemp("", "lease-example")
	if err != nil {
		panic(err)
	}
	db, err = gorm.Open(sqlite.Open(filepath.Join(dir, "example.db") + "?_journal_mode=WAL&_busy_timeout=5000"))
	if err != nil {
		panic(err)
	}
	if err := lease.EnsureSchema(db); err != nil {
		panic(err)
	}
	return db, func() {
		pool, _ := db.DB()
		pool.Close()
		os.RemoveAll(dir)
	}
}

var noLog = slog.New(slog.DiscardHandler)

func ExampleElector() {
	db, closeDB := openExample()
	defer closeDB()

	ctx, stop := context.WithCancel(context.Background()) // in a service: signal.NotifyContext
	defer stop()

	elector := &lease.Elector{DB: db, Name: "reconciler", Holder: "replica-1", TTL: 15 * time.Second, Logger: noLog}
	err := elector.Run(ctx, func(ctx context.Context) {
		term, _ := elector.Term()
		fmt.Println("leading in", term)
		stop()
		<-ctx.Done() // finish what must be finished; the lease is kept meanwhile
		fmt.Println("winding down:", context.Cause(ctx))
	})
	fmt.Println("stopped:", err)
	// Output:
	// leading in term 1 of lease "reconciler" held by "replica-1"
	// winding down: context canceled
	// stopped: <nil>
}

func ExampleElector_Resign() {
	db, closeDB := openExample()
	defer closeDB()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	elector := &lease.Elector{DB: db, Name: "reconciler", TTL: time.Second, Logger: noLog}
	terms := 0
	_ = elector.Run(ctx, func(ctx context.Context) {
		if terms++; terms == 2 {
			fmt.Println("leading again, since nobody else campaigned")
			stop()
			return
		}
		elector.Resign()
		<-ctx.Done()
		fmt.Println(context.Cause(ctx), elector.IsLeader())
	})
	// Output:
	// lease resigned false
	// leading again, since nobody else campaigned
}

func ExampleElector_Health() {
	var elector lease.Elector
	fmt.Println(elector.Health())
	// Output: lease: elector: is not running
}

func ExampleTransaction() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	db.Exec("CREATE TABLE results (text TEXT)")

	// An Elector's work finds its term in its context. By hand:
	const me = "replica-1"
	if held, err := lease.TryAcquire(ctx, db, "report", me, time.Minute, time.Time{}); err != nil || !held {
		return
	}
	status, err := lease.Find(ctx, db, "report")
	if err != nil || !status.Held || status.Holder != me {
		return
	}
	ctx = lease.WithTerm(ctx, lease.Term{Name: "report", Holder: me, Epoch: status.Epoch})

	write := func() error {
		return lease.Transaction(ctx, db, func(tx *gorm.DB) error {
			return tx.Exec("INSERT INTO results VALUES ('done')").Error
		})
	}
	fmt.Println("in its term:", write())

	_ = lease.Release(ctx, db, "report", "replica-1", time.Time{})
	fmt.Println("after it:", write())

	var rows int64
	db.Table("results").Count(&rows)
	fmt.Println("rows:", rows)
	// Output:
	// in its term: <nil>
	// after it: lease: fence "report": lease lost
	// rows: 1
}

func ExampleFence() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	_, _ = lease.TryAcquire(ctx, db, "report", "replica-1", time.Minute, time.Time{})
	ctx = lease.WithTerm(ctx, lease.Term{Name: "report", Holder: "replica-1", Epoch: 1})

	err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := lease.Fence(tx); err != nil {
			return err
		}
		return tx.Exec("CREATE TABLE results (text TEXT)").Error
	})
	fmt.Println(err)
	fmt.Println(lease.Fence(db.WithContext(ctx)))
	// Output:
	// <nil>
	// lease: fence "report": invalid argument: tx is not a transaction, so that nothing would be fenced
}

func ExampleTerm_Fence() {
	db, closeDB := openExample()
	defer closeDB()
	old := lease.Term{Name: "report", Holder: "replica-1", Epoch: 1}
	err := db.Transaction(func(tx *gorm.DB) error { return old.Fence(tx) })
	fmt.Println(errors.Is(err, lease.ErrLost))
	// Output: true
}

func ExampleTermFrom() {
	ctx := lease.WithTerm(context.Background(), lease.Term{Name: "report", Holder: "replica-1", Epoch: 7})
	term, ok := lease.TermFrom(ctx)
	fmt.Println(term.Epoch, ok)
	// Output: 7 true
}

func ExampleTryAcquire() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	for _, holder := range []string{"replica-1", "replica-2", "replica-1"} {
		held, err := lease.TryAcquire(ctx, db, "migration", holder, time.Minute, time.Time{})
		fmt.Println(holder, held, err)
	}
	_, err := lease.TryAcquire(ctx, db, "", "replica-1", time.Minute, time.Time{})
	fmt.Println(err)
	// Output:
	// replica-1 true <nil>
	// replica-2 false <nil>
	// replica-1 true <nil>
	// lease: acquire "": invalid argument: name is empty
}

func ExampleFind() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	_, err := lease.Find(ctx, db, "migration")
	fmt.Println(errors.Is(err, gorm.ErrRecordNotFound))

	_, _ = lease.TryAcquire(ctx, db, "migration", "replica-1", time.Minute, time.Time{})
	status, _ := lease.Find(ctx, db, "migration")
	fmt.Println(status.Holder, status.Epoch, status.Held, status.Remaining > 50*time.Second)
	// Output:
	// true
	// replica-1 1 true true
}

func ExampleList() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	for _, name := range []string{"reports", "billing"} {
		_, _ = lease.TryAcquire(ctx, db, name, "replica-1", time.Minute, time.Time{})
	}
	_ = lease.Release(ctx, db, "reports", "replica-1", time.Time{})
	leases, _ := lease.List(ctx, db)
	for _, l := range leases {
		fmt.Printf("%s held=%v by %q, term %d\n", l.Name, l.Held, l.Holder, l.Epoch)
	}
	// Output:
	// billing held=true by "replica-1", term 1
	// reports held=false by "", term 1
}

func ExampleRelease() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	_, _ = lease.TryAcquire(ctx, db, "migration", "replica-1", time.Minute, time.Time{})
	fmt.Println(lease.Release(ctx, db, "migration", "replica-2", time.Time{})) // not its holder: nothing happens
	fmt.Println(lease.Release(ctx, db, "migration", "replica-1", time.Time{}))
	held, _ := lease.TryAcquire(ctx, db, "migration", "replica-2", time.Minute, time.Time{})
	status, _ := lease.Find(ctx, db, "migration")
	fmt.Println(held, status.Epoch)
	// Output:
	// <nil>
	// <nil>
	// true 2
}

func ExampleTables() {
	db, closeDB := openExample()
	defer closeDB()
	mine := lease.Tables(db, "app_")
	fmt.Println(lease.EnsureSchema(mine))
	held, _ := lease.TryAcquire(context.Background(), mine, "job", "replica-1", time.Minute, time.Time{})
	fmt.Println(held, db.Migrator().HasTable("app_leases"))
	// Output:
	// <nil>
	// true true
}

func ExampleEnsureSchema() {
	db, closeDB := openExample()
	defer closeDB()
	fmt.Println(lease.EnsureSchema(db), lease.EnsureSchema(db)) // on every start, in every replica
	// Output: <nil> <nil>
}

func ExampleDDL() {
	ddl, _ := lease.DDL("postgres")
	fmt.Print(ddl)
	// Output:
	// CREATE TABLE "leases" (
	// 	"name" varchar(100) NOT NULL,
	// 	"holder" varchar(200) NOT NULL DEFAULT (''),
	// 	"epoch" bigint NOT NULL DEFAULT (0),
	// 	"expires_at" bigint NOT NULL DEFAULT (0),
	// 	"acquired_at" bigint NOT NULL DEFAULT (0),
	// 	"renewed_at" bigint NOT NULL DEFAULT (0),
	// 	PRIMARY KEY ("name")
	// );
}

func ExampleInstanceID() {
	one, other := lease.InstanceID(), lease.InstanceID()
	fmt.Println(one != other)
	// Output: true
}

func ExampleNewCollector() {
	registry := prometheus.NewRegistry()
	prometheus.WrapRegistererWithPrefix("billing_", registry).MustRegister(lease.NewCollector())
	families, _ := registry.Gather()
	for _, family := range families {
		fmt.Println(family.GetName()) // more of them once an elector runs
	}
	// Output: billing_lease_renewal_duration_seconds
}

func ExampleWritePrometheus() {
	var text strings.Builder
	fmt.Println(lease.WritePrometheus(&text))
	fmt.Println(strings.Contains(text.String(), "# TYPE lease_renewal_duration_seconds histogram"))
	// Output:
	// <nil>
	// true
}
