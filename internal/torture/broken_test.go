//go:build linux

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// An edit of a source file of the package: from must occur in it exactly once.
type edit struct{ file, from, to string }

// broken is how each of the five rules that everything else rests on is broken.
var broken = map[string][]edit{
	"deadline-from-reply": {
		{"elector.go", "newTenure(ctx, a.term, sent, r.ttl, r.clock)", "newTenure(ctx, a.term, r.clock(), r.ttl, r.clock)"},
		{"elector.go", "a.took = answered.mono - sent.mono", "a.sent, a.took = answered, answered.mono-sent.mono"},
	},
	"watch-from-sending": {
		{"elector.go", "row, err := ask(ctx, r.flight, r.patience(), r.store.poll)", "asked := r.clock()\n\trow, err := ask(ctx, r.flight, r.patience(), r.store.poll)"},
		{"elector.go", "now := r.clock()\n\tr.watch.note(", "now := asked\n\tr.watch.note("},
	},
	"inherited-row": {{"elector.go", "holder, until := r.watch.leader()", `if row.live() && row.Holder == r.holder {
		return newTenure(ctx, Term{Name: r.name, Holder: r.holder, Epoch: row.Epoch}, now, r.ttl, r.clock), 0, nil
	}
	holder, until := r.watch.leader()`}},
	"early-release":      {{"elector.go", "cancelled = nil\n", "cancelled = nil\n\t\t\tr.release(t.term)\n"}},
	"fence-without-lock": {{"schema.go", "{expires} > {clock} FOR KEY SHARE`", "{expires} > {clock}`"}},
}

// buildBroken builds the harness on a package in which one rule is broken. The package itself is not touched: see go help build, -overlay.
func buildBroken(t *testing.T, rule string) (program string) {
	t.Helper()
	dir, root := t.TempDir(), "../.."
	replace := map[string]string{}
	for _, e := range broken[rule] {
		original, err := filepath.Abs(filepath.Join(root, e.file))
		if err != nil {
			t.Fatal(err)
		}
		source := original
		if replace[original] != "" {
			source = replace[original]
		}
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), e.from); n != 1 {
			t.Fatalf("%s contains %q %d times: bring this table up to date", e.file, e.from, n)
		}
		replace[original] = filepath.Join(dir, e.file)
		if err := os.WriteFile(replace[original], []byte(strings.Replace(string(text), e.from, e.to, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "torture")
	if out, err := exec.Command("go", "build", "-overlay", file, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}
