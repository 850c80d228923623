package report

import "strings"

// A Cause is the cause for the end of a term. It is also the effect of a fault
// on a leader.
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
	DatabaseFault Cause = "database fault" // or somebody else has the database's lock
	Other         Cause = "other"
)

var causes = []Cause{Killed, Frozen, CutOff, Stopped, Resigned, WorkReturned, PoolExhausted, ClockStepped, DatabaseFault, Other}

// prefixes of a fault's name determine its cause, unless its target is the
// database. The first match counts.
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
	{"overrun", CutOff}, // cut off to make the work outlive its term
	{"stop", Stopped},
	{"resign", Resigned},
	{"return", WorkReturned},
	{"exhaust", PoolExhausted},
	{"clock", ClockStepped},
}

// causeOf needs blocks because a process that is frozen with the lock of its
// database in hand keeps everyone out.
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

// instant reports whether such a fault has no duration of its own. Its
// consequences may have a duration, such as a process that is down.
func (c Cause) instant() bool {
	return c == Killed || c == Stopped || c == Resigned || c == WorkReturned
}

// cause returns the cause for the end of a term. The end of the term's work and
// process says more than the faults at that time.
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

// hits returns the fault's cause for a replica, whether or not the fault has an
// effect. If the fault strikes somebody else, hits returns "".
func (f fault) hits(replica string) Cause {
	switch {
	case f.proc == replica:
		return f.cause
	case f.proc == database || f.blocks:
		return DatabaseFault
	}
	return ""
}
