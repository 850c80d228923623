package main

import "fmt"

// handle records and prints a worker's report.
func (d *demo) handle(r report) error {
	p, e := r.From, r.Event
	tell := func(format string, args ...any) { d.Out.Line(r.At, p.Name, e.Epoch, format, args...) }
	if r.Exit != "" {
		tell("exits: %s", r.Exit)
		return nil
	}
	switch e.Kind {
	case ready:
		p.Notes.ready = true
		tell("starts")
	case troubled:
		tell("could not claim: %s", e.Detail)
	case claimed:
		tell("claims order %d%s", e.Order, history(e))
	case rendering:
		// The pipes of two workers are read in no particular order.
		if t := d.orders[e.Order]; e.Epoch > t.current.Event.Epoch {
			t.current = r
		}
	case invoiced:
		d.orders[e.Order].done = true
		tell("invoiced order %d", e.Order)
	case refused:
		d.orders[e.Order].refused++
		tell("%s: %s", d.Out.Red("second invoice REFUSED by the fence"), e.Detail)
	case lost, handedOn, failed:
		p.Notes.ended = e
		tell("order %d is %s; Run returned: %s", e.Order, e.Kind, e.Detail)
	}
	return nil
}

// history describes what a claim knows of the claims before.
func history(e event) string {
	switch {
	case e.TookOver:
		return fmt.Sprintf(", whose last claim ran out: attempt %d", e.Attempt)
	case e.Epoch > 1:
		return fmt.Sprintf(", which was handed on: attempt %d", e.Attempt)
	}
	return ""
}

// report prints the orders with a hitch, and the total.
func (d *demo) report(orders []Order, invoiceOf map[uint]Invoice) {
	d.Out.Plain("\n%s", d.Out.Faint("   order  first worker  epoch  attempt  invoiced by"))
	refused := 0
	for _, o := range orders {
		refused += d.orders[o.ID].refused
		if f := d.fates[o.ID]; f != none {
			i := invoiceOf[o.ID]
			d.Out.Plain("%8d  %-12s  %5d  %7d  %s", o.ID, f, i.Epoch, i.Attempt, d.Out.PaintName(i.Worker, i.Worker))
		}
	}
	d.Out.Plain("\n%d orders, each done and invoiced exactly once. Takeovers from the killed and the frozen worker count as attempts;", len(orders))
	d.Out.Plain("the one that was asked to stop handed its order on, and took its attempt back. Late invoices refused: %d.", refused)
	d.Out.Verdict(true)
}
