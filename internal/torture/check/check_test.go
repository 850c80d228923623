package check

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/torture/history"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

// at returns an event's time, from seconds since the first event.
func at(seconds float64) int64 { return 5_000_000_000_000 + int64(seconds*1e9) }

// micros returns a caller's time.
func micros(seconds float64) int64 { return 1_700_000_000_000_000 + int64(math.Round(seconds*1e6)) }

// of makes an event of a process. A name is written as "r1.2".
func of(p string, kind history.Kind, seconds float64, e history.Event) history.Event {
	name, life, _ := strings.Cut(p, ".")
	fmt.Sscan(life, &e.Life)
	e.Proc, e.Kind, e.At = name, kind, at(seconds)
	return e
}

func started(p string, seconds float64) history.Event {
	return of(p, history.Started, seconds, history.Event{})
}

func exited(p string, seconds float64) history.Event {
	return of(p, history.Exited, seconds, history.Event{Note: "killed"})
}

// trusted makes a step of the trust in a term. For an end, until does not
// matter.
func trusted(p string, kind history.Kind, epoch int64, seconds, until float64) history.Event {
	return of(p, kind, seconds, history.Event{Epoch: epoch, Until: at(until), Wall: micros(seconds)})
}

func wrote(p string, kind history.Kind, epoch, seq int64, seconds float64) history.Event {
	return of(p, kind, seconds, history.Event{Epoch: epoch, Seq: seq})
}

// committed makes the two rows of a transaction, in a term that expires in a
// minute.
func committed(epoch int64, proc string, seq int64) []history.Write {
	w := history.Write{Epoch: epoch, Proc: proc, Seq: seq, Part: 1, Began: micros(0), Expires: micros(60)}
	return []history.Write{w, second(w)}
}

func second(w history.Write) history.Write {
	w.Part = 2
	return w
}

// renewed makes the lease's row after a statement.
func renewed(epoch int64, holder string, at, expires float64) history.Version {
	return history.Version{Epoch: epoch, Holder: holder, Renewed: micros(at), Expires: micros(expires)}
}

// stepped makes a step of the database's clock, to some seconds ahead.
func stepped(seconds, ahead float64) history.Event {
	return of("conductor.0", history.Stepped, seconds, history.Event{Until: at(seconds + 0.001), Offset: int64(ahead * 1e6)})
}

func worked(p string, kind history.Kind, key string, epoch, seq int64, seconds float64) history.Event {
	return of(p, kind, seconds, history.Event{Key: key, Epoch: epoch, Seq: seq})
}

func fault(seq int64, blocks bool, from, to float64) []history.Event {
	e := history.Event{Seq: seq, Name: "db-stop", Target: "database", Blocks: blocks}
	return []history.Event{of("conductor.0", history.Fault, from, e), of("conductor.0", history.FaultEnd, to, e)}
}

// called makes an operation on the lease "hand", and its return.
func called(p string, seq int64, from, to float64, call, answer history.Op) []history.Event {
	answer.Name = call.Name
	return []history.Event{
		of(p, history.Call, from, history.Event{Key: "hand", Seq: seq, Op: &call}),
		of(p, history.Return, to, history.Event{Key: "hand", Seq: seq, Op: &answer}),
	}
}

func acquire(holder string, now, ttl float64) history.Op {
	return history.Op{Name: "acquire", Holder: holder, Now: micros(now), TTL: int64(ttl * 1e6)}
}

func release(holder string, now float64) history.Op {
	return history.Op{Name: "release", Holder: holder, Now: micros(now)}
}

var find = history.Op{Name: "find"}

func found(holder string, epoch int64, expires float64) history.Op {
	return history.Op{Holder: holder, Epoch: epoch, Expires: micros(expires)}
}

var (
	got     = history.Op{Got: true}
	missing = history.Op{Missing: true}
	failed  = history.Op{Error: "timeout"}
)

// play makes a run of these events.
func play(events ...[]history.Event) *history.Run {
	return &history.Run{TTL: 3 * time.Second, Events: slices.Concat(events...)}
}

// healthy makes a run in which every rule has something to check, and nothing
// to report. The TTL is 3 s.
func healthy() *history.Run {
	r := play(
		[]history.Event{
			started("r1.1", 0), started("r2.1", 0), started("w1.1", 0), started("w2.1", 0), started("c1.1", 0), started("c2.1", 0),
			trusted("r1.1", history.Begin, 1, 0.5, 2.5),
			trusted("r1.1", history.Extend, 1, 1.5, 3.5),
			wrote("r1.1", history.Writing, 1, 1, 0.6), wrote("r1.1", history.Written, 1, 1, 0.7),
			wrote("r1.1", history.Writing, 1, 2, 1.6),
			exited("r1.1", 1.7), started("r1.2", 2),
			trusted("r2.1", history.Begin, 2, 4.6, 6.6),
			wrote("r2.1", history.Writing, 2, 1, 4.7), wrote("r2.1", history.Failed, 2, 1, 4.8),
			wrote("r2.1", history.Writing, 2, 2, 4.9), wrote("r2.1", history.Written, 2, 2, 5),
			trusted("r2.1", history.End, 2, 5.2, 5.2),
			wrote("r2.1", history.Writing, 2, 3, 5.6), wrote("r2.1", history.Refused, 2, 3, 5.7),
			trusted("r1.2", history.Begin, 3, 5.3, 7.3),
			trusted("r1.2", history.End, 3, 7, 7),

			worked("w1.1", history.Claimed, "a", 1, 0, 1),
			worked("w1.1", history.Saved, "a", 1, 1, 1.2), worked("w1.1", history.Unsaved, "a", 1, 2, 1.3),
			exited("w1.1", 1.5),
			worked("w2.1", history.Claimed, "a", 2, 0, 4),
			worked("w2.1", history.Saved, "a", 2, 1, 4.1), worked("w2.1", history.Unsaved, "a", 2, 2, 4.2), worked("w2.1", history.Saved, "a", 2, 3, 4.3),
			worked("w2.1", history.Done, "a", 2, 0, 4.5), worked("w2.1", history.Released, "a", 2, 0, 4.6),
			worked("w2.1", history.Claimed, "b", 1, 0, 5), worked("w2.1", history.Done, "b", 1, 0, 5.2),
		},
		called("c1.1", 1, 1, 1.1, find, missing),
		called("c1.1", 2, 1.2, 1.3, acquire("x", 1.2, 1), got),
		called("c2.1", 1, 1.25, 1.5, acquire("y", 1.25, 1), history.Op{}),
		called("c1.1", 3, 1.6, 1.7, acquire("x", 1.6, 1), got),
		called("c2.1", 2, 1.8, 1.9, find, found("x", 1, 2.6)),
		called("c1.1", 4, 2, 2.1, release("x", 2), history.Op{}),
		called("c2.1", 3, 2.2, 2.3, find, found("", 1, 2)),
		called("c2.1", 4, 2.4, 2.5, acquire("y", 2.4, 0.5), got),
		called("c1.1", 5, 3, 3.1, acquire("x", 3, 1), got),
		called("c1.1", 6, 3.2, 3.3, find, found("x", 3, 4)),
	)
	r.Complete = true
	r.OneClock = true
	r.Versions = []history.Version{
		renewed(1, "r1", 0.5, 3.5), renewed(1, "r1", 1.5, 4.5),
		renewed(2, "r2", 4.6, 7.6), renewed(2, "", 4.6, 5.21),
		renewed(3, "r1", 5.3, 8.3), renewed(3, "", 5.3, 7.1),
	}
	r.Writes = slices.Concat(committed(1, "r1", 1), committed(1, "r1", 2), committed(2, "r2", 1), committed(2, "r2", 2))
	r.Saves = []history.Save{{Key: "a", Epoch: 1, Seq: 1}, {Key: "a", Epoch: 2, Seq: 1}, {Key: "a", Epoch: 2, Seq: 2}, {Key: "a", Epoch: 2, Seq: 3}, {Key: "a", Epoch: 2, Seq: 3}}
	r.Items = []history.Item{{Key: "a", Done: true, Epoch: 2, Effects: []int64{2}}, {Key: "b", Done: true, Epoch: 1, Effects: []int64{1}}}
	return r
}

// reports checks that the violations of a run are exactly these. Each element
// is the rule, and a part of the text.
func reports(t *testing.T, r *history.Run, want ...string) {
	t.Helper()
	rest := Run(*r)
	for _, w := range want {
		rule, text, _ := strings.Cut(w, ": ")
		i := slices.IndexFunc(rest, func(v Violation) bool { return v.Rule == rule && strings.Contains(v.Text, text) })
		if i < 0 {
			t.Errorf("not reported: %s", w)
			continue
		}
		rest = slices.Delete(rest, i, i+1)
	}
	for _, v := range rest {
		t.Errorf("reported: %v", v)
	}
}

func TestAHealthyRunPasses(t *testing.T) {
	reports(t, healthy())
}

func TestARunWithoutEventsPasses(t *testing.T) {
	reports(t, &history.Run{Complete: true})
}

func TestTheOrderInWhichEventsAreGivenDoesNotMatter(t *testing.T) {
	r := healthy()
	slices.Reverse(r.Events)
	before := slices.Clone(r.Events)
	reports(t, r)
	for i := range before {
		if before[i].At != r.Events[i].At {
			t.Fatal("the caller's events were sorted")
		}
	}
}

func TestAViolationTellsItsRuleItsTimeAndWhoDidWhat(t *testing.T) {
	r := play([]history.Event{
		started("w1.1", 0),
		trusted("r1.3", history.Begin, 7, 10.345, 12.345),
		trusted("r2.1", history.Begin, 8, 12.1, 14.1),
	})
	want := Violation{"trust", at(12.1), "r1.3 (term 7) trusted itself until 12.345 s, r2.1 (term 8) began at 12.100 s, 245ms before that"}
	if found := Run(*r); len(found) != 1 || found[0] != want {
		t.Fatalf("found %v", found)
	}
	if got := want.String(); got != "trust: "+want.Text {
		t.Error(got)
	}
}

func TestTrust(t *testing.T) {
	begin, extend, end := history.Begin, history.Extend, history.End
	for _, c := range []struct {
		name   string
		events []history.Event
		want   []string
	}{
		{"may begin at the instant at which the last deadline passes", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), trusted("r2.1", begin, 2, 3, 5)}, nil},
		{"may begin at the instant of an end", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), trusted("r1.1", end, 1, 2, 2), trusted("r2.1", begin, 2, 2, 4)}, nil},
		{"lasts until a deadline before which no end is told", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), trusted("r2.1", begin, 2, 2.9, 5)},
			[]string{"trust: r1.1 (term 1) trusted itself until 3.000 s, r2.1 (term 2) began at 2.900 s"}},
		{"of a process that was killed lasts until its deadline", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), exited("r1.1", 1.5), trusted("r2.1", begin, 2, 2, 4)},
			[]string{"trust: r1.1 (term 1) trusted itself until 3.000 s"}},
		{"of a process lasts after its restart", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), exited("r1.1", 1.5), trusted("r1.2", begin, 2, 2, 4)},
			[]string{"trust: r1.1 (term 1) trusted itself until 3.000 s, r1.2 (term 2) began"}},
		{"of one process in two terms does not overlap either", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), trusted("r1.1", begin, 2, 2, 4)}, []string{"trust: r1.1 (term 2) began at 2.000 s"}},
		{"lasts until an end before its deadline", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), trusted("r2.1", begin, 2, 2, 4), trusted("r1.1", end, 1, 2.5, 2.5)},
			[]string{"trust: r1.1 (term 1) trusted itself until 2.500 s"}},
		{"is over at its deadline, however late its end is told", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), trusted("r2.1", begin, 2, 3.5, 5.5), trusted("r1.1", end, 1, 9, 9)}, nil},
		{"lasts until the latest deadline, in whatever order they come", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), trusted("r1.1", extend, 1, 2, 4), trusted("r1.1", extend, 1, 2.1, 3.5), trusted("r2.1", begin, 2, 3.9, 6)},
			[]string{"trust: r1.1 (term 1) trusted itself until 4.000 s"}},
		{"is not extended after its end", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), trusted("r1.1", end, 1, 2, 2), trusted("r1.1", extend, 1, 2.1, 4), trusted("r2.1", begin, 2, 2.2, 4)}, nil},
		{"is not extended to a time that has passed", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), trusted("r2.1", begin, 2, 3.5, 5.5), trusted("r1.1", extend, 1, 5, 4.9)}, nil},
		{"ends with the first end that is told", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), trusted("r1.1", end, 1, 1.5, 1.5), trusted("r1.1", end, 1, 2, 2), trusted("r2.1", begin, 2, 1.6, 4)}, nil},
		{"that is over when it begins is none", []history.Event{
			trusted("r2.1", begin, 2, 2, 4), trusted("r1.1", begin, 1, 2.5, 2.4), trusted("r1.1", end, 1, 2.6, 2.6), trusted("r2.1", end, 2, 3, 3)}, nil},
		{"overlaps also when it lies within another's", []history.Event{
			trusted("r1.1", begin, 1, 1, 9), trusted("r2.1", begin, 2, 2, 3), trusted("r3.1", begin, 3, 4, 5)},
			[]string{"trust: r2.1 (term 2) began at 2.000 s", "trust: r1.1 (term 1) trusted itself until 9.000 s, r3.1 (term 3) began at 4.000 s"}},
		{"of two in one term is a violation, also when it does not overlap", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), trusted("r2.1", begin, 1, 4, 6)},
			[]string{"trust: r2.1 (term 1) began at 4.000 s a term that r1.1 (term 1) had begun at 1.000 s"}},
		{"of a process that begins its term again is a violation", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), trusted("r1.1", end, 1, 2, 2), trusted("r1.1", begin, 1, 3, 5)},
			[]string{"trust: r1.1 (term 1) began at 3.000 s a term"}},
		{"of two in one term is a violation, also when one is over as it begins", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), trusted("r2.1", begin, 1, 4, 4)}, []string{"trust: a term that r1.1"}},
		{"of a lower term does not come later", []history.Event{
			trusted("r1.1", begin, 5, 1, 3), trusted("r2.1", begin, 4, 4, 6)},
			[]string{"trust: r2.1 (term 4) began at 4.000 s, after r1.1 (term 5) had at 1.000 s"}},
		{"may leave out terms", []history.Event{
			trusted("r1.1", begin, 5, 1, 3), trusted("r2.1", begin, 9, 4, 6)}, nil},
		{"that never began is neither extended nor ended", []history.Event{
			trusted("r1.1", extend, 1, 1, 3), trusted("r2.1", end, 2, 2, 2)},
			[]string{"trust: r1.1 tells at 1.000 s of the extend of its trust in term 1", "trust: r2.1 tells at 2.000 s of the end"}},
		{"is told in each life anew", []history.Event{
			trusted("r1.1", begin, 1, 1, 3), trusted("r1.2", extend, 1, 2, 4)}, []string{"trust: r1.2 tells at 2.000 s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			reports(t, play([]history.Event{started("w1.1", 0)}, c.events), c.want...)
		})
	}
}

func TestFencedWrites(t *testing.T) {
	for _, c := range []struct {
		name  string
		alter func(r *history.Run)
		want  []string
	}{
		{"may be missing if their outcome is unknown", func(r *history.Run) {
			r.Writes = slices.Concat(committed(1, "r1", 1), committed(2, "r2", 2))
		}, nil},
		{"may be in any order within a term", func(r *history.Run) {
			r.Writes = slices.Concat(committed(1, "r1", 1), committed(1, "r1", 2), committed(2, "r2", 2), committed(2, "r2", 1))
		}, nil},
		{"never fall back to an earlier term", func(r *history.Run) {
			r.Writes[3], r.Writes[4] = r.Writes[4], r.Writes[3]
		}, []string{"fenced: write 2 of r1 in term 1 was committed after write 1 of r2 in term 2"}},
		{"are each reported that fall back", func(r *history.Run) {
			r.Writes = slices.Concat(committed(2, "r2", 1), committed(1, "r1", 1), committed(1, "r1", 2), committed(2, "r2", 2))
		}, []string{"fenced: write 1 of r1 in term 1 was committed after write 1 of r2 in term 2", "fenced: write 2 of r1 in term 1 was committed after write 1 of r2 in term 2"}},
		{"are not committed if they were refused", func(r *history.Run) {
			r.Writes = append(r.Writes, committed(2, "r2", 3)...)
		}, []string{"fenced: write 3 of r2 in term 2 was committed, but r2.1 was told at 5.700 s that it was refused"}},
		{"are not committed if they were rolled back", func(r *history.Run) {
			r.Events = append(r.Events, wrote("r2.1", history.Writing, 2, 4, 5), wrote("r2.1", history.Undone, 2, 4, 5.1))
			r.Writes = append(r.Writes, committed(2, "r2", 4)...)
		}, []string{"fenced: write 4 of r2 in term 2 was committed, but r2.1 was told at 5.100 s that it was rolled back"}},
		{"may be rolled back", func(r *history.Run) {
			r.Events = append(r.Events, wrote("r2.1", history.Writing, 2, 4, 5), wrote("r2.1", history.Undone, 2, 4, 5.1))
		}, nil},
		{"are committed if they were told to be", func(r *history.Run) { r.Writes = r.Writes[:6] },
			[]string{"fenced: write 2 of r2 in term 2 is missing, but r2.1 was told at 5.000 s that it was committed"}},
		{"are not committed without the first row of their transaction", func(r *history.Run) { r.Writes = slices.Delete(r.Writes, 6, 7) },
			[]string{"fenced: write 2 of r2 in term 2 was committed in part: only row 2 of 2"}},
		{"are not committed without the second row of their transaction, whatever was told", func(r *history.Run) { r.Writes = slices.Delete(r.Writes, 3, 4) },
			[]string{"fenced: write 2 of r1 in term 1 was committed in part: only row 1 of 2"}},
		{"were tried", func(r *history.Run) { r.Writes = append(r.Writes, committed(3, "r1", 9)...) },
			[]string{"fenced: write 9 of r1 in term 3 was committed, but r1 never tried to"}},
		{"were tried in that term", func(r *history.Run) { r.Writes[4].Epoch, r.Writes[5].Epoch = 1, 1 },
			[]string{"fenced: write 1 of r2 in term 1 was committed, but r2 never tried to"}},
		{"were tried by that replica", func(r *history.Run) { r.Writes[2].Proc, r.Writes[3].Proc = "r2", "r2" },
			[]string{"fenced: write 2 of r2 in term 1 was committed, but r2 never tried to"}},
		{"are committed once", func(r *history.Run) { r.Writes = append(r.Writes, r.Writes[7]) },
			[]string{"fenced: write 2 of r2 in term 2 was committed twice"}},
		{"may begin until the last instant of their term", func(r *history.Run) { r.Writes[2].Began = micros(60) - 1 }, nil},
		{"do not begin at the instant at which their term has expired", func(r *history.Run) { r.Writes[2].Began = micros(60) },
			[]string{"fenced: row 1 of write 2 of r1 in term 1 was committed by a transaction that began 0 µs after its term had expired"}},
		{"do not begin after their term has expired", func(r *history.Run) { r.Writes[7].Began = micros(60.5) },
			[]string{"fenced: row 2 of write 2 of r2 in term 2 was committed by a transaction that began 500000 µs after its term had expired"}},
		{"may begin late if the clock was stepped meanwhile", func(r *history.Run) {
			r.Events = append(r.Events, stepped(4.95, -60))
			r.Writes[7].Began = micros(60.5)
		}, nil},
		{"may begin late if the clock was stepped and nobody knows when they ended", func(r *history.Run) {
			r.Events = append(r.Events, stepped(6.5, -60))
			r.Writes[3].Began = micros(60.5)
		}, nil},
		{"do not begin late if the clock was stepped before", func(r *history.Run) {
			r.Events = append(r.Events, stepped(4.85, -60))
			r.Writes[7].Began = micros(60.5)
		}, []string{"fenced: row 2 of write 2 of r2 in term 2 was committed by a transaction that began"}},
		{"may find their term gone, which others are to judge", func(r *history.Run) { r.Writes[3].Expires = 0 }, nil},
		{"are known by their outcome, too", func(r *history.Run) {
			r.Events = slices.DeleteFunc(r.Events, func(e history.Event) bool { return e.Kind == history.Writing && e.Epoch == 2 })
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := healthy()
			c.alter(r)
			reports(t, r, c.want...)
		})
	}
}

// The TTL is 3 s: a row expires a second after the end of its trust.
func TestTheMarginOfTheRow(t *testing.T) {
	begin, extend, end := history.Begin, history.Extend, history.End
	one := []history.Event{trusted("r1.1", begin, 1, 1.1, 3), trusted("r1.1", extend, 1, 2.1, 4)}
	for _, c := range []struct {
		name     string
		events   []history.Event
		versions []history.Version
		want     []string
	}{
		{"is a third of the TTL", one, []history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", 2, 5)}, nil},
		{"is told to the millisecond", one, []history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", 2, 4.997)}, nil},
		{"is not less", one, []history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", 2, 4.996)},
			[]string{"margin: r1.1 trusted itself in term 1 until 4.000 s, but no row of it was committed that expires a third of the TTL later: 4ms are missing"}},
		{"may be more", one, []history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", 2, 5), renewed(1, "r1", 2.5, 5.5)}, nil},
		{"needs the row of each renewal", one, []history.Version{renewed(1, "r1", 1, 4)}, []string{"margin: until 4.000 s, but no row of it"}},
		{"needs a row of that term", one, []history.Version{renewed(2, "r1", 1, 4), renewed(2, "r1", 2, 5)},
			[]string{"margin: r1.1 trusted itself in term 1, of which no row was committed"}},
		{"is not the release's", one, []history.Version{renewed(1, "r1", 1, 4), renewed(1, "", 1, 9)}, []string{"margin: until 4.000 s"}},
		{"was there before a release", one, []history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", 2, 5), renewed(1, "", 2, 3)}, nil},
		{"is that of the latest deadline, in whatever order they come", []history.Event{
			trusted("r1.1", begin, 1, 1.1, 3), trusted("r1.1", extend, 1, 2.1, 4), trusted("r1.1", extend, 1, 2.2, 3.5)},
			[]history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", 2, 4.5)}, []string{"margin: until 4.000 s"}},
		{"counts also if trust ended before its deadline", append(one[:2:2], trusted("r1.1", end, 1, 2.5, 2.5)),
			[]history.Version{renewed(1, "r1", 1, 4)}, []string{"margin: until 4.000 s"}},
		{"counts each term for itself", append(one[:2:2], trusted("r2.1", begin, 2, 5.1, 7)),
			[]history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", 2, 5), renewed(2, "r2", 4, 7)}, []string{"margin: r2.1 trusted itself in term 2 until 7.000 s"}},
		{"is not asked of trust that was over when it began", []history.Event{trusted("r1.1", begin, 1, 3, 3)}, []history.Version{renewed(1, "r1", 0.5, 3.5)}, nil},
		{"is by a clock that was stepped before", append(one[:2:2], stepped(-5, 100), stepped(-2.5, 10)),
			[]history.Version{renewed(1, "r1", 11, 14), renewed(1, "r1", 12, 15)}, nil},
		{"is by a clock that was stepped before, and not by the machine's", append(one[:2:2], stepped(-2.5, 10)),
			[]history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", 2, 5)}, []string{"margin: 10s are missing"}},
		{"is not told while the clock is stepped", append(one[:2:2], stepped(1.5, 10)), []history.Version{renewed(1, "r1", 1, 4)}, nil},
		{"is not told if the clock was stepped while the first statement was under way", append(one[:2:2], stepped(0, 10)), []history.Version{renewed(1, "r1", 1, 4)}, nil},
		{"is by the clock before a step that comes after the term", append(one[:2:2], stepped(2.5, 10)), []history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", 2, 5)}, nil},
		{"is told of a term before a step", append(one[:2:2], stepped(2.5, 10)), []history.Version{renewed(1, "r1", 1, 4)}, []string{"margin: until 4.000 s"}},

		{"does not shrink by an expiry that goes back", one, []history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", 2, 5), renewed(1, "r1", 2.1, 4.75)},
			[]string{"margin: in term 1 the expiry of the row went back by 250ms"}},
		{"does not shrink by a renewal that goes back", one, []history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", 2, 5), renewed(1, "r1", 1.5, 5)},
			[]string{"margin: in term 1 the renewal in the row went back by 500ms"}},
		{"does not shrink while the clock is stepped either", append(one[:2:2], stepped(1.5, -10)), []history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", -8, -5)},
			[]string{"margin: in term 1 the expiry of the row went back by 9s", "margin: in term 1 the renewal in the row went back by 9s"}},
		{"may stand still", one, []history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", 2, 5), renewed(1, "r1", 2, 5)}, nil},
		{"ends with a release", one, []history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", 2, 5), renewed(1, "", 1, 2), renewed(2, "r1", 0, 3)}, nil},
		{"begins anew with a term", one, []history.Version{renewed(1, "r1", 1, 4), renewed(1, "r1", 2, 5), renewed(2, "r2", 0, 3)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := play([]history.Event{started("w1.1", 0)}, c.events)
			r.Versions, r.OneClock = c.versions, true
			reports(t, r, c.want...)
		})
	}
}

func TestTheMarginIsNotToldByTheClockOfAnotherMachine(t *testing.T) {
	r := play([]history.Event{trusted("r1.1", history.Begin, 1, 1, 3)})
	r.Versions = []history.Version{renewed(1, "r1", -1, 2), renewed(1, "r1", -2, 2)}
	reports(t, r, "margin: in term 1 the renewal in the row went back by 1s")
}

func TestItems(t *testing.T) {
	add := func(events ...history.Event) func(*history.Run) {
		return func(r *history.Run) { r.Events = append(r.Events, events...) }
	}
	drop := func(kind history.Kind, key string, epoch, seq int64) func(*history.Run) {
		return func(r *history.Run) {
			r.Events = slices.DeleteFunc(r.Events, func(e history.Event) bool {
				return e.Kind == kind && e.Key == key && e.Epoch == epoch && e.Seq == seq
			})
		}
	}
	noted := func(note string, e history.Event) history.Event { e.Note = note; return e }
	refused := noted("lease: save \"a\": "+lease.ErrLost.Error(), worked("w1.1", history.Unsaved, "a", 1, 3, 1.4))
	for _, c := range []struct {
		name  string
		alter func(r *history.Run)
		want  []string
	}{
		{"are done in the end", func(r *history.Run) { r.Items[1] = history.Item{Key: "b", Epoch: 1} },
			[]string{`items: "b" is not done`, `items: claim 1 of "b" has no effect, but w2.1 was told at 5.200 s`}},
		{"may be in the making if the run is not complete", func(r *history.Run) {
			r.Complete, r.Items[1] = false, history.Item{Key: "b", Epoch: 1}
			drop(history.Done, "b", 1, 0)(r)
		}, nil},
		{"are told of no more than they are worth, also if the run is not complete", func(r *history.Run) {
			r.Complete, r.Items[1] = false, history.Item{Key: "b", Epoch: 1}
		}, []string{`items: claim 1 of "b" has no effect`}},
		{"are done with an effect", func(r *history.Run) { r.Items[1].Effects = nil },
			[]string{`items: "b" is done, but has no effect`, `items: claim 1 of "b" has no effect, but w2.1 was told`}},
		{"have one effect", func(r *history.Run) { r.Items[0].Effects = []int64{1, 2} }, []string{`items: "a" has the effects of 2 claims: [1 2]`}},
		{"have one effect, not twice that of one claim", func(r *history.Run) { r.Items[0].Effects = []int64{2, 2} }, []string{`items: "a" has the effects of 2 claims: [2 2]`}},
		{"have one effect, also if the run is not complete", func(r *history.Run) {
			r.Complete, r.Items[0].Effects = false, []int64{1, 2}
		}, []string{`items: "a" has the effects of 2 claims`}},
		{"have the effect of a claim that somebody had", func(r *history.Run) {
			r.Items[1] = history.Item{Key: "b", Done: true, Epoch: 7, Effects: []int64{7}}
			drop(history.Done, "b", 1, 0)(r)
		}, []string{`items: "b" has an effect of claim 7, but nobody was told of that claim`}},
		{"have the effect of the claim that was told to have made it", func(r *history.Run) {
			r.Items[0].Effects, r.Items[0].Epoch = []int64{1}, 1
		}, []string{
			`items: claim 2 of "a" has no effect, but w2.1 was told at 4.500 s`,
			`items: "a" ended with claim 1, but w2.1 was told at 4.000 s that claim 2 of "a" was claimed`,
			`items: "a" ended with claim 1, but w2.1 was told at 4.500 s that claim 2 of "a" was done`,
		}[1:]},
		{"have a told effect, with the right claim", func(r *history.Run) { r.Items[0].Effects = []int64{1} },
			[]string{`items: "a" was ended by claim 1, but its last claim is 2`, `items: claim 2 of "a" has no effect, but w2.1 was told at 4.500 s`}},
		{"may have an effect whose commit nobody was told of", drop(history.Done, "a", 2, 0), nil},
		{"are not claimed after they are done", func(r *history.Run) { r.Items[0].Epoch = 3 },
			[]string{`items: "a" was ended by claim 2, but its last claim is 3`}},
		{"do not forget a claim", add(worked("w2.1", history.Claimed, "b", 4, 0, 6)),
			[]string{`items: "b" ended with claim 1, but w2.1 was told at 6.000 s that claim 4 of "b" was claimed`}},
		{"do not vanish", func(r *history.Run) { r.Items = r.Items[:1] },
			[]string{`items: "b" is gone, after w2.1 was told at 5.000 s that it was claimed`, `items: "b" is gone, after w2.1 was told at 5.200 s that it was done`}},

		{"are never claimed twice in one epoch", func(r *history.Run) { add(worked("w3.1", history.Claimed, "a", 2, 0, 4.05))(r) },
			[]string{`items: claim 2 of "a" of w3.1, at 4.050 s, was w2.1's, at 4.000 s`}},
		{"are claimed in growing epochs, by one worker", func(r *history.Run) {
			add(started("w3.1", 0), worked("w3.1", history.Claimed, "b", 3, 0, 6), worked("w3.1", history.Claimed, "b", 2, 0, 7),
				worked("w3.1", history.Released, "b", 3, 0, 6.5))(r)
			r.Items[1] = history.Item{Key: "b", Done: true, Epoch: 3, Effects: []int64{3}}
			drop(history.Done, "b", 1, 0)(r)
		}, []string{`items: claim 2 of "b" was claimed by w3.1 between 6.500 s and 7.000 s, after claim 3 of "b" had been claimed by w3.1, at 6.000 s`}},
		{"are claimed in growing epochs, by a worker that started later", func(r *history.Run) {
			add(started("w3.1", 4.01), worked("w3.1", history.Claimed, "a", 0, 0, 4.02))(r)
		}, []string{`items: claim 0 of "a" was claimed by w3.1 between 4.010 s and 4.020 s, after claim 2 of "a" had been claimed by w2.1, at 4.000 s`}},
		{"may be claimed in an order that is not the one in which it was told", func(r *history.Run) {
			add(started("w3.1", 0.9), worked("w3.1", history.Claimed, "a", 0, 0, 6))(r)
		}, nil},
		{"may be told to be claimed by a worker of which nothing else is known", add(worked("w3.1", history.Claimed, "a", 0, 0, 6)), nil},
		{"are not saved through a claim after a later one was made", func(r *history.Run) {
			add(started("w3.1", 0), worked("w3.1", history.Claimed, "a", 0, 0, 0.5), worked("w3.1", history.Unsaved, "a", 0, 1, 4.05), worked("w3.1", history.Saved, "a", 0, 2, 4.06))(r)
			r.Saves = append([]history.Save{{Key: "a", Epoch: 0, Seq: 2}}, r.Saves...)
		}, []string{`items: claim 0 of "a" was saved by w3.1 between 4.050 s and 4.060 s, after claim 2 of "a" had been claimed by w2.1, at 4.000 s`}},
		{"may be saved just before a later claim is made, and told just after", func(r *history.Run) {
			add(started("w3.1", 0), worked("w3.1", history.Claimed, "a", 0, 0, 0.5), worked("w3.1", history.Saved, "a", 0, 2, 4.06), worked("w3.1", history.Lost, "a", 0, 0, 4.03))(r)
			r.Saves = append([]history.Save{{Key: "a", Epoch: 0, Seq: 2}}, r.Saves...)
		}, nil},
		{"are not ended through a claim after a later one was made", func(r *history.Run) {
			add(started("w3.1", 0), worked("w3.1", history.Claimed, "a", 0, 0, 0.5), worked("w3.1", history.Unsaved, "a", 0, 1, 4.05), worked("w3.1", history.Done, "a", 0, 0, 4.06))(r)
		}, []string{`items: claim 0 of "a" was done by w3.1 between 4.050 s and 4.060 s`, `items: claim 0 of "a" has no effect, but w3.1 was told`}},

		{"keep what was saved", func(r *history.Run) { r.Saves = r.Saves[1:] },
			[]string{`items: save 1 of claim 1 of "a" is missing, but w1.1 was told at 1.200 s that it was committed`}},
		{"may lack a save of unknown outcome", func(r *history.Run) { r.Saves = slices.Delete(r.Saves, 2, 3) }, nil},
		{"may have a save of unknown outcome", func(r *history.Run) { r.Saves = slices.Insert(r.Saves, 1, history.Save{Key: "a", Epoch: 1, Seq: 2}) }, nil},
		{"may have a save that its worker was killed over", func(r *history.Run) { r.Saves = slices.Insert(r.Saves, 1, history.Save{Key: "a", Epoch: 1, Seq: 3}) }, nil},
		{"do not have a save that the loss of its claim prevented", func(r *history.Run) {
			add(refused)(r)
			r.Saves = slices.Insert(r.Saves, 1, history.Save{Key: "a", Epoch: 1, Seq: 3})
		}, []string{`items: save 3 of claim 1 of "a" was committed, but w1.1 was told at 1.400 s that the claim was lost`}},
		{"may lack a save that the loss of its claim prevented", add(refused), nil},
		{"are not overwritten by an earlier claim", func(r *history.Run) { r.Saves[0], r.Saves[1] = r.Saves[1], r.Saves[0] },
			[]string{`items: save 1 of claim 1 of "a" overwrote save 1 of claim 2`}},
		{"are not overwritten by an earlier save", func(r *history.Run) { r.Saves[2], r.Saves[3] = r.Saves[3], r.Saves[2] },
			[]string{`items: save 2 of claim 2 of "a" overwrote save 3 of claim 2`}},
		{"are not saved by a claim that nobody had", func(r *history.Run) { r.Saves = append(r.Saves, history.Save{Key: "b", Epoch: 9, Seq: 1}) },
			[]string{`items: save 1 of claim 9 of "b" was committed, but nobody was told of that claim`}},
		{"are saved each by itself", func(r *history.Run) { r.Saves = append(r.Saves, history.Save{Key: "b", Epoch: 1, Seq: 1}) }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := healthy()
			c.alter(r)
			reports(t, r, c.want...)
		})
	}
}

// The TTL is 3 s: the limit is 5 s, or 8 s with a lost acquire.
func TestTheLeaseComesFree(t *testing.T) {
	begin, end := history.Begin, history.End
	two := []history.Event{trusted("r1.1", begin, 1, 1, 3), trusted("r2.1", begin, 2, 20, 22)}
	closing := func(seconds float64) []history.Event { return []history.Event{started("w9.1", seconds)} }
	for _, c := range []struct {
		name   string
		events [][]history.Event
		want   []string
	}{
		{"within the limit", [][]history.Event{{trusted("r1.1", begin, 1, 1, 3), trusted("r2.1", begin, 2, 8, 10)}}, nil},
		{"and not later", [][]history.Event{{trusted("r1.1", begin, 1, 1, 3), trusted("r2.1", begin, 2, 8.001, 10)}},
			[]string{"freed: nobody led for 5.001 s, which is more than 5.000 s, from the end of trust of r1.1 (term 1), at 3.000 s, until r2.1 (term 2) began, at 8.001 s"}},
		{"counted from an end before the deadline", [][]history.Event{{trusted("r1.1", begin, 1, 1, 3), trusted("r1.1", end, 1, 2, 2), trusted("r2.1", begin, 2, 7.5, 10)}},
			[]string{"freed: nobody led for 5.500 s"}},
		{"a TTL later if a term was lost", [][]history.Event{{trusted("r1.1", begin, 1, 1, 3), trusted("r2.1", begin, 3, 11, 13)}}, nil},
		{"and no more than that", [][]history.Event{{trusted("r1.1", begin, 1, 1, 3), trusted("r2.1", begin, 9, 11.5, 13)}},
			[]string{"freed: nobody led for 8.500 s, which is more than 8.000 s"}},
		{"from the longest trust, and not the latest", [][]history.Event{{
			trusted("r1.1", begin, 1, 1, 10), trusted("r2.1", begin, 2, 2, 3), trusted("r3.1", begin, 3, 14, 16)}}, []string{"trust: r2.1"}},
		{"at first, from the first start of a replica", [][]history.Event{
			{started("w1.1", 0), started("r1.1", 10), started("r2.1", 13), trusted("r1.1", begin, 1, 15, 17)}}, nil},
		{"at first, and not later", [][]history.Event{
			{started("w1.1", 0), started("r1.1", 10), started("r2.1", 13), trusted("r1.1", begin, 1, 15.5, 17)}},
			[]string{"freed: nobody led for 5.500 s, which is more than 5.000 s, from the first replica's start, at 10.000 s, until r1.1 (term 1) began, at 15.500 s"}},
		{"until the end of the run", [][]history.Event{{trusted("r1.1", begin, 1, 1, 3)}, closing(11)}, nil},
		{"until the end of the run, and not later", [][]history.Event{{trusted("r1.1", begin, 1, 1, 3)}, closing(11.5)},
			[]string{"freed: nobody led for 8.500 s, which is more than 8.000 s, from the end of trust of r1.1 (term 1), at 3.000 s, until the end of the run"}},
		{"if there ever was a replica", [][]history.Event{{started("r1.1", 0)}, closing(9)}, []string{"freed: nobody led for 9.000 s"}},
		{"with a leader at the end of the run", [][]history.Event{{trusted("r1.1", begin, 1, 1, 30)}, closing(20)}, nil},
		{"but not by a trust that is over when it begins", [][]history.Event{
			{trusted("r1.1", begin, 1, 1, 3), trusted("r2.1", begin, 2, 6, 6), trusted("r2.1", begin, 3, 11.5, 13)}},
			[]string{"freed: nobody led for 8.500 s, which is more than 8.000 s"}},

		{"counted from the end of a fault that keeps everyone out", [][]history.Event{two, fault(1, true, 2, 15)}, nil},
		{"within the limit from the end of a fault", [][]history.Event{two, fault(1, true, 2, 14.5)},
			[]string{"freed: nobody led for 5.500 s, which is more than 5.000 s, from the end of the fault db-stop, at 14.500 s, until r2.1 (term 2) began"}},
		{"whatever other faults there are", [][]history.Event{two, fault(1, false, 2, 19)}, []string{"freed: nobody led for 17.000 s"}},
		{"whatever faults there were before", [][]history.Event{two, fault(1, true, 1, 2.5)}, []string{"freed: nobody led for 17.000 s"}},
		{"whatever faults come after", [][]history.Event{two, fault(1, true, 21, 22)}, []string{"freed: nobody led for 17.000 s"}},
		{"unless the fault is not over yet", [][]history.Event{two, fault(1, true, 4, 21)}, nil},
		{"unless the fault never ends", [][]history.Event{two, fault(1, true, 4, 4)[:1]}, nil},
		{"also before a fault", [][]history.Event{two, fault(1, true, 9, 19)},
			[]string{"freed: nobody led for 6.000 s, which is more than 5.000 s, from the end of trust of r1.1 (term 1), at 3.000 s, until the fault db-stop began, at 9.000 s"}},
		{"also between two faults", [][]history.Event{two, fault(1, true, 2, 5), fault(2, true, 11, 19)}, []string{"freed: nobody led for 6.000 s"}},
		{"also if a short fault lies within a long one", [][]history.Event{two, fault(1, true, 2, 17), fault(2, true, 4, 5)}, nil},
		{"also if a fault ends as another begins", [][]history.Event{two, fault(1, true, 2, 10), fault(2, true, 10, 17)}, nil},

		{"while there is a replica at all", [][]history.Event{two, {
			started("r1.1", 0), started("r2.1", 0), exited("r1.1", 4), exited("r2.1", 5), started("r2.2", 15.5)}}, nil},
		{"in time after the return of one", [][]history.Event{two, {
			started("r1.1", 0), started("r2.1", 0), exited("r1.1", 4), exited("r2.1", 5), started("r2.2", 14)}},
			[]string{"freed: nobody led for 6.000 s, which is more than 5.000 s, from the end of the absence of every replica, at 14.000 s"}},
		{"as long as one replica runs", [][]history.Event{two, {
			started("r1.1", 0), started("r2.1", 0), exited("r1.1", 4), started("r1.2", 15.5)}}, []string{"freed: nobody led for 17.000 s"}},
		{"whatever ends that never started", [][]history.Event{two, {exited("r1.1", 4)}}, []string{"freed: nobody led for 17.000 s"}},
		{"and not after every replica was dismissed", [][]history.Event{{
			started("r1.1", 0), trusted("r1.1", begin, 1, 1, 3), exited("r1.1", 4)}, closing(60)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			reports(t, play([]history.Event{started("w1.1", 0)}, slices.Concat(c.events...)), c.want...)
		})
	}
}

func TestLeasesByHand(t *testing.T) {
	type events = [][]history.Event
	for _, c := range []struct {
		name   string
		events events
		want   string
	}{
		{"are held by one at a time", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c2.1", 1, 3, 4, acquire("y", 3, 5), got)},
			`linear: no order of the 2 operations on the lease "hand" explains their answers; the best explains 1, and leaves it in term 1, of "x", which expires at 22:13:26.000000; ` +
				`then c2.1's acquire by "y" at 22:13:23.000000 for 5s = true does not fit, from 3.000 s to 4.000 s`},
		{"are held by one of two who ask at the same time", events{
			called("c1.1", 1, 1, 3, acquire("x", 1, 5), history.Op{}), called("c2.1", 1, 2, 4, acquire("y", 2, 5), got)}, ""},
		{"are held by one of two, and not by none", events{
			called("c1.1", 1, 1, 3, acquire("x", 1, 5), history.Op{}), called("c2.1", 1, 2, 4, acquire("y", 2, 5), history.Op{})}, "linear: explains 0"},
		{"are not refused after a release", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c1.1", 2, 2.5, 3, release("x", 2), history.Op{}),
			called("c2.1", 1, 4, 5, acquire("y", 4, 1), history.Op{})}, `linear: then c2.1's acquire by "y"`},
		{"expire at the instant of their expiry", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c2.1", 1, 3, 4, acquire("y", 6, 5), got)}, ""},
		{"do not expire before", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c2.1", 1, 3, 4, acquire("y", 5.999999, 5), got)}, "linear: "},
		{"are renewed in the same term", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c1.1", 2, 2.5, 3, acquire("x", 2, 5), got), called("c1.1", 3, 4, 5, find, found("x", 1, 7))}, ""},
		{"are not renewed into a new term", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c1.1", 2, 2.5, 3, acquire("x", 2, 5), got), called("c1.1", 3, 4, 5, find, found("x", 2, 7))}, "linear: "},
		{"keep their expiry when they are renewed for less", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c1.1", 2, 2.5, 3, acquire("x", 2, 1), got), called("c1.1", 3, 4, 5, find, found("x", 1, 6))}, ""},
		{"do not expire earlier when they are renewed for less", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c1.1", 2, 2.5, 3, acquire("x", 2, 1), got), called("c1.1", 3, 4, 5, find, found("x", 1, 3))}, "linear: "},
		{"are put right by a renewal that is more than its TTL before the last", events{
			called("c1.1", 1, 1, 2, acquire("x", 20, 5), got), called("c1.1", 2, 2.5, 3, acquire("x", 14.999999, 5), got), called("c1.1", 3, 4, 5, find, found("x", 1, 19.999999))}, ""},
		{"are not put right by a renewal that is its TTL before the last", events{
			called("c1.1", 1, 1, 2, acquire("x", 20, 5), got), called("c1.1", 2, 2.5, 3, acquire("x", 15, 5), got), called("c1.1", 3, 4, 5, find, found("x", 1, 20))}, "linear: "},
		{"count a renewal as later than the last, whatever its time", events{
			called("c1.1", 1, 1, 2, acquire("x", 20, 5), got), called("c1.1", 2, 2.5, 3, acquire("x", 19, 5), got), called("c1.1", 3, 3.5, 4, acquire("x", 15, 5), got),
			called("c1.1", 4, 4.5, 5, find, found("x", 1, 20))}, ""},
		{"begin a new term after their expiry, for the same holder too", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 1), got), called("c1.1", 2, 2.5, 3, acquire("x", 2, 5), got), called("c1.1", 3, 4, 5, find, found("x", 2, 7))}, ""},
		{"do not keep the old term after their expiry", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 1), got), called("c1.1", 2, 2.5, 3, acquire("x", 2, 5), got), called("c1.1", 3, 4, 5, find, found("x", 1, 7))}, "linear: "},
		{"are held for no less than a microsecond", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 0), got), called("c1.1", 2, 4, 5, find, found("x", 1, 1.000001))}, ""},
		{"keep their epoch when they are released", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c1.1", 2, 2.5, 3, release("x", 2), history.Op{}), called("c1.1", 3, 4, 5, find, found("", 0, 2))}, "linear: find = term 0"},
		{"end when they are released", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c1.1", 2, 2.5, 3, release("x", 2), history.Op{}), called("c1.1", 3, 4, 5, find, found("x", 1, 6))}, "linear: "},
		{"are released by their holder alone", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c2.1", 2, 2.5, 3, release("y", 2), history.Op{}), called("c1.1", 3, 4, 5, find, found("x", 1, 6))}, ""},
		{"are not released after their expiry", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c1.1", 2, 2.5, 3, release("x", 6), history.Op{}), called("c1.1", 3, 4, 5, find, found("x", 1, 6))}, ""},
		{"are not found before they were ever held", events{
			called("c1.1", 1, 1, 2, find, found("x", 1, 6)), called("c1.1", 2, 3, 4, acquire("x", 1, 5), got)}, `linear: leaves it never held; then c1.1's find = term 1, of "x"`},
		{"are found once they were held", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c1.1", 2, 3, 4, find, missing)}, "linear: find = never held"},
		{"never go back to an earlier term", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 1), got), called("c2.1", 1, 3, 4, acquire("y", 3, 1), got),
			called("c2.1", 2, 5, 6, find, found("y", 2, 4)), called("c2.1", 3, 7, 8, find, found("x", 1, 2))}, "linear: "},
		{"are seen by one who looks while they change, as before or after", events{
			called("c1.1", 1, 1, 4, acquire("x", 1, 5), got), called("c2.1", 1, 2.5, 3, find, missing), called("c3.1", 1, 2.5, 3, find, found("x", 1, 6))}, ""},
		{"are not seen to change back", events{
			called("c1.1", 1, 1, 4, acquire("x", 1, 5), got), called("c2.1", 1, 2, 2.5, find, found("x", 1, 6)), called("c3.1", 1, 3, 3.5, find, missing)}, "linear: "},

		{"may have been taken by an acquire of unknown outcome", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), failed), called("c2.1", 1, 3, 4, acquire("y", 3, 5), history.Op{})}, ""},
		{"may not have been taken by an acquire of unknown outcome", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), failed), called("c2.1", 1, 3, 4, acquire("y", 3, 5), got)}, ""},
		{"may be taken by an acquire of unknown outcome long after", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 50), failed), called("c2.1", 1, 28, 29, find, missing), called("c2.1", 2, 30, 31, find, found("x", 1, 51))}, ""},
		{"may be taken by the acquire of a client that was killed", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 50), got)[:1], called("c2.1", 2, 30, 31, find, found("x", 1, 51))}, ""},
		{"are not taken before they are asked for", events{
			called("c2.1", 2, 3, 4, find, found("x", 1, 51)), called("c1.1", 1, 5, 6, acquire("x", 1, 50), failed)}, "linear: "},
		{"are taken once by an acquire of unknown outcome", events{
			called("c1.1", 1, 1, 2, acquire("x", 9, 5), failed), called("c2.1", 1, 3, 4, find, found("x", 1, 14)), called("c2.1", 2, 5, 6, release("x", 9), history.Op{}),
			called("c2.1", 3, 7, 8, find, found("x", 2, 14))}, "linear: "},
		{"may have been released by a release of unknown outcome", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c1.1", 2, 2.5, 3, release("x", 2), failed), called("c2.1", 1, 3, 4, acquire("y", 3, 5), got)}, ""},
		{"may not have been released by a release of unknown outcome", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c1.1", 2, 2.5, 3, release("x", 2), failed), called("c2.1", 1, 3, 4, acquire("y", 3, 5), history.Op{})}, ""},
		{"may have been renewed by two acquires of unknown outcome, which changes what a third does", events{
			called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c1.1", 2, 2.5, 3, acquire("x", 5, 5), failed), called("c1.1", 3, 3.5, 4, acquire("x", 9, 5), failed),
			called("c2.1", 1, 5, 6, find, found("x", 1, 14))}, ""},
		{"are not explained by a find of unknown outcome", events{
			called("c1.1", 1, 1, 2, find, failed), called("c2.1", 1, 5, 6, find, found("x", 1, 14))}, "linear: "},

		{"need the caller's time", events{called("c1.1", 1, 1, 2, history.Op{Name: "acquire", Holder: "x", TTL: 5}, got)[:1]}, "linear: what cannot be checked: "},
		{"need a name", events{called("c1.1", 1, 1, 2, history.Op{Name: "steal"}, got)[:1]}, "linear: what cannot be checked: "},
		{"return what was called", events{called("c1.1", 1, 1, 2, find, missing)[1:]}, "linear: the operation 1 of c1.1 is not one call and then one return"},
		{"return once", events{called("c1.1", 1, 1, 2, find, missing), called("c1.1", 1, 1, 3, find, missing)[1:]}, "linear: the operation 1 of c1.1 is not one call and then one return"},
		{"return once, if with an error", events{called("c1.1", 1, 1, 2, find, failed), called("c1.1", 1, 1, 3, find, missing)[1:]}, "linear: the operation 1 of c1.1 is not one call and then one return"},
		{"are called once", events{called("c1.1", 1, 1, 2, find, missing), called("c1.1", 1, 3, 4, find, missing)[:1]}, "linear: the operation 1 of c1.1 is not one call and then one return"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var want []string
			if c.want != "" {
				want = []string{c.want}
			}
			reports(t, play([]history.Event{started("w1.1", 0)}, slices.Concat(c.events...)), want...)
		})
	}
}

func TestLeasesByHandAreEachCheckedByItself(t *testing.T) {
	one, other := called("c1.1", 1, 1, 2, acquire("x", 1, 5), got), called("c2.1", 1, 3, 4, acquire("y", 3, 5), got)
	for i := range other {
		other[i].Key = "other"
	}
	reports(t, play(one, other))
	worse := called("c2.1", 2, 5, 6, find, missing)
	for i := range worse {
		worse[i].Key = "other"
	}
	reports(t, play(one, other, worse), `linear: on the lease "other"`)
}

func TestAHistoryThatIsTooHardIsReportedAsSuch(t *testing.T) {
	var events [][]history.Event
	// In any order, and no order explains the last.
	for i := range int64(40) {
		events = append(events, called(fmt.Sprintf("c%d.1", i), 1, 1, 2, acquire("x", 1, 5+float64(i)), got))
	}
	events = append(events, called("c1.1", 2, 3, 4, find, found("x", 1, 3)))
	r := play(events...)
	c := &checker{Run: *r, start: at(0)}
	c.linear(20 * time.Millisecond)
	if len(c.found) != 1 || c.found[0].Rule != "undecided" || !strings.Contains(c.found[0].Text, `no order of the 41 operations on the lease "hand" was found, in 20ms`) {
		t.Errorf("found %v", c.found)
	}
}

// The package's own guards, with one operation after the other. The model is
// exact if every history of the package passes.
func TestTheModelIsWhatTheDatabaseDoes(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		if err := lease.EnsureSchema(gdb); err != nil {
			t.Fatal(err)
		}
		var all []history.Event
		random := rand.New(rand.NewPCG(1, 2))
		for i := range int64(400) {
			now := float64(i)/100 - random.Float64()/10 // clocks disagree
			op := []history.Op{acquire("x", now, 0.03), acquire("y", now, 0.02), release("x", now), release("y", now), find}[random.IntN(5)]
			name, answer := fmt.Sprint("hand-", i%2), history.Op{}
			var err error
			switch op.Name {
			case "acquire":
				answer.Got, err = lease.TryAcquire(t.Context(), gdb, name, op.Holder, time.Duration(op.TTL)*time.Microsecond, time.UnixMicro(op.Now))
			case "release":
				err = lease.Release(t.Context(), gdb, name, op.Holder, time.UnixMicro(op.Now))
			case "find":
				var s lease.Status
				s, err = lease.Find(t.Context(), gdb, name)
				answer = history.Op{Holder: s.Holder, Epoch: s.Epoch, Expires: s.ExpiresAt.UnixMicro()}
				if errors.Is(err, gorm.ErrRecordNotFound) {
					answer, err = missing, nil
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			step := called("c1.1", i, float64(i), float64(i)+0.5, op, answer)
			step[0].Key, step[1].Key = name, name
			all = append(all, step...)
		}
		reports(t, play(all))
	})
}

// simulate makes a long history of a true lease. Its clients work at the same
// time, and many never hear the outcome.
func simulate(random *rand.Rand, clients, length int, unheard float64) []history.Event {
	type effect struct {
		at         float64
		op, answer *history.Op
	}
	var all []history.Event
	var effects []effect
	for client := range clients {
		holder := fmt.Sprint("h", client)
		seq := int64(0)
		for now := random.Float64(); now < float64(length)/float64(clients); now += random.Float64() {
			op := []history.Op{acquire(holder, now, 0.5+2*random.Float64()), acquire(holder, now, 0.5+2*random.Float64()), release(holder, now), find}[random.IntN(4)]
			takes, answer := random.Float64()/2, history.Op{}
			landed := now + random.Float64()*takes
			if random.Float64() < unheard {
				takes, answer = 2+3*random.Float64(), failed
				landed = now + 6*random.Float64()
			}
			step := called(fmt.Sprintf("c%d.1", client), seq, now, now+takes, op, answer)
			if answer != failed || random.IntN(2) == 0 {
				effects = append(effects, effect{landed, step[0].Op, step[1].Op})
			}
			all = append(all, step...)
			now += takes
			seq++
		}
	}
	slices.SortFunc(effects, func(a, b effect) int { return cmp.Compare(a.at, b.at) })
	var s state
	for _, e := range effects {
		switch e.op.Name {
		case "acquire":
			s, e.answer.Got = s.acquire(e.op.Holder, e.op.Now, e.op.TTL)
		case "release":
			s = s.release(e.op.Holder, e.op.Now)
		default:
			e.answer.Missing = s.epoch == 0
			e.answer.Holder, e.answer.Epoch, e.answer.Expires = s.holder, s.epoch, s.expires
		}
	}
	return all
}

func TestALongHistoryOfManyUnknownOutcomesPassesInTime(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 3 {
		reports(t, play(simulate(random, 3, 6000, 0.1)))
	}
}

func TestOneWrongAnswerAmongUnknownOutcomesIsReported(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		events := simulate(random, 3, 60, 0.05)
		var finds []*history.Op
		for _, e := range events {
			if e.Kind == history.Return && e.Op.Name == "find" && e.Op.Error == "" && !e.Op.Missing {
				finds = append(finds, e.Op)
			}
		}
		finds[random.IntN(len(finds))].Expires++
		reports(t, play(events), "linear: does not fit")
	}
}
