package main

import (
	"context"
	"errors"
	"time"

	"github.com/sqllease/lease"
	"gorm.io/gorm"
)

const (
	step        = "invoice"              // the purpose of the claims, for readers of the table
	idle        = 100 * time.Millisecond // between two looks at an empty queue. Elsewhere seconds would do
	maxAttempts = 10
)

// A worker writes the invoices of orders, order by order. There may be any
// number of workers, in any number of processes.
type worker struct {
	db *gorm.DB
	// The owner of the worker's claims. Every worker needs a name of its own.
	// lease.InstanceID makes such names.
	name string
	// How long an order waits if its worker dies, and how long a worker may
	// hang without losing its order.
	ttl  time.Duration
	tell func(event) // in place of a log
}

// run works until ctx ends. The end of ctx asks the worker to stop. run blocks
// until then, and until the order in hand is handed on.
func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil {
		claim, err := lease.ClaimNext[Order](ctx, w.db, w.name, step, w.ttl, nil, promising)
		if err == nil {
			w.attend(ctx, claim)
			continue
		}
		if !errors.Is(err, gorm.ErrRecordNotFound) && ctx.Err() == nil {
			w.tell(event{Kind: troubled, Detail: err.Error()})
		}
		select {
		case <-ctx.Done():
		case <-time.After(idle):
		}
	}
}

// promising leaves out orders that have failed, or killed their workers, so
// often that a person should look at them.
func promising(db *gorm.DB) *gorm.DB { return db.Where("claim_attempts < ?", maxAttempts) }

// attend works on an order. Run keeps the claim alive meanwhile, and Run's
// error tells how the claim ended.
func (w *worker) attend(ctx context.Context, claim *lease.HolderOf[Order]) {
	w.tell(about(claim, claimed, nil))
	err := claim.Run(ctx, func(ctx context.Context) error { return w.invoice(ctx, claim) })
	switch {
	case err == nil:
		// The order is done, and the claim released.
	case errors.Is(err, lease.ErrLost):
		// Another worker has the order, or will have it. Nothing is left to do
		// here, and nothing can be committed.
		w.tell(about(claim, lost, err))
	case ctx.Err() != nil:
		// This worker is to stop. The order is already free for the next
		// worker, and this attempt does not count as a failure.
		w.tell(about(claim, handedOn, err))
	default:
		// The order failed. Its next attempt comes once the claim has run out.
		// Then its attempts count up.
		w.tell(about(claim, failed, err))
	}
}

// invoice is the work. Its ctx ends when the claim can no longer be counted on,
// or when the worker is to stop.
func (w *worker) invoice(ctx context.Context, claim *lease.HolderOf[Order]) error {
	order := claim.Item()
	if order.Total == 0 {
		order.Total = withTax(order.Net)
		// Save the total on the way: the next worker need not compute it again.
		// With the columns named, the other columns are left to their own
		// writers.
		if err := claim.Save(ctx, order, "Total"); err != nil {
			return err
		}
	}
	w.tell(about(claim, rendering, nil))
	text, err := render(ctx, order)
	if err != nil {
		return err
	}
	err = w.finish(ctx, claim, order, text)
	if errors.Is(err, lease.ErrLost) {
		w.tell(about(claim, refused, err))
	}
	return err
}

// finish commits both the invoice and the order's Done while the claim is in
// force, or neither. So there is a single invoice, however many workers have
// tried.
//
// finish ignores the end of ctx. Finished work is worth committing, even for a
// worker that was just asked to stop. Whether the worker may still commit is
// for the fence in the database to decide, not for a clock in this process. ctx
// carries the fence, and context.WithoutCancel(ctx) does too.
func (w *worker) finish(ctx context.Context, claim *lease.HolderOf[Order], order Order, text string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := lease.Transaction(ctx, w.db, func(tx *gorm.DB) error {
		invoice := Invoice{OrderID: order.ID, Text: text, Worker: w.name, Epoch: claim.Epoch(), Attempt: order.Attempts}
		if err := tx.Create(&invoice).Error; err != nil {
			return err
		}
		order.Done = true
		return claim.SaveIn(tx, order, "Done") // last, because it blocks the claim's renewals until the commit
	})
	if err == nil {
		w.tell(about(claim, invoiced, nil))
	}
	return err
}
