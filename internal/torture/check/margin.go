package check

import (
	"time"

	"github.com/sqllease/lease/internal/torture/history"
)

// tolerance is for the precision of the margin's times. SQLite's clock counts
// milliseconds, and the two clocks of an event are read within a millisecond.
const tolerance = 3 * time.Millisecond

// margin checks that the row of the lease outlives all trust in a term by a
// third of the TTL, and that its times never go back within a term.
func (c *checker) margin() {
	latest := map[int64]int64{} // expiry, by epoch
	var last history.Version
	for _, v := range c.Versions {
		if v.Holder == "" { // released
			last = v
			continue
		}
		if v.Epoch == last.Epoch {
			if v.Expires < last.Expires {
				c.report("margin", 0, "in term %d the expiry of the row went back by %v", v.Epoch, microseconds(last.Expires-v.Expires))
			}
			if v.Renewed < last.Renewed {
				c.report("margin", 0, "in term %d the renewal in the row went back by %v", v.Epoch, microseconds(last.Renewed-v.Renewed))
			}
		}
		last = v
		latest[v.Epoch] = max(latest[v.Epoch], v.Expires)
	}
	if c.OneClock {
		c.outlived(latest)
	}
}

// A promise is the longest time for which a process promised to trust itself in
// a term.
type promise struct {
	history.Event       // with the latest deadline
	from, to      int64 // a time that includes the sending of the first statement and the last answer
}

// outlived checks that the latest deadline of each term is a third of the TTL
// before the latest expiry of its row. To convert a deadline, outlived needs
// the offset of the database's clock. The offset is known unless the clock was
// stepped meanwhile. Then outlived skips the term.
func (c *checker) outlived(latest map[int64]int64) {
	promises := map[int64]*promise{}
	var epochs []int64
	for _, e := range c.Events {
		// A deadline that has passed already has no time.
		if e.Kind != history.Begin && e.Kind != history.Extend || e.Until <= e.At {
			continue
		}
		p := promises[e.Epoch]
		if p == nil {
			p = &promise{Event: e, from: e.At - int64(c.TTL)}
			promises[e.Epoch] = p
			epochs = append(epochs, e.Epoch)
		}
		p.to = e.At
		if e.Until > p.Until {
			p.Event = e
		}
	}
	for _, epoch := range epochs {
		p := promises[epoch]
		if c.stepped(p.from, p.to) {
			continue
		}
		needed := p.Wall + c.offset(p.At) + (p.Until-p.At+int64(c.TTL/3))/1000
		expires, known := latest[epoch]
		switch short := microseconds(needed - expires); {
		case !known:
			c.report("margin", p.At, "%v trusted itself in term %d, of which no row was committed", processOf(p.Event), epoch)
		case short > tolerance:
			c.report("margin", p.At, "%v trusted itself in term %d until %s, but no row of it was committed that expires a third of the TTL later: %v are missing",
				processOf(p.Event), epoch, c.time(p.Until), short)
		}
	}
}

// offset returns how far the database's clock was ahead of the machine's, in
// microseconds.
func (c *checker) offset(at int64) (offset int64) {
	for _, e := range c.steps {
		if e.Until <= at {
			offset = e.Offset
		}
	}
	return offset
}

func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
