package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sqllease/lease"
	"gorm.io/gorm"
)

const (
	leaseName = "failover"
	interval  = 100 * time.Millisecond // between two ticks
)

// A replica campaigns for the lease. While it leads, it writes ticks.
type replica struct {
	settings
	db *gorm.DB

	mu  sync.Mutex // guards out
	out *json.Encoder
}

// settings come from the parent over stdin: a data source may hold a password, and arguments and environments are for all to see.
type settings struct {
	Name  string
	TTL   time.Duration
	Where location
}

// An event is one line that a replica writes to its parent.
type event struct {
	Kind     kind
	Epoch    int64  `json:",omitempty"`
	Sequence int64  `json:",omitempty"`
	Detail   string `json:",omitempty"`

	from *process  // filled in by the parent
	at   time.Time // likewise: when it was read
}

type kind string

const (
	ready     kind = "ready"     // Detail: the address of its metrics
	leads     kind = "leads"     // its work began, in term Epoch
	ticked    kind = "ticked"    // a tick was committed
	troubled  kind = "troubled"  // a tick was not, although the term is not over; Detail: the error
	ended     kind = "ended"     // the work's context was cancelled; Detail: the cause
	committed kind = "committed" // the last write, after that, was committed
	refused   kind = "refused"   // the last write was refused by the fence; Detail: the error
	failed    kind = "failed"    // the last write failed otherwise; Detail: the error
	stopped   kind = "stopped"   // Run has returned: the lease is released
	exited    kind = "exited"    // made by the parent: the process is gone; Detail: how
)

// replicaMain is what a replica's process runs. It returns the exit status.
func replicaMain() int {
	// Ctrl-C reaches every process of the terminal; how a replica ends is its parent's business.
	signal.Ignore(os.Interrupt, syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	r := &replica{out: json.NewEncoder(os.Stdout)}
	err := json.NewDecoder(os.Stdin).Decode(&r.settings)
	if err == nil {
		go exitWithParent()
		err = r.run(ctx)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// exitWithParent waits for the end of stdin, which comes when the parent dies, in whatever way.
func exitWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// run is what any service with a leader does: open the database, serve the metrics, campaign until ctx ends.
func (r *replica) run(ctx context.Context) (err error) {
	if r.db, err = r.Where.open(ctx); err != nil {
		return err
	}
	defer closeDB(r.db)
	address, err := serveMetrics()
	if err != nil {
		return err
	}
	r.tell(event{Kind: ready, Detail: address})

	elector := &lease.Elector{
		DB:     r.db,
		Name:   leaseName,
		Holder: r.Name, // "" would do; names read better here
		TTL:    r.TTL,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if err := elector.Run(ctx, r.work); err != nil {
		return err
	}
	r.tell(event{Kind: stopped}) // only now: Run waited for the work, then released the lease
	return nil
}

// work runs only while this replica leads: ctx ends with the term, or before it when the replica is asked to stop.
func (r *replica) work(ctx context.Context) {
	term, _ := lease.TermFrom(ctx)
	r.tell(event{Kind: leads, Epoch: term.Epoch})

	sequence := int64(1)
	for ; ctx.Err() == nil; sequence++ { // a number is never used again: a write that failed may have been committed
		err := r.write(ctx, sequence)
		switch {
		case err == nil:
			r.tell(event{Kind: ticked, Epoch: term.Epoch, Sequence: sequence})
		case ctx.Err() == nil:
			r.tell(event{Kind: troubled, Epoch: term.Epoch, Detail: err.Error()})
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
	r.tell(event{Kind: ended, Epoch: term.Epoch, Detail: context.Cause(ctx).Error()})
	r.lastWrite(term, sequence)
}

// lastWrite ignores that the work should have ended, as careless code does: its context is a fresh one. A replica that was asked
// to stop still holds its lease until its work returns, so the write is committed. One that lost the lease is refused by the
// fence, in the database; nothing else stands between it and the table.
func (r *replica) lastWrite(term lease.Term, sequence int64) {
	ctx, cancel := context.WithTimeout(lease.WithTerm(context.Background(), term), 5*time.Second)
	defer cancel()
	err := r.write(ctx, sequence)
	last := event{Kind: committed, Epoch: term.Epoch, Sequence: sequence}
	switch {
	case errors.Is(err, lease.ErrLost):
		last.Kind, last.Detail = refused, err.Error()
	case err != nil:
		last.Kind, last.Detail = failed, err.Error()
	}
	r.tell(last)
}

// write adds a tick in a fenced transaction: it is committed while ctx's term is in force, or not at all.
func (r *replica) write(ctx context.Context, sequence int64) error {
	return lease.Transaction(ctx, r.db, func(tx *gorm.DB) error {
		term, _ := lease.TermFrom(ctx)
		return appendTick(tx, Tick{Replica: r.Name, Epoch: term.Epoch, Sequence: sequence})
	})
}

// tell reports to the parent. A parent that is gone ends this process through SIGPIPE.
func (r *replica) tell(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.out.Encode(e); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// serveMetrics serves /metrics on a free port of this machine, for as long as the process lives, and returns the address.
func serveMetrics() (string, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(lease.NewCollector())
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("serve metrics: %w", err)
	}
	go func() {
		server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
		if err := server.Serve(listener); err != nil {
			fmt.Fprintln(os.Stderr, "serve metrics:", err)
		}
	}()
	return listener.Addr().String(), nil
}
