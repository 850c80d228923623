package stage

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// A Cast is the children of a run. E is the type of their reports, and N the
// type of the play's notes about each child. One goroutine owns the whole Cast.
type Cast[E, N any] struct {
	// Takes the children's stderr, from several goroutines. Nil, unless set
	// before the children start.
	Log       io.Writer
	Processes []*Process[N] // in the order of their start, also after their end

	run     Run
	handle  func(Report[E, N]) error
	reports chan Report[E, N]
	over    chan struct{} // closed when nobody wants reports any more
}

// A Report is an event from a child, or the news of the child's end.
type Report[E, N any] struct {
	From  *Process[N]
	At    time.Time // when the report was read
	Event E
	// How the process exited, if it is gone. It exited as told, because Await
	// and Watch return an error otherwise. There is no Event then.
	Exit string
}

// NewCast makes a Cast without children. Await and Watch call handle with every
// report, and return handle's error.
func NewCast[E, N any](run Run, handle func(Report[E, N]) error) *Cast[E, N] {
	return &Cast[E, N]{run: run, handle: handle, reports: make(chan Report[E, N], 100), over: make(chan struct{})}
}

// Start adds a child, with the next free name: A, B and so on. It does not wait
// until the child is ready.
func (c *Cast[E, N]) Start() error {
	name := string(rune('A' + len(c.Processes)))
	p := &Process[N]{Name: name, log: &tail{also: c.Log}, done: make(chan struct{})}
	stdin, stdout, err := p.run(c.run.env)
	if err == nil {
		c.Processes = append(c.Processes, p)
		go c.follow(p, stdout)
		err = json.NewEncoder(stdin).Encode(Settings{Name: name, TTL: c.run.TTL, Where: c.run.Where})
	}
	if err != nil {
		return fmt.Errorf("start %s %s: %w", c.run.actor, name, err)
	}
	return nil
}

// follow passes on a child's reports, and finally its end.
func (c *Cast[E, N]) follow(p *Process[N], stdout io.Reader) {
	defer close(p.done)
	pass := func(r Report[E, N]) {
		r.From, r.At = p, time.Now()
		select {
		case c.reports <- r:
		case <-c.over:
		}
	}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var event E
		if json.Unmarshal(lines.Bytes(), &event) == nil { // a line cut short by SIGKILL is not an event
			pass(Report[E, N]{Event: event})
		}
	}
	pass(Report[E, N]{Exit: p.wait()})
}

// Stop asks a child to stop and blocks until the child is gone. Stop handles
// reports meanwhile.
func (c *Cast[E, N]) Stop(ctx context.Context, p *Process[N]) error {
	if err := p.AskToStop(); err != nil {
		return err
	}
	return c.Await(ctx, "the end of "+p.Name, p.Gone)
}

// Close kills all children, even the frozen children, and blocks until they are
// gone. No process is left behind, in any state. Call Close once, after every
// other call.
func (c *Cast[E, N]) Close() {
	close(c.over)
	for _, p := range c.Processes {
		_ = p.Kill() // fails only if the process is gone already
		<-p.done
	}
}

// Await handles reports until wanted returns true. Await returns an error if
// that takes longer than the run's Limit, if handle returns an error, if a
// child exits other than told, and when ctx ends, with its cause.
func (c *Cast[E, N]) Await(ctx context.Context, what string, wanted func() bool) error {
	ok, err := c.handleUntil(ctx, c.run.Limit(), wanted)
	if err == nil && !ok {
		err = fmt.Errorf("waited %v for %s", c.run.Limit(), what)
	}
	return err
}

// Watch handles reports for a while. Its errors are those of Await, except for
// the limit.
func (c *Cast[E, N]) Watch(ctx context.Context, while time.Duration) error {
	_, err := c.handleUntil(ctx, while, func() bool { return false })
	return err
}

func (c *Cast[E, N]) handleUntil(ctx context.Context, limit time.Duration, wanted func() bool) (bool, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for !wanted() {
		select {
		case r := <-c.reports:
			if err := c.take(r); err != nil {
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

func (c *Cast[E, N]) take(r Report[E, N]) error {
	if p := r.From; r.Exit != "" {
		p.gone = true
		if r.Exit != p.goodbye {
			return fmt.Errorf("%s %s is gone: %s\n%s", c.run.actor, p.Name, r.Exit, p.log)
		}
	}
	return c.handle(r)
}
