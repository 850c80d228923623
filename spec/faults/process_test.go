//go:build unix

package faults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// A process is this test binary in a process of its own, which runs one test of
// it: a replica's or a worker's.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	holder string
	exited chan struct{}

	mu    sync.Mutex // guards lines
	lines []string
}

// The tests that a process runs.
const (
	replica = "TestReplicaInAProcessOfItsOwn"
	worker  = "TestWorkerInAProcessOfItsOwn"
)

// processEnv is the variable by which a process learns what it is to do.
const processEnv = "LEASE_TEST_PROCESS"

// A part is what a process is to do.
type part struct {
	mode, holder string
	ttl          time.Duration
	db           *dbtest.Database
}

// startProcess starts a process that plays a part, until the test ends. It notes
// the stints that the process tells of in l, unless l is nil. A process that is
// frozen cannot tell when its trust ends.
func startProcess(t *testing.T, test string, l *ledger, db *dbtest.Database, mode, holder string, ttl time.Duration) *process {
	t.Helper()
	p := &process{t: t, holder: holder, exited: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0], "-test.run=^"+test+"$", "-test.count=1", "-test.timeout=5m")
	p.cmd.Env = append(os.Environ(), processEnv+"="+strings.Join([]string{test, mode, holder, ttl.String(), db.Backend, db.DSN}, "\n"))
	p.cmd.Dir = filepath.Dir(os.Args[0])
	p.cmd.Stderr = os.Stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(stdout, l)
	t.Cleanup(p.end)
	return p
}

// played returns the part that the process of this test plays. It is false in
// any other process.
func played(t *testing.T) (p part, ok bool) {
	t.Helper()
	args := strings.SplitN(os.Getenv(processEnv), "\n", 6)
	if len(args) < 6 || args[0] != t.Name() {
		return part{}, false
	}
	ttl, err := time.ParseDuration(args[3])
	if err != nil {
		t.Fatal(err)
	}
	return part{mode: args[1], holder: args[2], ttl: ttl, db: &dbtest.Database{Backend: args[4], DSN: args[5]}}, true
}

// lifetime is a context that ends with a process's standard input, or by SIGTERM.
func lifetime() context.Context {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	go func() {
		defer stop()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	return ctx
}

func (p *process) read(stdout io.Reader, l *ledger) {
	defer close(p.exited)
	stints := map[int64]*stint{}
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		var what string
		var epoch, nanos int64
		if n, _ := fmt.Sscanf(lines.Text(), "%s %d %d", &what, &epoch, &nanos); n == 3 && l != nil {
			switch at := time.Unix(0, nanos); what {
			case "begin":
				stints[epoch] = &stint{holder: p.holder, epoch: epoch, begun: at}
				l.begin(stints[epoch])
			case "end":
				l.end(stints[epoch], at, nil)
			}
		}
		p.mu.Lock()
		p.lines = append(p.lines, lines.Text())
		p.mu.Unlock()
	}
}

// says waits for a line that begins so, and returns the rest of it.
func (p *process) says(what string, limit time.Duration) (rest string) {
	p.t.Helper()
	within(p.t, limit, p.holder+" says "+what, func() (found bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, line := range p.lines {
			if after, ok := strings.CutPrefix(line, what+" "); ok {
				rest, found = after, true
			}
		}
		return found
	})
	return rest
}

// end lets the process end, also if it is frozen. It kills a process that does not end.
func (p *process) end() {
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	p.stdin.Close()
	select {
	case <-p.exited:
	case <-time.After(20 * time.Second):
		p.t.Errorf("the process of %s does not end", p.holder)
		p.cmd.Process.Kill()
	}
	<-p.exited
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the process of %s: %v\n%s", p.holder, err, strings.Join(p.lines, "\n"))
	}
}

// signal sends one to the process.
func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// TestReplicaInAProcessOfItsOwn tests nothing by itself. In a process of its own
// it campaigns for as long as that lives.
func TestReplicaInAProcessOfItsOwn(t *testing.T) {
	part, ok := played(t)
	if !ok {
		return
	}
	gdb := part.db.Open(t, &gorm.Config{DisableAutomaticPing: true})
	e := &lease.Elector{DB: gdb, Name: "job", Holder: part.holder, TTL: part.ttl, Logger: slog.New(slog.DiscardHandler)}
	err := e.Run(lifetime(), func(ctx context.Context) {
		term, _ := lease.TermFrom(ctx)
		// The end is noted before the work returns, so before a release.
		fmt.Println("begin", term.Epoch, time.Now().UnixNano())
		end := sync.OnceFunc(func() { fmt.Println("end", term.Epoch, time.Now().UnixNano()) })
		defer end()
		defer context.AfterFunc(ctx, end)()
		if part.mode != "plain" && term.Epoch == 1 {
			trusted := time.Now()
			err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
				if err := tx.Exec("INSERT INTO notes (n) VALUES (1)").Error; err != nil {
					return err
				}
				look := func() (goOn bool) {
					now := time.Now()
					if goOn = e.IsLeader(); goOn {
						trusted = now
					}
					return goOn
				}
				if part.mode == "reading" {
					return readOn(tx, func() { fmt.Println("fenced now") }, look)
				}
				fmt.Println("fenced now")
				for look() {
				}
				return nil
			})
			fmt.Println("trusted until", trusted.UnixNano())
			fmt.Println("committed", err == nil, "lost", errors.Is(err, lease.ErrLost), "error", strings.ReplaceAll(fmt.Sprint(err), "\n", "; "))
		}
		<-ctx.Done()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWorkerInAProcessOfItsOwn tests nothing by itself. In a process of its own
// it claims the item as soon as it can, and works for as long as that lives.
func TestWorkerInAProcessOfItsOwn(t *testing.T) {
	part, ok := played(t)
	if !ok {
		return
	}
	mode := part.mode
	gdb := part.db.Open(t, &gorm.Config{DisableAutomaticPing: true})
	fmt.Println("waits for", "item")
	h, _ := claims(t, gdb, part.holder, part.ttl, time.Minute)
	fmt.Println("claimed after", h.Item().Attempts-1)
	err := h.Run(lifetime(), func(ctx context.Context) error {
		trusted := time.Now()
		untilFrozen := func() {
			look := time.NewTicker(time.Millisecond)
			defer look.Stop()
			for now := time.Now(); ctx.Err() == nil; now = time.Now() {
				trusted = now
				<-look.C
			}
		}
		// What it does regardless of its context, the database has to refuse.
		var err error
		regardless := context.WithoutCancel(ctx)
		saveIn := func(tx *gorm.DB) error {
			it := h.Item()
			it.Payload = []byte(`"stale"`)
			return h.SaveIn(tx, it)
		}
		inside := func(tx *gorm.DB) error {
			if err := tx.Exec("INSERT INTO notes (n) VALUES (1)").Error; err != nil {
				return err
			}
			if strings.HasSuffix(mode, "after SaveIn") {
				if err := saveIn(tx); err != nil {
					return err
				}
			}
			inside := func() { fmt.Println("inside", mode) }
			if strings.HasPrefix(mode, "reading") {
				return readOn(tx, inside, func() bool {
					now := time.Now()
					goOn := ctx.Err() == nil
					if goOn {
						trusted = now
					}
					return goOn
				})
			}
			inside()
			untilFrozen()
			return nil
		}
		switch mode {
		case "fenced", "reading":
			err = lease.Transaction(regardless, gdb, inside)
		case "after SaveIn", "reading after SaveIn":
			err = gdb.WithContext(regardless).Transaction(inside)
		case "frozen":
			untilFrozen()
			err = lease.Transaction(regardless, gdb, func(tx *gorm.DB) error { return tx.Exec("INSERT INTO notes (n) VALUES (1)").Error })
		default:
			return untilEnded(ctx)
		}
		fmt.Println("trusted until", trusted.UnixNano())
		fmt.Println("committed", err == nil, "lost", errors.Is(err, lease.ErrLost), "error", strings.ReplaceAll(fmt.Sprint(err), "\n", "; "))
		it := h.Item()
		it.Payload = []byte(`"stale"`)
		err = h.Save(regardless, it)
		fmt.Println("Save", err == nil, "lost", errors.Is(err, lease.ErrLost))
		err = gdb.WithContext(regardless).Transaction(saveIn)
		fmt.Println("SaveIn", err == nil, "lost", errors.Is(err, lease.ErrLost))
		return nil
	})
	fmt.Println("ran", err == nil, "lost", errors.Is(err, lease.ErrLost), "error", strings.ReplaceAll(fmt.Sprint(err), "\n", "; "))
}
