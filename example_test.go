package lease_test

import (
	"context"
	"encoding/json"
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

func ExampleClaim() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	_ = lease.Create(ctx, db, lease.Item{Key: "cluster-7", Payload: json.RawMessage(`{"phase":"new"}`)})

	holder, err := lease.Claim(ctx, db, "cluster-7", "worker-1", "provision", time.Minute, nil)
	fmt.Println(holder, err)
	_, err = lease.Claim(ctx, db, "cluster-7", "worker-2", "provision", time.Minute, nil)
	fmt.Println(errors.Is(err, lease.ErrHeld))
	// Output:
	// claim 1 of "cluster-7" in lease_items by "worker-1" <nil>
	// true
}

func ExampleCreate() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	fmt.Println(lease.Create(ctx, db, lease.Item{Key: "cluster-7", Payload: json.RawMessage(`{"phase":"new"}`)}))
	fmt.Println(lease.Create(ctx, db, lease.Item{Key: "cluster-7"}))
	fmt.Println(lease.Create(ctx, db, lease.Item{Key: "cluster-8", Payload: json.RawMessage(`{"phase":`)}))
	// Output:
	// <nil>
	// lease: create "cluster-7": duplicated key not allowed
	// lease: create "cluster-8": invalid argument: Payload is not valid JSON, or contains a NUL, or half a character
}

func ExampleLoad() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	_ = lease.Create(ctx, db, lease.Item{Key: "cluster-7", Payload: json.RawMessage(`{"phase":"new"}`)})

	item, before, err := lease.Load(ctx, db, "cluster-7")
	fmt.Println(string(item.Payload), err)
	_, _ = lease.Claim(ctx, db, "cluster-7", "worker-1", "", time.Minute, nil)
	item, after, _ := lease.Load(ctx, db, "cluster-7")
	fmt.Println(item.Owner, item.Epoch, item.Attempts, before != after)
	_, _, err = lease.Load(ctx, db, "cluster-8")
	fmt.Println(errors.Is(err, gorm.ErrRecordNotFound))
	// Output:
	// {"phase":"new"} <nil>
	// worker-1 1 1 true
	// true
}

// A Job is a model of the service's own. AutoMigrate brings what Claimable needs.
type Job struct {
	ID     uint
	Tenant string
	Result string
	lease.Claimable
}

func ExampleClaimNext() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	_ = db.AutoMigrate(&Job{})
	db.Create([]*Job{{Tenant: "blue"}, {Tenant: "red"}, {Tenant: "red"}})

	red := func(db *gorm.DB) *gorm.DB { return db.Where("tenant = ?", "red") }
	for {
		holder, err := lease.ClaimNext[Job](ctx, db, "worker-1", "", time.Minute, nil, red)
		if errors.Is(err, gorm.ErrRecordNotFound) {
			fmt.Println("nothing left")
			return
		}
		err = holder.Run(ctx, func(ctx context.Context) error {
			job := holder.Item()
			fmt.Println("working on job", job.ID)
			job.Result, job.Done = "made", true
			return holder.Save(ctx, job)
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// working on job 2
	// working on job 3
	// nothing left
}

func ExampleClaimAs() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	_ = db.AutoMigrate(&Job{})
	db.Create([]*Job{{Tenant: "blue"}, {Tenant: "red", Claimable: lease.Claimable{Done: true}}})

	holder, err := lease.ClaimAs[Job](ctx, db, 1, "worker-1", "", time.Minute, nil)
	fmt.Println(holder.Item().Tenant, err)
	_, err = lease.ClaimAs[Job](ctx, db, 2, "worker-1", "", time.Minute, nil)
	fmt.Println(err)
	// Output:
	// blue <nil>
	// lease: claim "2": item done
}

func ExampleHolderOf_Run() {
	db, closeDB := openExample()
	defer closeDB()
	ctx, stop := context.WithCancel(context.Background()) // in a service: signal.NotifyContext
	defer stop()
	_ = lease.Create(ctx, db, lease.Item{Key: "cluster-7"})

	run := func(work func(context.Context) error) {
		holder, err := lease.Claim(ctx, db, "cluster-7", "worker-1", "", time.Minute, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		err = holder.Run(ctx, work)
		item, _, _ := lease.Load(context.Background(), db, "cluster-7")
		fmt.Printf("%v; owner %q, attempts %d\n", err, item.Owner, item.Attempts)
	}
	run(func(context.Context) error { return nil })
	run(func(context.Context) error { return errors.New("the cluster is on fire") })
	run(func(ctx context.Context) error { // again, by the same owner
		stop() // the process is shutting down
		<-ctx.Done()
		return ctx.Err()
	})
	// Output:
	// <nil>; owner "", attempts 0
	// the cluster is on fire; owner "worker-1", attempts 1
	// lease: run "cluster-7": context canceled; owner "", attempts 1
}

func ExampleHolderOf_Heartbeat() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	_ = lease.Create(ctx, db, lease.Item{Key: "cluster-7"})
	holder, _ := lease.Claim(ctx, db, "cluster-7", "worker-1", "", time.Minute, nil)

	// Run has a heartbeat of its own. Without it:
	working, stop := context.WithCancelCause(ctx)
	go holder.Heartbeat(ctx, 0, nil, func(err error) { stop(err) })

	// The same owner claims it anew, as after a restart that this process did not survive, or so it seemed.
	_, _ = lease.Claim(ctx, db, "cluster-7", "worker-1", "", time.Minute, nil)
	fmt.Println(holder.Renew(ctx)) // the next renewal would have found out, too
	<-working.Done()
	fmt.Println(context.Cause(working))
	// Output:
	// lease: renew "cluster-7": lease lost
	// lease: heartbeat "cluster-7": lease lost
}

func ExampleHolderOf_Save() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	_ = db.AutoMigrate(&Job{})
	db.Create(&Job{Tenant: "blue"})
	holder, _ := lease.ClaimAs[Job](ctx, db, 1, "worker-1", "", time.Minute, nil)

	// Somebody else writes a column of theirs, so only ours is saved.
	db.Exec("UPDATE jobs SET tenant = 'green'")
	fmt.Println(holder.Save(ctx, Job{Result: "half made"}, "result"))

	// Another worker claims the job, once this claim has run out.
	db.Exec("UPDATE jobs SET claim_expires_at = 0")
	other, _ := lease.ClaimAs[Job](ctx, db, 1, "worker-2", "", time.Minute, nil)
	fmt.Println(other.Expired(), other.Item().Tenant, other.Item().Result)
	fmt.Println(holder.Save(ctx, Job{Result: "made"}, "result"))
	// Output:
	// <nil>
	// true green half made
	// lease: save "1": lease lost
}

func ExampleHolderOf_SaveIn() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	_ = db.AutoMigrate(&Job{})
	db.Create(&Job{Tenant: "blue"})
	db.Exec("CREATE TABLE effects (job INTEGER)")
	holder, _ := lease.ClaimNext[Job](ctx, db, "worker-1", "", time.Minute, nil)

	err := holder.Run(ctx, func(ctx context.Context) error {
		return lease.Transaction(ctx, db, func(tx *gorm.DB) error { // fenced by the claim
			job := holder.Item()
			if err := tx.Exec("INSERT INTO effects VALUES (?)", job.ID).Error; err != nil {
				return err
			}
			job.Done = true
			return holder.SaveIn(tx, job) // the effect and the end of the job are committed together, or neither is
		})
	})
	fmt.Println(err)
	_, err = lease.ClaimNext[Job](ctx, db, "worker-1", "", time.Minute, nil)
	fmt.Println(err)
	// Output:
	// <nil>
	// lease: claim next of jobs: record not found
}

func ExampleHolderOf_Fence() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	_ = lease.Create(ctx, db, lease.Item{Key: "cluster-7"})
	holder, _ := lease.Claim(ctx, db, "cluster-7", "worker-1", "", time.Minute, nil)
	fenced := func() error { return db.Transaction(holder.Fence) }
	fmt.Println(fenced())
	_ = holder.Release(ctx)
	fmt.Println(fenced())
	// Output:
	// <nil>
	// lease: fence "cluster-7": lease lost
}

func ExampleHolderOf_Release() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	_ = lease.Create(ctx, db, lease.Item{Key: "cluster-7"})
	holder, _ := lease.Claim(ctx, db, "cluster-7", "worker-1", "", time.Minute, nil)
	fmt.Println(holder.Release(ctx))
	next, err := lease.Claim(ctx, db, "cluster-7", "worker-2", "", time.Minute, nil)
	fmt.Println(next.Epoch(), next.Expired(), err)
	// Output:
	// <nil>
	// 2 false <nil>
}

func ExampleHolderOf_Renew() {
	db, closeDB := openExample()
	defer closeDB()
	ctx := context.Background()
	_ = lease.Create(ctx, db, lease.Item{Key: "cluster-7"})
	holder, _ := lease.Claim(ctx, db, "cluster-7", "worker-1", "", time.Minute, nil)
	before := holder.Item().ExpiresAt
	fmt.Println(holder.Renew(ctx), holder.Item().ExpiresAt.Before(before))
	// Output: <nil> false
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
	leases, _, _ := strings.Cut(ddl, `CREATE TABLE "lease_items"`)
	fmt.Print(leases)
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
	families, _ := registry.Gather() // more of them once an elector runs, or an item was claimed
	fmt.Println(families[len(families)-1].GetName())
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
