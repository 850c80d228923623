package lease

import "time"

// A watch is an elector's knowledge of its lease, from its polls. The watch
// decides when the elector may take the lease.
//
// The database's clock can be stepped, back and forth, between any two polls.
// So the watch counts on the elector's own clock: a row that stands unchanged
// for its whole TTL has no live holder. Every renewal changes the row, whatever
// the database's clock says.
//
// Each count starts when the first answer comes that shows the row in this
// state. The holder may have renewed until just before the database made that
// answer, and acts on the renewal for two thirds of a TTL.
//
// The row was renewed some time before that answer. The count believes the
// row's age by the database's clock, but only up to a quarter of the TTL. With
// a poll every third of a TTL, the true age hardly exceeds a quarter. So after
// the first poll no step of the database's clock makes two leaders: the count
// lasts at least three quarters of a TTL, a twelfth longer than the holder
// acts.
type watch struct {
	row      sighting      // the last answer
	answered instant       // when the last answer came
	since    instant       // when the first answer came that showed this row
	age      time.Duration // the row's age at since, as far as believed

	polled    bool
	following bool          // the elector has polled since it last led
	known     bool          // some poll or takeover found a row
	epoch     int64         // the highest ever seen
	ttl       time.Duration // the row's TTL when somebody last held it
	own       Term          // the last term that the elector won, which is over
}

// note records the answer to a poll.
func (w *watch) note(row sighting, answered instant, ttl time.Duration) {
	if !w.following || row.Record != w.row.Record {
		if row.Holder != "" {
			w.ttl = row.lasts(ttl)
		}
		w.since, w.age = answered, row.age(w.ttl)
		if w.polled { // the first poll knows nothing else, and believes the age wholly
			w.age = min(w.age, pace(w.ttl).belief())
		}
	}
	w.polled, w.following, w.row, w.answered = true, true, row, answered
	if row.exists {
		w.remember(row.Epoch)
	}
}

// remember records an epoch that the elector saw.
func (w *watch) remember(epoch int64) { w.known, w.epoch = true, max(w.epoch, epoch) }

// lead records a term that the elector won. What the elector saw before the
// term says nothing about the row after it.
func (w *watch) lead(t Term) {
	w.remember(t.Epoch)
	w.own, w.following = t, false
}

// wait returns how long the row must still stand unchanged, from the last
// answer on, until the elector may take the lease. 0 means right away.
func (w *watch) wait(ttl time.Duration) time.Duration {
	left := func(d time.Duration) time.Duration { return w.since.plus(d).left(w.answered) }
	switch {
	case !w.row.exists && !w.known:
		return 0
	case !w.row.exists: // deleted by hand, perhaps under a leader
		return left(max(ttl, w.ttl))
	case w.row.Holder == "":
		return 0
	case w.row.Holder == w.own.Holder && w.row.Epoch == w.own.Epoch:
		return 0 // the elector's own term is over, so nobody acts on it
	}
	return left(w.ttl - w.age)
}

// leader returns the holder as of the last answer, and until when the answer
// counts.
func (w *watch) leader() (holder string, until instant) {
	return w.row.Holder, w.answered.plus(w.row.remaining())
}
