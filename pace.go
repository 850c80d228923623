package lease

import (
	"math/rand/v2"
	"time"
)

// A pace is a TTL, and the times that follow from the TTL. A leader's term,
// counted from the sending of its last good statement:
//
//	0      the statement is sent
//	1/12   no answer yet: another attempt joins
//	1/3    the next renewal is due
//	2/3    the work is cancelled
//	3/4    a standby that has just seen the row takes it, at the earliest
//	1      the row expires
type pace time.Duration

// No elector polls or renews more often than this, however short its TTL.
const (
	leastPoll  = 10 * time.Millisecond
	leastPause = time.Millisecond
)

func (p pace) ttl() time.Duration   { return time.Duration(p) }
func (p pace) third() time.Duration { return p.ttl() / 3 }

// trust is how long this process acts on a successful statement, counted from
// the sending. (2*ttl/3 would wrap around for a huge TTL.)
func (p pace) trust() time.Duration { return p.ttl() - p.third() }

// margin is how long the row outlasts the trust. A renewal that finds at most
// this much left of the row comes too late for its sender.
func (p pace) margin() time.Duration { return p.third() }

// belief is how old a standby believes a row to be, at most, when a poll first
// shows the row.
func (p pace) belief() time.Duration { return p.ttl() / 4 }

// renewal is the time from the sending of the last good renewal until the next
// renewal is due.
func (p pace) renewal() time.Duration { return p.third() }

// longestBeat bounds the interval of a heartbeat.
func (p pace) longestBeat() time.Duration { return p.ttl() / 2 }

// hearing is how long an attempt to renew is heard. A slow database answers the
// oldest attempt first. So hearing lasts as long as an answer is of use.
func (p pace) hearing() time.Duration { return p.third() }

// joining is the time until another attempt joins an attempt without an answer.
func (p pace) joining() time.Duration { return max(p.ttl()/12, leastPause) }

// retrying is the pause after an attempt that failed. doubting is the pause
// after an answer that decided nothing.
func (p pace) retrying() time.Duration { return max(p.ttl()/48, leastPoll) }
func (p pace) doubting() time.Duration { return max(p.ttl()/12, leastPoll) }

// polling is a standby's pause between two polls. patience is how long a
// standby waits for an answer.
func (p pace) polling() time.Duration  { return spread(p.third()) }
func (p pace) patience() time.Duration { return max(p.third(), 50*time.Millisecond) }

// backOff is a standby's pause after a failure. failures counts the failures in
// a row before this failure.
func (p pace) backOff(failures int) time.Duration { return spread(p.ttl() / 24 << min(failures, 3)) }

// stagger is a contender's delay after the lease may be taken. The delay is
// random: not all contenders try at once.
func (p pace) stagger() time.Duration { return rand.N(p.ttl()/32 + 1) }

// standBack is how long an elector that gave its lease back lets others try. It
// is longer than anyone's pause between polls.
func (p pace) standBack() time.Duration { return p.ttl()/2 + rand.N(p.ttl()/16+1) }

// glance is the interval between two looks at the wall clock.
func (p pace) glance() time.Duration { return max(p.ttl()/12, time.Millisecond) }

// parting bounds each of the three waits for the database at the end: for a
// takeover, for a release, and for the statements still in flight.
func (p pace) parting() time.Duration {
	return max(min(p.third(), 5*time.Second)/3, 50*time.Millisecond)
}

// reminding is the interval between log lines about work that should have
// ended.
func (p pace) reminding() time.Duration { return max(p.ttl(), time.Second) }

// spread jitters a pause: the result lies between three quarters of d and d.
func spread(d time.Duration) time.Duration { return d - rand.N(d/4+1) }
