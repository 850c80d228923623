package lease

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
)

// A replica is one process that campaigns for the lease.
type replica struct {
	*Elector
	jumpingClock
	store    *fakeStore
	log      *logBuffer
	stop     context.CancelCauseFunc
	done     chan struct{} // Run has returned
	panicked any

	mu    sync.Mutex // guards spans
	spans []span
}

// A span is the time in which a work was trusted: until its context ended, or it returned.
type span struct {
	begun, ended time.Time // ended is zero while it lasts
	cause        error
}

// terms says how many works began.
func (p *replica) terms() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.spans)
}

// left is how long the term may be trusted without a further renewal.
func (p *replica) left() time.Duration {
	if t := p.Elector.run.tenure(); t != nil {
		return t.left()
	}
	return 0
}

// lastEnd is when the last work that ended was no longer trusted, and why.
func (p *replica) lastEnd(t *testing.T) (time.Time, error) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range slices.Backward(p.spans) {
		if !s.ended.IsZero() {
			return s.ended, s.cause
		}
	}
	t.Fatalf("%s: no work has ended", p.store.holder)
	return time.Time{}, nil
}

// A cluster is replicas that share a table, in a bubble.
type cluster struct {
	t        *testing.T
	table    *fakeTable
	replicas []*replica
	ttl      time.Duration
}

// untilCancelled is the work of most tests.
func untilCancelled(ctx context.Context) { <-ctx.Done() }

// inBubble runs a test in a bubble, and stops every replica at its end.
func inBubble(t *testing.T, test func(t *testing.T, c *cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, table: &fakeTable{}, ttl: T}
		defer func() {
			for _, p := range c.replicas {
				p.store.heal()
				p.stop(nil)
				<-p.done
			}
			<-time.After(3 * time.Hour) // for deaf drivers to return
		}()
		test(t, c)
	})
}

// add prepares a replica.
func (c *cluster) add(holder string) *replica {
	p := &replica{
		store: &fakeStore{table: c.table, holder: holder, ttl: c.ttl},
		log:   &logBuffer{},
		done:  make(chan struct{}),
	}
	logger := slog.New(slog.NewTextHandler(p.log, nil))
	r := newRun(p.store, "job", holder, c.ttl, logger)
	r.clock = p.clock
	p.Elector = &Elector{run: r}
	c.replicas = append(c.replicas, p)
	return p
}

// run starts a replica with some work, and lets it settle.
func (c *cluster) run(p *replica, work func(context.Context)) *replica {
	ctx, stop := context.WithCancelCause(c.t.Context())
	p.stop = stop
	go func() {
		defer close(p.done)
		defer func() { p.panicked = recover() }()
		p.Elector.run.campaign(ctx, func(ctx context.Context) {
			begun := time.Now()
			ended := sync.OnceFunc(func() {
				cause := context.Cause(ctx)
				p.mu.Lock()
				defer p.mu.Unlock()
				p.spans[len(p.spans)-1] = span{begun, time.Now(), cause}
			})
			p.mu.Lock()
			p.spans = append(p.spans, span{begun: begun})
			p.mu.Unlock()
			defer ended()
			context.AfterFunc(ctx, ended)
			work(ctx)
		})
	}()
	synctest.Wait()
	return p
}

// start adds and runs a replica whose work lasts until it is cancelled.
func (c *cluster) start(holder string) *replica { return c.run(c.add(holder), untilCancelled) }

// pass lets time pass, checking at every step that no two replicas lead.
func (c *cluster) pass(d time.Duration) {
	c.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		<-time.After(min(c.ttl/120, time.Until(end)))
		synctest.Wait()
		c.leader()
	}
}

// leader is the replica that leads, or nil; it fails the test if there are two.
func (c *cluster) leader() (leads *replica) {
	c.t.Helper()
	for _, p := range c.replicas {
		if p.IsLeader() {
			if leads != nil {
				c.t.Fatalf("%s and %s both lead", leads.store.holder, p.store.holder)
			}
			leads = p
		}
	}
	return leads
}

// passUntil lets time pass until something holds, and returns how much did.
func (c *cluster) passUntil(limit time.Duration, what string, holds func() bool) time.Duration {
	c.t.Helper()
	begin := time.Now()
	for !holds() {
		if time.Since(begin) > limit {
			c.t.Fatalf("not within %v: %s", limit, what)
		}
		<-time.After(c.ttl / 1200)
		synctest.Wait()
		c.leader()
	}
	return time.Since(begin)
}

// leads fails the test unless p, and only p, leads.
func (c *cluster) leads(p *replica) {
	c.t.Helper()
	if c.leader() != p {
		c.t.Fatalf("%s does not lead; the row is %+v", p.store.holder, c.table.read())
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

// elapse lets time pass, and everybody see it.
func elapse(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// scrape returns the series of this package's collector, by their text, from a registry that checks everything.
func scrape(t *testing.T) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(NewCollector()); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := model.Metric{}
			for _, l := range m.GetLabel() {
				labels[model.LabelName(l.GetName())] = model.LabelValue(l.GetValue())
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if h := m.GetHistogram(); h != nil {
				value = float64(h.GetSampleCount())
			}
			series[family.GetName()+labels.String()] = value
		}
	}
	return series
}

func want(t *testing.T, series map[string]float64, wanted map[string]float64) {
	t.Helper()
	for name, value := range wanted {
		if got, ok := series[name]; !ok || got != value {
			t.Errorf("%s is %v (%v), not %v", name, got, ok, value)
		}
	}
}
