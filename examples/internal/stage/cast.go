package stage

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// A Cast is the children of a run. E is what they report, and N what the play notes about each. One goroutine owns all of it.
type Cast[E, N any] struct {
	Log       io.Writer     // takes what the children write to stderr, from several goroutines; nil, unless set before they start
	Processes []*Process[N] // in the order of their start; those that are gone stay

	run     Run
	handle  func(Report[E, N]) error
	reports chan Report[E, N]
	over    chan struct{} // closed when nobody is interested in reports any more
}

// A Report is what a child told, or that it is gone.
type Report[E, N any] struct {
	From  *Process[N]
	At    time.Time // when it was read
	Event E
	Exit  string // if the process is gone, how it exited, which is as it was told to; there is no Event then
}

// NewCast makes one without a child. Await and Watch call handle with every report; its error becomes theirs.
func NewCast[E, N any](run Run, handle func(Report[E, N]) error) *Cast[E, N] {
	return &Cast[E, N]{run: run, handle: handle, reports: make(chan Report[E, N], 100), over: make(chan struct{})}
}

// Start adds a child, by the next free name: A, B and so on. It does not wait until the child is ready.
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

// follow passes on what a child reports, and at last that it is gone.
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

// Stop asks a child to stop and blocks until it is gone, handling reports meanwhile.
func (c *Cast[E, N]) Stop(ctx context.Context, p *Process[N]) error {
	if err := p.AskToStop(); err != nil {
		return err
	}
	return c.Await(ctx, "the end of "+p.Name, p.Gone)
}

// Close leaves no process behind, whatever state it is in: it kills all children, the frozen ones too, and waits until they are gone. It must be
// called once, and nothing after it.
func (c *Cast[E, N]) Close() {
	close(c.over)
	for _, p := range c.Processes {
		_ = p.Kill() // an error means that it is gone already
		<-p.done
	}
}

// Await handles reports until the state is as wanted. It fails if that takes longer than the run's Limit, if a report cannot be handled, if a
// child exits that was not told to, and when ctx ends, with its cause.
func (c *Cast[E, N]) Await(ctx context.Context, what string, wanted func() bool) error {
	ok, err := c.handleUntil(ctx, c.run.Limit(), wanted)
	if err == nil && !ok {
		err = fmt.Errorf("waited %v for %s", c.run.Limit(), what)
	}
	return err
}

// Watch handles reports for a while. It fails as Await does, but for the limit.
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
