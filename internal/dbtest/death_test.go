//go:build linux

package dbtest

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const deathVar = "DBTEST_WAIT_FOR_DEATH"

// TestHelperWaitsForItsDeath runs in a process of its own, which starts one
// server that runs and one that is frozen, says where, and waits.
func TestHelperWaitsForItsDeath(t *testing.T) {
	if os.Getenv(deathVar) == "" {
		t.Skip("runs in a process of its own")
	}
	running, frozen := NewServer(t), NewServer(t)
	frozen.Freeze(t)
	os.Stdout.WriteString("\nservers:" + running.cluster.dir + ":" + frozen.cluster.dir + "\n")
	select {}
}

func TestNothingOutlivesATestBinaryThatDies(t *testing.T) {
	if _, ok := findBinaries(); !ok {
		missing(t, howToGetServer)
	}
	cmd := rerun("TestHelperWaitsForItsDeath", deathVar+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for lines := bufio.NewScanner(out); dirs == nil && lines.Scan(); {
		if _, list, ok := strings.Cut(lines.Text(), "servers:"); ok {
			dirs = strings.Split(list, ":")
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	if len(dirs) != 2 {
		t.Fatalf("no servers, but %q", dirs)
	}
	gone := func(dir string) func() (bool, error) {
		return func() (bool, error) { return len(processesIn(dir)) == 0, nil }
	}
	if err := eventually("the running server lives on", gone(dirs[0])); err != nil {
		t.Fatal(err)
	}
	// A frozen server cannot hear of it; the next test binary clears it away.
	root := filepath.Dir(dirs[1])
	sweep(filepath.Dir(root))
	if err := eventually("the frozen server lives on", gone(dirs[1])); err != nil {
		t.Fatal(err)
	}
	// Or another one that runs at the same time and came first.
	err = eventually(root+" is left", func() (bool, error) {
		_, err := os.Stat(root)
		return os.IsNotExist(err), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestALivingTestBinaryIsNotSwept(t *testing.T) {
	s := NewServer(t)
	sweep(filepath.Dir(root.dir))
	s.Exec(t, "SELECT 1")
}
