package main

import (
	"context"
	"errors"
	"time"

	"github.com/sqllease/lease"
	"gorm.io/gorm"
)

const (
	step        = "invoice"              // what the claims are for, for people who read the table
	idle        = 100 * time.Millisecond // between two looks at an empty queue; seconds would do elsewhere
	maxAttempts = 10
)

// A worker writes the invoice of one order after the other. There may be any number of workers, in any number of processes.
type worker struct {
	db   *gorm.DB
	name string        // the owner of its claims: every worker has its own, and lease.InstanceID makes one
	ttl  time.Duration // how long an order waits if its worker dies, and how long a worker may hang without losing its order
	tell func(event)   // as others would log
}

// run works until ctx ends, which is how the worker is asked to stop. It blocks until then, and until the order in hand is handed on.
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

// promising leaves out orders that failed, or killed their workers, so often that a person should look at them.
func promising(db *gorm.DB) *gorm.DB { return db.Where("claim_attempts < ?", maxAttempts) }

// attend works on one order. Run keeps the claim alive meanwhile; what it returns tells what became of the claim.
func (w *worker) attend(ctx context.Context, claim *lease.HolderOf[Order]) {
	w.tell(about(claim, claimed, nil))
	err := claim.Run(ctx, func(ctx context.Context) error { return w.invoice(ctx, claim) })
	switch {
	case err == nil:
		// The order is done, and the claim released.
	case errors.Is(err, lease.ErrLost):
		// Another worker has the order, or will have it: nothing is left to do here, and nothing can be committed.
		w.tell(about(claim, lost, err))
	case ctx.Err() != nil:
		// This worker is to stop. The order is free for the next one already, and what happened to it does not count as a failure.
		w.tell(about(claim, handedOn, err))
	default:
		// The order failed. It is tried again once the claim has run out, and then its attempts count up.
		w.tell(about(claim, failed, err))
	}
}

// invoice is the work. Its ctx ends when the claim can no longer be counted on, or when the worker is to stop.
func (w *worker) invoice(ctx context.Context, claim *lease.HolderOf[Order]) error {
	order := claim.Item()
	if order.Total == 0 {
		order.Total = withTax(order.Net)
		// What is saved on the way, the next worker need not do again. Naming the columns leaves the others to their own writers.
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

// finish commits the invoice, and that the order is done: both while the claim is in force, or neither. That makes one invoice, however
// many workers have tried.
//
// It does not heed the end of ctx: what is finished is worth committing, also by a worker that was just asked to stop. Whether it still may is
// not for a clock in this process to say but for the fence, in the database. ctx carries it, WithoutCancel too.
func (w *worker) finish(ctx context.Context, claim *lease.HolderOf[Order], order Order, text string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := lease.Transaction(ctx, w.db, func(tx *gorm.DB) error {
		invoice := Invoice{OrderID: order.ID, Text: text, Worker: w.name, Epoch: claim.Epoch(), Attempt: order.Attempts}
		if err := tx.Create(&invoice).Error; err != nil {
			return err
		}
		order.Done = true
		return claim.SaveIn(tx, order, "Done") // last, as it holds up the claim's renewals until the commit
	})
	if err == nil {
		w.tell(about(claim, invoiced, nil))
	}
	return err
}
