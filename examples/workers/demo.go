package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sqllease/lease/examples/internal/stage"
)

// A demo directs the workers and tells what they do. Only the goroutine of run
// uses a demo.
type demo struct {
	stage.Run
	cast *stage.Cast[event, notes]

	orders map[uint]*track // all orders so far
	fates  map[uint]fate   // of the orders with a hitch
}

type (
	process = stage.Process[notes]
	report  = stage.Report[event, notes]
)

// notes are the demo's notes about a worker.
type notes struct {
	ready bool
	ended event // the end of its newest claim that was not completed
}

// A track is an order as its parent sees it.
type track struct {
	current report // the newest claim that began its long part. From is nil before the first
	done    bool   // the invoice is committed
	refused int    // invoices that the fence refused
}

func newDemo(run stage.Run) *demo {
	d := &demo{Run: run, orders: map[uint]*track{}, fates: map[uint]fate{}}
	d.cast = stage.NewCast(run, d.handle)
	return d
}

// run plays every scene and then judges the result.
func (d *demo) run(ctx context.Context) error {
	d.Out.Title("One table of orders, three workers, TTL %v. %v.\n"+
		"A worker claims an order, saves its total, takes its time, and commits the invoice and the order's new state together.", d.TTL, d.Where)
	err := d.Scenes(ctx, []stage.Scene{
		{Title: "six orders are waiting; three workers start", Play: d.startThree},
		{Title: "a worker is killed in the middle of an order", Play: d.killWorker},
		{Title: "a worker freezes in the middle of an order, and wakes after it was replaced", Play: d.freezeWorker},
		{Title: "a worker is asked to stop in the middle of an order", Play: d.stopWorker},
		{Title: "everyone stops", Play: d.stopAll},
	})
	if err != nil {
		return err
	}
	return d.judge(ctx)
}

// receive adds n orders. The last has the hitch, and all others go smoothly.
// receive returns the key of the last.
func (d *demo) receive(ctx context.Context, n int, last hitch) (id uint, err error) {
	customers := []string{"Ada", "Grace", "Edsger", "Barbara", "Tony"}
	orders := make([]Order, n)
	for i := range orders {
		nth := len(d.orders) + i
		orders[i] = Order{Owner: customers[nth%len(customers)], Net: 1000 + 50*nth}
	}
	orders[n-1].Hitch = last
	if err := d.DB.WithContext(ctx).Create(&orders).Error; err != nil {
		return 0, fmt.Errorf("add orders: %w", err)
	}
	for _, o := range orders {
		d.orders[o.ID] = &track{}
	}
	return orders[n-1].ID, nil
}

// catch adds orders, the last with a hitch, and returns when a worker is in the
// middle of the last order. The worker stays there until its fate comes.
func (d *demo) catch(ctx context.Context, h hitch, f fate) (report, error) {
	id, err := d.receive(ctx, 3, h)
	if err != nil {
		return report{}, err
	}
	t := d.orders[id]
	d.fates[id] = f
	err = d.cast.Await(ctx, "a worker in the middle of an order", func() bool { return t.current.From != nil })
	return t.current, err
}

// awaitTakeover waits until another worker is in the middle of the order, and
// prints how long the wait took.
func (d *demo) awaitTakeover(ctx context.Context, hit report, at time.Time, what string) error {
	t := d.orders[hit.Event.Order]
	if err := d.cast.Await(ctx, "the next worker on that order", func() bool { return t.current.Event.Epoch > hit.Event.Epoch }); err != nil {
		return err
	}
	d.Out.Line(t.current.At, t.current.From.Name, t.current.Event.Epoch, "has order %d in hand %s after %s; the TTL is %s",
		hit.Event.Order, stage.Seconds(t.current.At.Sub(at)), what, stage.Seconds(d.TTL))
	return nil
}

// awaitEnd waits until the worker reports the end of its claim. Any end except
// want is an error.
func (d *demo) awaitEnd(ctx context.Context, hit report, want kind) error {
	p := hit.From
	ended := func() bool { return p.Notes.ended.Order == hit.Event.Order && p.Notes.ended.Epoch == hit.Event.Epoch }
	if err := d.cast.Await(ctx, "the end of "+p.Name+"'s claim", ended); err != nil {
		return err
	}
	if p.Notes.ended.Kind != want {
		return fmt.Errorf("the claim of %s was not %s, but %s", p.Name, want, p.Notes.ended.Kind)
	}
	return nil
}

// awaitDone waits for the invoices of all orders.
func (d *demo) awaitDone(ctx context.Context) error {
	return d.cast.Await(ctx, "all invoices", func() bool {
		for _, t := range d.orders {
			if !t.done {
				return false
			}
		}
		return true
	})
}

func (d *demo) allReady() bool {
	for _, p := range d.cast.Processes {
		if !p.Notes.ready {
			return false
		}
	}
	return true
}
