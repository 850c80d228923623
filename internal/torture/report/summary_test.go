package report

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sqllease/lease/internal/torture/check"
	"github.com/sqllease/lease/internal/torture/history"
)

func TestASummaryTellsWhatARunCameTo(t *testing.T) {
	var out strings.Builder
	err := Summary(&out, aScene().run, Options{Backend: "postgres", Violations: []check.Violation{
		{Rule: "trust", At: origin + 3*second/2, Text: "two leaders"}, {Rule: "items", Text: "an item is lost"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "summary.txt", out.String())
}

func TestATakeoverHasTheCauseThatEndedTheTermBefore(t *testing.T) {
	const lost, T = "lease lost", 1500
	begin := func() *maker { return newMaker(T*time.Millisecond, 3).leads("r1", 1, 100, 2000) } // until 3000
	for _, c := range []struct {
		name  string
		m     *maker
		cause Cause
		alone bool
	}{
		{"killed", begin().fault("kill", "r1", 2200, 4000, false).at(2210).exited("r1", "killed"), Killed, true},
		{"killed while another is frozen", begin().fault("freeze", "r2", 2500, 2600, false).at(2700).exited("r1", "killed"), Killed, false},
		{"killed while a worker is frozen", begin().fault("freeze", "w2", 2500, 2600, false).at(2700).exited("r1", "killed"), Killed, true},
		{"killed while a worker has the database's lock", begin().fault("freeze", "w2", 2500, 2600, true).at(2700).exited("r1", "killed"), Killed, false},
		{"killed while another is down", begin().at(2300).exited("r2", "killed").at(2700).exited("r1", "killed"), Killed, false},
		{"killed when its trust was over", begin().ends("r1", 1, 3000, 100, lost).at(3200).exited("r1", "killed"), Other, true},
		{"frozen", begin().fault("freeze", "r1", 2100, 5000, false).ends("r1", 1, 5000, 1, lost), Frozen, true},
		{"frozen, and killed before it was thawed", begin().fault("freeze", "r1", 2100, 5000, false).at(4000).exited("r1", "killed"), Frozen, true},
		{"frozen in a transaction", begin().fault("hold", "r1", 2100, 5000, false).ends("r1", 1, 5000, 1, lost), Frozen, true},
		{"cut off", begin().fault("drop-replies", "r1", 2100, 5000, false).ends("r1", 1, 3000, 1, lost), CutOff, true},
		{"cut off, with work that goes on", begin().fault("overrun", "r1", 2100, 5000, false).ends("r1", 1, 3000, 999, lost), CutOff, true},
		{"frozen, with work that goes on", begin().fault("overrun", "r1", 2100, 5000, true).ends("r1", 1, 3000, 999, lost), Frozen, true},
		{"stopped", begin().fault("stop", "r1", 2100, 5000, false).ends("r1", 1, 2200, 0, "terminated signal received").at(2201).exited("r1", "exit status 0"), Stopped, true},
		{"stopped while the database is away", begin().fault("lock", database, 2000, 2300, true).ends("r1", 1, 2200, 0, "terminated signal received").at(2201).exited("r1", "exit status 0"), Stopped, false},
		{"resigned", begin().fault("resign", "r1", 2100, 5000, false).ends("r1", 1, 2200, 0, "lease resigned"), Resigned, true},
		{"its work returned", begin().fault("return", "r1", 2100, 5000, false).ends("r1", 1, 2200, 0, ""), WorkReturned, true},
		{"its pool was exhausted", begin().fault("exhaust", "r1", 2100, 5000, false).ends("r1", 1, 3000, 0, lost), PoolExhausted, true},
		{"its clock was stepped", begin().fault("clock", "r1", 2100, 5000, false).ends("r1", 1, 2110, 0, lost), ClockStepped, true},
		{"database", begin().fault("db-stop", database, 2100, 5000, true).ends("r1", 1, 3000, 0, lost), DatabaseFault, true},
		{"somebody froze with the lock", begin().fault("freeze", "w1", 2100, 5000, true).ends("r1", 1, 3000, 0, lost), DatabaseFault, true},
		{"a fault that was over before", begin().fault("hang", "r1", 1000, 1800, false).ends("r1", 1, 3000, 0, lost), Other, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.m.at(3520).trusts("r2", history.Begin, 2)
			got := Takeovers(c.m.run)
			if len(got) != 1 {
				t.Fatalf("%d takeovers", len(got))
			}
			if got[0].Cause != c.cause || got[0].Alone != c.alone {
				t.Errorf("it is %q, alone %v, rather than %q, %v", got[0].Cause, got[0].Alone, c.cause, c.alone)
			}
			if took := got[0].SinceRenewal(); took != 1520*time.Millisecond {
				t.Errorf("it took %v since the last renewal", took)
			}
		})
	}
}

func TestWithoutALeaderIsFromTheEndOfTrust(t *testing.T) {
	m := newMaker(1500*time.Millisecond, 2).leads("r1", 1, 100, 2000).ends("r1", 1, 2400, 10, "lease resigned").leads("r2", 2, 2700, 2700)
	m.leads("r1", 3, 3600, 3600) // before r2's trust has ended, at 3700
	got := Takeovers(m.run)
	if len(got) != 2 || got[0].SinceTrust() != 300*time.Millisecond || got[1].SinceTrust() != -100*time.Millisecond {
		t.Errorf("takeovers %+v", got)
	}
}

func TestAPercentileIsOneOfTheValues(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	slices.Reverse(hundred)
	for _, c := range []struct {
		of     []time.Duration
		p      float64
		wanted time.Duration
	}{
		{nil, 0.5, 0}, {[]time.Duration{7}, 0.5, 7}, {[]time.Duration{7}, 0.99, 7}, {[]time.Duration{3, 1, 2}, 0.5, 2}, {[]time.Duration{4, 3, 1, 2}, 0.5, 2},
		{[]time.Duration{3, 1, 2}, 0.99, 3}, {hundred, 0.5, 50}, {hundred, 0.99, 99}, {hundred, 1, 100}, {hundred, 0, 1},
	} {
		if got := percentile(c.of, c.p); got != c.wanted {
			t.Errorf("the %v percentile of %d values is %d, not %d", c.p, len(c.of), got, c.wanted)
		}
	}
}

func TestDurationsAreReadable(t *testing.T) {
	for d, wanted := range map[time.Duration]string{
		0: "0 s", 3214 * time.Microsecond: "3.2 ms", 340 * time.Millisecond: "340 ms", 999700 * time.Microsecond: "1 s", 1500 * time.Millisecond: "1.5 s",
		1234 * time.Millisecond: "1.23 s", time.Minute: "1 min", 59999 * time.Millisecond: "1 min", 605 * time.Second: "10 min 5 s", -20 * time.Millisecond: "-20 ms",
	} {
		if got := readable(d); got != wanted {
			t.Errorf("%v is %q, not %q", d, got, wanted)
		}
	}
}
