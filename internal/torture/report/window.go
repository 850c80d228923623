package report

import (
	"time"

	"github.com/sqllease/lease/internal/torture/check"
)

const (
	wholeUpTo = 75 * time.Second // a run up to this length is shown whole
	minute    = 60 * time.Second
)

// A window is the part of a run that a picture shows: [from, to), as At.
type window struct {
	from, to int64
	chosen   bool // the window is neither the caller's choice nor the whole run
	whole    bool
}

func (s *story) window(o Options) window {
	all := window{from: s.start, to: max(s.end, s.start+int64(time.Second)), whole: true}
	switch {
	case o.From < 0 || o.To < o.From:
		return all
	case o.To > o.From:
		return window{from: s.start + int64(o.From), to: s.start + int64(o.To)}
	case s.duration() > wholeUpTo:
		from := s.mostEventful(o.Violations)
		return window{from: from, to: from + int64(minute), chosen: true}
	}
	return all
}

// mostEventful returns the beginning of the most eventful minute, if possible
// at a whole ten seconds. With violations, that is the minute around the first
// violation. Otherwise it is the minute with the most terms, overruns and
// faults. The first fault of each kind counts more.
func (s *story) mostEventful(violations []check.Violation) int64 {
	const step = int64(10 * time.Second)
	last := s.end - int64(minute)
	for _, v := range violations {
		if s.start <= v.At && v.At <= s.end {
			before := max(0, v.At-s.start-3*step)
			return min(s.start+before/step*step, last)
		}
	}
	best, from := -1, s.start
	// In a run of days, not every step is tried.
	every := step * (1 + (last-s.start)/step/1000)
	for at := s.start; at < last+every; at += every {
		at := min(at, last)
		if points := s.points(at, at+int64(minute)); points > best {
			best, from = points, at
		}
	}
	return from
}

func (s *story) points(from, to int64) int {
	within := func(at int64) bool { return from <= at && at < to }
	points := 0
	for _, t := range s.terms {
		if within(t.begin) {
			points += 2
		}
		if t.overrun() >= noticeable && within(t.trusted()) {
			points += 2
		}
	}
	type kind struct{ name, target string }
	seen := map[kind]bool{}
	for _, f := range s.faults {
		if !within(f.from) {
			continue
		}
		points++
		k := kind{f.name, ""}
		if f.proc == database {
			k.target = database
		}
		if !seen[k] {
			seen[k] = true
			points += 4
		}
	}
	return points
}
