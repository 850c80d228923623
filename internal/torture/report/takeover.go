package report

import (
	"time"

	"github.com/sqllease/lease/internal/torture/history"
)

// A Takeover is how one term followed another.
type Takeover struct {
	From, To string // replicas, possibly the same
	Epoch    int64  // of the new term
	Cause    Cause  // of the old one's end
	Alone    bool   // nothing else was wrong from Sent to At: no other fault, and no other replica down
	Sent     int64  // when the old one's last good renewal was sent
	Trusted  int64  // when its trust ended
	At       int64  // when the new one began
}

// SinceRenewal is how long it took from the last good renewal.
func (t Takeover) SinceRenewal() time.Duration { return time.Duration(t.At - t.Sent) }

// SinceTrust is how long nobody led. It is negative if two did.
func (t Takeover) SinceTrust() time.Duration { return time.Duration(t.At - t.Trusted) }

// Takeovers are the takeovers of a run, by time.
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

// alone leaves out the fault that is the cause itself, and those of processes that neither campaign nor block.
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
