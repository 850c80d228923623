package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/hook"
	"github.com/sqllease/lease/internal/torture/history"
)

// theLease is the lease for which the replicas campaign.
const theLease = "torture"

// replica campaigns until ctx ends. While it leads, the replica writes in
// fenced transactions, almost without a pause.
func (c *child) replica(ctx context.Context) error {
	hook.Trust = func(step hook.Step, _ string, epoch int64, left func() time.Duration) {
		e := history.Event{Kind: history.Kind(step), Epoch: epoch}
		// Read both clocks again if the process was frozen between them.
		for before := history.Now(); e.At == 0 || e.At-before > int64(time.Millisecond); {
			before = history.Now()
			trusted := left()
			e.Wall = time.Now().UnixMicro()
			e.At = history.Now()
			e.Until = e.At + int64(trusted)
		}
		c.record.Record(e)
	}
	hook.Delay = func(statement string, answered bool) {
		when := "slow-" // on the way there
		if answered {
			when = "late-" // on the way back
		}
		d, ok := c.asked(when + statement)
		if !ok {
			return
		}
		if answered && statement == "take" {
			fmt.Println("taken")
		}
		pause(context.Background(), d)
	}
	hook.Clock = func(mono, wall time.Duration) (time.Duration, time.Duration) { return mono, wall + c.clockStep() }

	elector := &lease.Elector{DB: c.db, Name: theLease, Holder: c.Holder, TTL: c.TTL, Logger: c.log}
	return elector.Run(ctx, func(ctx context.Context) {
		term, _ := lease.TermFrom(ctx)
		c.record.Record(history.Event{Kind: history.WorkBegin, Epoch: term.Epoch})
		c.lead(ctx, elector, term.Epoch)
		note := ""
		if cause := context.Cause(ctx); cause != nil {
			note = cause.Error()
		}
		c.record.Record(history.Event{Kind: history.WorkEnd, Epoch: term.Epoch, Note: note})
	})
}

// lead is the work: to write until its context ends, and sometimes beyond.
func (c *child) lead(ctx context.Context, elector *lease.Elector, epoch int64) {
	var pool sync.WaitGroup
	defer pool.Wait()
	for ctx.Err() == nil {
		if _, ok := c.told("resign"); ok {
			elector.Resign()
		}
		if d, ok := c.told("exhaust"); ok {
			pool.Go(func() { c.exhaust(ctx, d) })
		}
		if _, ok := c.told("return"); ok {
			return
		}
		c.write(ctx, epoch)
		pause(ctx, c.between(time.Millisecond, 20*time.Millisecond))
	}
	// Some work ignores the end of its context.
	if d, ok := c.told("overrun"); ok {
		for end := time.Now().Add(d); time.Now().Before(end); {
			c.write(context.WithoutCancel(ctx), epoch)
			pause(context.Background(), c.between(time.Millisecond, 20*time.Millisecond))
		}
	}
}

// write commits two rows in a fenced transaction, and records the outcome.
func (c *child) write(ctx context.Context, epoch int64) {
	seq := c.next()
	if _, ok := c.asked("hold"); ok {
		ctx = context.WithoutCancel(ctx) // ctx would end before the commit
	}
	writing, cancel := context.WithTimeout(ctx, 4*c.TTL)
	defer cancel()
	db, large, d := c.db, false, time.Duration(0)
	if d, large = c.told("hold-result"); large {
		db = c.direct()
	}
	c.record.Record(history.Event{Kind: history.Writing, Epoch: epoch, Seq: seq})
	began := time.Now().UnixMicro()
	failed, toCommit := false, false // an error leaves the outcome unknown if the transaction was to commit
	err := lease.Transaction(writing, db, func(tx *gorm.DB) error {
		err := c.insert(tx, epoch, seq, 1, began)
		if err == nil && large {
			c.holdResult(tx, d)
		}
		if err == nil {
			c.interrupt(tx)
			err = c.insert(tx, epoch, seq, 2, began)
		}
		if err == nil {
			c.hold()
		}
		failed, toCommit = err != nil, err == nil
		return err
	})
	kind := history.Written
	switch {
	case errors.Is(err, lease.ErrLost) && !toCommit:
		kind = history.Refused
	case failed:
		kind = history.Undone
	case err != nil:
		kind = history.Failed
	}
	e := history.Event{Kind: kind, Epoch: epoch, Seq: seq}
	if err != nil {
		e.Note = err.Error()
	}
	c.record.Record(e)
}

// insert writes one of the two rows. The row has the beginning of the
// transaction and the expiry of the term, both by the database's clock. For
// SQLite that is this machine's clock, in milliseconds.
func (c *child) insert(tx *gorm.DB, epoch, seq int64, part int, began int64) error {
	start := "(extract(epoch from now())*1000000)::bigint" // BEGIN's time
	if c.Backend == "sqlite" {
		start = fmt.Sprint(began / 1000 * 1000)
	}
	return tx.Exec("INSERT INTO torture_writes (epoch, proc, seq, part, began, expires) VALUES (?, ?, ?, ?, "+start+
		", COALESCE((SELECT expires_at FROM leases WHERE name = ? AND epoch = ?), 0))", epoch, c.Name, seq, part, theLease, epoch).Error
}

// exhaust takes as many connections of the pool as possible, for a while.
func (c *child) exhaust(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	pool, err := c.db.DB()
	if err != nil {
		return
	}
	var taken []*sql.Conn
	for ctx.Err() == nil {
		conn, err := pool.Conn(ctx)
		if err != nil {
			break
		}
		taken = append(taken, conn)
	}
	<-ctx.Done()
	for _, conn := range taken {
		conn.Close()
	}
}
