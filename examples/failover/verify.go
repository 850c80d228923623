package main

import (
	"errors"
	"fmt"
	"time"
)

// A term summarizes the ticks of one epoch.
type term struct {
	epoch       int64
	replica     string
	ticks       int
	first, last Tick
}

// gap is the time without writes between the end of previous and the beginning
// of t.
func (t term) gap(previous term) time.Duration {
	return time.Duration(t.first.WrittenAt-previous.last.WrittenAt) * time.Microsecond
}

// termsOf splits ticks, given in the order of their commits, into terms. It
// returns an error unless the epochs only rise, every term has a single writer,
// no number was written twice in a term, and each term's last tick was written
// before the first tick of the next term.
func termsOf(ticks []Tick) ([]term, error) {
	var terms []term
	for i, t := range ticks {
		if t.Position != int64(i)+1 {
			return nil, fmt.Errorf("tick %d is missing", i+1)
		}
		if len(terms) == 0 || terms[len(terms)-1].epoch < t.Epoch {
			terms = append(terms, term{epoch: t.Epoch, replica: t.Replica, ticks: 1, first: t, last: t})
			if err := startsLate(terms); err != nil {
				return nil, err
			}
			continue
		}
		current := &terms[len(terms)-1]
		switch {
		case t.Epoch < current.epoch:
			return nil, fmt.Errorf("tick %d of %s has epoch %d, but was committed after one of epoch %d",
				t.Position, t.Replica, t.Epoch, current.epoch)
		case t.Replica != current.replica:
			return nil, fmt.Errorf("epoch %d has two writers, %s and %s", t.Epoch, current.replica, t.Replica)
		case t.Sequence <= current.last.Sequence:
			return nil, fmt.Errorf("epoch %d has its tick %d after its tick %d", t.Epoch, t.Sequence, current.last.Sequence)
		}
		current.ticks++
		current.last = t
	}
	return terms, nil
}

// startsLate checks that the last term began after the end of the term before.
// The order of the commits says so already. The wall clock must agree, and the
// database has no part in that clock.
func startsLate(terms []term) error {
	if len(terms) < 2 {
		return nil
	}
	previous, current := terms[len(terms)-2], terms[len(terms)-1]
	if current.gap(previous) <= 0 {
		return fmt.Errorf("epochs %d of %s and %d of %s overlap by %v",
			previous.epoch, previous.replica, current.epoch, current.replica, -current.gap(previous))
	}
	return nil
}

// checkReported returns an error if the table lacks a tick that a leader saw
// committed. A killed leader may have written a last tick without a report.
func checkReported(terms []term, reported map[int64]int) error {
	found := map[int64]int{}
	for _, t := range terms {
		found[t.epoch] = t.ticks
	}
	var err error
	for epoch, n := range reported {
		if found[epoch] < n {
			err = errors.Join(err, fmt.Errorf("of the %d ticks that were committed in epoch %d, %d are in the table", n, epoch, found[epoch]))
		}
	}
	return err
}
