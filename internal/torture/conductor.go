package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sqllease/lease/internal/faultproxy"
	"github.com/sqllease/lease/internal/torture/history"
)

// A conductor starts everything, injects faults, and judges.
type conductor struct {
	options
	*database
	t         testing.TB
	ctx       context.Context // ends at an interrupt
	dir       string
	keep      bool // dir is worth keeping
	record    *history.Recorder
	processes []*process

	mu       sync.Mutex // guards the fields below
	random   *rand.Rand
	failures []string  // failures that no checker sees, such as a process that ended by itself
	startsAt time.Time // before then, no process starts
	dbBusy   bool      // a fault has the database, and the fields below
	hush     bool      // no fault may strike a replica
	faults   int64     // begun so far

	offset, farthest time.Duration // of the database's clock, now and at its highest
}

func newConductor(ctx context.Context, t testing.TB, o options) *conductor {
	c := &conductor{options: o, t: t, ctx: ctx, dir: o.out, random: rand.New(rand.NewPCG(o.seed, 1))}
	var err error
	if c.dir == "" {
		c.dir, err = os.MkdirTemp("", "lease-torture-")
	} else {
		err = os.MkdirAll(c.dir, 0o755)
	}
	if err == nil {
		c.record, err = history.NewRecorder(c.dir, "conductor", 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("torture: seed %d, %s, TTL %v, %d replicas, %d workers, %d clients, %v of faults; the record goes to %s\n",
		o.seed, o.backend, o.ttl, o.replicas, o.workers, o.clients, o.duration, c.dir)
	t.Cleanup(func() {
		if c.out == "" && !c.keep {
			os.RemoveAll(c.dir)
		}
	})
	c.database = openBackend(ctx, t, o, c.dir)
	c.cast()
	return c
}

// cast makes the processes, but does not start them. The first two of several
// replicas share a holder, as in a careless deployment.
func (c *conductor) cast() {
	add := func(role, name, holder string) {
		p := &process{settings: settings{
			Role: role, Name: name, Holder: holder, Dir: c.dir, Backend: c.options.backend, TTL: c.ttl, Seed: c.random.Uint64(),
		}}
		if proxied(c.database) {
			p.proxy = faultproxy.New(c.t, c.where.Addr())
		}
		p.DSN, p.Direct = c.via(p.proxy), c.direct()
		c.processes = append(c.processes, p)
	}
	for i := range c.replicas {
		holder := fmt.Sprintf("r%d", i+1)
		if i == 1 && c.replicas > 2 {
			holder = "r1"
		}
		add("replica", fmt.Sprintf("r%d", i+1), holder)
	}
	for i := range c.workers {
		add("worker", fmt.Sprintf("w%d", i+1), "")
	}
	for i := range c.clients {
		add("client", fmt.Sprintf("c%d", i+1), "")
	}
}

// run is the whole play. It reports whether every promise held.
func (c *conductor) run() bool {
	c.keep = true
	defer c.end()
	for _, p := range c.processes {
		c.restart(c.ctx, p)
	}
	playing, stop := context.WithTimeout(c.ctx, c.duration)
	defer stop()
	var others sync.WaitGroup
	others.Go(func() { c.supply(playing) })
	others.Go(func() { c.watch(playing) })
	c.inject(playing)
	others.Wait()
	if c.ctx.Err() != nil {
		fmt.Printf("torture: interrupted; the record is in %s\n", c.dir)
		return false
	}
	complete := c.drain()
	c.dismiss()
	return c.judge(complete)
}

// inject lets faults strike the processes and the database until ctx ends,
// several at a time, and blocks until the last fault is over.
func (c *conductor) inject(ctx context.Context) {
	var active sync.WaitGroup
	defer active.Wait()
	can := slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return !slices.Contains(c.options.faults, k.name) || !k.needs(c.database) })
	if len(can) == 0 {
		<-ctx.Done()
		return
	}
	pause(ctx, 2*c.ttl) // let somebody lead
	for ctx.Err() == nil {
		c.mu.Lock()
		k := chance(c.random, can)
		c.mu.Unlock()
		if p, ok := c.seizeTarget(ctx, k); ok {
			active.Go(func() { c.befall(k, p) })
		}
		pause(ctx, c.between(0.1, 0.8))
	}
}

// befall runs a fault from its beginning to its end. It ignores the end of the
// play, because a fault that has begun must end.
func (c *conductor) befall(k kind, p *process) {
	target := "database"
	if p != nil {
		target = p.Name
	}
	c.mu.Lock()
	c.faults++
	seq := c.faults
	c.mu.Unlock()
	e := history.Event{Kind: history.Fault, Name: k.name, Target: target, Seq: seq, Blocks: k.blocks(c.database)}
	c.record.Record(e)
	defer func() {
		e.Kind, e.At = history.FaultEnd, 0
		c.record.Record(e)
		if p != nil {
			p.free()
		} else {
			c.mu.Lock()
			c.dbBusy = false
			c.mu.Unlock()
		}
	}()
	k.befall(c, c.ctx, p)
}

// within records a part of another fault.
func (c *conductor) within(name, target string, blocks bool, befall func()) {
	c.mu.Lock()
	c.faults++
	e := history.Event{Kind: history.Fault, Name: name, Target: target, Seq: c.faults, Blocks: blocks, Note: "part"}
	c.mu.Unlock()
	c.record.Record(e)
	befall()
	e.Kind, e.At = history.FaultEnd, 0
	c.record.Record(e)
}

// seizeTarget finds a target for the fault. At least one replica is always left
// alone.
func (c *conductor) seizeTarget(ctx context.Context, k kind) (*process, bool) {
	if k.on == onDatabase {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.dbBusy {
			return nil, false
		}
		c.dbBusy = true
		return nil, true
	}
	c.mu.Lock()
	hush := c.hush
	c.mu.Unlock()
	busy := 0
	for _, p := range c.processes {
		if p.Role == "replica" && p.recovers() {
			busy++
		}
	}
	var candidates []*process
	leader := c.leader(ctx)
	for _, p := range c.processes {
		leads := p.Role == "replica" && p.Holder == leader
		switch {
		case p.Role == "replica" && (hush || !p.recovers() && busy+1 >= c.replicas), k.on == onLeader && !leads, k.on == onStandby && leads,
			(k.on == onReplica || k.on == onStandby) && p.Role != "replica":
			continue
		case k.on == onWriter && !leads && p.Role != "worker":
			continue
		case leads:
			candidates = append(candidates, p, p, p)
		}
		candidates = append(candidates, p)
	}
	if len(candidates) == 0 {
		return nil, false
	}
	p := candidates[c.pick(len(candidates))]
	return p, p.seize()
}

// calmly waits until no fault has a replica and all replicas have watched the
// lease for a while, and then calls do. Meanwhile no fault may strike a
// replica. If the calm does not come, calmly gives up after 12 TTLs.
func (c *conductor) calmly(ctx context.Context, do func()) {
	hush := func(on bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.hush = on
	}
	hush(true)
	defer hush(false)
	disturbed := func(p *process) bool { return p.Role == "replica" && (p.recovers() || p.since() < 2*c.ttl) }
	for end := time.Now().Add(12 * c.ttl); slices.ContainsFunc(c.processes, disturbed); pause(ctx, c.ttl/10) {
		if time.Now().After(end) || ctx.Err() != nil {
			return
		}
	}
	do()
}

// tell gives an order to a process, and takes the order back after a TTL.
func (c *conductor) tell(ctx context.Context, p *process, order string, d time.Duration) {
	p.order(order, d)
	pause(ctx, c.ttl)
	p.order("forget", 0)
}

// restart begins a new life of a process, as soon as processes may start.
func (c *conductor) restart(ctx context.Context, p *process) {
	c.mu.Lock()
	wait := time.Until(c.startsAt)
	c.mu.Unlock()
	pause(ctx, wait)
	if ctx.Err() != nil {
		return
	}
	if err := p.start(c.record, func(err error) { c.fail("%v", err) }); err != nil {
		c.t.Fatal(err)
	}
}

// noStarts keeps processes from starting for a while.
func (c *conductor) noStarts(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.startsAt = time.Now().Add(d)
}

// supply keeps the workers supplied with items until ctx ends.
func (c *conductor) supply(ctx context.Context) {
	made := 0
	for ctx.Err() == nil {
		supplying, cancel := context.WithTimeout(ctx, c.ttl)
		_ = c.produce(supplying, 3*c.workers, &made) // the database may be away
		cancel()
		pause(ctx, c.ttl/10)
	}
}

// drain waits until every item is done. Nothing disturbs the workers any more.
func (c *conductor) drain() bool {
	if c.workers == 0 {
		return true
	}
	// An item whose worker died while the clock was ahead stays claimed until
	// the clock has caught up.
	if c.server != nil && c.clock {
		c.setClock(c.farthest)
	}
	ctx, cancel := context.WithTimeout(c.ctx, 60*c.ttl+30*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if n, err := c.undone(ctx); err == nil && n == 0 {
			return true
		}
		pause(ctx, c.ttl/5)
	}
	c.fail("the items were not done in time, although nothing disturbed the workers any more")
	return false
}

// dismiss stops every process politely.
func (c *conductor) dismiss() {
	for _, p := range c.processes {
		p.signal(syscall.SIGTERM, true)
	}
	for _, p := range c.processes {
		if !p.gone(20*c.ttl + 10*time.Second) {
			c.fail("%s.%d does not stop when it is told to", p.Name, p.Life)
		}
	}
}

// end leaves no process behind.
func (c *conductor) end() {
	for _, p := range c.processes {
		p.mu.Lock()
		started := p.cmd != nil
		p.mu.Unlock()
		if started {
			p.signal(os.Kill, true)
			p.gone(time.Minute)
		}
	}
}

// between returns a random duration. The bounds are in TTLs.
func (c *conductor) between(least, most float64) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration((least + c.random.Float64()*(most-least)) * float64(c.ttl))
}

// pick returns a random number below n.
func (c *conductor) pick(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.IntN(n)
}

// fail notes a failure that no checker can see.
func (c *conductor) fail(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, fmt.Sprintf(format, args...))
}

func (c *conductor) note(format string, args ...any) {
	fmt.Printf("torture: "+format+"\n", args...)
}
