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

// An edit changes a source file of the package. The text from must occur there
// exactly once.
type edit struct{ file, from, to string }

// A rule is a foundation of everything else, with the edits to break the rule,
// and the checker that certainly finds the break.
type rule struct {
	name     string
	edits    []edit
	backend  string
	faults   string
	replicas int
	workers  int
	violated string
}

// rules are broken one at a time.
var rules = []rule{
	{name: "deadline-from-reply", edits: []edit{
		{"elector.go", "newTenure(ctx, a.term, sent, r.pace.ttl(), r.clock)", "newTenure(ctx, a.term, sent.plus(r.clock().mono-sent.mono), r.pace.ttl(), r.clock)"},
		{"elector.go", "a.took = answered.mono - sent.mono", "a.sent, a.took = answered, answered.mono-sent.mono"},
	}, backend: "sqlite", faults: "late-take", replicas: 2, violated: "trust"}, // and the other replica takes over

	{name: "inherited-row", edits: []edit{{"elector.go", "holder, until := r.watch.leader()", `if row.live() && row.Holder == r.holder {
		return newTenure(ctx, Term{Name: r.name, Holder: r.holder, Epoch: row.Epoch}, now, r.pace.ttl(), r.clock), 0, nil
	}
	holder, until := r.watch.leader()`}},
		backend: "sqlite", faults: "kill", replicas: 4, violated: "trust"},

	{name: "early-release", edits: []edit{{"elector.go", "cancelled = nil\n", "cancelled = nil\n\t\t\tr.release(t.term)\n"}},
		backend: "sqlite", faults: "resign", replicas: 4, violated: "trust"},

	{name: "long-trust", edits: []edit{{"pace.go", "{ return p.ttl() - p.third() }", "{ return p.ttl() - p.ttl()/100 }"}},
		backend: "sqlite", faults: "none", replicas: 4, violated: "margin"},

	{name: "fence-without-lock", edits: []edit{{"schema.go", "{expires} > {clock} FOR KEY SHARE`", "{expires} > {clock}`"}},
		backend: "postgres", faults: "hold", replicas: 4, violated: "fenced"},

	{name: "expired-fence", edits: []edit{
		{"schema.go", "{expires} > {clock} FOR KEY SHARE`", "{expires} > {clock} - 3600000000 FOR KEY SHARE`"},
		{"schema.go", "{epoch} = ?4 AND {expires} > {clock}`", "{epoch} = ?4 AND {expires} > {clock} - 3600000000`"},
	}, backend: "sqlite", faults: "expire", replicas: 4, violated: "fenced"},

	{name: "watch-from-sending", edits: []edit{
		{"elector.go", "row, err := ask(ctx, r.flight, r.pace.patience(), r.store.poll)", "asked := r.clock()\n\trow, err := ask(ctx, r.flight, r.pace.patience(), r.store.poll)"},
		{"elector.go", "now := r.clock()\n\tr.watch.note(", "now := asked\n\tr.watch.note("},
	}, backend: "postgres", faults: "late-step", replicas: 8, violated: "trust"}, // some poll at the wrong moment

	{name: "believed-age", edits: []edit{{"watch.go", "w.age = min(w.age, pace(w.ttl).belief())", "w.age = min(w.age, w.ttl)"}},
		backend: "postgres", faults: "back-and-forth", replicas: 8, violated: "trust"},
	{name: "expiry-taken-back", edits: []edit{{"record.go", "expires_at = {later}(l.renewed_at + 1, {now}) + ?5", "expires_at = {now} + ?5"}},
		backend: "postgres", faults: "lock-renewals", replicas: 4, violated: "margin"},
	{name: "unchecked-transaction", edits: []edit{{"transaction.go", "if d.begin == \"\" {", "if true {"}},
		backend: "sqlite", faults: "interrupt", replicas: 4, workers: 3, violated: "items"},
}

// needsClock reports whether the server's clock must be stepped.
func (r rule) needsClock() bool { return r.faults == "late-step" || r.faults == "back-and-forth" }

// buildBroken builds the harness on a package with a broken rule. The package
// itself stays as it is: see -overlay in go help build.
func buildBroken(t *testing.T, r rule) (program string) {
	t.Helper()
	dir, root := t.TempDir(), "../.."
	replace := map[string]string{}
	for _, e := range r.edits {
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
			t.Fatalf("%s contains %q %d times: bring the table of rules up to date", e.file, e.from, n)
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
