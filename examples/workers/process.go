package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// workerEnv tells the program that it is a worker.
const workerEnv = "LEASE_EXAMPLE_WORKERS_WORKER"

// childAttributes are those of every worker's process; nil where the system has nothing to add.
var childAttributes *syscall.SysProcAttr

// A process is a worker as its parent sees it.
type process struct {
	name string
	cmd  *exec.Cmd
	log  *tail
	done chan struct{} // closed when the process is gone

	// Owned by the demo's goroutine.
	ready   bool
	goodbye string // how it will exit; empty until it was told to
	gone    bool
	ended   event // how its newest claim ended that was not completed
}

// How a process that was told to exit does.
const (
	byItself = "exit status 0"
	bySignal = "signal: killed"
)

// startProcess runs this program again as a worker. Its events go to events until ctx ends. A process that it returns with an
// error is to be killed.
func startProcess(ctx context.Context, s settings, events chan<- event) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{name: s.Name, log: &tail{}, done: make(chan struct{})}
	p.cmd = exec.Command(program)
	p.cmd.Env = append(os.Environ(), workerEnv+"=1")
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = childAttributes
	stdin, errIn := p.cmd.StdinPipe() // left open: its end tells the worker that the parent is gone
	stdout, errOut := p.cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start worker %s: %w", s.Name, err)
	}
	go p.follow(ctx, stdout, events)
	if err := json.NewEncoder(stdin).Encode(s); err != nil {
		return p, fmt.Errorf("start worker %s: %w", s.Name, err)
	}
	return p, nil
}

// follow passes on what the worker reports, and at last that it is gone.
func (p *process) follow(ctx context.Context, stdout io.Reader, events chan<- event) {
	defer close(p.done)
	pass := func(e event) {
		e.from, e.at = p, time.Now()
		select {
		case events <- e:
		case <-ctx.Done():
		}
	}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) == nil { // a line cut short by SIGKILL is not an event
			pass(e)
		}
	}
	how := byItself
	if err := p.cmd.Wait(); err != nil {
		how = err.Error()
	}
	pass(event{Kind: exited, Detail: how})
}

// kill ends the process, a frozen one too, and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error means that it is gone already
	<-p.done
}

// A tail keeps the end of what is written to it, in case that it explains a failure.
type tail struct {
	mu   sync.Mutex // guards text
	text []byte
}

const tailSize = 2000

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-tailSize):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
