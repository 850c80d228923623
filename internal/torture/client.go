package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/torture/history"
)

// client takes, releases and finds leases by hand, by its own clock, until ctx
// ends. Now and then all clients go on to other leases, together. Otherwise a
// history would have too many operations of unknown outcome to be checked in a
// reasonable time.
func (c *child) client(ctx context.Context) error {
	for ctx.Err() == nil {
		name := fmt.Sprintf("hand-%d-%d", history.Now()/int64(2*c.TTL), c.random.IntN(2))
		seq := c.next()
		op := history.Op{Name: [...]string{"acquire", "acquire", "release", "find"}[c.random.IntN(4)]}
		if op.Name != "find" {
			op.Holder, op.Now = c.Name, time.Now().UnixMicro()
		}
		if op.Name == "acquire" {
			op.TTL = c.between(c.TTL/20, c.TTL/4).Microseconds()
		}
		call := op
		c.record.Record(history.Event{Kind: history.Call, Key: name, Seq: seq, Op: &call})
		rest := c.between(time.Millisecond, c.TTL/20)
		if err := c.carryOut(name, &op); err != nil {
			op.Error = err.Error()
			rest += c.TTL / 2
		}
		c.record.Record(history.Event{Kind: history.Return, Key: name, Seq: seq, Op: &op})
		pause(ctx, rest)
	}
	return nil
}

// carryOut carries an operation out, and notes the outcome.
func (c *child) carryOut(name string, op *history.Op) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), c.between(c.TTL/4, 2*c.TTL))
	defer cancel()
	now := time.UnixMicro(op.Now)
	switch op.Name {
	case "acquire":
		op.Got, err = lease.TryAcquire(ctx, c.db, name, op.Holder, time.Duration(op.TTL)*time.Microsecond, now)
	case "release":
		err = lease.Release(ctx, c.db, name, op.Holder, now)
	case "find":
		var s lease.Status
		if s, err = lease.Find(ctx, c.db, name); errors.Is(err, gorm.ErrRecordNotFound) {
			op.Missing, err = true, nil
			break
		}
		op.Holder, op.Epoch, op.Expires = s.Holder, s.Epoch, s.ExpiresAt.UnixMicro()
	}
	return err
}
