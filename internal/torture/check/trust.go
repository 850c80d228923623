package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sqllease/lease/internal/torture/history"
)

// A lane is a time in which a replica trusted itself in a term. The lane
// includes from, but not to.
type lane struct {
	process
	epoch    int64
	from, to int64
	ended    bool // the process reported the end. Otherwise the last deadline is the end
}

func (l *lane) empty() bool { return l.to <= l.from }

func (l *lane) String() string { return fmt.Sprintf("%v (term %d)", l.process, l.epoch) }

// trust checks that trust never overlaps, and returns its lanes by their
// beginning, without the empty lanes.
//
// A process reports a lane before the lane begins, and after the answer that
// allows the lane. A successor sends its statement after the end of trust. So
// the lanes of successive terms follow each other in the order of the terms.
// Empty lanes are an exception, because their process may have stood still
// meanwhile.
func (c *checker) trust() []*lane {
	var lanes []*lane
	byEpoch := map[int64]*lane{}
	for _, l := range c.lanes() {
		if first, taken := byEpoch[l.epoch]; taken {
			c.report("trust", l.from, "%v began at %s a term that %v had begun at %s", l, c.time(l.from), first, c.time(first.from))
		} else {
			byEpoch[l.epoch] = l
		}
		if !l.empty() {
			lanes = append(lanes, l)
		}
	}
	var last, highest *lane // the lane so far with the latest end, and the lane with the highest epoch
	for _, l := range lanes {
		if last != nil && l.from < last.to {
			c.report("trust", l.from, "%v trusted itself until %s, %v began at %s, %v before that",
				last, c.time(last.to), l, c.time(l.from), time.Duration(last.to-l.from))
		}
		if highest != nil && l.epoch < highest.epoch {
			c.report("trust", l.from, "%v began at %s, after %v had at %s", l, c.time(l.from), highest, c.time(highest.from))
		}
		if last == nil || l.to > last.to {
			last = l
		}
		if highest == nil || l.epoch > highest.epoch {
			highest = l
		}
	}
	return lanes
}

// lanes reads the lanes from the events, by their beginning.
func (c *checker) lanes() []*lane {
	type term struct {
		process
		epoch int64
	}
	var all []*lane
	current := map[term]*lane{}
	for _, e := range c.Events {
		of := term{processOf(e), e.Epoch}
		l := current[of]
		switch e.Kind {
		case history.Begin:
			l = &lane{process: of.process, epoch: e.Epoch, from: e.At, to: e.Until}
			current[of] = l
			all = append(all, l)
		case history.Extend, history.End:
			switch {
			case l == nil:
				c.report("trust", e.At, "%v tells at %s of the %s of its trust in term %d, which it never began", of.process, c.time(e.At), e.Kind, e.Epoch)
			case l.ended:
			case e.Kind == history.End:
				l.ended, l.to = true, min(l.to, e.At)
			case e.Until > e.At: // otherwise the extension came too late to be of use
				l.to = max(l.to, e.Until)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *lane) int { return cmp.Compare(a.from, b.from) })
	return all
}
