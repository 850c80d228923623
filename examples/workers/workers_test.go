package main

import (
	"strings"
	"testing"

	"github.com/sqllease/lease"
)

// order makes one that is done, in its nth claim.
func order(id uint, epoch int64) Order {
	return Order{ID: id, Owner: "Ada", Net: 1000, Total: 1200, Claimable: lease.Claimable{Epoch: epoch, Done: true}}
}

// invoice makes the one that an order should have.
func invoice(o Order, attempt int) Invoice {
	return Invoice{OrderID: o.ID, Text: o.text(), Epoch: o.Epoch, Attempt: attempt}
}

func changed[T any](row T, how func(*T)) T {
	how(&row)
	return row
}

func TestEveryBrokenPromiseIsSeenInTheTables(t *testing.T) {
	one := order(1, 1)
	bill := invoice(one, 1)
	if found, err := settle([]Order{one}, []Invoice{bill}); err != nil || found[1] != bill {
		t.Errorf("nothing is wrong: %v, %v", found, err)
	}
	for name, c := range map[string]struct {
		order    Order
		invoices []Invoice
		want     string
	}{
		"an effect that is missing":         {one, nil, "0 invoices"},
		"an effect that is there once more": {one, []Invoice{bill, bill}, "2 invoices"},
		"an effect without its state":       {changed(one, func(o *Order) { o.Done = false }), []Invoice{bill}, "not done"},
		"a claim that was not released":     {changed(one, func(o *Order) { o.Claimable.Owner = "A" }), []Invoice{bill}, "still claims"},
		"a total that was not saved":        {changed(one, func(o *Order) { o.Total = 0 }), []Invoice{bill}, "has the invoice"},
		"a column that was overwritten":     {changed(one, func(o *Order) { o.Owner = "" }), []Invoice{bill}, "has the invoice"},
		"an effect of nothing":              {one, []Invoice{bill, {OrderID: 9}}, "never came in"},
	} {
		if _, err := settle([]Order{c.order}, c.invoices); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}

func TestEveryClaimCountsAsAnAttemptUnlessItWasHandedOn(t *testing.T) {
	for _, c := range []struct {
		fate    fate
		claims  int64
		attempt int
		want    string // empty if all is well
	}{
		{none, 1, 1, ""},
		{none, 2, 2, ""}, // its worker stalled, say
		{killed, 2, 2, ""},
		{frozen, 3, 3, ""},
		{stopped, 2, 1, ""},
		{killed, 1, 1, "not claimed again"},
		{killed, 2, 1, "count as 1 attempts, not 2"},
		{stopped, 2, 2, "count as 2 attempts, not 1"},
	} {
		o := order(1, c.claims)
		err := checkClaims(o, invoice(o, c.attempt), c.fate)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: the error is %v", c, err)
		}
	}
	if checkClaims(order(1, 3), invoice(order(1, 2), 2), killed) == nil {
		t.Error("an order that was claimed again after its invoice is fine")
	}
}
