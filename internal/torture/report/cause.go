package report

import "strings"

// A Cause is what ends a term. It is what a fault does to a leader, too.
type Cause string

// The causes, in the order of the summary.
const (
	Killed        Cause = "killed"
	Frozen        Cause = "frozen"
	CutOff        Cause = "cut off"
	Stopped       Cause = "stopped politely"
	Resigned      Cause = "resigned"
	WorkReturned  Cause = "work returned"
	PoolExhausted Cause = "pool exhausted"
	ClockStepped  Cause = "own clock stepped"
	DatabaseFault Cause = "database fault" // or somebody else has its lock
	Other         Cause = "other"
)

var causes = []Cause{Killed, Frozen, CutOff, Stopped, Resigned, WorkReturned, PoolExhausted, ClockStepped, DatabaseFault, Other}

// prefixes of a fault's name tell the cause that it is, unless its target is the database. The first that fits counts.
var prefixes = []struct {
	prefix string
	cause  Cause
}{
	{"kill", Killed},
	{"freeze", Frozen},
	{"hold", Frozen}, // in a transaction, or in a result
	{"hang", CutOff},
	{"drop", CutOff},
	{"delay", CutOff},
	{"reset", CutOff},
	{"overrun", CutOff}, // so that the work has something to outlive
	{"stop", Stopped},
	{"resign", Resigned},
	{"return", WorkReturned},
	{"exhaust", PoolExhausted},
	{"clock", ClockStepped},
}

// causeOf looks at blocks, too: a process keeps everyone out when it is frozen with the lock of its database in hand.
func causeOf(name, target string, blocks bool) Cause {
	if target == database {
		return DatabaseFault
	}
	for _, p := range prefixes {
		if strings.HasPrefix(name, p.prefix) {
			if p.cause == CutOff && blocks {
				return Frozen
			}
			return p.cause
		}
	}
	return Other
}

// instant reports whether such a fault has no duration of its own: what follows from it, as a process that is down, may.
func (c Cause) instant() bool {
	return c == Killed || c == Stopped || c == Resigned || c == WorkReturned
}

// cause is what ended a term. How its work and its process ended says more than the faults that happened to be there.
func (s *story) cause(t *term) Cause {
	exit, exited := s.exit(t)
	early := t.end < t.until
	switch {
	case t.returned && strings.Contains(t.note, "resigned"):
		return Resigned
	case exited && killed(exit) && exit.At <= t.trusted():
		return Killed
	case exited && politely(exit) && early && !strings.Contains(t.note, "lost") && s.last(t):
		return Stopped
	case t.returned && early && t.note == "":
		return WorkReturned
	}
	for _, c := range []Cause{Frozen, CutOff, PoolExhausted, ClockStepped, DatabaseFault} {
		for _, f := range s.faults {
			if f.hits(t.proc) == c && f.overlaps(t.sent(s.ttl), t.trusted()) {
				return c
			}
		}
	}
	return Other
}

// last reports whether t is the last term of its process.
func (s *story) last(t *term) bool {
	for _, o := range s.terms {
		if o.proc == t.proc && o.life == t.life && o.begin > t.begin {
			return false
		}
	}
	return true
}

// hits is the cause that the fault is for a replica, whether or not it comes to that: "" if it is somebody else's.
func (f fault) hits(replica string) Cause {
	switch {
	case f.proc == replica:
		return f.cause
	case f.proc == database || f.blocks:
		return DatabaseFault
	}
	return ""
}
