package lease

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
			inBubble(t, func(t *testing.T, c *cluster) { chance(t, c, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func chance(t *testing.T, c *cluster, r *rand.Rand) {
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

// checkTerms fails the test if two works were ever trusted at the same time, or an epoch did not grow.
func (c *cluster) checkTerms() {
	c.t.Helper()
	var spans []span
	for _, p := range c.replicas {
		p.mu.Lock()
		for _, s := range p.spans {
			if s.ended.IsZero() {
				s.ended = time.Now()
			}
			spans = append(spans, s)
		}
		p.mu.Unlock()
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Or(a.begun.Compare(b.begun), a.ended.Compare(b.ended)) })
	for i := 1; i < len(spans); i++ {
		if spans[i].begun.Before(spans[i-1].ended) {
			c.t.Errorf("a work was trusted from %v to %v (%v), the next from %v to %v (%v)",
				spans[i-1].begun, spans[i-1].ended, spans[i-1].cause, spans[i].begun, spans[i].ended, spans[i].cause)
		}
	}
	for i, row := range c.table.seen {
		if i > 0 && row.Epoch < c.table.seen[i-1].Epoch {
			c.t.Errorf("epoch %d came after %d", row.Epoch, c.table.seen[i-1].Epoch)
		}
	}
	if len(spans) == 0 {
		c.t.Error("nobody ever led")
	}
}
