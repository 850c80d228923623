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
		if err := d.start(ctx); err != nil {
			return err
		}
	}
	if err := d.await(ctx, "three workers", d.allReady); err != nil {
		return err
	}
	return d.awaitDone(ctx)
}

func (d *demo) killWorker(ctx context.Context) error {
	hit, err := d.catch(ctx, stuck, killed)
	if err != nil {
		return err
	}
	p, at := hit.from, time.Now()
	p.goodbye = bySignal
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	d.out.line(at, p.name, hit.Epoch, "SIGKILL, in the middle of order %d", hit.Order)
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
	p := hit.from
	at, err := d.freezeBetweenWrites(ctx, p)
	if err != nil {
		return err
	}
	d.out.line(at, p.name, hit.Epoch, "SIGSTOP, in the middle of order %d", hit.Order)
	if err := d.awaitTakeover(ctx, hit, at, "the freeze"); err != nil {
		return err
	}
	if err := d.awaitDone(ctx); err != nil {
		return err
	}
	if err := thaw(p.cmd.Process); err != nil {
		return fmt.Errorf("wake %s: %w", p.name, err)
	}
	d.out.line(time.Now(), p.name, hit.Epoch, "SIGCONT: it wakes, goes on with order %d, and tries to commit a second invoice", hit.Order)
	if err := d.awaitEnd(ctx, hit, lost); err != nil {
		return err
	}
	if d.orders[hit.Order].refused == 0 {
		return fmt.Errorf("no second invoice of order %d was refused", hit.Order)
	}
	return nil
}

// freezeBetweenWrites stops a worker's process, and starts over if it happened to be in the middle of a renewal. It returns when that was.
func (d *demo) freezeBetweenWrites(ctx context.Context, p *process) (at time.Time, err error) {
	for range 10 {
		at = time.Now()
		if err := freeze(p.cmd.Process); err != nil {
			return at, fmt.Errorf("freeze %s: %w", p.name, err)
		}
		locked, err := d.where.locked(ctx, d.db)
		if err != nil || !locked {
			return at, err
		}
		d.out.line(at, p.name, 0, "froze in the middle of a renewal, which locks SQLite's file; once more")
		if err := thaw(p.cmd.Process); err != nil {
			return at, fmt.Errorf("wake %s: %w", p.name, err)
		}
	}
	return at, fmt.Errorf("%s could not be frozen outside of a renewal", p.name)
}

func (d *demo) stopWorker(ctx context.Context) error {
	hit, err := d.catch(ctx, stuck, stopped)
	if err != nil {
		return err
	}
	p, at := hit.from, time.Now()
	d.out.line(at, p.name, hit.Epoch, "SIGTERM, in the middle of order %d", hit.Order)
	if err := d.stop(ctx, p); err != nil {
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
	for _, p := range d.workers {
		if p.gone {
			continue
		}
		if err := d.stop(ctx, p); err != nil {
			return err
		}
	}
	return nil
}
