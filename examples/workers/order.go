package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sqllease/lease"
	"gorm.io/gorm"
)

// An Order is a model of one's own, whose rows are claimed. AutoMigrate brings it the columns of Claimable, claim_owner among them, so it can
// have an owner of its own.
type Order struct {
	ID    uint
	Owner string // the customer; the worker is the Owner of Claimable
	Net   int    // cents
	Total int    // cents, with tax; 0 until it was computed
	Hitch hitch
	lease.Claimable
}

// An Invoice is the effect of an order. Nothing in the table keeps an order from having two of them, so a second one would show.
type Invoice struct {
	ID      uint
	OrderID uint
	Text    string
	Worker  string
	Epoch   int64 // the claim's in which it was written
	Attempt int   // likewise: how many claims that was, since the last clean end of one
}

func withTax(net int) int { return net + net/5 }

func (o Order) text() string {
	return fmt.Sprintf("%s owes %d.%02d for order %d", o.Owner, o.Total/100, o.Total%100, o.ID)
}

// allRows reads the orders and their invoices.
func allRows(ctx context.Context, db *gorm.DB) (orders []Order, invoices []Invoice, err error) {
	if err := db.WithContext(ctx).Order("id").Find(&orders).Error; err != nil {
		return nil, nil, err
	}
	err = db.WithContext(ctx).Order("id").Find(&invoices).Error
	return orders, invoices, err
}

// create makes the tables. A model that embeds lease.Claimable needs no more than this, and no other table.
func create(ctx context.Context, db *gorm.DB) error {
	if err := db.WithContext(ctx).AutoMigrate(&Order{}, &Invoice{}); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	return nil
}

// tables are those that create makes.
func tables(string) []any { return []any{&Order{}, &Invoice{}} }

// A hitch is what goes wrong in the first claim of an order, so that there is time to do something to its worker. In later claims nothing does.
type hitch string

const (
	smooth hitch = ""
	stuck  hitch = "stuck" // it takes for ever, until ctx ends
	deaf   hitch = "deaf"  // and then goes on as if nothing had happened, as work does that does not look at its context
)

// render stands for work that takes a while.
func render(ctx context.Context, o Order) (string, error) {
	takes := time.After(200 * time.Millisecond)
	if o.Hitch != smooth && o.Epoch == 1 {
		takes = nil
	}
	select {
	case <-takes:
	case <-ctx.Done():
		if o.Hitch != deaf {
			return "", context.Cause(ctx)
		}
	}
	return o.text(), nil
}
