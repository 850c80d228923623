package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/sqllease/lease/internal/torture/history"
)

const (
	onProcess  = "process"  // any
	onReplica  = "replica"  // any replica
	onLeader   = "leader"   // the replica that leads
	onStandby  = "standby"  // a replica without the lease
	onWriter   = "writer"   // the replica that leads, or a worker
	onDatabase = "database" // the only one
)

// A kind is a fault, as in the table below.
type kind struct {
	name   string
	does   string // for people
	on     string
	weight int
	needs  need
	blocks need // on such databases, the fault keeps everyone from the lease
	befall func(c *conductor, ctx context.Context, p *process)
}

// A need is a condition on the database.
type need func(d *database) bool

func always(*database) bool       { return true }
func never(*database) bool        { return false }
func sqliteOnly(d *database) bool { return d.backend == "sqlite" }
func proxied(d *database) bool    { return d.where != nil }
func served(d *database) bool     { return d.server != nil }
func clocked(d *database) bool    { return d.server != nil && d.clock }

// kinds lists every fault.
var kinds = []kind{
	{"kill", "SIGKILL, and a restart", onProcess, 12, always, never, kill},
	// The process may hold SQLite's lock.
	{"freeze", "SIGSTOP for longer than a TTL, then SIGCONT", onProcess, 12, always, sqliteOnly, freeze},
	{"stop", "SIGTERM with work in progress, and a restart", onProcess, 8, always, never, stopPolitely},
	{"resign", "the leader resigns, with work that takes a while to end", onLeader, 6, always, never, resign},
	{"return", "the leader's work returns by itself", onLeader, 2, always, never, told("return", 0, 0)},
	{"exhaust", "the work takes every connection of its pool", onLeader, 4, always, never, told("exhaust", 0.5, 1.5)},
	{"clock", "the process's wall clock jumps, for a while", onProcess, 6, always, never, wallClock},
	{"overrun", "work goes on after its context has ended", onWriter, 6, always, sqliteOnly, overrun},
	{"late", "polls and renewals are slow, on the way there or back", onReplica, 10, always, never, lateReplies},
	{"late-take", "the answer to a takeover is late, and then the new leader is cut off", onStandby, 8, always, never, lateTake},
	{"hold", "frozen inside a fenced transaction", onWriter, 6, always, sqliteOnly, freezeInTransaction},
	{"hold-result", "frozen while it reads a large result in a fenced transaction", onLeader, 3, proxied, never, freezeInResult},
	{"interrupt", "a statement ends a fenced transaction by itself, and the work goes on in it", onWriter, 6, always, never, interrupt},

	{"hang", "connections, and new ones, stay open and carry nothing", onProcess, 10, proxied, never, proxyFault(func(c *conductor, p *process) { p.proxy.Hang() })},
	{"hang-existing", "so do those that exist; new ones work", onProcess, 4, proxied, never, proxyFault(func(c *conductor, p *process) { p.proxy.HangExisting() })},
	{"drop-replies", "statements arrive, and their replies do not", onProcess, 8, proxied, never, proxyFault(func(c *conductor, p *process) { p.proxy.DropReplies() })},
	{"delay-replies", "replies are late, by up to 1.2 TTLs", onProcess, 8, proxied, never, proxyFault(func(c *conductor, p *process) { p.proxy.DelayReplies(c.between(0.05, 1.2)) })},
	{"reset", "connections are reset", onProcess, 6, proxied, never, proxyFault(func(c *conductor, p *process) { p.proxy.Reset() })},

	{"db-stop", "a fast shutdown, and a restart", onDatabase, 2, served, always, restart("fast")},
	{"db-crash", "an immediate shutdown, and a restart", onDatabase, 2, served, always, restart("immediate")},
	{"db-freeze", "the server's processes are frozen", onDatabase, 2, served, always, freezeDatabase},
	{"db-clock", "the server's clock is stepped, forward or back, by up to an hour", onDatabase, 1, clocked, never, stepClock},
	{"late-step", "it is stepped forward under slow polls, right after a renewal, and the leader is cut off", onDatabase, 1, clocked, never, calmed(lateStep)},
	{"back-and-forth", "it is stepped back right before a renewal, and put right after it", onDatabase, 1, clocked, never, calmed(backAndForth)},
	{"lock", "another session holds the lease's row; with SQLite the file", onDatabase, 4, always, always, lockRow},
	{"lock-renewals", "so it does while renewals queue, and the server's clock may be stepped", onDatabase, 3, always, never, lockRenewals},
	{"expire", "the leader can no longer renew, its work goes on, and nobody can take the lease", onDatabase, 3, always, always, expire},
}

func faultNames() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// describeFaults prints the effect of each fault.
func describeFaults(w io.Writer) {
	fmt.Fprintln(w, "\nFaults, on replicas (r1, r2, ...), workers (w1, ...), clients (c1, ...) and the database; some are Postgres' only:")
	for _, k := range kinds {
		fmt.Fprintf(w, "  %-14s %s\n", k.name, k.does)
	}
}

func kill(c *conductor, ctx context.Context, p *process) {
	p.signal(os.Kill, true)
	p.gone(time.Minute)
	pause(ctx, c.between(0, 1))
	c.restart(ctx, p)
}

// stopPolitely asks a process to stop. Its work may take a while to wind down.
func stopPolitely(c *conductor, ctx context.Context, p *process) {
	p.order("overrun", c.between(0, 0.8))
	p.signal(syscall.SIGTERM, true)
	if !p.gone(20*c.ttl + 10*time.Second) {
		c.fail("%s.%d does not stop when it is told to", p.Name, p.Life)
		p.signal(os.Kill, true)
		p.gone(time.Minute)
	}
	pause(ctx, c.between(0, 0.5))
	c.restart(ctx, p)
}

func freeze(c *conductor, ctx context.Context, p *process) { c.freezeFor(ctx, p, c.between(1.05, 2.5)) }

func (c *conductor) freezeFor(ctx context.Context, p *process, d time.Duration) {
	p.signal(sigStop, false)
	pause(ctx, d)
	p.signal(sigContinue, false)
}

// told gives the leader an order, with a random duration in TTLs.
func told(order string, least, most float64) func(*conductor, context.Context, *process) {
	return func(c *conductor, ctx context.Context, p *process) { c.tell(ctx, p, order, c.between(least, most)) }
}

// resign hands the lease over, from work that takes a while to wind down.
func resign(c *conductor, ctx context.Context, p *process) {
	p.order("overrun", c.between(0.2, 0.8))
	c.tell(ctx, p, "resign", 0)
}

// freezeInTransaction freezes a process that has fenced itself, and has
// written. Mostly the process wakes before the server would end its session, and
// commits. A leader is frozen shortly before its next renewal is due. So its
// lease expires, and would be taken if the fence did not hold, before the leader
// wakes.
func freezeInTransaction(c *conductor, ctx context.Context, p *process) {
	lasts := c.between(0.82, 0.92)
	if c.pick(3) == 0 {
		lasts = c.between(1.05, 2.5)
	}
	if p.Role == "replica" && c.renewal(ctx) {
		pause(ctx, c.ttl/4)
	}
	p.order("hold", c.ttl/2)
	if p.heard(2 * c.ttl) {
		c.within("freeze", p.Name, false, func() { c.freezeFor(ctx, p, lasts) })
	}
	p.order("forget", 0)
}

// freezeInResult freezes a process while the server waits for it to read.
func freezeInResult(c *conductor, ctx context.Context, p *process) {
	lasts := c.between(1.05, 3)
	if c.pick(2) == 0 {
		lasts = c.between(3, 4)
	}
	p.order("hold-result", c.ttl/2)
	if p.heard(2 * c.ttl) {
		c.within("freeze", p.Name, false, func() { c.freezeFor(ctx, p, lasts) })
	}
	p.order("forget", 0)
}

// interrupt makes statements fail in fenced transactions. The database then
// ends the transaction.
func interrupt(c *conductor, ctx context.Context, p *process) {
	for range 3 {
		c.tell(ctx, p, "interrupt", 0)
	}
}

// overrun lets work continue after the end of its context. The context ends
// because the process is cut off, or frozen.
func overrun(c *conductor, ctx context.Context, p *process) {
	lasts := c.between(0.3, 1.5)
	p.order("overrun", lasts)
	if p.proxy != nil {
		p.proxy.Hang()
		pause(ctx, c.between(0.7, 1.5))
		p.proxy.Heal()
	} else {
		c.within("freeze", p.Name, false, func() { freeze(c, ctx, p) })
	}
	pause(ctx, lasts)
	p.order("forget", 0)
}

// lateReplies makes a replica's polls and renewals slow, on the way there or
// back. The replica still waits for the answers.
func lateReplies(c *conductor, ctx context.Context, p *process) {
	p.order([]string{"slow-poll", "late-poll"}[c.pick(2)], c.between(0.1, 0.32))
	p.order([]string{"slow-renew", "late-renew"}[c.pick(2)], c.between(0.1, 0.32))
	pause(ctx, c.between(1, 4))
	p.order("forget", 0)
}

// lateTake delays the answer to a standby's next takeover, and then cuts the
// standby off, or freezes it. The standby must not trust the late answer for
// longer than the row bears it out.
func lateTake(c *conductor, ctx context.Context, p *process) {
	late := c.between(0.5, 0.63)
	p.order("late-take", late)
	leader := c.leader(ctx)
	for _, other := range c.processes {
		if other.Role == "replica" && other.Holder == leader {
			other.order("resign", 0)
		}
	}
	taken := p.heard(6 * c.ttl)
	p.order("forget", 0)
	switch {
	case !taken:
	case p.proxy != nil:
		p.proxy.Hang()
		pause(ctx, c.between(1, 2))
		p.proxy.Heal()
	default:
		pause(ctx, late+c.ttl/20)
		c.within("freeze", p.Name, false, func() { freeze(c, ctx, p) })
	}
}

// wallClock sets the wall clock of a process wrong, and later right again.
func wallClock(c *conductor, ctx context.Context, p *process) {
	steps := []time.Duration{-time.Hour, -c.ttl, -c.ttl / 3, c.ttl / 4, c.ttl, 10 * c.ttl, 24 * time.Hour}
	p.order("clock", steps[c.pick(len(steps))])
	pause(ctx, c.between(0.5, 3))
	p.order("clock", 0)
}

// proxyFault changes the connections of a process for a while.
func proxyFault(what func(c *conductor, p *process)) func(*conductor, context.Context, *process) {
	return func(c *conductor, ctx context.Context, p *process) {
		what(c, p)
		pause(ctx, c.between(0.3, 2.5))
		p.proxy.Heal()
	}
}

func restart(mode string) func(*conductor, context.Context, *process) {
	return func(c *conductor, ctx context.Context, _ *process) {
		c.server.Stop(c.t, mode)
		pause(ctx, c.between(0, 2))
		c.server.Start(c.t)
	}
}

func freezeDatabase(c *conductor, ctx context.Context, _ *process) {
	c.server.Freeze(c.t)
	pause(ctx, c.between(0.2, 2))
	c.server.Thaw(c.t)
}

// setClock sets the database's clock to the machine's plus offset.
func (c *conductor) setClock(offset time.Duration) {
	e := history.Event{Kind: history.Stepped, At: history.Now(), Offset: offset.Microseconds()}
	c.offset, c.farthest = offset, max(c.farthest, offset)
	c.server.SetClock(c.t, offset)
	e.Until = history.Now()
	c.record.Record(e)
}

// calmed makes a fault for calm times. A process that starts right after a step
// of the clock can take a lease that is still live, as the package says. So no
// process starts during the fault, and for a while after it.
func calmed(befall func(c *conductor, ctx context.Context)) func(*conductor, context.Context, *process) {
	return func(c *conductor, ctx context.Context, _ *process) {
		c.calmly(ctx, func() {
			c.noStarts(10 * c.ttl)
			befall(c, ctx)
			c.noStarts(3 * c.ttl)
		})
	}
}

// stepClock steps the database's clock.
func stepClock(c *conductor, ctx context.Context, _ *process) {
	steps := []time.Duration{-time.Hour, -2 * c.ttl, -c.ttl / 2, 0, c.ttl / 5, c.ttl / 2, c.ttl, 5 * c.ttl, time.Hour}
	c.calmly(ctx, func() {
		c.noStarts(3 * c.ttl)
		c.setClock(steps[c.pick(len(steps))])
	})
	pause(ctx, 3*c.ttl)
}

// leading calls do for each replica that leads. If two share a holder, either
// may lead, and do is called for both.
func (c *conductor) leading(ctx context.Context, do func(p *process)) {
	leader := c.leader(ctx)
	for _, p := range c.campaigners() {
		if p.Holder == leader {
			do(p)
		}
	}
}

// campaigners returns the processes that campaign.
func (c *conductor) campaigners() []*process {
	return slices.DeleteFunc(slices.Clone(c.processes), func(p *process) bool { return p.Role != "replica" })
}

// cutOff cuts the leader off for a while.
func (c *conductor) cutOff(ctx context.Context, lasts time.Duration) {
	var cut []*process
	c.leading(ctx, func(p *process) {
		p.proxy.Hang()
		cut = append(cut, p)
	})
	pause(ctx, lasts)
	for _, p := range cut {
		p.proxy.Heal()
	}
}

// lateStep steps the clock forward while polls are under way that were sent
// before the last renewal. Then lateStep cuts the leader off. A standby that
// counts from the sending of its poll takes the lease before the leader's trust
// has ended.
func lateStep(c *conductor, ctx context.Context) {
	for _, p := range c.campaigners() {
		p.order("slow-poll", c.ttl*3/10)
	}
	pause(ctx, 2*c.ttl)
	renewed := c.renewal(ctx)
	for _, p := range c.campaigners() {
		p.order("forget", 0)
	}
	if renewed {
		c.setClock(c.offset + c.ttl/2)
		c.cutOff(ctx, c.ttl*3/2)
	}
	pause(ctx, c.ttl)
}

// backAndForth steps the clock back right before a renewal, and forth again
// right after it, several times in a row. Most standbys see only the row, and
// the row looks as if it was renewed long ago by a clock that never moved.
func backAndForth(c *conductor, ctx context.Context) {
	steps := []time.Duration{c.ttl / 3, c.ttl * 2 / 3, c.ttl, 2 * c.ttl, time.Hour}
	right, back := c.offset, steps[c.pick(len(steps))]
	cut := c.pick(2) == 0
	renewed := c.renewal(ctx)
	for rounds := 1 + c.pick(5); renewed && rounds > 0; rounds-- {
		pause(ctx, c.ttl/3-c.ttl/20)
		c.setClock(right - back)
		renewed = c.renewal(ctx)
		c.setClock(right)
	}
	if renewed && cut {
		c.cutOff(ctx, c.ttl*3/2)
	}
	pause(ctx, c.ttl)
}

func lockRow(c *conductor, ctx context.Context, _ *process) {
	lasts := c.between(0.2, 1.5)
	c.noteLock(ctx, c.lock(ctx, false, func() { pause(ctx, lasts) }))
}

func (c *conductor) noteLock(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		c.note("lock: %v", err)
	}
}

// lockRenewals locks the lease's row right before a renewal is due, until
// further renewals have been sent. If the row is then written, even unchanged,
// the renewals land in any order.
func lockRenewals(c *conductor, ctx context.Context, p *process) {
	step := clocked(c.database) && c.pick(2) == 0
	queue := func(c *conductor, ctx context.Context) {
		for range 3 {
			if !c.renewal(ctx) {
				return
			}
			pause(ctx, c.ttl/3-c.ttl/20)
			lasts, at, by := c.between(0.15, 0.3), c.between(0.05, 0.15), c.between(-0.2, 0.2)
			c.within("lock", "database", true, func() {
				c.noteLock(ctx, c.lock(ctx, c.pick(3) > 0, func() {
					pause(ctx, at)
					if step {
						c.setClock(c.offset + by)
					}
					pause(ctx, lasts-at)
				}))
			})
		}
	}
	if step {
		calmed(queue)(c, ctx, p)
		return
	}
	queue(c, ctx)
}

// expire lets the lease expire while nobody takes the lease, and work goes on
// and tries to write. Renewals and takes are given up before they are sent.
func expire(c *conductor, ctx context.Context, _ *process) {
	c.leading(ctx, func(p *process) {
		p.order("overrun", c.between(0.7, 1.5))
		p.order("slow-renew", c.ttl*2/5)
	})
	for _, p := range c.campaigners() {
		p.order("slow-take", c.ttl*3/4)
	}
	pause(ctx, c.between(1.7, 2.4))
	for _, p := range c.campaigners() {
		p.order("forget", 0)
	}
}

// chance picks a fault from a list, by weight.
func chance(r *rand.Rand, list []kind) kind {
	total := 0
	for _, k := range list {
		total += k.weight
	}
	n := r.IntN(total)
	for _, k := range list {
		if n -= k.weight; n < 0 {
			return k
		}
	}
	panic("weights must be positive")
}
