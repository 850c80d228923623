//go:build linux

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// A checker that cannot fail proves nothing.
func TestTheHarnessCatchesEveryBrokenRule(t *testing.T) {
	if testing.Short() {
		t.Skip("each takes half a minute")
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			if r.needsClock() && !dbtest.HasFakeClock() {
				t.Skip("no libfaketime to step the server's clock with: apt-get install libfaketime")
			}
			cmd := exec.Command(buildBroken(t, r), "-backend", r.backend, "-faults", r.faults, "-duration", "30s", "-seed", "1",
				"-replicas", strconv.Itoa(r.replicas), "-workers", strconv.Itoa(r.workers), "-clients", "0", "-out", t.TempDir())
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			switch {
			case bytes.Contains(out, []byte("no Postgres binaries")) && os.Getenv("LEASE_REQUIRE_POSTGRES") == "":
				t.Skip(string(out))
			case !errors.As(err, &exit) || exit.ExitCode() != 1 || !bytes.Contains(out, []byte("VIOLATION of "+r.violated)):
				t.Errorf("with the rule broken the harness ended with %v:\n%s", err, out)
			}
		})
	}
}

func TestAShortRunOfEveryFaultOnSQLiteFindsNothing(t *testing.T) {
	program := filepath.Join(t.TempDir(), "torture")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := t.TempDir()
	out, err := exec.Command(program, "-backend", "sqlite", "-duration", "8s", "-ttl", "500ms", "-seed", "3", "-out", dir).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("Violations: 0")) {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"summary.txt", "picture.svg", "conductor.0.jsonl"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBadArgumentsAreRefusedByName(t *testing.T) {
	for _, tc := range []struct{ args, says string }{
		{"-backend oracle", `"oracle"`},
		{"-backend sqlite -dsn x", "-dsn"},
		{"-replicas 1", "-replicas"},
		{"-ttl 1ms", "-ttl"},
		{"-duration -1s", "-duration"},
		{"-faults kill,meteor", `"meteor"`},
		{"-nonsense", "-nonsense"},
		{"more", `"more"`},
	} {
		var said strings.Builder
		if _, err := parse(strings.Fields(tc.args), &said); err == nil || !strings.Contains(said.String(), tc.says) {
			t.Errorf("%s: %v, %q", tc.args, err, said.String())
		}
	}
	if o, err := parse(nil, io.Discard); err != nil || o.seed == 0 || len(o.faults) != len(kinds) {
		t.Errorf("by default: %+v, %v", o, err)
	}
}
