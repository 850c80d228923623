package lease

import (
	"math/rand/v2"
	"time"
)

// A pace is a TTL, and the times that follow from it. A leader's term, counted
// from the sending of its last good statement:
//
//	0      the statement is sent
//	1/12   no answer yet: another attempt joins
//	1/3    the next renewal is due
//	2/3    the work is cancelled
//	3/4    a standby that has just seen the row takes it, at the earliest
//	1      the row expires
type pace time.Duration

// No elector, however short its TTL, polls or renews more often than this.
const (
	leastPoll  = 10 * time.Millisecond
	leastPause = time.Millisecond
)

func (p pace) ttl() time.Duration   { return time.Duration(p) }
func (p pace) third() time.Duration { return p.ttl() / 3 }

// trust is how long a statement that succeeded is acted on, from its sending.
// (2*ttl/3 would wrap around for a huge TTL.)
func (p pace) trust() time.Duration { return p.ttl() - p.third() }

// margin is how long the row outlasts the trust. A renewal that finds no more
// than this left of the row comes too late for its sender.
func (p pace) margin() time.Duration { return p.third() }

// belief is how old a standby believes a row to be when a poll first shows it.
func (p pace) belief() time.Duration { return p.ttl() / 4 }

// renewal is when the next renewal is due, from the sending of the last good one.
func (p pace) renewal() time.Duration { return p.third() }

// longestBeat bounds the interval of a heartbeat.
func (p pace) longestBeat() time.Duration { return p.ttl() / 2 }

// hearing is how long an attempt to renew is heard. A slow database answers the
// oldest attempt first, so this is as long as there is use in it.
func (p pace) hearing() time.Duration { return p.third() }

// joining is when another attempt joins one that has no answer.
func (p pace) joining() time.Duration { return max(p.ttl()/12, leastPause) }

// retrying is when another attempt follows one that failed, and doubting when
// one follows an answer that decided nothing.
func (p pace) retrying() time.Duration { return max(p.ttl()/48, leastPoll) }
func (p pace) doubting() time.Duration { return max(p.ttl()/12, leastPoll) }

// polling is a standby's pause between two polls, and patience how long it waits
// for an answer.
func (p pace) polling() time.Duration  { return spread(p.third()) }
func (p pace) patience() time.Duration { return max(p.third(), 50*time.Millisecond) }

// backOff is a standby's pause after so many failures in a row.
func (p pace) backOff(failures int) time.Duration { return spread(p.ttl() / 24 << min(failures, 3)) }

// stagger is how long after the lease may be taken a contender tries, so that
// not all do at once.
func (p pace) stagger() time.Duration { return rand.N(p.ttl()/32 + 1) }

// standBack is how long an elector that gave its lease back lets others try. It
// is longer than anyone's pause between polls.
func (p pace) standBack() time.Duration { return p.ttl()/2 + rand.N(p.ttl()/16+1) }

// glance is how often the wall clock is looked at.
func (p pace) glance() time.Duration { return max(p.ttl()/12, time.Millisecond) }

// parting bounds each of the three waits for the database at the end: for a
// takeover, for a release, and for what is still in flight.
func (p pace) parting() time.Duration {
	return max(min(p.third(), 5*time.Second)/3, 50*time.Millisecond)
}

// reminding is how often work that should have ended is told of.
func (p pace) reminding() time.Duration { return max(p.ttl(), time.Second) }

// spread jitters a pause: between three quarters of d and d.
func spread(d time.Duration) time.Duration { return d - rand.N(d/4+1) }
