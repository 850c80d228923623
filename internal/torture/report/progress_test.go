package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sqllease/lease/internal/torture/history"
)

func TestALineTellsTheCounters(t *testing.T) {
	c := Counters{
		Elapsed: 12340 * time.Millisecond, Terms: 14, Faults: map[string]int{"kill": 3, "freeze": 2, "db-stop": 1, "hang": 16},
		Takeovers: []time.Duration{1200 * time.Millisecond, time.Second, 2900 * time.Millisecond}, Written: 512, Refused: 31,
	}
	if got, wanted := c.Line(), "12.3 s  terms 14  faults 22 (hang 16, kill 3, freeze 2, …)  takeovers p50 1.2 s p99 2.9 s  writes 512/31 refused"; got != wanted {
		t.Errorf("it says %q, not %q", got, wanted)
	}
	if got, wanted := (Counters{}).Line(), "0.0 s  terms 0  faults 0  writes 0/0 refused"; got != wanted {
		t.Errorf("of nothing it says %q, not %q", got, wanted)
	}
}

func TestProgressCountsEventsInAnyOrder(t *testing.T) {
	forth, back := &Progress{TTL: 2 * time.Second}, &Progress{TTL: 2 * time.Second}
	events := aScene().run.Events
	for i := range events {
		forth.Add(events[i])
		back.Add(events[len(events)-1-i])
	}
	const wanted = "40.0 s  terms 7  faults 10 (kill 2, clock 1, db-stop 1, …)  takeovers p50 2.1 s p99 4.1 s  writes 1/23 refused"
	for _, p := range []*Progress{forth, back} {
		if got := p.Line(origin + 40*second); got != wanted {
			t.Errorf("it says %q, not %q", got, wanted)
		}
	}
}

func TestProgressIsRewrittenInPlaceOnlyAtATerminal(t *testing.T) {
	p := &Progress{}
	p.Add(history.Event{At: origin, Kind: history.Started, Proc: "r1"})
	var file, terminal strings.Builder
	for s := range int64(25) {
		p.Show(&file, origin+s*second)
	}
	p.Done(&file)
	if got := file.String(); strings.ContainsAny(got, "\r\x1b") || strings.Count(got, "\n") != 2 || !strings.Contains(got, "\n20.0 s") {
		t.Errorf("elsewhere it writes %q", got)
	}
	for s := range int64(3) {
		p.show(&terminal, true, origin+s*second)
	}
	p.Done(&terminal)
	p.Done(&terminal)
	if got := terminal.String(); strings.Count(got, "\r") != 3 || strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, "\n") {
		t.Errorf("at a terminal it writes %q", got)
	}
}

func TestProgressFollowsARecordThatIsBeingWritten(t *testing.T) {
	dir, p := t.TempDir(), &Progress{TTL: time.Second}
	write := func(text string) {
		t.Helper()
		file, err := os.OpenFile(filepath.Join(dir, "r1.1.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := p.Follow(dir); err != nil {
			t.Fatal(err)
		}
	}
	begin, written := history.Event{At: 5, Proc: "r1", Life: 1, Kind: history.Begin, Epoch: 1}.String()+"\n", history.Event{At: 6, Kind: history.Written}.String()+"\n"
	write(begin + written + written[:10])
	if got := p.Line(5); got != "0.0 s  terms 1  faults 0  writes 1/0 refused" {
		t.Errorf("it says %q", got)
	}
	write(written[10:])
	if got := p.Line(5); got != "0.0 s  terms 1  faults 0  writes 2/0 refused" {
		t.Errorf("then it says %q", got)
	}
}
