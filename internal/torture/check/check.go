// Package check decides whether the package kept its promises in a torture run, from what was recorded and what was committed. Every rule is
// exact: what it reports has happened, and what of its kind has happened it reports.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sqllease/lease/internal/torture/history"
)

// A Violation is a promise that was not kept.
type Violation struct {
	Rule string // "trust", "margin", "fenced", "items", "freed", "linear"; or "undecided", if a history was too hard to check
	At   int64  // CLOCK_MONOTONIC, in nanoseconds; 0 if it has no time
	Text string // what happened; its times are counted from the first event of the run
}

func (v Violation) String() string { return v.Rule + ": " + v.Text }

// Run checks a run by every rule, and returns what it finds by rule.
//
//   - trust: trust never overlaps, an epoch is one term, and epochs grow.
//   - margin: the lease's row outlives all trust by a third of the TTL, and its
//     times never go back within a term.
//   - fenced: epochs never fall from one committed write to the next, none is of
//     a term that had expired, a transaction is committed whole, and what was
//     committed is what was told.
//   - items: every item ends with one effect, of one claim, and nothing saved is lost or overwritten by older.
//   - freed: the lease comes free in time.
//   - linear: leases used by hand behave as if one operation happened after the other.
//
// What a process could not tell, since it was killed, is given the benefit of the doubt, and nothing else is.
func Run(r history.Run) []Violation {
	r.Events = slices.Clone(r.Events)
	slices.SortStableFunc(r.Events, func(a, b history.Event) int { return cmp.Compare(a.At, b.At) })
	c := &checker{Run: r}
	if len(r.Events) > 0 {
		c.start, c.end = r.Events[0].At, r.Events[len(r.Events)-1].At
	}
	for _, e := range r.Events {
		if e.Kind == history.Stepped {
			c.steps = append(c.steps, e)
		}
	}
	lanes := c.trust()
	c.margin()
	c.fenced()
	c.items()
	c.freed(lanes)
	c.linear(patience)
	return c.found
}

// A checker collects what it finds in one run.
type checker struct {
	history.Run
	start, end int64           // of the events
	steps      []history.Event // of the database's clock
	found      []Violation
}

// report notes a violation, once for both rows of a transaction.
func (c *checker) report(rule string, at int64, format string, args ...any) {
	v := Violation{Rule: rule, At: at, Text: fmt.Sprintf(format, args...)}
	if n := len(c.found); n == 0 || c.found[n-1] != v {
		c.found = append(c.found, v)
	}
}

// time is for people.
func (c *checker) time(at int64) string {
	return fmt.Sprintf("%.3f s", time.Duration(at-c.start).Seconds())
}

// A process is one life of a replica, a worker or a client.
type process struct {
	name string
	life int
}

func processOf(e history.Event) process { return process{e.Proc, e.Life} }

func (p process) String() string { return fmt.Sprintf("%s.%d", p.name, p.life) }
