package lease

import (
	"cmp"
	"time"
)

// A watch is what an elector knows of its lease from its polls, and the rules by which it may take it.
//
// The expiry in the row is told by a clock that can be stepped: the database's. So the watch holds that clock against its own. If it may
// have run ahead since the row was written, by more than the margin allows, the row is in doubt: its expiry is not believed. And a row that
// stood unchanged for its whole TTL on the elector's own clock has no live holder, whatever the database's clock says.
//
// All its counts start when an answer came. The holder may have renewed until just before the database made that answer, and acts on it for
// less than a TTL; counted from the question, two could lead.
type watch struct {
	row      sighting // as last seen
	answered instant  // when
	since    instant  // when the answer came that first showed it so
	doubt    bool

	zero  time.Time     // what the clock that decides said first
	ahead time.Duration // how far it was ahead of the elector's, at least, at the last poll
	base  time.Duration // the same when the row was written: the lesser of the polls just before and after

	polled bool
	led    bool          // the elector led since the last poll
	known  bool          // there was a row, at some time
	epoch  int64         // the highest ever seen
	ttl    time.Duration // of the row when it was last held
}

// note takes in the answer to a poll.
func (w *watch) note(row sighting, answered instant, ttl time.Duration) {
	if !w.polled {
		w.zero = row.now
	}
	before, ahead := w.ahead, row.now.Sub(w.zero)-answered.mono
	switch {
	case !w.polled:
		w.since, w.base = answered, ahead
	case row.Record != w.row.Record:
		// While the elector led, it did not look at the clock, which may have gone back and forth.
		w.doubt = w.led && answered.mono-w.answered.mono > cmp.Or(row.ttl(), ttl)/2
		w.since, w.base = answered, min(before, ahead)
	}
	w.polled, w.led, w.row, w.answered, w.ahead = true, false, row, answered, ahead
	if row.exists {
		w.remember(row.Epoch)
	}
	if row.Holder != "" {
		w.ttl = cmp.Or(row.ttl(), ttl)
	}
	// The holder stops a third of the TTL before the expiry. A quarter may be believed away: the rest is for clocks that drift.
	if ahead-w.base > w.ttl/4 {
		w.doubt = true
	}
}

// remember keeps an epoch that the elector saw.
func (w *watch) remember(epoch int64) { w.known, w.epoch = true, max(w.epoch, epoch) }

// lead notes that the elector won the lease, in the term of that epoch.
func (w *watch) lead(epoch int64) {
	w.remember(epoch)
	w.led = true
}

// free says whether the lease may be taken right after the last answer, and under which guard. If not, it may be in wait.
func (w *watch) free(ttl time.Duration) (g guard, wait time.Duration) {
	own := func(d time.Duration) time.Duration { return w.since.plus(d).left(w.answered) }
	switch {
	case !w.row.exists && !w.known:
		return ifExpired, 0
	case !w.row.exists: // deleted by hand, perhaps under a leader
		return ifExpired, own(max(ttl, w.ttl))
	case w.row.Holder == "":
		return ifUnchanged, 0
	case w.doubt:
		return ifUnchanged, own(w.ttl)
	case !w.row.live():
		return ifExpired, 0
	}
	return ifUnchanged, min(w.row.remaining(), own(w.ttl))
}

// leader says who holds the lease as of the last answer, and until when that is worth something.
func (w *watch) leader() (holder string, until instant) {
	return w.row.Holder, w.answered.plus(w.row.remaining())
}
