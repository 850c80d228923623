package lease

import (
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// NewCollector returns a collector of what this process's electors do, for a
// Prometheus registry:
//
//	prometheus.MustRegister(lease.NewCollector())
//
// The collector tells the state at the time of the scrape, once per lease,
// however many electors of the same lease run here:
//
//   - lease_leader{lease}: 1 while this process holds the lease, also while its
//     work winds down, otherwise 0
//   - lease_epoch{lease}: the highest epoch seen
//   - lease_deadline_seconds{lease}: the time until the work would be
//     cancelled, if no renewal succeeds, and 0 while not leading
//   - lease_work_overrunning{lease}: works that go on although their lease was
//     lost
//   - lease_terms_total{lease}: terms that this process began
//   - lease_terms_lost_total{lease,reason}: terms that ended without being
//     given back
//   - lease_work_overruns_total{lease}: works that went on for longer than a
//     third of a TTL after the loss
//   - lease_renewals_total{lease,result}: attempts to renew: done, refused,
//     failed
//   - lease_renewal_duration_seconds: the duration of attempts that were
//     answered
//
// The collector also counts this process's claims, once per table of items,
// from the table's first use on:
//
//   - lease_claims_total{table}: claims made
//   - lease_claim_takeovers_total{table}: claims of items whose claim before
//     had run out
//   - lease_claims_lost_total{table}: claims that ended without being released
//     or left to run out
//   - lease_claim_writes_refused_total{table}: saves and fences of claims that
//     were no longer in force
//
// A lease's series begin with the Run of its first elector, and go when the
// last Run has returned. Until then its counters never fall. A registry takes
// one such collector. [prometheus.WrapRegistererWithPrefix] gives the names a
// prefix.
func NewCollector() prometheus.Collector { return collector{} }

// WritePrometheus writes what [NewCollector] collects to w, in Prometheus' text
// format, for services without a registry.
func WritePrometheus(w io.Writer) error {
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(NewCollector()); err != nil {
		return wrap("metrics", err)
	}
	families, err := registry.Gather()
	if err != nil {
		return wrap("metrics", err)
	}
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(w, family); err != nil {
			return wrap("metrics", err)
		}
	}
	return nil
}

var (
	leaderDesc    = describe("leader", "1 while this process holds the lease.")
	epochDesc     = describe("epoch", "The highest epoch of the lease that was seen.")
	deadlineDesc  = describe("deadline_seconds", "Seconds until the work would be cancelled, if no renewal succeeds.")
	overrunDesc   = describe("work_overrunning", "Works that go on although their lease was lost.")
	termsDesc     = describe("terms_total", "Terms that this process began.")
	lostDesc      = describe("terms_lost_total", "Terms that this process lost, by reason.", "reason")
	overrunsDesc  = describe("work_overruns_total", "Works that went on for longer than a third of the TTL after their lease was lost.")
	renewalsDesc  = describe("renewals_total", "Attempts to renew the lease, by result.", "result")
	renewalLength = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "lease_renewal_duration_seconds",
		Help:    "How long renewals took that were answered.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
	})
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lease_"+name, help, append([]string{"lease"}, labels...), nil)
}

// The counters of claims.
var (
	claimsMade    = countClaims("claims_total", "Claims of items that this process made.")
	claimsTaken   = countClaims("claim_takeovers_total", "Claims of items whose claim before had run out.")
	claimsLost    = countClaims("claims_lost_total", "Claims that this process lost.")
	claimsRefused = countClaims("claim_writes_refused_total", "Saves and fences that were refused since the claim was no longer in force.")

	claimCounters = []*prometheus.CounterVec{claimsMade, claimsTaken, claimsLost, claimsRefused}
)

func countClaims(name, help string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lease_" + name, Help: help}, []string{"table"})
}

// claimCounts holds the counters of the claims on a table.
type claimCounts struct{ made, taken, lost, refused prometheus.Counter }

func claimCountsOf(table string) *claimCounts {
	return &claimCounts{
		made: claimsMade.WithLabelValues(table), taken: claimsTaken.WithLabelValues(table),
		lost: claimsLost.WithLabelValues(table), refused: claimsRefused.WithLabelValues(table),
	}
}

func (c *claimCounts) claim(expired bool) {
	c.made.Inc()
	if expired {
		c.taken.Inc()
	}
}

func (c *claimCounts) lose()   { c.lost.Inc() }
func (c *claimCounts) refuse() { c.refused.Inc() }

type collector struct{}

// Describe implements [prometheus.Collector].
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{leaderDesc, epochDesc, deadlineDesc, overrunDesc, termsDesc, lostDesc, overrunsDesc, renewalsDesc} {
		ch <- d
	}
	renewalLength.Describe(ch)
	for _, c := range claimCounters {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (collector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range electors.snapshots() {
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, s.lease)
		}
		count := func(d *prometheus.Desc, v int64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{s.lease}, labels...)...)
		}
		gauge(leaderDesc, float64(min(s.leading, 1)))
		gauge(epochDesc, float64(s.epoch))
		gauge(deadlineDesc, s.left.Seconds())
		gauge(overrunDesc, float64(s.overrunning))
		count(termsDesc, s.terms)
		for reason, n := range s.lost {
			count(lostDesc, n, reason)
		}
		count(overrunsDesc, s.overruns)
		for result, n := range s.renewals {
			count(renewalsDesc, n, result)
		}
	}
	renewalLength.Collect(ch)
	for _, c := range claimCounters {
		c.Collect(ch)
	}
}

// The results of an attempt to renew.
const (
	renewalDone    = "done"
	renewalRefused = "refused" // the statement's guard refused, usually because the term is over
	renewalFailed  = "failed"  // no answer, or an error
)

// counts holds the counters of a lease's electors.
type counts struct {
	terms, overruns int64
	lost            map[string]int64 // by reason
	renewals        map[string]int64 // by result
}

// A snapshot is the state of one lease in this process.
type snapshot struct {
	counts
	lease                string
	leading, overrunning int
	epoch                int64
	left                 time.Duration // the longest of the tenures that lead
}

// A tally counts for all electors of a lease in this process, while any of them
// runs.
type tally struct {
	mu     sync.Mutex // guards the fields below
	runs   []*run
	counts counts
}

func (t *tally) add(count func(*counts)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	count(&t.counts)
}

func (t *tally) begin()             { t.add(func(c *counts) { c.terms++ }) }
func (t *tally) lose(reason string) { t.add(func(c *counts) { c.lost[reason]++ }) }
func (t *tally) overrun()           { t.add(func(c *counts) { c.overruns++ }) }

// renewal counts an attempt. took is used only if the attempt was answered.
func (t *tally) renewal(result string, took time.Duration) {
	t.add(func(c *counts) { c.renewals[result]++ })
	if result != renewalFailed {
		renewalLength.Observe(took.Seconds())
	}
}

// electors holds all runs of this process, by lease.
var electors = registry{tallies: map[string]*tally{}}

type registry struct {
	mu      sync.Mutex // guards tallies
	tallies map[string]*tally
}

// join enters a run, and returns the tally of its lease.
func (g *registry) join(r *run) *tally {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.tallies[r.name]
	if t == nil {
		t = &tally{counts: counts{
			lost:     map[string]int64{byDeadline: 0, byTakeover: 0, byOthers: 0, byDeletion: 0, byRefusal: 0},
			renewals: map[string]int64{renewalDone: 0, renewalRefused: 0, renewalFailed: 0},
		}}
		g.tallies[r.name] = t
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.runs = append(t.runs, r)
	return t
}

// leave removes a run. With the last run of a lease, it removes the tally.
func (g *registry) leave(r *run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.tallies[r.name]
	t.mu.Lock()
	defer t.mu.Unlock()
	t.runs = slices.DeleteFunc(t.runs, func(other *run) bool { return other == r })
	if len(t.runs) == 0 {
		delete(g.tallies, r.name)
	}
}

// snapshots asks every run for its current state.
func (g *registry) snapshots() []snapshot {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []snapshot
	for name, t := range g.tallies {
		all = append(all, t.snapshot(name))
	}
	return all
}

func (t *tally) snapshot(lease string) snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := snapshot{lease: lease, counts: t.counts}
	s.lost, s.renewals = maps.Clone(t.counts.lost), maps.Clone(t.counts.renewals)
	for _, r := range t.runs {
		s.epoch = max(s.epoch, r.highest())
		switch t := r.tenure(); {
		case t == nil:
		case t.held():
			s.leading++
			s.left = max(s.left, t.left())
		default:
			s.overrunning++
		}
	}
	return s
}
