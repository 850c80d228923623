package stage

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// childAttributes are the attributes of every child's process. nil if the
// system has nothing to add.
var childAttributes *syscall.SysProcAttr

// A Process is a child as its parent sees it. N is the type of the play's notes
// about the child. Like its Cast, a Process belongs to one goroutine.
type Process[N any] struct {
	Name  string
	Notes N

	cmd  *exec.Cmd
	log  *tail
	done chan struct{} // closed when the process is gone

	goodbye string // how the process will exit. Empty until told to exit
	gone    bool
	frozen  bool
}

// How a process exits when told to.
const (
	byItself = "exit status 0"
	bySignal = "signal: killed"
)

// run starts this program again. The variable env makes the new process a
// child. Read its output to the end before you call wait.
func (p *Process[N]) run(env string) (stdin io.Writer, stdout io.Reader, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	p.cmd = exec.Command(program)
	p.cmd.Env = append(os.Environ(), env+"=1")
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = childAttributes
	stdin, errIn := p.cmd.StdinPipe() // left open: its end tells the child that the parent is gone
	stdout, errOut := p.cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut); err != nil {
		return nil, nil, err
	}
	return stdin, stdout, p.cmd.Start()
}

// wait blocks until the process is gone, and returns how it exited.
func (p *Process[N]) wait() string {
	if err := p.cmd.Wait(); err != nil {
		return err.Error()
	}
	return byItself
}

// Kill sends SIGKILL, and does not wait.
func (p *Process[N]) Kill() error {
	p.goodbye = bySignal
	return p.signalled("kill", p.cmd.Process.Kill())
}

// AskToStop sends SIGTERM, and does not wait.
func (p *Process[N]) AskToStop() error {
	p.goodbye = byItself
	return p.signalled("stop", askToStop(p.cmd.Process))
}

// Freeze sends SIGSTOP.
func (p *Process[N]) Freeze() error {
	p.frozen = true
	return p.signalled("freeze", freeze(p.cmd.Process))
}

// Thaw sends SIGCONT.
func (p *Process[N]) Thaw() error {
	p.frozen = false
	return p.signalled("wake", thaw(p.cmd.Process))
}

func (p *Process[N]) signalled(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, p.Name, err)
	}
	return nil
}

// Gone reports whether the parent has heard of the process's end.
func (p *Process[N]) Gone() bool { return p.gone }

// Leaving reports whether the process was told to exit, or has exited.
func (p *Process[N]) Leaving() bool { return p.gone || p.goodbye != "" }

// Frozen reports whether the process was frozen, and not woken since.
func (p *Process[N]) Frozen() bool { return p.frozen }

// A tail keeps the end of its input, in case the end explains a failure.
type tail struct {
	also io.Writer // if not nil

	mu   sync.Mutex // guards text
	text []byte
}

const tailSize = 2000

func (t *tail) Write(b []byte) (int, error) {
	if t.also != nil {
		_, _ = t.also.Write(b)
	}
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
