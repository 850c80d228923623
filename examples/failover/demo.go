package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sqllease/lease"
	"gorm.io/gorm"
)

// A demo directs the replicas and tells what they do. One goroutine, run's, owns all of it.
type demo struct {
	ttl   time.Duration
	where location
	db    *gorm.DB
	out   *timeline
	log   io.Writer // of the replicas; may be nil

	events   chan event
	replicas []*process // in the order of their start; those that are gone stay
	newest   event      // the last tick that was reported
	ticks    int
	reported map[int64]int // ticks, by epoch
	refused  int           // writes, by the fence
	scrapes  int
}

func newDemo(o options, where location, db *gorm.DB, out *timeline) *demo {
	d := &demo{ttl: o.ttl, where: where, db: db, out: out, events: make(chan event, 100), reported: map[int64]int{}}
	if o.verbose {
		d.log = os.Stderr
	}
	return d
}

// run plays every scene and then judges what was written.
func (d *demo) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx) // ends the forwarding of events, too
	defer cancel()
	d.out.title("One lease, three replicas, TTL %v. %v.\n"+
		"The leader writes a fenced tick to a table about every 100 ms. A replica that is dead, frozen or leaving is not scraped: -.", d.ttl, d.where)
	scenes := []struct {
		title string
		play  func(context.Context) error
	}{
		{"three replicas start, and campaign", d.startThree},
		{"the leader is killed", d.killLeader},
		{"a new replica takes the place of the killed one", d.addReplica},
		{"the leader freezes, and wakes after it was replaced", d.freezeLeader},
		{"the leader is asked to stop", d.stopLeader},
		{"a new replica takes the place of the stopped one", d.addReplica},
		{"everyone stops", d.stopAll},
	}
	for _, s := range scenes {
		d.out.step(s.title)
		if err := s.play(ctx); err != nil {
			return err
		}
	}
	return d.judge(ctx)
}

func (d *demo) startThree(ctx context.Context) error {
	for range 3 {
		if err := d.start(ctx); err != nil {
			return err
		}
	}
	if err := d.await(ctx, "three replicas and a leader", func() bool { return d.allReady() && d.ticks > 0 }); err != nil {
		return err
	}
	return d.showLeader(ctx)
}

func (d *demo) addReplica(ctx context.Context) error {
	if err := d.start(ctx); err != nil {
		return err
	}
	if err := d.await(ctx, "the new replica", d.allReady); err != nil {
		return err
	}
	return d.showLeader(ctx)
}

func (d *demo) killLeader(ctx context.Context) error {
	gone, err := d.strike(ctx, func(p *process) error {
		p.goodbye = bySignal
		return p.cmd.Process.Kill()
	})
	if err != nil {
		return err
	}
	d.out.line(gone.at, gone.who.name, gone.epoch, "SIGKILL, after %d ticks", gone.who.ticks)
	if err := d.awaitSuccessor(ctx, gone, "the kill"); err != nil {
		return err
	}
	return d.showLeader(ctx)
}

func (d *demo) freezeLeader(ctx context.Context) error {
	gone, err := d.freezeBetweenWrites(ctx)
	if err != nil {
		return err
	}
	p := gone.who
	d.out.line(gone.at, p.name, gone.epoch, "SIGSTOP, after %d ticks", p.ticks)
	if err := d.awaitSuccessor(ctx, gone, "the freeze"); err != nil {
		return err
	}
	if err := d.showLeader(ctx); err != nil {
		return err
	}
	if err := d.watch(ctx, time.Second); err != nil { // the successor writes meanwhile
		return err
	}
	if err := d.wake(p); err != nil {
		return err
	}
	d.out.line(time.Now(), p.name, gone.epoch, "SIGCONT: it wakes, and does not know that it was replaced")
	if err := d.await(ctx, "the stale write of "+p.name, func() bool { return p.last != "" }); err != nil {
		return err
	}
	if p.last != refused {
		return fmt.Errorf("the stale write of %s was not refused, but %s", p.name, p.last)
	}
	return d.showLeader(ctx)
}

// freezeBetweenWrites stops the leader's process, and starts over if it happened to be in the middle of a write.
func (d *demo) freezeBetweenWrites(ctx context.Context) (departure, error) {
	for range 10 {
		gone, err := d.strike(ctx, func(p *process) error {
			p.frozen, p.last = true, ""
			return freeze(p.cmd.Process)
		})
		if err != nil {
			return gone, err
		}
		locked, err := d.where.locked(ctx, d.db)
		if err != nil || !locked {
			return gone, err
		}
		d.out.line(gone.at, gone.who.name, gone.epoch, "froze in the middle of a write, which locks SQLite's file; once more")
		if err := d.wake(gone.who); err != nil {
			return gone, err
		}
	}
	return departure{}, errors.New("the leader could not be frozen outside of a write")
}

func (d *demo) wake(p *process) error {
	p.frozen = false
	return thaw(p.cmd.Process)
}

func (d *demo) stopLeader(ctx context.Context) error {
	gone, err := d.strike(ctx, func(p *process) error {
		p.goodbye = byItself
		return askToStop(p.cmd.Process)
	})
	if err != nil {
		return err
	}
	d.out.line(gone.at, gone.who.name, gone.epoch, "SIGTERM, after %d ticks", gone.who.ticks)
	if err := d.awaitSuccessor(ctx, gone, "the request"); err != nil {
		return err
	}
	return d.await(ctx, "the end of "+gone.who.name, func() bool { return gone.who.gone })
}

// stopAll stops the standbys before the leader, so that no term begins just to end.
func (d *demo) stopAll(ctx context.Context) error {
	if err := d.watch(ctx, time.Second); err != nil {
		return err
	}
	leader := d.newest.from
	for _, p := range d.replicas {
		if p != leader && !p.gone {
			if err := d.stop(ctx, p); err != nil {
				return err
			}
		}
	}
	return d.stop(ctx, leader)
}

func (d *demo) stop(ctx context.Context, p *process) error {
	p.goodbye = byItself
	if err := askToStop(p.cmd.Process); err != nil {
		return err
	}
	return d.await(ctx, "the end of "+p.name, func() bool { return p.gone })
}

// start adds a replica, by the next free name.
func (d *demo) start(ctx context.Context) error {
	name := string(rune('A' + len(d.replicas)))
	p, err := startProcess(ctx, settings{Name: name, TTL: d.ttl, Where: d.where}, d.log, d.events)
	if p != nil {
		d.replicas = append(d.replicas, p)
	}
	return err
}

// killAll leaves no process behind, whatever state it is in.
func (d *demo) killAll() {
	for _, p := range d.replicas {
		p.kill()
	}
}

func (d *demo) allReady() bool {
	for _, p := range d.replicas {
		if p.metrics == "" {
			return false
		}
	}
	return true
}

// A departure is what the parent did to a leader.
type departure struct {
	who       *process
	epoch     int64
	at        time.Time     // the signal was sent
	unrenewed time.Duration // since the last renewal before, by the database's clock
}

// strike lets the leader work for a while and then does something to it, right after a tick: its next write is a while off.
func (d *demo) strike(ctx context.Context, signal func(*process) error) (departure, error) {
	if err := d.watch(ctx, 1500*time.Millisecond); err != nil {
		return departure{}, err
	}
	before := d.ticks
	if err := d.await(ctx, "a tick", func() bool { return d.ticks > before }); err != nil {
		return departure{}, err
	}
	gone := departure{who: d.newest.from, epoch: d.newest.Epoch, at: time.Now()}
	if err := signal(gone.who); err != nil {
		return gone, fmt.Errorf("signal %s: %w", gone.who.name, err)
	}
	status, err := lease.Find(ctx, d.db, leaseName)
	if err != nil {
		return gone, err
	}
	renewed := status.ExpiresAt.Add(-status.Remaining).Sub(status.RenewedAt) // a Status is as of the database's time now
	gone.unrenewed = renewed - time.Since(gone.at)
	return gone, nil
}

// awaitSuccessor waits for the first tick of a later term, and says how long that took.
func (d *demo) awaitSuccessor(ctx context.Context, gone departure, what string) error {
	err := d.await(ctx, "a successor of "+gone.who.name, func() bool { return d.newest.Epoch > gone.epoch })
	if err != nil {
		return err
	}
	took := d.newest.at.Sub(gone.at)
	d.out.line(d.newest.at, d.newest.from.name, d.newest.Epoch, "first tick %s after %s, %s after the last renewal of %s; the TTL is %s",
		seconds(took), what, seconds(took+gone.unrenewed), gone.who.name, seconds(d.ttl))
	return nil
}

// limit is how long anything may take. A takeover takes a TTL, or two if PostgreSQL had to cut off a frozen transaction.
func (d *demo) limit() time.Duration { return 3*d.ttl + 15*time.Second }

// await handles events until the state is as wanted.
func (d *demo) await(ctx context.Context, what string, wanted func() bool) error {
	ok, err := d.handleUntil(ctx, d.limit(), wanted)
	if err == nil && !ok {
		err = fmt.Errorf("waited %v for %s", d.limit(), what)
	}
	return err
}

// watch handles events for a while.
func (d *demo) watch(ctx context.Context, while time.Duration) error {
	_, err := d.handleUntil(ctx, while, func() bool { return false })
	return err
}

func (d *demo) handleUntil(ctx context.Context, limit time.Duration, wanted func() bool) (bool, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for !wanted() {
		select {
		case e := <-d.events:
			if err := d.handle(e); err != nil {
				return false, err
			}
		case <-timer.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	return true, nil
}

// handle takes in one event of a replica, and tells of it unless it is a mere tick.
func (d *demo) handle(e event) error {
	p := e.from
	tell := func(format string, args ...any) { d.out.line(e.at, p.name, e.Epoch, format, args...) }
	switch e.Kind {
	case ready:
		p.metrics = e.Detail
		tell("joins; metrics at http://%s/metrics", e.Detail)
	case leads:
		p.last = ""
		tell("LEADS")
	case ticked:
		d.countTick(e)
	case troubled:
		tell("a tick failed: %s", e.Detail)
	case ended:
		tell("its work ends: %s", e.Detail)
	case committed:
		d.countTick(e)
		p.last = e.Kind
		if p.goodbye != "" {
			tell("last write, while it still holds the lease: committed")
		} else {
			tell("last write: committed, as the term was in force after all")
		}
	case refused:
		d.refused++
		p.last = e.Kind
		tell("%s: %s", d.out.paint(red, "stale write REFUSED by the fence"), e.Detail)
	case failed:
		p.last = e.Kind
		tell("last write failed: %s", e.Detail)
	case stopped:
		if p.last == committed {
			tell("released the lease, and exits")
		} else {
			tell("exits")
		}
	case exited:
		return d.handleExit(e)
	}
	return nil
}

func (d *demo) countTick(e event) {
	e.from.ticks++
	d.ticks++
	d.reported[e.Epoch]++
	if e.Epoch >= d.newest.Epoch { // the pipes of two replicas are read in no order
		d.newest = e
	}
}

func (d *demo) handleExit(e event) error {
	p := e.from
	p.gone = true
	if e.Detail != p.goodbye {
		return fmt.Errorf("replica %s is gone: %s\n%s", p.name, e.Detail, p.log)
	}
	return nil
}

// showLeader scrapes every live replica until exactly one says that it leads. Never may two.
func (d *demo) showLeader(ctx context.Context) error {
	deadline := time.Now().Add(d.limit())
	for {
		leaders, text, err := d.scrapeAll(ctx)
		switch {
		case err != nil:
			return errors.Join(err, d.watch(ctx, 100*time.Millisecond)) // the replica's end explains it better
		case leaders == 1:
			d.scrapes++
			d.out.line(time.Now(), "", 0, "%s", d.out.paint(faint, "lease_leader "+text))
			return nil
		case leaders > 1:
			return fmt.Errorf("%d replicas say that they lead:%s", leaders, text)
		case time.Now().After(deadline):
			return fmt.Errorf("no replica says that it leads:%s", text)
		}
		if err := d.watch(ctx, 20*time.Millisecond); err != nil { // a new replica's series is not there yet, say
			return err
		}
	}
}

// scrapeAll returns how many replicas lead by their own metrics, and what each says; 0 leaders while one has nothing to say.
func (d *demo) scrapeAll(ctx context.Context) (leaders int, text string, err error) {
	var b strings.Builder
	complete := true
	for _, p := range d.replicas {
		value := "-"
		if !p.gone && p.goodbye == "" && !p.frozen {
			var ok bool
			if value, ok, err = scrape(ctx, p.metrics); err != nil {
				return 0, "", err
			}
			complete = complete && ok
		}
		if value == "1" {
			leaders++
		}
		fmt.Fprintf(&b, " %s=%s", p.name, value)
	}
	if !complete && leaders < 2 {
		leaders = 0
	}
	return leaders, b.String(), nil
}

// judge reads what was written and says whether the promises were kept.
func (d *demo) judge(ctx context.Context) error {
	ticks, err := allTicks(ctx, d.db)
	if err != nil {
		return err
	}
	terms, err := termsOf(ticks)
	if err != nil {
		return err
	}
	if err := checkReported(terms, d.reported); err != nil {
		return err
	}
	switch {
	case len(terms) < 4: // one at the start, and one after each departure
		return fmt.Errorf("the table has %d terms, at least 4 were expected", len(terms))
	case d.refused == 0:
		return errors.New("no stale write was refused")
	}
	d.report(ticks, terms)
	return nil
}

func (d *demo) report(ticks []Tick, terms []term) {
	d.out.plain("\n%s", d.out.paint(faint, "   epoch  replica  ticks  gap before it"))
	for i, t := range terms {
		gap := ""
		if i > 0 {
			gap = seconds(t.gap(terms[i-1]))
		}
		d.out.plain("%8d  %s  %5d  %s", t.epoch, d.out.paintName(t.replica, fmt.Sprintf("%-7s", t.replica)), t.ticks, gap)
	}
	d.out.plain("\n%d ticks in %d terms: epochs rise in the order of the commits, and no two terms overlap.", len(ticks), len(terms))
	d.out.plain("Stale writes refused: %d. lease_leader added up to 1 in all of %d scrapes.", d.refused, d.scrapes)
	d.out.verdict(true)
}
