package main

import "fmt"

// handle takes in one event of a worker, and tells of it.
func (d *demo) handle(e event) error {
	p := e.from
	tell := func(format string, args ...any) { d.out.line(e.at, p.name, e.Epoch, format, args...) }
	switch e.Kind {
	case ready:
		p.ready = true
		tell("starts")
	case troubled:
		tell("could not claim: %s", e.Detail)
	case claimed:
		tell("claims order %d%s", e.Order, history(e))
	case rendering:
		if t := d.orders[e.Order]; e.Epoch > t.current.Epoch { // the pipes of two workers are read in no order
			t.current = e
		}
	case invoiced:
		d.orders[e.Order].done = true
		tell("invoiced order %d", e.Order)
	case refused:
		d.orders[e.Order].refused++
		tell("%s: %s", d.out.paint(red, "second invoice REFUSED by the fence"), e.Detail)
	case lost, handedOn, failed:
		p.ended = e
		tell("order %d is %s; Run returned: %s", e.Order, e.Kind, e.Detail)
	case exited:
		return d.handleExit(e)
	}
	return nil
}

// history tells what the claim found out about those before it.
func history(e event) string {
	switch {
	case e.TookOver:
		return fmt.Sprintf(", whose last claim ran out: attempt %d", e.Attempt)
	case e.Epoch > 1:
		return fmt.Sprintf(", which was handed on: attempt %d", e.Attempt)
	}
	return ""
}

func (d *demo) handleExit(e event) error {
	p := e.from
	p.gone = true
	if e.Detail != p.goodbye {
		return fmt.Errorf("worker %s is gone: %s\n%s", p.name, e.Detail, p.log)
	}
	d.out.line(e.at, p.name, 0, "exits: %s", e.Detail)
	return nil
}

// report prints the orders with a hitch, and the sum.
func (d *demo) report(orders []Order, invoiceOf map[uint]Invoice) {
	d.out.plain("\n%s", d.out.paint(faint, "   order  first worker  epoch  attempt  invoiced by"))
	refused := 0
	for _, o := range orders {
		refused += d.orders[o.ID].refused
		if f := d.fates[o.ID]; f != none {
			i := invoiceOf[o.ID]
			d.out.plain("%8d  %-12s  %5d  %7d  %s", o.ID, f, i.Epoch, i.Attempt, d.out.paintName(i.Worker, i.Worker))
		}
	}
	d.out.plain("\n%d orders, each done and invoiced exactly once. Takeovers from the killed and the frozen worker count as attempts;", len(orders))
	d.out.plain("the one that was asked to stop handed its order on, and took its attempt back. Late invoices refused: %d.", refused)
	d.out.verdict(true)
}
