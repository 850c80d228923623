package report

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sqllease/lease/internal/torture/history"
)

// A story is a run, told by everything that lasted: terms, faults, and the
// absence of processes.
type story struct {
	start, end int64 // of the run
	ttl        time.Duration
	replicas   []string // "r1", "r2", ...
	terms      []*term  // by their beginning
	faults     []fault  // by their beginning
	downs      []span   // by their beginning, of replicas only
	freezes    []span   // by their beginning
	exits      []history.Event
	refused    []history.Event
}

// A span is a time in the life of a process: [from, to).
type span struct {
	proc     string
	life     int
	from, to int64
}

func (s span) overlaps(from, to int64) bool { return s.from < to && from < s.to }

// A term is the trust of a replica in a term, and its work in that term.
type term struct {
	proc  string
	life  int
	epoch int64
	begin int64
	until int64 // the last deadline
	end   int64 // as recorded, or math.MaxInt64

	work     span
	working  bool   // there was work
	returned bool   // the end of the work was recorded
	note     string // the cause for the end of the work
}

// trusted returns the end of trust: the deadline, or earlier.
func (t *term) trusted() int64 { return max(t.begin, min(t.end, t.until)) }

// sent returns when the last good statement was sent, as far as is known. Its
// deadline is two thirds of a TTL later.
func (t *term) sent(ttl time.Duration) int64 { return t.until - int64(ttl-ttl/3) }

// overrun returns how long work continued after the end of trust.
func (t *term) overrun() time.Duration {
	if !t.working {
		return 0
	}
	return time.Duration(max(0, t.work.to-t.trusted()))
}

// A fault is one injection.
type fault struct {
	span   // proc is the target
	name   string
	cause  Cause
	blocks bool
}

// database is the target of faults that strike no process.
const database = "database"

// partOfAnother is the Note of a fault that is part of another fault.
const partOfAnother = "part"

var replicaName = regexp.MustCompile(`^r[0-9]+$`)

// tell reads the events of a run. The events may be incomplete: anything
// without an end lasts until the end of the run.
func tell(events []history.Event, ttl time.Duration) *story {
	s := &story{ttl: ttl}
	if len(events) == 0 {
		return s
	}
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b history.Event) int { return cmp.Compare(a.At, b.At) })
	s.start, s.end = events[0].At, events[len(events)-1].At

	known := map[string]bool{}
	current := map[string]*term{}        // of a replica
	open := map[int64][]func(at int64){} // end the story's entries about the fault with this Seq
	down := map[string]int{}             // index in downs, for each process that is down
	for _, e := range events {
		if name := replicaOf(e); name != "" && !known[name] {
			known[name] = true
			s.replicas = append(s.replicas, name)
		}
		switch e.Kind {
		case history.Begin, history.Extend, history.End, history.WorkBegin, history.WorkEnd:
			s.follow(current, e)
		case history.Refused:
			s.refused = append(s.refused, e)
		case history.Exited:
			s.exits = append(s.exits, e)
			if replicaName.MatchString(e.Proc) {
				down[e.Proc] = len(s.downs)
				s.downs = append(s.downs, span{e.Proc, e.Life, e.At, s.end})
			}
		case history.Started:
			if i, ok := down[e.Proc]; ok {
				s.downs[i].to = e.At
				delete(down, e.Proc)
			}
		case history.Fault:
			s.begin(e, open)
		case history.FaultEnd:
			for _, end := range open[e.Seq] {
				end(e.At)
			}
			delete(open, e.Seq)
		}
	}
	s.endWork()
	slices.SortFunc(s.replicas, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	return s
}

// begin adds a fault. A part of another fault is not counted.
func (s *story) begin(e history.Event, open map[int64][]func(at int64)) {
	f := fault{span{e.Target, 0, e.At, s.end}, e.Name, causeOf(e.Name, e.Target, e.Blocks), e.Blocks}
	if f.cause == Frozen && strings.HasPrefix(e.Name, "freeze") {
		i := len(s.freezes)
		s.freezes = append(s.freezes, f.span)
		open[e.Seq] = append(open[e.Seq], func(at int64) { s.freezes[i].to = at })
	}
	if e.Note == partOfAnother {
		return
	}
	if f.cause.instant() {
		f.to = f.from
	} else {
		i := len(s.faults)
		open[e.Seq] = append(open[e.Seq], func(at int64) { s.faults[i].to = at })
	}
	s.faults = append(s.faults, f)
}

// replicaOf returns the replica in an event, or "".
func replicaOf(e history.Event) string {
	for _, name := range []string{e.Proc, e.Target} {
		if replicaName.MatchString(name) {
			return name
		}
	}
	return ""
}

// follow adds an event about a term.
func (s *story) follow(current map[string]*term, e history.Event) {
	t := current[e.Proc]
	if e.Kind == history.Begin {
		t = &term{proc: e.Proc, life: e.Life, epoch: e.Epoch, begin: e.At, until: e.Until, end: math.MaxInt64}
		current[e.Proc] = t
		s.terms = append(s.terms, t)
		return
	}
	if t == nil || t.life != e.Life || t.epoch != e.Epoch {
		return
	}
	switch e.Kind {
	case history.Extend:
		// Otherwise the extension came too late to be of use.
		if t.end == math.MaxInt64 && e.Until > e.At {
			t.until = max(t.until, e.Until)
		}
	case history.End:
		t.end = min(t.end, e.At)
	case history.WorkBegin:
		t.work, t.working = span{e.Proc, e.Life, e.At, s.end}, true
	case history.WorkEnd:
		t.work.to, t.returned, t.note = e.At, true, e.Note
	}
}

// endWork ends work without a recorded end at the end of its process.
func (s *story) endWork() {
	for _, t := range s.terms {
		if exit, ok := s.exit(t); ok && t.working && !t.returned {
			t.work.to = min(t.work.to, exit.At)
		}
		t.work.to = max(t.work.to, t.work.from)
	}
}

// exit returns the end of the process that led a term.
func (s *story) exit(t *term) (history.Event, bool) {
	i := slices.IndexFunc(s.exits, func(e history.Event) bool { return e.Proc == t.proc && e.Life == t.life && e.At >= t.begin })
	if i < 0 {
		return history.Event{}, false
	}
	return s.exits[i], true
}

func (s *story) duration() time.Duration { return time.Duration(s.end - s.start) }

func killed(exit history.Event) bool { return exit.Note == "killed" }

// politely reports whether a process ended by itself, and without an error.
func politely(exit history.Event) bool {
	code := strings.TrimPrefix(exit.Note, "exit status ")
	n, err := strconv.Atoi(code)
	return code == "" || err == nil && n == 0
}
