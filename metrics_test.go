package lease

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestMetricsTellTheLiveState(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		c.pass(T + T/12)
		want(t, scrape(t), map[string]float64{
			`lease_leader{lease="job"}`:                           1,
			`lease_epoch{lease="job"}`:                            1,
			`lease_deadline_seconds{lease="job"}`:                 (T*2/3 - T/12).Seconds(),
			`lease_work_overrunning{lease="job"}`:                 0,
			`lease_terms_total{lease="job"}`:                      1,
			`lease_renewals_total{lease="job", result="done"}`:    3,
			`lease_renewals_total{lease="job", result="failed"}`:  0,
			`lease_renewals_total{lease="job", result="refused"}`: 0,
		})
		a.store.cut()
		<-time.After(T*2/3 - T/12 - tick)
		want(t, scrape(t), map[string]float64{`lease_leader{lease="job"}`: 1, `lease_deadline_seconds{lease="job"}`: tick.Seconds()})
		<-time.After(tick)
		want(t, scrape(t), map[string]float64{`lease_leader{lease="job"}`: 0, `lease_deadline_seconds{lease="job"}`: 0})
		synctest.Wait()
		want(t, scrape(t), map[string]float64{
			`lease_terms_lost_total{lease="job", reason="deadline"}`: 1,
			`lease_terms_lost_total{lease="job", reason="taken"}`:    0,
			`lease_renewals_total{lease="job", result="failed"}`:     maxInFlight, // none was answered
		})
		a.stop(nil)
		<-a.done
		for series := range scrape(t) {
			if strings.Contains(series, `lease="job"`) {
				t.Errorf("a series of a stopped elector: %s", series)
			}
		}
	})
}

func TestAStandbyIsNoLeaderInTheMetrics(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.table.write(Record{Name: "job", Holder: "elsewhere", Epoch: 4, RenewedAt: time.Now(), ExpiresAt: time.Now().Add(T)})
		c.start("A")
		want(t, scrape(t), map[string]float64{`lease_leader{lease="job"}`: 0, `lease_epoch{lease="job"}`: 4, `lease_terms_total{lease="job"}`: 0})
	})
}

func TestDrainingWorkStillHoldsTheLeaseInTheMetrics(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) { <-ctx.Done(); <-time.After(T) })
		a.Resign()
		c.pass(T / 2)
		want(t, scrape(t), map[string]float64{`lease_leader{lease="job"}`: 1})
		c.pass(T/2 + tick)
		want(t, scrape(t), map[string]float64{`lease_leader{lease="job"}`: 0})
	})
}

func TestWorkThatOutlivesItsLeaseIsCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		let := make(chan struct{})
		a := c.run(c.add("A"), func(context.Context) { <-let })
		a.store.cut()
		c.pass(T*2/3 + tick)
		want(t, scrape(t), map[string]float64{
			`lease_leader{lease="job"}`: 0, `lease_work_overrunning{lease="job"}`: 1, `lease_work_overruns_total{lease="job"}`: 0})
		c.pass(T / 3)
		want(t, scrape(t), map[string]float64{`lease_work_overruns_total{lease="job"}`: 1})
		c.pass(3 * T)
		want(t, scrape(t), map[string]float64{`lease_work_overruns_total{lease="job"}`: 1})
		a.store.heal()
		close(let)
		c.pass(T)
		want(t, scrape(t), map[string]float64{`lease_work_overrunning{lease="job"}`: 0})
	})
}

func TestElectorsOfOneNameAreOneSeriesWhoseCountersNeverFall(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.start("A"), c.start("B")
		c.pass(T)
		before := scrape(t)
		want(t, before, map[string]float64{`lease_leader{lease="job"}`: 1, `lease_terms_total{lease="job"}`: 1})
		a.stop(nil)
		<-a.done
		c.passUntil(T, "B leads", b.IsLeader)
		again := c.start("A")
		c.pass(T)
		after := scrape(t)
		for name, value := range before {
			if strings.Contains(name, "_total") && after[name] < value {
				t.Errorf("%s fell from %v to %v", name, value, after[name])
			}
		}
		want(t, after, map[string]float64{`lease_leader{lease="job"}`: 1, `lease_terms_total{lease="job"}`: 2})
		c.leads(b)
		again.stop(nil)
		<-again.done
	})
}

func TestACollectorThatIsRegisteredTwiceIsRefusedAndLints(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.start("A")
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(NewCollector())
		if registry.Register(NewCollector()) == nil {
			t.Error("a second collector was accepted")
		}
		problems, err := testutil.CollectAndLint(NewCollector())
		if err != nil || len(problems) > 0 {
			t.Errorf("%v, %v", problems, err)
		}
	})
}

func TestThePrometheusTextIsValidWhateverTheLeaseIsCalled(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		name := "say \"hi\"\nand \\n {bye} ünïcode"
		a.Elector.run.name = name
		c.run(a, untilCancelled)
		c.pass(T)
		var text strings.Builder
		if err := WritePrometheus(&text); err != nil {
			t.Fatal(err)
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(text.String()))
		if err != nil {
			t.Fatal(err)
		}
		if got := families["lease_leader"].GetMetric()[0].GetLabel()[0].GetValue(); got != name {
			t.Errorf("the lease is called %q", got)
		}
	})
}

func TestThePrometheusTextIsTheGoldenOne(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.start("A")
		c.pass(T + T/12)
		var text strings.Builder
		for _, c := range claimCounters {
			c.DeleteLabelValues("jobs")
		}
		jobs := claimCountsOf("jobs")
		jobs.claim(false)
		jobs.claim(true)
		jobs.lose()
		jobs.refuse()
		if err := WritePrometheus(&text); err != nil {
			t.Fatal(err)
		}
		// Other tests observe latencies as well.
		got := regexp.MustCompile(`(?m)^(lease_renewal_duration_seconds\S*) \S+$`).ReplaceAllString(text.String(), "$1 N")
		got = regexp.MustCompile(`(?m)^lease_claim.*\n`).ReplaceAllStringFunc(got, func(line string) string {
			if !strings.Contains(line, `"jobs"`) {
				return "" // and they claim on other tables
			}
			return line
		})
		golden := filepath.Join("testdata", "metrics.txt")
		if os.Getenv("LEASE_UPDATE_GOLDEN") != "" {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		wanted, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(wanted) {
			t.Errorf("it differs from %s, which LEASE_UPDATE_GOLDEN=1 would rewrite:\n%s", golden, got)
		}
	})
}

func TestClaimsAreCountedByTable(t *testing.T) {
	db := dbtest.SQLite(t).Open(t)
	if err := errors.Join(EnsureSchema(db), EnsureSchema(Tables(db, "app_"))); err != nil {
		t.Fatal(err)
	}
	before := scrape(t)
	ctx, now := t.Context(), time.Date(2024, 3, 1, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	claim := func(db *gorm.DB, owner string) *Holder {
		h, err := Claim(ctx, db, "k", owner, "", time.Minute, clock)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	for _, db := range []*gorm.DB{db, Tables(db, "app_")} {
		if err := Create(ctx, db, Item{Key: "k"}); err != nil {
			t.Fatal(err)
		}
	}
	a := claim(db, "A")
	if err := a.Release(ctx); err != nil {
		t.Fatal(err)
	}
	b := claim(db, "B")
	now = now.Add(time.Minute)
	claim(db, "C")
	for range 2 { // a loss is counted once, a refusal every time
		if err := b.Save(ctx, b.Item()); !errors.Is(err, ErrLost) {
			t.Fatal(err)
		}
	}
	if err := db.Transaction(b.Fence); !errors.Is(err, ErrLost) {
		t.Fatal(err)
	}
	claim(Tables(db, "app_"), "A")
	grown := scrape(t)
	for name := range grown {
		grown[name] -= before[name]
	}
	want(t, grown, map[string]float64{
		`lease_claims_total{table="lease_items"}`:                   3,
		`lease_claim_takeovers_total{table="lease_items"}`:          1,
		`lease_claims_lost_total{table="lease_items"}`:              1,
		`lease_claim_writes_refused_total{table="lease_items"}`:     3,
		`lease_claims_total{table="app_lease_items"}`:               1,
		`lease_claim_takeovers_total{table="app_lease_items"}`:      0,
		`lease_claims_lost_total{table="app_lease_items"}`:          0,
		`lease_claim_writes_refused_total{table="app_lease_items"}`: 0,
	})
}

func TestScrapingWhileElectorsComeAndGoIsSafe(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 200 {
				var text strings.Builder
				if err := WritePrometheus(&text); err != nil {
					t.Error(err)
				}
				<-time.After(T / 100)
			}
		}()
		for i := range 10 {
			p := c.start(fmt.Sprint(i))
			c.pass(T / 10)
			p.stop(nil)
			<-p.done
		}
		<-done
	})
}

func TestElectorsOfOneNameOnTwoTablesAreOneSeries(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.table.row = &Record{Name: "job", Epoch: 4} // released
		a := c.start("A")
		c.table, c.ttl = &fakeTable{}, T/2
		b := c.start("B")
		if !a.IsLeader() || !b.IsLeader() {
			t.Fatal("both should lead, each on its own table")
		}
		series := scrape(t)
		want(t, series, map[string]float64{`lease_leader{lease="job"}`: 1, `lease_epoch{lease="job"}`: 5})
		if left := series[`lease_deadline_seconds{lease="job"}`]; left < (T / 2).Seconds() {
			t.Errorf("the longest deadline is %v", left)
		}
	})
}

func TestAnEpochThatWasSeenIsNotForgottenWhileALowerOneIsLed(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.table.write(Record{Name: "job", Holder: "old", Epoch: 7, RenewedAt: time.Now(), ExpiresAt: time.Now().Add(T)})
		a := c.start("A")
		c.table.edit(func(r *Record) { *r = Record{Name: "job", Epoch: 3} }) // by hand
		c.passUntil(T, "A leads", a.IsLeader)
		if term, _ := a.Term(); term.Epoch != 4 {
			t.Errorf("%v", term)
		}
		want(t, scrape(t), map[string]float64{`lease_epoch{lease="job"}`: 7})
	})
}

func TestWorkThatOutlivesItsLeaseForLongCountsOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(6 * T)
		})
		a.store.cut()
		c.pass(5 * T)
		want(t, scrape(t), map[string]float64{`lease_work_overruns_total{lease="job"}`: 1})
		a.store.heal()
	})
}
