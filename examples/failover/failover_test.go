package main

import (
	"strings"
	"testing"
)

// written makes ticks in the order of their commits, a second apart: "A1" is a tick of replica A in epoch 1.
func written(names ...string) []Tick {
	var ticks []Tick
	for i, s := range names {
		n := int64(i) + 1
		ticks = append(ticks, Tick{Position: n, Replica: s[:1], Epoch: int64(s[1] - '0'), Sequence: n, WrittenAt: n * 1_000_000})
	}
	return ticks
}

func TestTicksOfOneWriterAtATimeAreSplitIntoTerms(t *testing.T) {
	terms, err := termsOf(written("A1", "A1", "B2", "A4", "A4", "A4"))
	if err != nil {
		t.Fatal(err)
	}
	if len(terms) != 3 || terms[0].ticks != 2 || terms[2].replica != "A" || terms[2].epoch != 4 || terms[2].ticks != 3 {
		t.Errorf("terms are %+v", terms)
	}
}

func TestEveryBrokenPromiseIsSeenInTheTable(t *testing.T) {
	change := func(ticks []Tick, at int, how func(*Tick)) []Tick {
		how(&ticks[at])
		return ticks
	}
	for name, c := range map[string]struct {
		ticks []Tick
		want  string
	}{
		"a stale write":          {written("A1", "B2", "A1"), "committed after"},
		"two writers in a term":  {written("A1", "B1"), "two writers"},
		"a number used twice":    {change(written("A1", "A1"), 1, func(t *Tick) { t.Sequence = 1 }), "after its tick"},
		"terms that overlap":     {change(written("A1", "A1", "B2"), 2, func(t *Tick) { t.WrittenAt = 1_500_000 }), "overlap"},
		"a tick that was erased": {written("A1", "A1", "A1")[1:], "missing"},
	} {
		if _, err := termsOf(c.ticks); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}

func TestATickThatWasReportedButIsNotInTheTableIsSeen(t *testing.T) {
	terms, err := termsOf(written("A1", "A1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := checkReported(terms, map[int64]int{1: 1}); err != nil {
		t.Errorf("a killed leader may have written more than it reported: %v", err)
	}
	for _, reported := range []map[int64]int{{1: 3}, {1: 2, 2: 1}} {
		if checkReported(terms, reported) == nil {
			t.Errorf("%v reported ticks are fine", reported)
		}
	}
}
