package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/examples/internal/stage"
)

// A demo directs the replicas and tells what they do. Only the goroutine of run
// uses a demo.
type demo struct {
	stage.Run
	cast *stage.Cast[event, notes]

	newest   report // the newest tick in the reports
	ticks    int
	reported map[int64]int // ticks, by epoch
	refused  int           // writes that the fence refused
	scrapes  int
}

type (
	process = stage.Process[notes]
	report  = stage.Report[event, notes]
)

// notes are the demo's notes about a replica.
type notes struct {
	metrics string // address, empty until the replica is ready
	ticks   int
	last    kind // the outcome of its term's last write, empty before the write
}

func newDemo(run stage.Run) *demo {
	d := &demo{Run: run, reported: map[int64]int{}}
	d.cast = stage.NewCast(run, d.handle)
	return d
}

// run plays every scene and then judges the writes.
func (d *demo) run(ctx context.Context) error {
	d.Out.Title("One lease, three replicas, TTL %v. %v.\n"+
		"The leader writes a fenced tick to a table about every 100 ms. A replica that is dead, frozen or leaving is not scraped: -.", d.TTL, d.Where)
	err := d.Scenes(ctx, []stage.Scene{
		{Title: "three replicas start, and campaign", Play: d.startThree},
		{Title: "the leader is killed", Play: d.killLeader},
		{Title: "a new replica takes the place of the killed one", Play: d.addReplica},
		{Title: "the leader freezes, and wakes after it was replaced", Play: d.freezeLeader},
		{Title: "the leader is asked to stop", Play: d.stopLeader},
		{Title: "a new replica takes the place of the stopped one", Play: d.addReplica},
		{Title: "everyone stops", Play: d.stopAll},
	})
	if err != nil {
		return err
	}
	return d.judge(ctx)
}

func (d *demo) startThree(ctx context.Context) error {
	for range 3 {
		if err := d.cast.Start(); err != nil {
			return err
		}
	}
	if err := d.cast.Await(ctx, "three replicas and a leader", func() bool { return d.allReady() && d.ticks > 0 }); err != nil {
		return err
	}
	return d.showLeader(ctx)
}

func (d *demo) addReplica(ctx context.Context) error {
	if err := d.cast.Start(); err != nil {
		return err
	}
	if err := d.cast.Await(ctx, "the new replica", d.allReady); err != nil {
		return err
	}
	return d.showLeader(ctx)
}

func (d *demo) killLeader(ctx context.Context) error {
	gone, err := d.strike(ctx, (*process).Kill)
	if err != nil {
		return err
	}
	d.Out.Line(gone.at, gone.who.Name, gone.epoch, "SIGKILL, after %d ticks", gone.who.Notes.ticks)
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
	d.Out.Line(gone.at, p.Name, gone.epoch, "SIGSTOP, after %d ticks", p.Notes.ticks)
	if err := d.awaitSuccessor(ctx, gone, "the freeze"); err != nil {
		return err
	}
	if err := d.showLeader(ctx); err != nil {
		return err
	}
	if err := d.cast.Watch(ctx, time.Second); err != nil { // the successor writes meanwhile
		return err
	}
	if err := p.Thaw(); err != nil {
		return err
	}
	d.Out.Line(time.Now(), p.Name, gone.epoch, "SIGCONT: it wakes, and does not know that it was replaced")
	if err := d.cast.Await(ctx, "the stale write of "+p.Name, func() bool { return p.Notes.last != "" }); err != nil {
		return err
	}
	if p.Notes.last != refused {
		return fmt.Errorf("the stale write of %s was not refused, but %s", p.Name, p.Notes.last)
	}
	return d.showLeader(ctx)
}

// freezeBetweenWrites stops the leader's process. If the process froze in the
// middle of a write that locks SQLite's file, freezeBetweenWrites wakes the
// process and starts over. PostgreSQL cuts off a leader that lies idle in a
// fenced transaction for a TTL.
func (d *demo) freezeBetweenWrites(ctx context.Context) (departure, error) {
	for range 10 {
		gone, err := d.strike(ctx, func(p *process) error {
			p.Notes.last = ""
			return p.Freeze()
		})
		if err != nil {
			return gone, err
		}
		locked, err := d.Where.Locked(ctx, d.DB)
		if err != nil || !locked {
			return gone, err
		}
		d.Out.Line(gone.at, gone.who.Name, gone.epoch, "froze in the middle of a write, which locks SQLite's file; once more")
		if err := gone.who.Thaw(); err != nil {
			return gone, err
		}
	}
	return departure{}, errors.New("the leader could not be frozen outside of a write")
}

func (d *demo) stopLeader(ctx context.Context) error {
	gone, err := d.strike(ctx, (*process).AskToStop)
	if err != nil {
		return err
	}
	d.Out.Line(gone.at, gone.who.Name, gone.epoch, "SIGTERM, after %d ticks", gone.who.Notes.ticks)
	if err := d.awaitSuccessor(ctx, gone, "the request"); err != nil {
		return err
	}
	return d.cast.Await(ctx, "the end of "+gone.who.Name, gone.who.Gone)
}

// stopAll stops the standbys before the leader. Otherwise a standby would begin
// a term just to end it.
func (d *demo) stopAll(ctx context.Context) error {
	if err := d.cast.Watch(ctx, time.Second); err != nil {
		return err
	}
	leader := d.newest.From
	for _, p := range d.cast.Processes {
		if p != leader && !p.Gone() {
			if err := d.cast.Stop(ctx, p); err != nil {
				return err
			}
		}
	}
	return d.cast.Stop(ctx, leader)
}

func (d *demo) allReady() bool {
	for _, p := range d.cast.Processes {
		if p.Notes.metrics == "" {
			return false
		}
	}
	return true
}

// A departure is what the parent did to a leader.
type departure struct {
	who       *process
	epoch     int64
	at        time.Time     // when the signal was sent
	unrenewed time.Duration // time from the last renewal to the signal, by the database's clock
}

// strike lets the leader work for a while and then sends a signal, right after
// a tick: the next write is a while off.
func (d *demo) strike(ctx context.Context, signal func(*process) error) (departure, error) {
	if err := d.cast.Watch(ctx, 1500*time.Millisecond); err != nil {
		return departure{}, err
	}
	before := d.ticks
	if err := d.cast.Await(ctx, "a tick", func() bool { return d.ticks > before }); err != nil {
		return departure{}, err
	}
	gone := departure{who: d.newest.From, epoch: d.newest.Event.Epoch, at: time.Now()}
	if err := signal(gone.who); err != nil {
		return gone, err
	}
	status, err := lease.Find(ctx, d.DB, leaseName)
	if err != nil {
		return gone, err
	}
	// The times of a Status are as of the database's time now.
	renewed := status.ExpiresAt.Add(-status.Remaining).Sub(status.RenewedAt)
	gone.unrenewed = renewed - time.Since(gone.at)
	return gone, nil
}

// awaitSuccessor waits for the first tick of a later term, and prints how long
// the wait took.
func (d *demo) awaitSuccessor(ctx context.Context, gone departure, what string) error {
	err := d.cast.Await(ctx, "a successor of "+gone.who.Name, func() bool { return d.newest.Event.Epoch > gone.epoch })
	if err != nil {
		return err
	}
	took := d.newest.At.Sub(gone.at)
	d.Out.Line(d.newest.At, d.newest.From.Name, d.newest.Event.Epoch, "first tick %s after %s, %s after the last renewal of %s; the TTL is %s",
		stage.Seconds(took), what, stage.Seconds(took+gone.unrenewed), gone.who.Name, stage.Seconds(d.TTL))
	return nil
}

// handle records a replica's report. It prints the report, except ticks and
// exits.
func (d *demo) handle(r report) error {
	p, e := r.From, r.Event
	tell := func(format string, args ...any) { d.Out.Line(r.At, p.Name, e.Epoch, format, args...) }
	switch e.Kind {
	case ready:
		p.Notes.metrics = e.Detail
		tell("joins; metrics at http://%s/metrics", e.Detail)
	case leads:
		p.Notes.last = ""
		tell("LEADS")
	case ticked:
		d.countTick(r)
	case troubled:
		tell("a tick failed: %s", e.Detail)
	case ended:
		tell("its work ends: %s", e.Detail)
	case committed:
		d.countTick(r)
		p.Notes.last = e.Kind
		if p.Leaving() {
			tell("last write, while it still holds the lease: committed")
		} else {
			tell("last write: committed, as the term was in force after all")
		}
	case refused:
		d.refused++
		p.Notes.last = e.Kind
		tell("%s: %s", d.Out.Red("stale write REFUSED by the fence"), e.Detail)
	case failed:
		p.Notes.last = e.Kind
		tell("last write failed: %s", e.Detail)
	case stopped:
		if p.Notes.last == committed {
			tell("released the lease, and exits")
		} else {
			tell("exits")
		}
	}
	return nil
}

func (d *demo) countTick(r report) {
	r.From.Notes.ticks++
	d.ticks++
	d.reported[r.Event.Epoch]++
	// The pipes of two replicas are read in no particular order.
	if r.Event.Epoch >= d.newest.Event.Epoch {
		d.newest = r
	}
}

// showLeader scrapes every live replica until exactly one leads by its own
// metrics. Two leaders are always an error.
func (d *demo) showLeader(ctx context.Context) error {
	deadline := time.Now().Add(d.Limit())
	for {
		leaders, text, err := d.scrapeAll(ctx)
		switch {
		case err != nil:
			// The replica's end explains the error better.
			return errors.Join(err, d.cast.Watch(ctx, 100*time.Millisecond))
		case leaders == 1:
			d.scrapes++
			d.Out.Line(time.Now(), "", 0, "%s", d.Out.Faint("lease_leader "+text))
			return nil
		case leaders > 1:
			return fmt.Errorf("%d replicas say that they lead:%s", leaders, text)
		case time.Now().After(deadline):
			return fmt.Errorf("no replica says that it leads:%s", text)
		}
		// Some series may be missing yet, such as a new replica's.
		if err := d.cast.Watch(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// scrapeAll returns how many replicas lead by their own metrics, and the
// values. While a replica's value is missing, the number is 0, unless it is
// above 1.
func (d *demo) scrapeAll(ctx context.Context) (leaders int, text string, err error) {
	var b strings.Builder
	complete := true
	for _, p := range d.cast.Processes {
		value := "-"
		if !p.Leaving() && !p.Frozen() {
			var ok bool
			if value, ok, err = scrape(ctx, p.Notes.metrics); err != nil {
				return 0, "", err
			}
			complete = complete && ok
		}
		if value == "1" {
			leaders++
		}
		fmt.Fprintf(&b, " %s=%s", p.Name, value)
	}
	if !complete && leaders < 2 {
		leaders = 0
	}
	return leaders, b.String(), nil
}

// judge reads the ticks and decides whether the promises were kept.
func (d *demo) judge(ctx context.Context) error {
	ticks, err := allTicks(ctx, d.DB)
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
	// One term at the start, and one after each departure.
	case len(terms) < 4:
		return fmt.Errorf("the table has %d terms, at least 4 were expected", len(terms))
	case d.refused == 0:
		return errors.New("no stale write was refused")
	}
	d.report(ticks, terms)
	return nil
}

func (d *demo) report(ticks []Tick, terms []term) {
	d.Out.Plain("\n%s", d.Out.Faint("   epoch  replica  ticks  gap before it"))
	for i, t := range terms {
		gap := ""
		if i > 0 {
			gap = stage.Seconds(t.gap(terms[i-1]))
		}
		d.Out.Plain("%8d  %s  %5d  %s", t.epoch, d.Out.PaintName(t.replica, fmt.Sprintf("%-7s", t.replica)), t.ticks, gap)
	}
	d.Out.Plain("\n%d ticks in %d terms: epochs rise in the order of the commits, and no two terms overlap.", len(ticks), len(terms))
	d.Out.Plain("Stale writes refused: %d. lease_leader added up to 1 in all of %d scrapes.", d.refused, d.scrapes)
	d.Out.Verdict(true)
}
