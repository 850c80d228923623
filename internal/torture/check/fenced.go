package check

import (
	"fmt"
	"math"
	"slices"

	"github.com/sqllease/lease/internal/torture/history"
)

// A transaction identifies one fenced transaction of a replica.
type transaction struct {
	epoch int64
	proc  string
	seq   int64
}

func (t transaction) String() string {
	return fmt.Sprintf("write %d of %s in term %d", t.seq, t.proc, t.epoch)
}

// An attempt is a replica's report about a transaction.
type attempt struct {
	last     history.Event
	from, to int64 // its time. Without a report, from is 0 and to is math.MaxInt64
}

// fenced checks the committed rows of fenced transactions, in the order of the
// commits.
func (c *checker) fenced() {
	attempts := c.attempts()
	parts := map[transaction]map[int]bool{} // committed
	var highest transaction                 // of the highest epoch so far
	for _, w := range c.Writes {
		t := transaction{w.Epoch, w.Proc, w.Seq}
		a, known := attempts[t]
		e := a.last
		switch {
		case !known:
			c.report("fenced", 0, "%s was committed, but %s never tried to", t, w.Proc)
		case e.Kind == history.Refused:
			c.report("fenced", e.At, "%s was committed, but %v was told at %s that it was refused", t, processOf(e), c.time(e.At))
		case e.Kind == history.Undone:
			c.report("fenced", e.At, "%s was committed, but %v was told at %s that it was rolled back", t, processOf(e), c.time(e.At))
		case parts[t][w.Part]:
			c.report("fenced", e.At, "%s was committed twice", t)
		}
		if known {
			c.inForce(w, a)
		}
		if parts[t] == nil {
			parts[t] = map[int]bool{}
		}
		parts[t][w.Part] = true
		if w.Epoch < highest.epoch {
			c.report("fenced", e.At, "%s was committed after %s", t, highest)
		} else {
			highest = t
		}
	}
	for _, w := range c.Writes {
		if t := (transaction{w.Epoch, w.Proc, w.Seq}); len(parts[t]) == 1 {
			c.report("fenced", attempts[t].last.At, "%s was committed in part: only row %d of 2", t, w.Part)
			parts[t][0] = true // reported
		}
	}
	for _, e := range c.Events {
		if t := (transaction{e.Epoch, e.Proc, e.Seq}); e.Kind == history.Written && parts[t] == nil {
			c.report("fenced", e.At, "%s is missing, but %v was told at %s that it was committed", t, processOf(e), c.time(e.At))
		}
	}
}

// attempts reads the reports about every transaction.
func (c *checker) attempts() map[transaction]attempt {
	all := map[transaction]attempt{}
	for _, e := range c.Events {
		t := transaction{e.Epoch, e.Proc, e.Seq}
		switch e.Kind {
		case history.Writing:
			all[t] = attempt{e, e.At, math.MaxInt64}
		case history.Written, history.Refused, history.Undone, history.Failed:
			all[t] = attempt{e, all[t].from, e.At}
		}
	}
	return all
}

// inForce checks that a row's term had not expired when the row's transaction
// took the fence.
//
// The check is exact. The fence comes after the beginning of the transaction,
// so the clock said Began or later at the fence. The row of the lease was read
// after the fence. A term's expiry only grows until the release, and a release
// sets the expiry to a time after the fence. Only a step of the clock within
// the transaction could deceive the check.
func (c *checker) inForce(w history.Write, a attempt) {
	if w.Expires != 0 && w.Began >= w.Expires && !c.stepped(a.from, a.to) {
		c.report("fenced", a.last.At, "row %d of %v was committed by a transaction that began %d µs after its term had expired",
			w.Part, transaction{w.Epoch, w.Proc, w.Seq}, w.Began-w.Expires)
	}
}

// stepped reports whether the database's clock was stepped between from and to.
func (c *checker) stepped(from, to int64) bool {
	return slices.ContainsFunc(c.steps, func(e history.Event) bool { return e.At <= to && e.Until >= from })
}
