package check

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/sqllease/lease/internal/torture/history"
)

// patience is the time for the history of a single lease. A history that can be
// decided needs a fraction of it.
const patience = 5 * time.Second

// A state is the model of a lease: its row. The zero state is a lease that was
// never held.
type state struct {
	holder         string
	epoch, expires int64
	renewed        int64 // shown by no operation
}

// acquire models TryAcquire.
func (s state) acquire(holder string, now, ttl int64) (state, bool) {
	ttl = max(1, ttl)
	switch {
	case s.holder == "" || s.expires <= now: // free: a new term
		return state{holder, s.epoch + 1, now + ttl, now}, true
	case s.holder != holder:
		return s, false
	case s.renewed > now+max(ttl, s.expires-s.renewed): // its own, by a clock that was ahead: put right
		return state{holder, s.epoch, now + ttl, now}, true
	}
	return state{holder, s.epoch, max(s.expires, max(s.renewed, now)+ttl), max(s.renewed+1, now)}, true // its own: renewed
}

// release models Release.
func (s state) release(holder string, now int64) state {
	if s.holder == holder && s.expires > now {
		return state{epoch: s.epoch, expires: now} // the time of the renewal matters no more
	}
	return s
}

// find reports whether Find may give this answer. Find shows the row, whether
// or not the row has expired.
func (s state) find(answer *history.Op) bool {
	if answer.Missing {
		return s.epoch == 0
	}
	return s.epoch != 0 && s == state{answer.Holder, answer.Epoch, answer.Expires, s.renewed}
}

// An operation is an operation by hand. Without an answer, the operation may
// have been carried out at any time after its call, or not at all.
type operation struct {
	process
	call   *history.Op
	answer *history.Op // nil if the outcome is unknown
	from   int64
	to     int64 // math.MaxInt64 if the outcome is unknown
	over   bool  // the operation returned, with an answer or without
}

func (o *operation) on(s state) (next state, fits bool) {
	switch o.call.Name {
	case "acquire":
		next, got := s.acquire(o.call.Holder, o.call.Now, o.call.TTL)
		return next, o.answer == nil || got == o.answer.Got
	case "release":
		return s.release(o.call.Holder, o.call.Now), true
	}
	return s, o.answer == nil || s.find(o.answer)
}

// linear checks the leases that were used by hand, each lease by itself.
func (c *checker) linear(patience time.Duration) {
	operations := c.operations()
	var leases []string
	for name := range operations {
		leases = append(leases, name)
	}
	slices.Sort(leases)
	for _, name := range leases {
		all := operations[name]
		if porcupine.CheckOperationsTimeout(model(4*c.TTL), intervals(all), patience) == porcupine.Ok {
			continue // the usual case. A statement that landed very late needs the longer search
		}
		switch porcupine.CheckOperationsTimeout(model(math.MaxInt64), intervals(all), patience) {
		case porcupine.Illegal:
			at, best := c.best(all, patience)
			c.report("linear", at, "no order of the %d operations on the lease %q explains their answers; %s", len(all), name, best)
		case porcupine.Unknown:
			at, best := c.best(all, patience)
			c.report("undecided", at, "no order of the %d operations on the lease %q was found, in %v, that explains their answers; %s", len(all), name, patience, best)
		}
	}
}

// operations reads the operations from the events, by lease. A find of unknown
// outcome is left out, because it says nothing.
func (c *checker) operations() map[string][]*operation {
	type id struct {
		process
		seq int64
	}
	operations := map[string][]*operation{}
	open := map[id]*operation{}
	for _, e := range c.Events {
		of := id{processOf(e), e.Seq}
		switch o := open[of]; {
		case e.Kind != history.Call && e.Kind != history.Return:
		case e.Op == nil || !slices.Contains([]string{"acquire", "release", "find"}, e.Op.Name), e.Kind == history.Call && e.Op.Name != "find" && (e.Op.Now == 0 || e.Op.Holder == ""):
			c.report("linear", e.At, "what cannot be checked: %v", e)
		case e.Kind == history.Call && o != nil, e.Kind == history.Return && (o == nil || o.over || o.call.Name != e.Op.Name):
			c.report("linear", e.At, "the operation %d of %v is not one call and then one return: %v", e.Seq, of.process, e)
		case e.Kind == history.Call:
			o = &operation{process: of.process, call: e.Op, from: e.At, to: math.MaxInt64}
			open[of] = o
			operations[e.Key] = append(operations[e.Key], o)
		default:
			if o.over = true; e.Op.Error == "" {
				o.answer, o.to = e.Op, e.At
			}
		}
	}
	for name, all := range operations {
		all = slices.DeleteFunc(all, func(o *operation) bool { return o.answer == nil && o.call.Name == "find" })
		if operations[name] = all; len(all) == 0 {
			delete(operations, name)
		}
	}
	return operations
}

// intervals returns the history in porcupine's form. After all answered
// operations comes an extra operation, nil. It settles that an operation
// without an answer, if not carried out by then, never was.
func intervals(all []*operation) (history []porcupine.Operation) {
	last := int64(0)
	for _, o := range all {
		history = append(history, porcupine.Operation{Input: o, Call: o.from, Return: o.to})
		last = max(last, o.from)
		if o.to != math.MaxInt64 {
			last = max(last, o.to)
		}
	}
	return append(history, porcupine.Operation{Input: (*operation)(nil), Call: last + 1, Return: last + 2})
}

// A place is the state of porcupine's search.
type place struct {
	state
	settled bool
	time    int64 // of the last answered call, and determined by the operations carried out so far
}

// model is porcupine's model of a lease. An operation of unknown outcome is
// carried out within latest of its call, or never.
func model(latest time.Duration) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return place{} },
		Step: func(at, input, _ any) (bool, any) {
			next, ok := at.(place).step(input.(*operation), int64(latest))
			return ok, next
		},
		Equal: func(a, b any) bool {
			p, q := a.(place), b.(place)
			return p.state == q.state && p.settled == q.settled
		},
	}
}

// step returns the place after an operation, and whether the operation may come
// next. An operation of unknown outcome may not come next if it would change
// nothing. Never to carry out such an operation is as good, and spares the
// search most of its paths.
func (p place) step(o *operation, latest int64) (place, bool) {
	if o == nil {
		return place{settled: true}, true
	}
	next, fits := o.on(p.state)
	switch {
	case o.answer != nil:
		return place{state: next, time: max(p.time, o.from)}, fits
	case p.settled:
		return p, true
	}
	return place{state: next, time: p.time}, next != p.state && p.time-o.from <= latest
}

// best describes the longest order that was found, and the first operation that
// the order cannot place. at is the time of that operation.
func (c *checker) best(all []*operation, patience time.Duration) (at int64, text string) {
	_, info := porcupine.CheckOperationsVerbose(model(math.MaxInt64), intervals(all), patience)
	var longest []porcupine.Operation
	for _, order := range info.PartialLinearizationsOperations()[0] {
		if len(order) > len(longest) {
			longest = order
		}
	}
	var s state
	placed := map[*operation]bool{}
	for _, step := range longest {
		o := step.Input.(*operation)
		if o == nil {
			break
		}
		placed[o] = true
		s, _ = o.on(s)
	}
	var stuck *operation
	for _, o := range all {
		if o.answer != nil && !placed[o] && (stuck == nil || o.to < stuck.to) {
			stuck = o
		}
	}
	if stuck == nil { // an order was found after all
		return all[0].from, "one was found later"
	}
	return stuck.from, fmt.Sprintf("the best explains %d, and leaves %v; then %v does not fit, from %s to %s",
		len(longest), s, stuck, c.time(stuck.from), c.time(stuck.to))
}

func (s state) String() string {
	if s.epoch == 0 {
		return "it never held"
	}
	return fmt.Sprintf("it in term %d, of %q, which expires at %s", s.epoch, s.holder, clock(s.expires))
}

func (o *operation) String() string {
	switch o.call.Name {
	case "acquire":
		return fmt.Sprintf("%v's acquire by %q at %s for %v = %v", o.process, o.call.Holder, clock(o.call.Now), time.Duration(o.call.TTL)*time.Microsecond, o.answer.Got)
	case "release":
		return fmt.Sprintf("%v's release by %q at %s", o.process, o.call.Holder, clock(o.call.Now))
	}
	if o.answer.Missing {
		return fmt.Sprintf("%v's find = never held", o.process)
	}
	return fmt.Sprintf("%v's find = term %d, of %q, which expires at %s", o.process, o.answer.Epoch, o.answer.Holder, clock(o.answer.Expires))
}

// clock formats a time that a caller passed.
func clock(micros int64) string { return time.UnixMicro(micros).UTC().Format("15:04:05.000000") }
