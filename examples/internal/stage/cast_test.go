//go:build unix

package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

type cast = Cast[line, notes]

type notes struct {
	said  string
	pid   int
	exits []string
}

// handle takes notes.
func handle(r Report[line, notes]) error {
	n := &r.From.Notes
	n.said += r.Event.Text + " "
	n.pid = max(n.pid, r.Event.PID)
	if r.Exit != "" {
		n.exits = append(n.exits, r.Exit)
	}
	return nil
}

// ensemble makes a program that starts n children and then plays with them.
func ensemble(n int, handle func(Report[line, notes]) error, play func(context.Context, *cast) error) Program {
	return example(func(ctx context.Context, run Run) error {
		c := NewCast(run, handle)
		defer c.Close()
		for range n {
			if err := c.Start(); err != nil {
				return err
			}
		}
		return play(ctx, c)
	})
}

func TestChildrenReportUntilTheyAreStoppedOrKilled(t *testing.T) {
	p := ensemble(2, handle, func(ctx context.Context, c *cast) error {
		a, b := c.Processes[0], c.Processes[1]
		if err := c.Await(ctx, "two children", func() bool { return a.Notes.said != "" && b.Notes.said != "" }); err != nil {
			return err
		}
		if err := errors.Join(a.Freeze(), a.Thaw(), c.Stop(ctx, a), b.Kill(), c.Await(ctx, "the other end", b.Gone)); err != nil {
			return err
		}
		if got := fmt.Sprint(a.Notes.said, a.Notes.exits, b.Notes.said, b.Notes.exits); got != "A bye  [exit status 0]B  [signal: killed]" {
			t.Errorf("they reported %q", got)
		}
		return nil
	})
	if status, _, stderr := perform(t, p); status != 0 {
		t.Errorf("the exit status is %d: %s", status, stderr)
	}
}

func TestAChildThatExitsUnaskedIsAnErrorThatSaysWhy(t *testing.T) {
	p := ensemble(1, handle, func(ctx context.Context, c *cast) error {
		return c.Await(ctx, "the end of days", func() bool { return false })
	})
	status, _, stderr := perform(t, p, "-ttl=7s")
	if status != 1 || stderr != "example: actor A is gone: exit status 1\nit fails\n\n" {
		t.Errorf("the exit status is %d, and stderr says %q", status, stderr)
	}
}

func TestTheErrorOfAHandlerEndsTheWait(t *testing.T) {
	broken := func(Report[line, notes]) error { return errors.New("it broke") }
	p := ensemble(1, broken, func(ctx context.Context, c *cast) error { return c.Watch(ctx, time.Minute) })
	if status, _, stderr := perform(t, p); status != 1 || stderr != "example: it broke\n" {
		t.Errorf("the exit status is %d, and stderr says %q", status, stderr)
	}
}

func TestAnInterruptLeavesNothingBehindNotEvenAFrozenChild(t *testing.T) {
	var pid int
	p := ensemble(1, handle, func(ctx context.Context, c *cast) error {
		a := c.Processes[0]
		if err := c.Await(ctx, "a child", func() bool { return a.Notes.pid != 0 }); err != nil {
			return err
		}
		pid = a.Notes.pid
		if err := errors.Join(a.Freeze(), syscall.Kill(os.Getpid(), syscall.SIGINT)); err != nil {
			return err
		}
		return c.Watch(ctx, time.Minute)
	})
	status, stdout, stderr := perform(t, p)
	if status != 130 || stdout != "" || !strings.Contains(stderr, "interrupt") {
		t.Errorf("the exit status is %d, stdout says %q, and stderr %q", status, stdout, stderr)
	}
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("process %d is left: %v", pid, err)
	}
}
