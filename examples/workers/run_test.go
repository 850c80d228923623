//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sqllease/lease/internal/dbtest"
)

// program is what "go run" would build.
var program string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "workers-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "workers")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return dbtest.Main(m)
}

// A run is the program at work, on a database of the test's.
type run struct {
	cmd   *exec.Cmd
	lines *bufio.Reader // of its output
	temp  string        // its directory for temporary files
	alive *os.File      // at its end once every process of it is gone
}

func start(t *testing.T, db *dbtest.Database) *run {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	r := &run{temp: t.TempDir(), cmd: exec.CommandContext(ctx, program)}
	if db.Backend == dbtest.BackendPostgres {
		r.cmd.Args = append(r.cmd.Args, "-dsn", db.DSN)
	}
	r.cmd.Env = append(os.Environ(), "TMPDIR="+r.temp)
	alive, inherited, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	t.Cleanup(func() { alive.Close() })
	r.alive, r.cmd.ExtraFiles = alive, []*os.File{inherited}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.lines = bufio.NewReader(out)
	r.cmd.Stderr = r.cmd.Stdout
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// readTo reads the output up to a line that contains text.
func (r *run) readTo(t *testing.T, text string) {
	t.Helper()
	for {
		line, err := r.lines.ReadString('\n')
		if strings.Contains(line, text) {
			return
		}
		if err != nil {
			t.Fatalf("the program never said %q: %v", text, err)
		}
	}
}

// end waits for the program's end, and returns its exit status and the rest of its output.
func (r *run) end(t *testing.T) (status int, output string) {
	t.Helper()
	rest, err := io.ReadAll(r.lines)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return r.cmd.ProcessState.ExitCode(), string(rest)
}

// leavesNothing checks that no process, file or table is left.
func (r *run) leavesNothing(t *testing.T, db *dbtest.Database) {
	t.Helper()
	if err := r.alive.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r.alive); err != nil {
		t.Errorf("a process is left: %v", err)
	}
	if files, err := os.ReadDir(r.temp); err != nil || len(files) > 0 {
		t.Errorf("these files are left: %v, %v", files, err)
	}
	if tables, err := db.Open(t).Migrator().GetTables(); err != nil || len(tables) > 0 {
		t.Errorf("these tables are left: %v, %v", tables, err)
	}
}

func TestItTellsOfAKillAFreezeAndAStopAndOfNoEffectTwice(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		r := start(t, db)
		status, output := r.end(t)
		if status != 0 {
			t.Errorf("the exit status is %d", status)
		}
		for _, story := range [][]string{
			{`1  SIGKILL, in the middle of order 9\n`, `claims order 9, whose last claim ran out: attempt`, `invoiced order 9\n`},
			{
				`1  SIGSTOP, in the middle of order 12\n`, `claims order 12, whose last claim ran out: attempt`, `invoiced order 12\n`,
				`1  SIGCONT: it wakes`, `1  second invoice REFUSED by the fence: lease: fence "12": lease lost\n`, `1  order 12 is lost; Run returned: lease: run "12": .*lease lost`,
			},
			{`1  SIGTERM, in the middle of order 15\n`, `1  order 15 is handed on; Run returned: lease: run "15": terminated signal`},
			{`1  SIGTERM, in the middle of order 15\n`, `2  claims order 15, which was handed on: attempt 1\n`, `invoiced order 15\n`},
			{`invoiced order 1\n`, ` 9  killed `, `15 orders, each done and invoiced exactly once\.`, `\nPASS\n$`},
		} {
			// In this order, with anything in between.
			if !regexp.MustCompile(`(?s)` + strings.Join(story, `.*?`)).MatchString(output) {
				t.Errorf("it does not tell of %q", story)
			}
		}
		for fate, notCounted := range map[fate]int{killed: 0, frozen: 0, stopped: 1} {
			if claims, attempts := counted(t, output, fate); claims < 2 || attempts != claims-notCounted {
				t.Errorf("the order of the %s worker took %d claims, and they count as %d attempts", fate, claims, attempts)
			}
		}
		if t.Failed() {
			t.Log(output)
		}
		r.leavesNothing(t, db)
	})
}

// counted reads how many claims an order took, and as how many attempts they count.
func counted(t *testing.T, output string, f fate) (claims, attempts int) {
	t.Helper()
	_, row, _ := strings.Cut(output, "  "+string(f)+" ")
	if _, err := fmt.Sscan(row, &claims, &attempts); err != nil {
		t.Errorf("no row about the %s worker: %v", f, err)
	}
	return claims, attempts
}

func TestAnInterruptLeavesNothingBehindNotEvenAFrozenWorker(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		r := start(t, db)
		r.readTo(t, "SIGSTOP")
		if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if status, output := r.end(t); status != 130 {
			t.Errorf("the exit status is %d\n%s", status, output)
		}
		r.leavesNothing(t, db)
	})
}
