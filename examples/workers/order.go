package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sqllease/lease"
	"gorm.io/gorm"
)

// An Order is a model with rows to claim. AutoMigrate adds the columns of
// Claimable, such as claim_owner. An Order can therefore have an Owner of its
// own.
type Order struct {
	ID    uint
	Owner string // the customer. The worker is Claimable.Owner
	Net   int    // cents
	Total int    // cents, with tax. 0 until computed
	Hitch hitch
	lease.Claimable
}

// An Invoice is the effect of an order. Nothing in the table keeps an order
// from having two invoices, so a second invoice would show.
type Invoice struct {
	ID      uint
	OrderID uint
	Text    string
	Worker  string
	Epoch   int64 // of the claim that wrote the invoice
	Attempt int   // of the same claim: the claims since the last clean release
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

// create makes the tables. A model with lease.Claimable needs only AutoMigrate,
// and no other table.
func create(ctx context.Context, db *gorm.DB) error {
	if err := db.WithContext(ctx).AutoMigrate(&Order{}, &Invoice{}); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	return nil
}

// tables lists the tables that create makes.
func tables(string) []any { return []any{&Order{}, &Invoice{}} }

// A hitch is what goes wrong in the first claim of an order. The hitch leaves
// time to do something to the worker. Later claims have no hitch.
type hitch string

const (
	smooth hitch = ""
	stuck  hitch = "stuck" // the work takes for ever, until ctx ends
	deaf   hitch = "deaf"  // the same, but then the work continues, as work does that ignores its context
)

// render stands for slow work.
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
