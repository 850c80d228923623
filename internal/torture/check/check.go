// Package check decides from the record and the committed data of a torture run
// whether the package kept its promises. Every rule is exact: a reported
// violation has happened, and every violation of a rule is reported.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sqllease/lease/internal/torture/history"
)

// A Violation is a broken promise.
type Violation struct {
	// "trust", "margin", "fenced", "items", "freed", "linear", or "undecided"
	// if a history was too hard to check.
	Rule string
	At   int64  // CLOCK_MONOTONIC, in nanoseconds, or 0 without a time
	Text string // with times counted from the first event of the run
}

func (v Violation) String() string { return v.Rule + ": " + v.Text }

// Run checks a run by every rule, and returns its findings by rule.
//
//   - trust: trust never overlaps, an epoch is a single term, and epochs grow.
//   - margin: the lease's row outlives all trust by a third of the TTL, and its
//     times never go back within a term.
//   - fenced: epochs never fall from one committed write to the next. No write
//     is of a term that had expired. A transaction is committed whole. The
//     committed data is the data that the processes reported.
//   - items: every item ends with a single effect, of a single claim. No saved
//     data is lost, or overwritten by older data.
//   - freed: the lease comes free in time.
//   - linear: leases used by hand behave as if the operations happened one
//     after the other.
//
// A killed process gets the benefit of the doubt for everything that it could
// not report. Nothing else gets it.
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

// A checker collects the findings in a run.
type checker struct {
	history.Run
	start, end int64           // of the events
	steps      []history.Event // of the database's clock
	found      []Violation
}

// report notes a violation, but only once for both rows of a transaction.
func (c *checker) report(rule string, at int64, format string, args ...any) {
	v := Violation{Rule: rule, At: at, Text: fmt.Sprintf(format, args...)}
	if n := len(c.found); n == 0 || c.found[n-1] != v {
		c.found = append(c.found, v)
	}
}

// time formats a time for people.
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
