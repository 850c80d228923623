package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sqllease/lease"
)

// settings come from the parent over stdin: a data source may hold a password, and arguments and environments are for all to see.
type settings struct {
	Name  string
	TTL   time.Duration
	Where location
}

// An event is one line that a worker writes to its parent.
type event struct {
	Kind     kind
	Order    uint   `json:",omitempty"`
	Epoch    int64  `json:",omitempty"`
	Attempt  int    `json:",omitempty"`
	TookOver bool   `json:",omitempty"` // the claim before had run out
	Detail   string `json:",omitempty"` // an error

	from *process  // filled in by the parent
	at   time.Time // likewise: when it was read
}

type kind string

const (
	ready     kind = "ready"           // the worker begins to look for orders
	troubled  kind = "troubled"        // a claim failed; Detail: the error
	claimed   kind = "claimed"         // an order
	rendering kind = "rendering"       // its total is saved, and the long part begins
	invoiced  kind = "invoiced"        // the invoice and the order's new state were committed
	refused   kind = "refused"         // they were not, since the claim is over; Detail: the error
	lost      kind = "lost"            // the claim is, to Run; Detail: what Run returned
	handedOn  kind = "handed on"       // the worker was asked to stop; Detail: what Run returned
	failed    kind = "left to run out" // the claim of an order that failed; Detail: what Run returned
	exited    kind = "exited"          // made by the parent: the process is gone; Detail: how
)

// about is an event in a claim.
func about(claim *lease.HolderOf[Order], k kind, err error) event {
	order := claim.Item()
	e := event{Kind: k, Order: order.ID, Epoch: claim.Epoch(), Attempt: order.Attempts, TookOver: claim.Expired()}
	if err != nil {
		e.Detail = err.Error()
	}
	return e
}

// workerMain is what a worker's process runs. It returns the exit status.
func workerMain() int {
	// Ctrl-C reaches every process of the terminal; how a worker ends is its parent's business.
	signal.Ignore(os.Interrupt, syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	if err := serve(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serve(ctx context.Context) error {
	var s settings
	if err := json.NewDecoder(os.Stdin).Decode(&s); err != nil {
		return err
	}
	go exitWithParent()
	db, err := s.Where.open(ctx)
	if err != nil {
		return err
	}
	defer closeDB(db)
	tell(event{Kind: ready})
	w := &worker{db: db, name: s.Name, ttl: s.TTL, tell: tell}
	w.run(ctx)
	return nil
}

// exitWithParent waits for the end of stdin, which comes when the parent dies, in whatever way.
func exitWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// tell reports to the parent. A parent that is gone ends this process through SIGPIPE.
func tell(e event) {
	if err := json.NewEncoder(os.Stdout).Encode(e); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
