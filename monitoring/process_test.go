package monitoring

import (
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// childAttributes are those of every process that is started here; nil where the system has nothing to add.
var childAttributes *syscall.SysProcAttr

// A process ends with its test, if not before; on Linux it does not outlive the test binary either, however that ends.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process is gone
	err    error         // how it ended; set before exited is closed
}

// startProcess starts a command; what it says is shown if the test fails.
func startProcess(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, childAttributes
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the last that %v said:\n%s", cmd, logged(log.Name()))
		}
	})
	return p
}

// run starts the process and stays until it ends: its parent, to the kernel, is the thread that started it.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	p.err = p.cmd.Wait()
	close(p.exited)
}

func (p *process) runs() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// kill ends the process, and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error means that it is gone already
	<-p.exited
}

// logged is for whoever has to explain a failure.
func logged(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// addresses are those that freeAddress has returned.
var addresses sync.Map

// freeAddress returns an address that nobody listens at, from below the range of ports for outgoing connections: it stays free while a replica is down.
func freeAddress(t *testing.T) string {
	t.Helper()
	var err error
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(16000+rand.IntN(16000)))
		if _, used := addresses.LoadOrStore(address, true); used {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", address); err == nil {
			l.Close()
			return address
		}
	}
	t.Fatalf("no port is free: %v", err)
	return ""
}

// within asks for a state that somebody else reaches, and tells nobody.
func within(t *testing.T, limit time.Duration, what string, reached func() bool) {
	t.Helper()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(limit); !reached(); <-look.C {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
