package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sqllease/lease/internal/torture/check"
	"github.com/sqllease/lease/internal/torture/history"
	"github.com/sqllease/lease/internal/torture/report"
)

// watch shows the progress until ctx ends.
func (c *conductor) watch(ctx context.Context) {
	progress := report.Progress{TTL: c.ttl}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if err := progress.Follow(c.dir); err != nil {
			c.fail("the record cannot be read: %v", err)
			return
		}
		progress.Show(os.Stdout, history.Now())
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	progress.Done(os.Stdout)
}

// judge checks everything in the record and the database, and shows the result.
func (c *conductor) judge(complete bool) bool {
	ctx, cancel := context.WithTimeout(c.ctx, 2*time.Minute)
	defer cancel()
	r := history.Run{Seed: int64(c.seed), TTL: c.ttl, Complete: complete, OneClock: c.options.backend == "sqlite" || c.server != nil}
	var err error
	if r.Events, err = history.Read(c.dir); err == nil {
		err = c.collect(ctx, &r)
	}
	if err != nil {
		c.t.Fatalf("collect what was done: %v", err)
	}
	violations := check.Run(r)
	for _, f := range c.failures {
		violations = append(violations, check.Violation{Rule: "processes", Text: f})
	}
	shown := report.Options{Backend: c.options.backend, Violations: violations}
	if err := report.Summary(os.Stdout, r, shown); err != nil {
		c.t.Fatal(err)
	}
	if err := c.draw(r, shown); err != nil {
		c.t.Fatalf("draw the picture: %v", err)
	}
	for _, v := range violations {
		c.show(r, v)
	}
	if len(violations) > 0 {
		fmt.Printf("\nThe record is in %s. To repeat:\n  %s\n", c.dir, c.again())
		return false
	}
	if c.keep = c.out != ""; c.keep {
		fmt.Printf("\nThe record, the summary and the picture are in %s.\n", c.dir)
	} else {
		fmt.Println("\nThe record was removed; -out keeps it, with the summary and the picture.")
	}
	return true
}

// draw writes the summary and the picture into the record's directory.
func (c *conductor) draw(r history.Run, o report.Options) error {
	summary, err := os.Create(filepath.Join(c.dir, "summary.txt"))
	if err != nil {
		return err
	}
	defer summary.Close()
	picture, err := os.Create(filepath.Join(c.dir, "picture.svg"))
	if err != nil {
		return err
	}
	defer picture.Close()
	return cmp.Or(report.Summary(summary, r, o), report.Picture(picture, r, o), summary.Close(), picture.Close())
}

// again returns the command that repeats the run, as far as chance allows. The
// seed decides the actions, but not their speed.
func (c *conductor) again() string {
	return fmt.Sprintf("go run ./internal/torture -backend %s -seed %d -duration %v -ttl %v -replicas %d -workers %d -clients %d -faults %s",
		c.options.backend, c.seed, c.duration, c.ttl, c.replicas, c.workers, c.clients, cmp.Or(strings.Join(c.options.faults, ","), "none"))
}

// show prints a violation, and the events around it.
func (c *conductor) show(r history.Run, v check.Violation) {
	fmt.Printf("\nVIOLATION of %s: %s\n", v.Rule, v.Text)
	if v.At == 0 {
		return
	}
	start, shown := r.Events[0].At, 0
	for _, e := range r.Events {
		if near := e.At - v.At; near > -int64(c.ttl) && near < int64(c.ttl)/2 && e.Kind != history.Call && e.Kind != history.Return && e.Kind != history.Written && shown < 60 {
			fmt.Printf("  %9.3f  %s\n", e.Time(start).Seconds(), e)
			shown++
		}
	}
}
