package report

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sqllease/lease/internal/torture/check"
	"github.com/sqllease/lease/internal/torture/history"
)

// noticeable is the least overrun of work that counts.
const noticeable = 100 * time.Millisecond

// Summary writes the results of a run, as a table in plain text.
func Summary(w io.Writer, r history.Run, o Options) error {
	s := tell(r.Events, r.TTL)
	var out bytes.Buffer
	fmt.Fprintln(&out, headline(s, r, o))
	writeFaults(&out, s)
	takeovers := s.takeovers()
	writeTerms(&out, s, takeovers)
	writeTakeovers(&out, takeovers)
	writeWork(&out, r)
	writeViolations(&out, s, o.Violations)
	_, err := w.Write(out.Bytes())
	return err
}

// headline identifies a run.
func headline(s *story, r history.Run, o Options) string {
	words := []string{fmt.Sprintf("seed %d", r.Seed)}
	if o.Backend != "" {
		words = append(words, o.Backend)
	}
	words = append(words, plural(len(s.replicas), "replica"), "TTL "+readable(r.TTL), readable(s.duration().Round(time.Second)))
	return strings.Join(words, ", ")
}

// columns lays out the numbers of a section below one another.
func columns(out io.Writer, rows func(row func(cells ...string))) {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	rows(func(cells ...string) { fmt.Fprintln(table, "  "+strings.Join(cells, "\t")) })
	table.Flush()
}

func writeFaults(out io.Writer, s *story) {
	counts := map[string]int{}
	for _, f := range s.faults {
		counts[f.name]++
	}
	fmt.Fprintf(out, "\nFaults: %d\n", len(s.faults))
	columns(out, func(row func(...string)) {
		for _, name := range byCount(counts) {
			row(name, fmt.Sprint(counts[name]))
		}
	})
}

// byCount returns the keys of counts, the highest count first.
func byCount(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
}

func writeTerms(out io.Writer, s *story, takeovers []Takeover) {
	var led, longest, overrun time.Duration
	overran := 0
	for _, t := range s.terms {
		led += time.Duration(min(t.trusted(), s.end) - t.begin)
		if t.overrun() >= noticeable {
			overran++
			overrun = max(overrun, t.overrun())
		}
	}
	for _, t := range takeovers {
		longest = max(longest, t.SinceTrust())
	}
	fmt.Fprintf(out, "\nTerms: %d\n", len(s.terms))
	columns(out, func(row func(...string)) {
		row("time with a leader", trimmed(100*float64(led)/float64(max(1, s.duration())), 1)+" %")
		row("longest without one", readable(longest))
		row("work outlived its term", fmt.Sprintf("%d×, by up to %s; it may, since its writes are refused", overran, readable(overrun)))
	})
}

// writeTakeovers separates the takeovers without any other fault from the rest.
// Only the former can keep to a bound.
func writeTakeovers(out io.Writer, takeovers []Takeover) {
	fmt.Fprintf(out, "\nTakeovers: %d, by what ended the term before\n", len(takeovers))
	if len(takeovers) == 0 {
		return
	}
	rows := map[string][]Takeover{}
	var names []string
	for _, cause := range causes {
		for _, alone := range []bool{true, false} {
			name := string(cause)
			if !alone {
				name += ", among other faults"
			}
			for _, t := range takeovers {
				if t.Cause == cause && t.Alone == alone {
					rows[name] = append(rows[name], t)
				}
			}
			if len(rows[name]) > 0 {
				names = append(names, name)
			}
		}
	}
	fmt.Fprintf(out, "%69s%25s\n", "since its last renewal", "without a leader")
	fmt.Fprintf(out, "%45s%8s%8s%8s%9s%8s%8s\n", "count", "p50", "p99", "max", "p50", "p99", "max")
	for _, name := range names {
		writeTakeoversOf(out, name, rows[name])
	}
}

func writeTakeoversOf(out io.Writer, name string, takeovers []Takeover) {
	fmt.Fprintf(out, "  %-37s%6d", name, len(takeovers))
	for i, measure := range []func(Takeover) time.Duration{Takeover.SinceRenewal, Takeover.SinceTrust} {
		var took []time.Duration
		for _, t := range takeovers {
			took = append(took, measure(t))
		}
		fmt.Fprintf(out, "%*s%8s%8s", 8+i, readable(percentile(took, 0.5)), readable(percentile(took, 0.99)), readable(slices.Max(took)))
	}
	fmt.Fprintln(out)
}

func writeWork(out io.Writer, r history.Run) {
	counts := map[history.Kind]int{}
	released := map[string]int{}
	for _, e := range r.Events {
		counts[e.Kind]++
		if e.Kind == history.Released {
			released[e.Note]++
		}
	}
	done := 0
	for _, item := range r.Items {
		if item.Done {
			done++
		}
	}
	committed := 0
	for _, w := range r.Writes {
		if w.Part != 2 { // the second row of a transaction
			committed++
		}
	}
	fmt.Fprintf(out, "\nFenced writes: %d committed, %d refused, %d rolled back, %d of unknown outcome\n",
		committed, counts[history.Refused], counts[history.Undone], counts[history.Failed])
	fmt.Fprintf(out, "Items: %d, %d done\n", len(r.Items), done)
	fmt.Fprintf(out, "Claims: %d, with %s; %d done, %d lost, %d handed on, %d failed\n",
		counts[history.Claimed], plural(counts[history.Saved], "save"), counts[history.Done], counts[history.Lost], released["handed on"], released["failed"])
	if n := counts[history.Call]; n > 0 {
		fmt.Fprintf(out, "Operations by hand: %d\n", n)
	}
}

func writeViolations(out io.Writer, s *story, violations []check.Violation) {
	fmt.Fprintf(out, "\nViolations: %d\n", len(violations))
	if len(violations) == 0 {
		fmt.Fprint(out, "  No two trusted their terms at once, and the lease's row outlived all trust by a third of the TTL. In the order of the commits\n"+
			"  no epoch fell, and nothing was committed in part or in an expired term. Every item has the effect of one claim, and no save\n"+
			"  an older one on top. The lease came free in time. What was done by hand is linearizable.\n")
	}
	for _, v := range violations {
		at := ""
		if v.At != 0 {
			at = trimmed(time.Duration(v.At-s.start).Seconds(), 3) + " s: "
		}
		fmt.Fprintf(out, "  %s%s: %s\n", at, v.Rule, v.Text)
	}
}
