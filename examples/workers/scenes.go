package main

import (
	"context"
	"fmt"
	"time"
)

func (d *demo) startThree(ctx context.Context) error {
	if _, err := d.receive(ctx, 6, smooth); err != nil {
		return err
	}
	for range 3 {
		if err := d.cast.Start(); err != nil {
			return err
		}
	}
	if err := d.cast.Await(ctx, "three workers", d.allReady); err != nil {
		return err
	}
	return d.awaitDone(ctx)
}

func (d *demo) killWorker(ctx context.Context) error {
	hit, err := d.catch(ctx, stuck, killed)
	if err != nil {
		return err
	}
	p, at := hit.From, time.Now()
	if err := p.Kill(); err != nil {
		return err
	}
	d.Out.Line(at, p.Name, hit.Event.Epoch, "SIGKILL, in the middle of order %d", hit.Event.Order)
	if err := d.awaitTakeover(ctx, hit, at, "the kill"); err != nil {
		return err
	}
	return d.awaitDone(ctx)
}

func (d *demo) freezeWorker(ctx context.Context) error {
	hit, err := d.catch(ctx, deaf, frozen)
	if err != nil {
		return err
	}
	p := hit.From
	at, err := d.freezeBetweenWrites(ctx, p)
	if err != nil {
		return err
	}
	d.Out.Line(at, p.Name, hit.Event.Epoch, "SIGSTOP, in the middle of order %d", hit.Event.Order)
	if err := d.awaitTakeover(ctx, hit, at, "the freeze"); err != nil {
		return err
	}
	if err := d.awaitDone(ctx); err != nil {
		return err
	}
	if err := p.Thaw(); err != nil {
		return err
	}
	d.Out.Line(time.Now(), p.Name, hit.Event.Epoch, "SIGCONT: it wakes, goes on with order %d, and tries to commit a second invoice", hit.Event.Order)
	if err := d.awaitEnd(ctx, hit, lost); err != nil {
		return err
	}
	if d.orders[hit.Event.Order].refused == 0 {
		return fmt.Errorf("no second invoice of order %d was refused", hit.Event.Order)
	}
	return nil
}

// freezeBetweenWrites stops a worker's process, and returns the time of the
// freeze. If the process froze in the middle of a renewal that locks SQLite's
// file, freezeBetweenWrites wakes the process and starts over. PostgreSQL
// completes the statement of a frozen client.
func (d *demo) freezeBetweenWrites(ctx context.Context, p *process) (at time.Time, err error) {
	for range 10 {
		at = time.Now()
		if err := p.Freeze(); err != nil {
			return at, err
		}
		locked, err := d.Where.Locked(ctx, d.DB)
		if err != nil || !locked {
			return at, err
		}
		d.Out.Line(at, p.Name, 0, "froze in the middle of a renewal, which locks SQLite's file; once more")
		if err := p.Thaw(); err != nil {
			return at, err
		}
	}
	return at, fmt.Errorf("%s could not be frozen outside of a renewal", p.Name)
}

func (d *demo) stopWorker(ctx context.Context) error {
	hit, err := d.catch(ctx, stuck, stopped)
	if err != nil {
		return err
	}
	p, at := hit.From, time.Now()
	d.Out.Line(at, p.Name, hit.Event.Epoch, "SIGTERM, in the middle of order %d", hit.Event.Order)
	if err := d.cast.Stop(ctx, p); err != nil {
		return err
	}
	if err := d.awaitEnd(ctx, hit, handedOn); err != nil {
		return err
	}
	if err := d.awaitTakeover(ctx, hit, at, "the request"); err != nil {
		return err
	}
	return d.awaitDone(ctx)
}

func (d *demo) stopAll(ctx context.Context) error {
	for _, p := range d.cast.Processes {
		if p.Gone() {
			continue
		}
		if err := d.cast.Stop(ctx, p); err != nil {
			return err
		}
	}
	return nil
}
