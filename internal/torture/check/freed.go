package check

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sqllease/lease/internal/torture/history"
)

// limit is the longest time without a leader, from the end of trust, while
// nothing keeps everyone from the lease. It is the sum of:
//
//   - a TTL. A renewal may have landed at the last moment without an answer to
//     its sender. The row may be live for a TTL from then, and a standby that
//     does not believe the database's clock waits for as long.
//   - a third of a TTL, the longest pause between two polls of a standby.
//   - a second for round trips, back-off after errors, and the machine's own
//     hiccups.
//   - another TTL if nobody led in a term that was won in between (skipped),
//     because the reply was lost or came too late. That term keeps the row
//     until the row expires.
func limit(ttl time.Duration, skipped bool) time.Duration {
	most := ttl + ttl/3 + time.Second
	if skipped {
		most += ttl
	}
	return most
}

// freed checks that the next term begins in time after the end of trust in a
// term, and at first.
//
// The time starts anew at the end of every obstacle that keeps everyone from
// the lease: a fault that does so, or the absence of every replica.
func (c *checker) freed(lanes []*lane) {
	obstacles := c.obstacles()
	var from, epoch int64 // the end of trust so far, and its term
	var who string
	for _, e := range c.Events {
		if e.Kind == history.Started && replica(e.Proc) {
			from, who = e.At, "the first replica's start"
			break
		}
	}
	for _, l := range lanes {
		if who != "" && l.from > from {
			c.gap(from, l.from, limit(c.TTL, l.epoch > epoch+1), obstacles, who, "until "+l.String()+" began, at "+c.time(l.from))
		}
		epoch = max(epoch, l.epoch)
		if who == "" || l.to > from {
			from, who = l.to, "the end of trust of "+l.String()
		}
	}
	// Terms without a leader may have been won since.
	if who != "" && c.end > from {
		c.gap(from, c.end, limit(c.TTL, true), obstacles, who, "until the end of the run")
	}
}

// gap checks a time without a leader. No part of the time between two obstacles
// may be longer than most.
func (c *checker) gap(from, to int64, most time.Duration, obstacles []span, who, until string) {
	begin, since := from, who
	free := func(end int64, until string) {
		if d := time.Duration(end - begin); d > most {
			c.report("freed", begin+int64(most), "nobody led for %.3f s, which is more than %.3f s, from %s, at %s, %s",
				d.Seconds(), most.Seconds(), since, c.time(begin), until)
		}
	}
	for _, o := range obstacles {
		if o.to <= begin || o.from >= to {
			continue
		}
		free(o.from, "until "+o.what+" began, at "+c.time(o.from))
		begin, since = o.to, "the end of "+o.what
	}
	free(to, until)
}

// A span is a time in which something keeps everyone from the lease.
type span struct {
	from, to int64
	what     string
}

// obstacles returns everything that keeps everyone from the lease, by its
// beginning.
func (c *checker) obstacles() []span {
	var all []span
	faults := map[int64]int{} // the index in all, by Seq
	running := map[process]bool{}
	none := -1 // the index in all, while no replica runs
	for _, e := range c.Events {
		switch {
		case e.Kind == history.Fault && e.Blocks:
			faults[e.Seq] = len(all)
			all = append(all, span{e.At, math.MaxInt64, "the fault " + e.Name})
		case e.Kind == history.FaultEnd:
			if i, ok := faults[e.Seq]; ok {
				all[i].to = e.At
			}
		case !replica(e.Proc):
		case e.Kind == history.Started:
			running[processOf(e)] = true
			if none >= 0 {
				all[none].to, none = e.At, -1
			}
		case e.Kind == history.Exited && running[processOf(e)]:
			delete(running, processOf(e))
			if len(running) == 0 {
				none = len(all)
				all = append(all, span{e.At, math.MaxInt64, "the absence of every replica"})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	return all
}

// replica reports whether the name is a replica's.
func replica(name string) bool { return strings.HasPrefix(name, "r") }
