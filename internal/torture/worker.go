package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/torture/history"
)

// A payload identifies its save.
type payload struct {
	Epoch int64 `json:"epoch"`
	Seq   int64 `json:"seq"`
}

// worker claims items until ctx ends. worker saves an item a few times, and
// commits the item's effect together with the item's end.
func (c *child) worker(ctx context.Context) error {
	owner := fmt.Sprintf("%s.%d", c.Name, c.Life)
	for ctx.Err() == nil {
		holder, err := lease.ClaimNext[lease.Item](ctx, c.db, owner, "", c.TTL, nil)
		if err != nil {
			pause(ctx, c.between(c.TTL/50, c.TTL/10))
			continue
		}
		c.tell(holder, history.Claimed, 0, nil)
		err = holder.Run(ctx, func(ctx context.Context) error { return c.process(ctx, holder) })
		switch {
		case errors.Is(err, lease.ErrLost):
			c.tell(holder, history.Lost, 0, err)
		case ctx.Err() != nil:
			c.tell(holder, history.Released, 0, errors.New("handed on"))
		case err != nil:
			c.tell(holder, history.Released, 0, errors.New("failed"))
		default:
			c.tell(holder, history.Released, 0, errors.New("done"))
		}
	}
	return nil
}

var errFailed = errors.New("it failed, as work does")

// process saves an item, and ends it.
func (c *child) process(ctx context.Context, holder *lease.Holder) error {
	item := holder.Item()
	for seq := range int64(2 + c.random.IntN(4)) {
		item.Payload, _ = json.Marshal(payload{holder.Epoch(), seq + 1})
		saving, cancel := context.WithTimeout(ctx, c.between(c.TTL/10, c.TTL)) // some give up early
		err := holder.Save(saving, item)
		cancel()
		if errors.Is(err, lease.ErrLost) {
			c.tell(holder, history.Unsaved, seq+1, err)
			return err
		}
		if err != nil {
			c.tell(holder, history.Unsaved, seq+1, err)
		} else {
			c.tell(holder, history.Saved, seq+1, nil)
		}
		if c.random.IntN(20) == 0 {
			return errFailed
		}
		pause(ctx, c.between(time.Millisecond, c.TTL/10))
	}
	if late, ok := c.told("overrun"); ok {
		ctx = context.WithoutCancel(ctx)
		pause(ctx, late)
	}
	if _, ok := c.asked("hold"); ok {
		ctx = context.WithoutCancel(ctx) // ctx would end before the save
	}
	ending, cancel := context.WithTimeout(ctx, 4*c.TTL)
	defer cancel()
	err := lease.Transaction(ending, c.db, func(tx *gorm.DB) error {
		if err := tx.Exec("INSERT INTO torture_effects (item, epoch) VALUES (?, ?)", item.Key, holder.Epoch()).Error; err != nil {
			return err
		}
		c.hold()
		c.interrupt(tx)
		item.Done = true
		return holder.SaveIn(tx, item)
	})
	if err == nil {
		c.tell(holder, history.Done, 0, nil)
	}
	return err
}

func (c *child) tell(holder *lease.Holder, kind history.Kind, seq int64, note error) {
	e := history.Event{Kind: kind, Key: holder.Item().Key, Epoch: holder.Epoch(), Seq: seq}
	if note != nil {
		e.Note = note.Error()
	}
	c.record.Record(e)
}
