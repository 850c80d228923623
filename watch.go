package lease

import (
	"cmp"
	"time"
)

// A watch is what an elector knows of its lease from its polls. It decides
// when the elector may take the lease.
//
// The database's clock can be stepped, back and forth, between any two looks
// at it. So the watch counts on the elector's own clock: a row that stands
// unchanged for its whole TTL has no live holder. Every renewal changes the
// row, whatever the database's clock says.
//
// Each count starts when the answer came that first showed the row so. The
// holder may have renewed until just before the database made that answer, and
// acts on the renewal for two thirds of a TTL.
//
// The row was renewed some time before that answer. The count takes the
// database's word for its age, but only up to a quarter of the TTL, which a
// poll every third of a TTL hardly exceeds. So after the first poll no step of
// the database's clock makes two leaders: the count lasts three quarters of a
// TTL at least, a twelfth longer than the holder acts.
type watch struct {
	row      sighting      // as last seen
	answered instant       // when
	since    instant       // when the answer came that first showed it so
	age      time.Duration // how old the row was then, as far as believed

	polled bool
	known  bool          // there was a row, at some time
	epoch  int64         // the highest ever seen
	ttl    time.Duration // of the row when it was last held
	own    Term          // the last that the elector won; it is over
}

// note takes in the answer to a poll.
func (w *watch) note(row sighting, answered instant, ttl time.Duration) {
	if row.Holder != "" {
		w.ttl = cmp.Or(row.ttl(), ttl)
	}
	if row.Record != w.row.Record {
		w.since, w.age = answered, row.age(w.ttl)
		if w.polled { // before the first poll nothing else is known
			w.age = min(w.age, pace(w.ttl).belief())
		}
	}
	w.polled, w.row, w.answered = true, row, answered
	if row.exists {
		w.remember(row.Epoch)
	}
}

// remember keeps an epoch that the elector saw.
func (w *watch) remember(epoch int64) { w.known, w.epoch = true, max(w.epoch, epoch) }

// lead notes that the elector won the lease.
func (w *watch) lead(t Term) {
	w.remember(t.Epoch)
	w.own = t
}

// wait is how long the row must still stand as it did at the last answer until
// it may be taken: 0 if right away.
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
		return 0 // nobody acts on a term of its own that is over
	}
	return left(w.ttl - w.age)
}

// leader says who holds the lease as of the last answer, and until when that is worth something.
func (w *watch) leader() (holder string, until instant) {
	return w.row.Holder, w.answered.plus(w.row.remaining())
}
