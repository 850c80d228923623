package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/sqllease/lease/internal/faultproxy"
	"github.com/sqllease/lease/internal/torture/history"
)

// childAttributes are the attributes of every child's process. nil if the
// system has nothing to add.
var childAttributes *syscall.SysProcAttr

// A process is a child as the conductor sees it, over all its lives.
type process struct {
	settings
	proxy *faultproxy.Proxy // in front of its database, or nil

	mu      sync.Mutex // guards the fields below
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	said    chan string   // lines of its stdout
	done    chan struct{} // closed when this life is over
	ending  bool          // the process was told to end, or killed
	started time.Time     // when this life began
	busy    bool          // a fault has the process
	freed   time.Time     // when the last fault gave the process back
}

// start begins a life.
func (p *process) start(record *history.Recorder, unexpected func(error)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Life++
	encoded, err := json.Marshal(p.settings)
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childEnv+"="+string(encoded))
	cmd.SysProcAttr = childAttributes
	stderr := &tail{}
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return err
	}
	record.Record(history.Event{Proc: p.Name, Life: p.Life, Kind: history.Started})
	if err := startPinned(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	said, done := make(chan string, 100), make(chan struct{})
	p.cmd, p.said, p.done, p.ending, p.started = cmd, said, done, false, time.Now()
	life := p.Life
	go func() {
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			said <- lines.Text()
		}
		close(said)
		how := "exit status 0"
		if err := cmd.Wait(); err != nil {
			how = err.Error()
		}
		if how == "signal: killed" {
			how = "killed"
		}
		record.Record(history.Event{Proc: p.Name, Life: life, Kind: history.Exited, Note: how})
		p.mu.Lock()
		ending := p.ending
		p.mu.Unlock()
		if !ending {
			unexpected(fmt.Errorf("%s.%d ended by itself: %s\n%s", p.Name, life, how, stderr))
		}
		close(done)
	}()
	return nil
}

// order gives the process an order. If the process is gone, the order is lost.
func (p *process) order(what string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.stdin, "%s %v\n", what, d)
}

// heard waits, up to limit, until the process says something.
func (p *process) heard(limit time.Duration) bool {
	p.mu.Lock()
	said := p.said
	p.mu.Unlock()
	select {
	case _, ok := <-said:
		return ok
	case <-time.After(limit):
		return false
	}
}

// signal sends a signal. If the signal ends the process, set end.
func (p *process) signal(sig os.Signal, end bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending = p.ending || end
	_ = p.cmd.Process.Signal(sig) // fails only if the process is gone already
}

// gone waits, up to limit, until this life is over.
func (p *process) gone(limit time.Duration) bool {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

// since returns how long this life has lasted.
func (p *process) since() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.started)
}

// seize takes the process for a fault, unless another fault has it.
func (p *process) seize() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy {
		return false
	}
	p.busy = true
	return true
}

func (p *process) free() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy, p.freed = false, time.Now()
}

// recovers reports whether a fault has the process, or had it a moment ago.
func (p *process) recovers() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.busy || time.Since(p.freed) < 2*p.TTL
}

// A tail keeps the end of its input, in case the end explains a failure.
type tail struct {
	mu   sync.Mutex // guards text
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-4000):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
