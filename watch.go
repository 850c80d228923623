package lease

import "time"

// A watch is what an elector knows of its lease from its polls, and the rules by which it may take it.
//
// The expiry in the row is told by a clock that can be stepped: the database's. So the watch holds that clock against its own. If it
// ran ahead at any time since before the row was last written, the row is in doubt: its expiry is not believed. And a row that stood
// unchanged for its whole TTL on the elector's own clock has no live holder, whatever the database's clock says.
//
// Its counts start when the answer came that first showed the row as it is. The holder may have renewed until just before the database
// made that answer, and acts on it for less than a TTL; counted from the question, two could lead.
type watch struct {
	row      sighting // as last seen
	answered instant  // when
	since    instant  // when the answer came that first showed it so
	doubt    bool

	sent  instant       // the last poll
	ahead time.Duration // how far the clock that decides was ahead of the elector's, at the last poll: at most,
	least time.Duration // and the least of these, since the last poll that showed the row otherwise
	zero  time.Time     // what that clock said first

	polled bool
	led    bool          // the elector led since the last poll
	known  bool          // there was a row, at some time
	epoch  int64         // the highest ever seen
	ttl    time.Duration // of the row when it was last held
}

// note takes in the answer to a poll.
func (w *watch) note(row sighting, sent, answered instant) {
	if !w.polled {
		w.zero = row.now
	}
	// The database read its clock between the sending and the answer.
	clock := row.now.Sub(w.zero)
	atMost, atLeast := clock-sent.mono, clock-answered.mono
	switch {
	case !w.polled:
		w.since, w.least = answered, atMost
	case row.exists != w.row.exists || row.Record != w.row.Record:
		// While the elector led, it did not look at the clock, which may have gone back and forth.
		w.doubt = w.led && answered.mono-w.sent.mono > row.ttl()
		w.since, w.least = answered, w.ahead
	}
	w.polled, w.led, w.row, w.answered = true, false, row, answered
	w.sent, w.ahead = sent, atMost
	if row.exists {
		w.remember(row.Epoch)
	}
	if row.Holder != "" {
		w.ttl = row.ttl()
	}
	// A sixteenth of the TTL is for clocks that only drift, or count in milliseconds; the margin that it is taken from is a third.
	if atLeast-w.least > w.ttl/16 {
		w.doubt = true
	}
	w.least = min(w.least, atMost)
}

// remember keeps an epoch that the elector saw.
func (w *watch) remember(epoch int64) { w.known, w.epoch = true, max(w.epoch, epoch) }

// lead notes that the elector won the lease, in the term of that epoch.
func (w *watch) lead(epoch int64) {
	w.remember(epoch)
	w.led = true
}

// free says whether the lease may be taken right after the last answer, and under which guard. If not, it may be in wait.
func (w *watch) free(now instant, ttl time.Duration) (g guard, wait time.Duration) {
	own := func(d time.Duration) time.Duration { return w.since.plus(d).left(now) }
	switch {
	case !w.row.exists && !w.known:
		return ifExpired, 0
	case !w.row.exists: // deleted by hand, perhaps under a leader
		return ifExpired, own(max(ttl, w.ttl))
	case w.row.Holder == "":
		return ifUnchanged, 0
	case w.doubt:
		return ifUnchanged, own(w.row.ttl())
	case !w.row.live():
		return ifExpired, 0
	}
	left := max(time.Microsecond, w.row.ExpiresAt.Sub(w.row.now)-(now.mono-w.answered.mono)) // poll again before believing it
	return ifUnchanged, min(left, own(w.row.ttl()))
}

// leader says who holds the lease as of the last answer, and how long that is worth.
func (w *watch) leader() (holder string, until instant) {
	if !w.row.live() {
		return "", w.answered
	}
	return w.row.Holder, w.answered.plus(w.row.ExpiresAt.Sub(w.row.now))
}
