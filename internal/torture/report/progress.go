package report

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sqllease/lease/internal/torture/history"
)

// Counters are the counts of a run so far.
type Counters struct {
	Elapsed          time.Duration
	Terms            int
	Faults           map[string]int  // by name
	Takeovers        []time.Duration // from the last good renewal
	Written, Refused int
}

// Line returns the counters on one line, without a line end.
func (c Counters) Line() string {
	var out strings.Builder
	total := 0
	for _, n := range c.Faults {
		total += n
	}
	fmt.Fprintf(&out, "%.1f s  terms %d  faults %d", c.Elapsed.Seconds(), c.Terms, total)
	for i, name := range byCount(c.Faults) {
		switch {
		case i == 0:
			fmt.Fprintf(&out, " (%s %d", name, c.Faults[name])
		case i < shownFaults:
			fmt.Fprintf(&out, ", %s %d", name, c.Faults[name])
		case i == shownFaults:
			out.WriteString(", …")
		}
	}
	if total > 0 {
		out.WriteString(")")
	}
	if len(c.Takeovers) > 0 {
		fmt.Fprintf(&out, "  takeovers p50 %s p99 %s", readable(percentile(c.Takeovers, 0.5)), readable(percentile(c.Takeovers, 0.99)))
	}
	fmt.Fprintf(&out, "  writes %d/%d refused", c.Written, c.Refused)
	return out.String()
}

const (
	shownFaults = 3                // in a line, by name
	seldom      = 10 * time.Second // between lines that are not rewritten
)

// A Progress shows the progress of a run. At a terminal the line is rewritten
// in place. Elsewhere a line follows every ten seconds. Events come from Add,
// in any order, or from Follow. A Progress is safe for concurrent use.
type Progress struct {
	TTL time.Duration // set by the caller

	reading sync.Mutex       // guards read
	read    map[string]int64 // bytes read so far, by file

	mu       sync.Mutex // guards the fields below
	start    int64
	trust    []history.Event // the events about terms
	counters Counters
	shown    time.Duration // Elapsed of the last line
	inPlace  bool          // the last line has no end yet
}

// Add adds an event.
func (p *Progress) Add(e history.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.start == 0 || e.At < p.start {
		p.start = e.At
	}
	switch e.Kind {
	case history.Begin, history.Extend, history.End:
		p.trust = append(p.trust, e)
	case history.Fault:
		if p.counters.Faults == nil {
			p.counters.Faults = map[string]int{}
		}
		if e.Note != partOfAnother {
			p.counters.Faults[e.Name]++
		}
	case history.Written:
		p.counters.Written++
	case history.Refused:
		p.counters.Refused++
	}
}

// Line returns the line for an instant, CLOCK_MONOTONIC in nanoseconds.
func (p *Progress) Line(now int64) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count(now).Line()
}

func (p *Progress) count(now int64) Counters {
	c := p.counters
	if p.start != 0 {
		c.Elapsed = time.Duration(max(0, now-p.start))
	}
	s := tell(p.trust, p.TTL)
	c.Terms = len(s.terms)
	for i := 1; i < len(s.terms); i++ {
		c.Takeovers = append(c.Takeovers, time.Duration(s.terms[i].begin-s.terms[i-1].sent(p.TTL)))
	}
	return c
}

// Show writes the line, if a line is due. Call Show often.
func (p *Progress) Show(w io.Writer, now int64) { p.show(w, IsTerminal(w), now) }

func (p *Progress) show(w io.Writer, terminal bool, now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.count(now)
	switch {
	// The terminal cuts a long line off, and does not wrap it.
	case terminal:
		fmt.Fprintf(w, "\r\x1b[?7l%s\x1b[K\x1b[?7h", c.Line())
		p.inPlace = true
	case c.Elapsed >= p.shown+seldom:
		fmt.Fprintln(w, c.Line())
		p.shown = c.Elapsed
	}
}

// Done ends a line rewritten in place. Call Done before you write anything
// else.
func (p *Progress) Done(w io.Writer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inPlace {
		fmt.Fprintln(w)
		p.inPlace = false
	}
}

// IsTerminal reports whether somebody may be looking at w.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
