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
	troubled  kind = "troubled"        // a claim failed. Detail: the error
	claimed   kind = "claimed"         // an order
	rendering kind = "rendering"       // the order's total is saved, and the long part begins
	invoiced  kind = "invoiced"        // the invoice and the order's new state were committed
	refused   kind = "refused"         // the fence refused both, because the claim is over. Detail: the error
	lost      kind = "lost"            // Run found the claim lost. Detail: Run's error
	handedOn  kind = "handed on"       // the worker was asked to stop. Detail: Run's error
	failed    kind = "left to run out" // the claim, because the order failed. Detail: Run's error
)

// about makes an event of a claim.
func about(claim *lease.HolderOf[Order], k kind, err error) event {
	order := claim.Item()
	e := event{Kind: k, Order: order.ID, Epoch: claim.Epoch(), Attempt: order.Attempts, TookOver: claim.Expired()}
	if err != nil {
		e.Detail = err.Error()
	}
	return e
}

// child runs a worker in its process, until the worker is asked to stop.
func child(ctx context.Context, db *gorm.DB, s stage.Settings) error {
	w := &worker{db: db, name: s.Name, ttl: s.TTL, tell: stage.Tell[event]}
	w.tell(event{Kind: ready})
	w.run(ctx)
	return nil
}
