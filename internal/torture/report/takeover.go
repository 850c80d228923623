package report

import (
	"time"

	"github.com/sqllease/lease/internal/torture/history"
)

// A Takeover is the change from one term to the next.
type Takeover struct {
	From, To string // replicas, possibly the same
	Epoch    int64  // of the new term
	Cause    Cause  // of the old term's end
	// From Sent to At nothing else was wrong: no other fault, and no other
	// replica down.
	Alone   bool
	Sent    int64 // when the old term's last good renewal was sent
	Trusted int64 // when the old term's trust ended
	At      int64 // when the new term began
}

// SinceRenewal returns the time from the last good renewal to the new term.
func (t Takeover) SinceRenewal() time.Duration { return time.Duration(t.At - t.Sent) }

// SinceTrust returns how long nobody led. The time is negative if two replicas
// led at once.
func (t Takeover) SinceTrust() time.Duration { return time.Duration(t.At - t.Trusted) }

// Takeovers returns the takeovers of a run, by time.
func Takeovers(r history.Run) []Takeover { return tell(r.Events, r.TTL).takeovers() }

func (s *story) takeovers() []Takeover {
	var all []Takeover
	for i := 1; i < len(s.terms); i++ {
		old, next := s.terms[i-1], s.terms[i]
		t := Takeover{
			From: old.proc, To: next.proc, Epoch: next.epoch, Cause: s.cause(old),
			Sent: old.sent(s.ttl), Trusted: old.trusted(), At: next.begin,
		}
		t.Alone = s.alone(t)
		all = append(all, t)
	}
	return all
}

// alone ignores the fault that is the cause itself, and the faults of processes
// that neither campaign nor block.
func (s *story) alone(t Takeover) bool {
	for _, f := range s.faults {
		matters := f.proc == database || f.blocks || replicaName.MatchString(f.proc)
		if matters && f.hits(t.From) != t.Cause && f.overlaps(t.Sent, t.At) {
			return false
		}
	}
	for _, d := range s.downs {
		if d.proc != t.From && d.overlaps(t.Sent, t.At) {
			return false
		}
	}
	return true
}
