package main

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"
)

// A demo directs the workers and tells what they do. One goroutine, run's, owns all of it.
type demo struct {
	ttl   time.Duration
	where location
	db    *gorm.DB
	out   *timeline

	events  chan event
	workers []*process      // in the order of their start; those that are gone stay
	orders  map[uint]*track // all that came in
	fates   map[uint]fate   // of the orders with a hitch
}

// A track is an order as its parent sees it.
type track struct {
	current event // the long part of the newest claim began; from is nil before that of the first
	done    bool  // its invoice is committed
	refused int   // invoices, by the fence
}

func newDemo(ttl time.Duration, where location, db *gorm.DB, out *timeline) *demo {
	return &demo{ttl: ttl, where: where, db: db, out: out, events: make(chan event, 100), orders: map[uint]*track{}, fates: map[uint]fate{}}
}

// run plays every scene and then judges what was written.
func (d *demo) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx) // ends the forwarding of events, too
	defer cancel()
	d.out.title("One table of orders, three workers, TTL %v. %v.\n"+
		"A worker claims an order, saves its total, takes its time, and commits the invoice and the order's new state together.", d.ttl, d.where)
	scenes := []struct {
		title string
		play  func(context.Context) error
	}{
		{"six orders are waiting; three workers start", d.startThree},
		{"a worker is killed in the middle of an order", d.killWorker},
		{"a worker freezes in the middle of an order, and wakes after it was replaced", d.freezeWorker},
		{"a worker is asked to stop in the middle of an order", d.stopWorker},
		{"everyone stops", d.stopAll},
	}
	for _, s := range scenes {
		d.out.step(s.title)
		if err := s.play(ctx); err != nil {
			return err
		}
	}
	return d.judge(ctx)
}

// receive adds orders, all but the last of which go smoothly, and returns the key of that one.
func (d *demo) receive(ctx context.Context, n int, last hitch) (id uint, err error) {
	customers := []string{"Ada", "Grace", "Edsger", "Barbara", "Tony"}
	orders := make([]Order, n)
	for i := range orders {
		nth := len(d.orders) + i
		orders[i] = Order{Owner: customers[nth%len(customers)], Net: 1000 + 50*nth}
	}
	orders[n-1].Hitch = last
	if err := d.db.WithContext(ctx).Create(&orders).Error; err != nil {
		return 0, fmt.Errorf("add orders: %w", err)
	}
	for _, o := range orders {
		d.orders[o.ID] = &track{}
	}
	return orders[n-1].ID, nil
}

// catch lets orders come in, one of them with a hitch, and returns when a worker is in the middle of that one. It stays there until its fate
// befalls it.
func (d *demo) catch(ctx context.Context, h hitch, f fate) (event, error) {
	id, err := d.receive(ctx, 3, h)
	if err != nil {
		return event{}, err
	}
	t := d.orders[id]
	d.fates[id] = f
	err = d.await(ctx, "a worker in the middle of an order", func() bool { return t.current.from != nil })
	return t.current, err
}

// awaitTakeover waits until another worker is in the middle of the order, and says how long that took.
func (d *demo) awaitTakeover(ctx context.Context, hit event, at time.Time, what string) error {
	t := d.orders[hit.Order]
	if err := d.await(ctx, "the next worker on that order", func() bool { return t.current.Epoch > hit.Epoch }); err != nil {
		return err
	}
	d.out.line(t.current.at, t.current.from.name, t.current.Epoch, "has order %d in hand %s after %s; the TTL is %s",
		hit.Order, seconds(t.current.at.Sub(at)), what, seconds(d.ttl))
	return nil
}

// awaitEnd waits until the worker says how its claim ended, which must be as expected.
func (d *demo) awaitEnd(ctx context.Context, hit event, want kind) error {
	p := hit.from
	ended := func() bool { return p.ended.Order == hit.Order && p.ended.Epoch == hit.Epoch }
	if err := d.await(ctx, "the end of "+p.name+"'s claim", ended); err != nil {
		return err
	}
	if p.ended.Kind != want {
		return fmt.Errorf("the claim of %s was not %s, but %s", p.name, want, p.ended.Kind)
	}
	return nil
}

// awaitDone waits for the invoices of all orders.
func (d *demo) awaitDone(ctx context.Context) error {
	return d.await(ctx, "all invoices", func() bool {
		for _, t := range d.orders {
			if !t.done {
				return false
			}
		}
		return true
	})
}

// start adds a worker, by the next free name.
func (d *demo) start(ctx context.Context) error {
	name := string(rune('A' + len(d.workers)))
	p, err := startProcess(ctx, settings{Name: name, TTL: d.ttl, Where: d.where}, d.events)
	if p != nil {
		d.workers = append(d.workers, p)
	}
	return err
}

func (d *demo) stop(ctx context.Context, p *process) error {
	p.goodbye = byItself
	if err := askToStop(p.cmd.Process); err != nil {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	return d.await(ctx, "the end of "+p.name, func() bool { return p.gone })
}

// killAll leaves no process behind, whatever state it is in.
func (d *demo) killAll() {
	for _, p := range d.workers {
		p.kill()
	}
}

func (d *demo) allReady() bool {
	for _, p := range d.workers {
		if !p.ready {
			return false
		}
	}
	return true
}

// await handles events until the state is as wanted. Anything may take a takeover's time, and then some.
func (d *demo) await(ctx context.Context, what string, wanted func() bool) error {
	limit := 3*d.ttl + 15*time.Second
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for !wanted() {
		select {
		case e := <-d.events:
			if err := d.handle(e); err != nil {
				return err
			}
		case <-timer.C:
			return fmt.Errorf("waited %v for %s", limit, what)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
