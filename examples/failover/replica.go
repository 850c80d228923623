package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
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
	db   *gorm.DB
	name string
	ttl  time.Duration // how long a vanished replica keeps the lease
	tell func(event)   // in place of a log
}

// run does what any service with a leader does: serve the metrics, and campaign
// until ctx ends.
func (r *replica) run(ctx context.Context) error {
	address, err := serveMetrics()
	if err != nil {
		return err
	}
	r.tell(event{Kind: ready, Detail: address})

	elector := &lease.Elector{
		DB:     r.db,
		Name:   leaseName,
		Holder: r.name, // "" would do, but names read better here
		TTL:    r.ttl,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if err := elector.Run(ctx, r.work); err != nil {
		return err
	}
	r.tell(event{Kind: stopped}) // only now: Run waited for the work, then released the lease
	return nil
}

// work runs only while this replica leads. ctx ends with the term, or earlier
// if the replica is asked to stop.
func (r *replica) work(ctx context.Context) {
	term, _ := lease.TermFrom(ctx)
	r.tell(event{Kind: leads, Epoch: term.Epoch})

	sequence := int64(1)
	// Never use a number again: a failed write may have been committed.
	for ; ctx.Err() == nil; sequence++ {
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

// lastWrite ignores the end of the work, as careless code does: its context is
// a fresh one. A replica that was asked to stop still holds its lease until its
// work returns, so the write is committed. If the replica has lost the lease,
// the fence refuses the write, in the database. Nothing else protects the
// table.
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

// write adds a tick in a fenced transaction. The tick is committed while ctx's
// term is in force, or not at all.
func (r *replica) write(ctx context.Context, sequence int64) error {
	return lease.Transaction(ctx, r.db, func(tx *gorm.DB) error {
		term, _ := lease.TermFrom(ctx)
		return appendTick(tx, Tick{Replica: r.name, Epoch: term.Epoch, Sequence: sequence})
	})
}

// serveMetrics serves /metrics on a free port of this machine, for as long as
// the process lives, and returns the address.
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
