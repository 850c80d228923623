package report

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sqllease/lease/internal/torture/check"
	"github.com/sqllease/lease/internal/torture/history"
)

// golden compares got with a file in testdata. LEASE_UPDATE_GOLDEN=1 rewrites
// the file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	name = filepath.Join("testdata", name)
	if os.Getenv("LEASE_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	wanted, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(wanted) {
		t.Errorf("it differs from %s, which LEASE_UPDATE_GOLDEN=1 would rewrite:\n%s", name, got)
	}
}

// drawn draws a picture, and checks that the picture is well-formed.
func drawn(t *testing.T, r history.Run, o Options) string {
	t.Helper()
	var out strings.Builder
	if err := Picture(&out, r, o); err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(out.String())); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("not well-formed: %v\n%.3000s", err, out.String())
		}
	}
	if i := strings.Index(out.String(), "NaN"); i >= 0 {
		t.Errorf("a number is none: %s", out.String()[max(0, i-100):i+10])
	}
	if i := strings.Index(out.String(), `="-`); i >= 0 {
		t.Errorf("something is outside: %s", out.String()[max(0, i-100):i+10])
	}
	return out.String()
}

func TestAPictureShowsWhoLedAndWhatWasDoneToThem(t *testing.T) {
	golden(t, "picture.svg", drawn(t, aScene().run, Options{Backend: "sqlite"}))
}

func TestAPictureShowsViolationsInRed(t *testing.T) {
	out := drawn(t, aScene().run, Options{Violations: []check.Violation{
		{Rule: "trust", At: origin + 5*second, Text: `r1 <in> term 1 & r2 "in" term 2`}, {Rule: "items", Text: "of no time"},
	}})
	for _, wanted := range []string{"2 violations", `class="badline"`, "trust: r1 &lt;in&gt; term 1 &amp; r2"} {
		if !strings.Contains(out, wanted) {
			t.Errorf("there is no %s in it", wanted)
		}
	}
}

func TestAPictureOfALongRunShowsItsMostEventfulMinute(t *testing.T) {
	m := aLongRun(10*time.Minute, 4, 1500*time.Millisecond, 2)
	if out := drawn(t, m.run, Options{}); !strings.Contains(out, "the most eventful minute") {
		t.Error("it does not say so")
	}
	late := check.Violation{Rule: "trust", At: m.now - 5*second, Text: "too late"}
	if out := drawn(t, m.run, Options{Violations: []check.Violation{late}}); !strings.Contains(out, "trust: too late") {
		t.Error("a violation is not in it")
	}
	if out := drawn(t, m.run, Options{From: 100 * time.Second, To: 110 * time.Second}); !strings.Contains(out, "Shown: 100 s to 110 s. ") {
		t.Error("it does not show what was asked for")
	}
}

func TestAPictureOfAnythingIsWellFormed(t *testing.T) {
	crowd := newMaker(time.Second, 12)
	for i := range int64(1000) {
		crowd.leads(fmt.Sprintf("r%d", i%12+1), i+1, i*50, i*50+10)
		crowd.fault("freeze", fmt.Sprintf("r%d", i%12+1), i*50, i*50+400, false)
		crowd.fault(strings.Repeat("a-very-long-name", 10), database, i*50, i*50+9000, true)
	}
	endless := newMaker(time.Second, 2).leads("r1", 1, 100, 2000)
	endless.fault("kill", "r1", 2000, 2000, false).exited("r1", "killed").leads("r2", 2, 3000, 4000).at(9000).of("r2", history.Refused, 2)
	odd := newMaker(time.Second, 1).at(10).of("r1", history.Extend, 5).of("r1", history.End, 5).of("r1", history.WorkEnd, 5)
	odd.fault(`<&">'`+"\x00\xff", `<b>"&`, 20, 30, true).fault("freeze", "", 40, 40, false)
	odd.add(history.Event{Kind: history.FaultEnd, Seq: 99}).add(history.Event{Proc: "r2", Kind: history.Begin, Epoch: 1, Until: 1})
	odd.leads("r1", 6, 50, 60).leads("r1", 6, 50, 60).ends("r1", 6, 55, 100000, "<&>")
	for name, r := range map[string]history.Run{
		"an empty run":                       {},
		"a run of one event":                 {Events: aScene().run.Events[:1]},
		"a thousand terms and faults":        crowd.run,
		"a replica killed for ever":          endless.run,
		"events without beginning":           odd.run,
		"an hour":                            aLongRun(time.Hour, 3, 10*time.Second, 1).run,
		"half a day, with a TTL of a minute": aLongRun(12*time.Hour, 3, time.Minute, 1).run,
		"a few milliseconds":                 {TTL: time.Second, Events: []history.Event{{At: 1}, {At: 3 * ms}}},
		"a machine that has just been born":  {TTL: time.Second, Events: []history.Event{{At: 1, Proc: "r1", Kind: history.Begin, Until: second}}},
	} {
		t.Run(name, func(t *testing.T) {
			drawn(t, r, Options{Backend: `<&">`})
			drawn(t, r, Options{From: time.Second, To: 3 * time.Second})
			drawn(t, r, Options{From: time.Second, To: 300 * time.Hour})
			if err := Summary(io.Discard, r, Options{}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLabelsNeverCoverOneAnother(t *testing.T) {
	l := &lane{most: mostRows}
	for i := range 300 {
		from := plotLeft + float64(i*37%900)
		l.marks = append(l.marks, mark{from: from, to: from + float64(i%4*30), label: "delay-replies"})
	}
	l.place()
	labels := 0
	for i, m := range l.marks {
		if m.label == "" || m.row < 0 {
			continue
		}
		labels++
		from, to := m.labelAt, m.labelAt+width(m.label, small)
		if to > plotRight {
			t.Errorf("label %d ends at %v", i, to)
		}
		for j, o := range l.marks {
			if i == j || o.row != m.row {
				continue
			}
			oFrom, oTo := o.from, o.to
			if o.label != "" {
				oFrom, oTo = min(o.from, o.labelAt), max(o.to, o.labelAt+width(o.label, small))
			}
			if from < oTo && oFrom < to {
				t.Errorf("in row %d label %d, %v to %v, is covered by mark %d, %v to %v", m.row, i, from, to, j, oFrom, oTo)
			}
		}
	}
	if labels < 20 {
		t.Errorf("only %d labels are left", labels)
	}
}
