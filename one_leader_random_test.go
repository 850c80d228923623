package lease

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestNoTwoLeadWhateverHappens lets chance have its way with four electors: statements that are late on the way there or back, lost,
// refused or swallowed by a deaf driver, and a database whose clock jumps. The seed of a failure repeats it, nearly: the elector's own
// jitter is not seeded.
func TestNoTwoLeadWhateverHappens(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 20
	}
	for seed := range uint64(rounds) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) { meetFaults(t, c, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

// meetFaults lets time pass for four electors under faults at random. Then all is
// well, and somebody must lead.
func meetFaults(t *testing.T, c *cluster, r *rand.Rand) {
	for i := range 4 {
		c.start(fmt.Sprint(i % 3)) // two share a holder
	}
	random := func(most time.Duration) time.Duration { return time.Duration(r.Int64N(int64(most))) }
	for range 60 {
		for _, p := range c.replicas {
			p.store.inject(randomFaults(rand.New(rand.NewPCG(r.Uint64(), 2))))
		}
		if r.IntN(2) == 0 {
			c.stepAtRandom(rand.New(rand.NewPCG(r.Uint64(), 3)))
		}
		if r.IntN(6) == 0 {
			if leader := c.leader(); leader != nil {
				leader.Resign()
			}
		}
		c.pass(random(T))
	}
	for _, p := range c.replicas {
		p.store.heal()
	}
	c.pass(2*T + T/2)
	if c.leader() == nil {
		t.Errorf("nobody leads although all is well; the row is %+v", c.table.read())
	}
	c.checkTerms()
}

// stepAtRandom lets the database's clock jump a few times while other things
// happen, back and forth, within a poll or over many.
func (c *cluster) stepAtRandom(r *rand.Rand) {
	every := []time.Duration{T / 100, T / 10, T / 3}[r.IntN(3)]
	for n := r.IntN(4); n >= 0; n-- {
		step := time.Duration(r.Int64N(int64(6*T))) - 3*T
		time.AfterFunc(time.Duration(r.Int64N(int64(every))), func() { c.table.stepClock(step) })
	}
}

// randomFaults is a way to the database for a while: a good one, a cut one, or anything between.
func randomFaults(r *rand.Rand) func(string) fault {
	switch r.IntN(4) {
	case 0:
		return nil
	case 1:
		return func(string) fault { return fault{before: 3 * T} }
	}
	late := []time.Duration{T / 100, T / 10, T / 2, T}[r.IntN(4)]
	return func(string) (f fault) {
		f.before, f.after = time.Duration(r.Int64N(int64(late))), time.Duration(r.Int64N(int64(late)))
		f.deaf, f.lose = r.IntN(4) == 0, r.IntN(8) == 0
		if r.IntN(8) == 0 {
			f.fail = errors.New("refused")
		}
		return f
	}
}
