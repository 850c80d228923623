package lease

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestWorkBeginsOnlyOnceItsTermIsThereForAll(t *testing.T) {
	r := newRun(nil, t.Name(), "A", time.Hour, slog.New(slog.DiscardHandler))
	r.store = &fakeStore{table: &fakeTable{}}
	r.tally = electors.join(r)
	defer electors.leave(r)
	tenure := newTenure(t.Context(), Term{Name: t.Name(), Holder: "A", Epoch: 1}, machineClock(), time.Hour, machineClock)
	var published atomic.Bool
	var early bool
	ended := make(chan struct{})
	r.view.mu.Lock() // nobody can be told
	go func() {
		defer close(ended)
		r.lead(t.Context(), tenure, func(context.Context) { early = !published.Load() || r.tenure() != tenure })
	}()
	for r.tally.terms() == 0 {
		runtime.Gosched()
	}
	for range 1000 {
		runtime.Gosched()
	}
	published.Store(true)
	r.view.mu.Unlock()
	<-ended
	if early {
		t.Error("work began before its elector said that it leads")
	}
}

// terms says how many terms were begun.
func (t *tally) terms() (n int64) {
	t.add(func(c *counts) { n = c.terms })
	return n
}

func TestASlowLogStartsNoWorkWhoseTermIsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.Elector.run.log = slog.New(slog.NewTextHandler(blockingWriter(func() { <-time.After(T) }), nil))
		late := make(chan error, 10)
		c.run(a, func(ctx context.Context) {
			if err := ctx.Err(); err != nil {
				late <- err
			}
			<-ctx.Done()
		})
		c.pass(3 * T)
		if len(late) > 0 {
			t.Errorf("%d works began with %v", len(late), <-late)
		}
	})
}

func TestAnHourOfLeadingIsThreeWritesPerTTL(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		c.pass(time.Hour)
		if n, want := a.store.count("renew"), int(3*time.Hour/T); n < want-1 || n > want {
			t.Errorf("%d renewals, not %d", n, want)
		}
		if n := a.store.count("") - a.store.count("renew"); n != 2 {
			t.Errorf("%d other statements, not a poll and a take", n)
		}
	})
}

func TestOneFailedRenewalGoesUnnoticed(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		a.store.inject(firstly(1, "renew", fault{fail: errors.New("broken pipe")}))
		c.pass(10 * T)
		c.leads(a)
		if a.terms() != 1 {
			t.Errorf("%d terms", a.terms())
		}
	})
}

func TestThreeDeadConnectionsDoNotCostLeadership(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		a.store.inject(firstly(3, "renew", hung))
		c.pass(10 * T)
		c.leads(a)
		if a.terms() != 1 {
			t.Errorf("%d terms", a.terms())
		}
	})
}

func TestAnOutageShorterThanAThirdOfATTLDoesNotCostLeadership(t *testing.T) {
	for offset := time.Duration(0); offset < T/3; offset += T / 24 {
		inBubble(t, func(t *testing.T, c *cluster) {
			a := c.start("A")
			c.pass(T + offset)
			a.store.inject(func(string) fault { return fault{fail: errors.New("the database system is starting up")} })
			c.pass(T/3 - T/40)
			a.store.heal()
			c.pass(2 * T)
			if c.leads(a); a.terms() != 1 {
				t.Errorf("an outage that began %v after a renewal cost the term", offset)
			}
		})
	}
}

func TestASlowDatabaseIsHeard(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(func(string) fault { return fault{before: T / 8, after: T / 8} })
		c.run(a, untilCancelled)
		c.pass(20 * T)
		if c.leads(a); a.terms() != 1 {
			t.Errorf("%d terms under a database that takes a quarter of the TTL", a.terms())
		}
	})
}

func TestAnOldAttemptThatFailsAfterANewerOneWasGoodIsOfNoConsequence(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		a.store.inject(firstly(1, "renew", hung)) // it fails a third of a TTL later
		c.pass(T - tick)
		if n := a.store.count("renew"); n != 3 { // at 4, 5 and 9 twelfths
			t.Errorf("%d renewals", n)
		}
		if log := a.log.String(); strings.Contains(log, "trouble") {
			t.Error(log)
		}
	})
}

func TestAnOldAnswerThatComesAfterANewerOneChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		r := a.Elector.run
		c.run(a, untilCancelled)
		tenure := r.tenure()
		defer func(sent instant) { tenure.sent = sent }(tenure.sent)
		start := r.clock()
		r.judge(tenure, renewal{sent: start.plus(T / 6), renewed: true})
		left := tenure.left()
		r.judge(tenure, renewal{sent: start.plus(T / 12), renewed: true})
		if tenure.left() != left || tenure.sent != start.plus(T/6) {
			t.Errorf("%v left, not %v; the next renewal counts from %v", tenure.left(), left, tenure.sent)
		}
	})
}

func TestARenewalThatChangedNothingIsTriedAgainAfterATwelfth(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		r, tenure := a.Elector.run, a.Elector.run.tenure()
		left := tenure.left()
		next := r.judge(tenure, renewal{sent: r.clock(), row: sighting{Record: c.table.read(), exists: true, now: time.Now()}})
		if next != T/12 || !tenure.leads() || tenure.left() != left {
			t.Errorf("the next comes after %v; it leads: %v, for %v", next, tenure.leads(), tenure.left())
		}
		want(t, scrape(t), map[string]float64{`lease_renewals_total{lease="job", result="refused"}`: 1})
	})
}

func TestRenewalsThatLandInAnyOrderTakeNothingBack(t *testing.T) {
	const inFlight = 4
	for name, locked := range map[string]bool{"they wait for the row's lock": true, "they are late on the way": false} {
		for _, step := range []time.Duration{0, -T / 5, T / 30, -time.Hour} {
			t.Run(name+", the clock steps by "+step.String(), func(t *testing.T) {
				orders(inFlight, func(order []int) {
					inBubble(t, func(t *testing.T, c *cluster) {
						a, b := c.start("A"), c.start("B")
						c.pass(T / 4)
						sent := 0
						a.store.inject(func(s string) fault {
							if s != "renew" || sent >= inFlight {
								return fault{}
							}
							// The attempts follow each other after T/12, and land when all have been sent.
							wait := T*time.Duration(inFlight-sent)/12 + time.Duration(order[sent])*tick - T/24
							sent++
							if locked {
								return fault{locked: wait}
							}
							return fault{before: wait}
						})
						c.passUntil(T, "the first attempt is on its way", func() bool { return a.store.count("renew") == 1 })
						c.table.stepClock(step)
						before := len(c.table.history())
						for range 120 {
							c.pass(T / 120)
							if left := a.left(); left > 0 && step >= 0 {
								if row := c.table.read(); row.ExpiresAt.Sub(c.table.now()) < left+T/3-step {
									t.Fatalf("A trusts its term for %v, the row for %v: %v", left, row.ExpiresAt.Sub(c.table.now()), order)
								}
							}
						}
						rows := c.table.history()[before-1:]
						if len(rows) <= inFlight {
							t.Fatalf("%d renewals landed", len(rows)-1)
						}
						for i := 1; i < len(rows); i++ {
							if prev, row := rows[i-1], rows[i]; row.ExpiresAt.Before(prev.ExpiresAt) || !row.RenewedAt.After(prev.RenewedAt) {
								t.Errorf("%v: the row went from %v, until %v, to %v, until %v", order,
									prev.RenewedAt, prev.ExpiresAt, row.RenewedAt, row.ExpiresAt)
							}
						}
						if c.leads(a); a.terms() != 1 || b.terms() != 0 {
							t.Errorf("A began %d terms, B %d", a.terms(), b.terms())
						}
					})
				})
			})
		}
	}
}
