package monitoring

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/sqllease/lease/internal/dbtest"
)

const howToGetPrometheus = "no Prometheus (prometheus, promtool) on the PATH:" +
	" install it (Debian: RUNLEVEL=1 apt-get install --no-install-recommends prometheus, which starts no server)"

// program returns the path of one of Prometheus' programs. Without it the test is skipped, or fails if LEASE_REQUIRE_PROMETHEUS=1.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	switch os.Getenv("LEASE_REQUIRE_PROMETHEUS") {
	case "", "0", "false":
		t.Skip(howToGetPrometheus)
	}
	t.Fatalf("LEASE_REQUIRE_PROMETHEUS=1, but %s", howToGetPrometheus)
	return ""
}

// A watcher is a Prometheus, with the configuration and the rules of this directory at the pace of the tests' TTL, and the replicas that it scrapes.
type watcher struct {
	t        *testing.T
	dir, url string
	process  *process
	begin    time.Time
	replicas []*replica
}

// watch starts a Prometheus, which ends with the test.
func watch(t *testing.T) *watcher {
	t.Helper()
	binary := program(t, "prometheus")
	w := &watcher{t: t, dir: t.TempDir(), begin: time.Now()}
	for _, file := range []string{"prometheus.yml", "alerts.yml"} {
		w.write(file, paced(t, file))
	}
	w.target()
	address := freeAddress(t)
	w.url = "http://" + address
	w.process = startProcess(t, exec.Command(binary,
		"--config.file="+filepath.Join(w.dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(w.dir, "data"),
		"--web.listen-address="+address,
		"--scrape.discovery-reload-interval=100ms",
		"--log.level=warn"))
	w.eventually("Prometheus is ready", func() bool {
		response, err := http.Get(w.url + "/-/ready")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return w
}

func (w *watcher) write(file, text string) {
	w.t.Helper()
	name := filepath.Join(w.dir, file)
	if err := os.WriteFile(name+".new", []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil { // in one step, for Prometheus reads it meanwhile
		w.t.Fatal(err)
	}
}

// target tells Prometheus whom to scrape.
func (w *watcher) target() {
	w.t.Helper()
	targets := []string{}
	for _, r := range w.replicas {
		targets = append(targets, r.Address)
	}
	text, err := json.Marshal([]map[string]any{{"targets": targets}}) // which is YAML, too
	if err != nil {
		w.t.Fatal(err)
	}
	w.write("replicas.yml", string(text))
}

// start adds replicas on one database, and waits until all are scraped.
func (w *watcher) start(db *dbtest.Database, n int, does work) {
	w.t.Helper()
	for range n {
		r := newReplica(w.t, db, does)
		r.start()
		w.replicas = append(w.replicas, r)
	}
	w.target()
	w.allScraped()
}

func (w *watcher) allScraped() {
	w.t.Helper()
	w.eventually("all replicas are scraped", func() bool { return w.value("count(lease_leader)") == float64(len(w.replicas)) })
}

// leader waits until Prometheus sees one leader, which is among the living, and returns it.
func (w *watcher) leader() (leader *replica) {
	w.t.Helper()
	w.eventually("one replica leads", func() bool {
		leaders := w.query(`lease_leader == 1`)
		if len(leaders) != 1 || w.value(`lease:lease_leader:sum`) != 1 {
			return false
		}
		i := slices.IndexFunc(w.replicas, func(r *replica) bool { return r.Address == leaders[0].labels["instance"] })
		leader = w.replicas[i]
		return leader.process.runs() // or this is its last sample
	})
	return leader
}

// leaders looks back: at the most leaders at any time, in the series or to the rules, and at how often the only one was followed by none.
func (w *watcher) leaders() (most float64, falls int) {
	w.t.Helper()
	before := 0.0
	for _, now := range w.soFar(`sum by (lease) (lease_leader)`) {
		if before == 1 && now.value == 0 {
			falls++
		}
		most, before = max(most, now.value), now.value
	}
	return max(most, w.value(`max_over_time(lease:lease_leader:sum[1h])`)), falls
}

func (w *watcher) eventually(what string, reached func() bool) {
	w.t.Helper()
	within(w.t, soon, what, func() bool {
		if !w.process.runs() {
			w.t.Fatalf("Prometheus has ended: %v", w.process.err)
		}
		return reached()
	})
}

// fires waits until Prometheus fires an alert about the lease.
func (w *watcher) fires(alert string) {
	w.t.Helper()
	w.eventually(alert+" fires", func() bool { return len(w.query(firing(alert))) > 0 })
}

// clears waits until it does so no more.
func (w *watcher) clears(alert string) {
	w.t.Helper()
	w.eventually(alert+" clears", func() bool { return len(w.query(firing(alert))) == 0 })
}

func (w *watcher) neverFired(alert string) {
	w.t.Helper()
	if fired := w.soFar(firing(alert)); len(fired) > 0 {
		w.t.Errorf("%s fired, %v after the beginning", alert, fired[0].at.Sub(w.begin))
	}
}

func firing(alert string) string {
	return fmt.Sprintf(`ALERTS{alertname=%q, alertstate="firing", lease=%q}`, alert, leaseName)
}

// A series is one of an answer, with its values in order.
type series struct {
	labels map[string]string
	points []point
}

type point struct {
	at    time.Time
	value float64
}

// query asks what holds now.
func (w *watcher) query(query string) []series {
	w.t.Helper()
	return w.ask("query", url.Values{"query": {query}})
}

// value is that of the only series that a query finds; -1 if there is none.
func (w *watcher) value(query string) float64 {
	w.t.Helper()
	switch found := w.query(query); len(found) {
	case 0:
		return -1
	case 1:
		return found[0].points[0].value
	default:
		w.t.Fatalf("%s: %v", query, found)
		return 0
	}
}

// soFar asks what held from the beginning until now, every 20 ms, of one series at most.
func (w *watcher) soFar(query string) []point {
	w.t.Helper()
	found := w.ask("query_range", url.Values{
		"query": {query}, "start": {w.begin.Format(time.RFC3339Nano)}, "end": {time.Now().Format(time.RFC3339Nano)}, "step": {"20ms"},
	})
	switch len(found) {
	case 0:
		return nil
	case 1:
		return found[0].points
	default:
		w.t.Fatalf("%s: %v", query, found)
		return nil
	}
}

// ask calls Prometheus' HTTP API.
func (w *watcher) ask(path string, parameters url.Values) (found []series) {
	w.t.Helper()
	response, err := http.PostForm(w.url+"/api/v1/"+path, parameters)
	if err != nil {
		w.t.Fatal(err)
	}
	defer response.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Value  json.RawMessage // [seconds, "value"]
				Values []json.RawMessage
			}
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || answer.Status != "success" {
		w.t.Fatalf("%s %v: %s: %v %s", path, parameters, response.Status, err, answer.Error)
	}
	for _, r := range answer.Data.Result {
		s := series{labels: r.Metric}
		if r.Value != nil {
			r.Values = append(r.Values, r.Value)
		}
		for _, v := range r.Values {
			s.points = append(s.points, parsePoint(w.t, v))
		}
		found = append(found, s)
	}
	return found
}

func parsePoint(t *testing.T, pair json.RawMessage) point {
	t.Helper()
	var seconds float64
	var text string
	if err := json.Unmarshal(pair, &[]any{&seconds, &text}); err != nil {
		t.Fatalf("%s: %v", pair, err)
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatalf("%s: %v", pair, err)
	}
	return point{time.UnixMilli(int64(seconds*1000 + .5)), value}
}
