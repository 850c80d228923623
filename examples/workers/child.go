package main

import (
	"context"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/examples/internal/stage"
	"gorm.io/gorm"
)

// An event is one line that a worker writes to its parent.
type event struct {
	Kind     kind
	Order    uint   `json:",omitempty"`
	Epoch    int64  `json:",omitempty"`
	Attempt  int    `json:",omitempty"`
	TookOver bool   `json:",omitempty"` // the claim before had run out
	Detail   string `json:",omitempty"` // an error
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

// child is what a worker's process does until it is asked to stop.
func child(ctx context.Context, db *gorm.DB, s stage.Settings) error {
	w := &worker{db: db, name: s.Name, ttl: s.TTL, tell: stage.Tell[event]}
	w.tell(event{Kind: ready})
	w.run(ctx)
	return nil
}
