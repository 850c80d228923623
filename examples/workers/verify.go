package main

import (
	"context"
	"errors"
	"fmt"
)

// A fate is what happened to the first worker of an order.
type fate string

const (
	none    fate = ""
	killed  fate = "killed"
	frozen  fate = "frozen"
	stopped fate = "stopped"
)

// judge reads the orders and invoices and decides whether the promises were
// kept.
func (d *demo) judge(ctx context.Context) error {
	orders, invoices, err := allRows(ctx, d.DB)
	if err != nil {
		return err
	}
	if len(orders) != len(d.orders) {
		return fmt.Errorf("%d orders came in, %d are there", len(d.orders), len(orders))
	}
	invoiceOf, err := settle(orders, invoices)
	if err != nil {
		return err
	}
	for _, o := range orders {
		err = errors.Join(err, checkClaims(o, invoiceOf[o.ID], d.fates[o.ID]))
	}
	if err == nil {
		d.report(orders, invoiceOf)
	}
	return err
}

// settle finds each order's invoice. settle returns an error unless every order
// is done and released, and has exactly one invoice.
func settle(orders []Order, invoices []Invoice) (map[uint]Invoice, error) {
	var err error
	count, invoiceOf := map[uint]int{}, map[uint]Invoice{}
	for _, i := range invoices {
		count[i.OrderID]++
		invoiceOf[i.OrderID] = i
	}
	for _, o := range orders {
		switch text := invoiceOf[o.ID].Text; {
		case count[o.ID] != 1:
			err = errors.Join(err, fmt.Errorf("order %d has %d invoices", o.ID, count[o.ID]))
		case !o.Done:
			err = errors.Join(err, fmt.Errorf("order %d has its invoice, but is not done", o.ID))
		case o.Claimable.Owner != "":
			err = errors.Join(err, fmt.Errorf("order %d is done, but %q still claims it", o.ID, o.Claimable.Owner))
		case text != o.text() || o.Total != withTax(o.Net):
			err = errors.Join(err, fmt.Errorf("order %d has the invoice %q, not %q", o.ID, text, o.text()))
		}
		delete(count, o.ID)
	}
	for id := range count {
		err = errors.Join(err, fmt.Errorf("there is an invoice of order %d, which never came in", id))
	}
	return invoiceOf, err
}

// checkClaims checks the number of an order's claims and attempts. A stalled
// worker may have cost any order an extra claim. Every claim counts as an
// attempt, except a claim that was handed on.
func checkClaims(o Order, i Invoice, f fate) error {
	name, claims, attempts := fmt.Sprintf("order %d", o.ID), i.Epoch, i.Epoch
	if f != none {
		name += fmt.Sprintf(", whose first worker was %s,", f)
	}
	if f == stopped {
		attempts--
	}
	switch {
	case i.Epoch != o.Epoch:
		return fmt.Errorf("%s was invoiced in claim %d, but its last one was %d", name, i.Epoch, o.Epoch)
	case f != none && claims < 2:
		return fmt.Errorf("%s was not claimed again", name)
	case int64(i.Attempt) != attempts:
		return fmt.Errorf("%s took %d claims; they count as %d attempts, not %d", name, claims, i.Attempt, attempts)
	}
	return nil
}
