package monitoring

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestPromtoolAcceptsTheConfigurationAndTheRulesAndTheirTests(t *testing.T) {
	t.Parallel()
	promtool := program(t, "promtool")
	for _, args := range []string{
		"check config prometheus.yml",
		"check rules --lint=all --lint-fatal alerts.yml",
		"test rules alerts_test.yml",
	} {
		if out, err := exec.Command(promtool, strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", args, err, out)
		}
	}
}

func TestEachAlertIsTestedByPromtoolAndInAPrometheus(t *testing.T) {
	rules, tests := read(t, "alerts.yml"), read(t, "alerts_test.yml")
	alerts := regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(rules, -1)
	if len(alerts) == 0 {
		t.Fatal("no alerts")
	}
	live := read(t, "monitoring_test.go")
	for _, a := range alerts {
		if !strings.Contains(tests, "- alertname: "+a[1]+"\n") {
			t.Errorf("alerts_test.yml does not test %s", a[1])
		}
		for _, does := range []string{"fires", "clears"} {
			if !strings.Contains(live, fmt.Sprintf("w.%s(%q)", does, a[1])) {
				t.Errorf("no Prometheus is asked whether %s %s", a[1], does)
			}
		}
	}
}

// The TTL and the interval of scrapes that the numbers in alerts.yml and prometheus.yml are for.
const (
	shippedTTL    = 15 * time.Second
	shippedScrape = 3 * time.Second
)

func TestTheNumbersAreWhatTheirCommentsSay(t *testing.T) {
	for _, file := range []string{"prometheus.yml", "alerts.yml"} {
		shipped := read(t, file)
		if again := repaced(t, shipped, shippedTTL, shippedScrape); again != shipped {
			t.Errorf("%s, from its comments, would be\n%s", file, again)
		}
	}
	if scrape := "scrape_interval: " + shippedScrape.String() + " "; !strings.Contains(read(t, "prometheus.yml"), scrape) {
		t.Errorf("prometheus.yml has no %s", scrape)
	}
}

func TestEveryDurationInTheRulesFollowsTheTTLButTheMemoryOfAnHour(t *testing.T) {
	var unmarked []string
	for line := range strings.Lines(read(t, "alerts.yml")) {
		code, _, _ := strings.Cut(line, "#")
		if !marked.MatchString(line) {
			unmarked = append(unmarked, regexp.MustCompile(`\b\d+(ms|s|m|h|d)\b`).FindAllString(code, -1)...)
		}
	}
	if !slices.Equal(unmarked, []string{"1h"}) {
		t.Errorf("these have no comment: %q", unmarked)
	}
}

// paced returns a file of this directory with the numbers for the tests' TTL.
func paced(t *testing.T, file string) string {
	t.Helper()
	return repaced(t, read(t, file), ttl, ttl*shippedScrape/shippedTTL)
}

// marked is a line with a number that depends on the TTL or the scrape interval, and a comment that says how:
//
//	for: 30s # 2 TTL
var marked = regexp.MustCompile(`^([^#]*?)(\d+(?:\.\d+)?)(ms|s|m|)([^#0-9]*# (\d+)(?:/(\d+))? (TTL|scrapes)\b(?s:.*))$`)

// repaced computes every marked number anew. A plain number is in seconds. What is computed to a number's own value stays as it was written.
func repaced(t *testing.T, text string, ttl, scrape time.Duration) string {
	t.Helper()
	var all strings.Builder
	for line := range strings.Lines(text) {
		part := marked.FindStringSubmatch(line)
		if part == nil {
			all.WriteString(line)
			continue
		}
		before, number, unit, after := part[1], part[2], part[3], part[4]
		value := map[string]time.Duration{"TTL": ttl, "scrapes": scrape}[part[7]] * atoi(t, part[5])
		if part[6] != "" {
			value /= atoi(t, part[6])
		}
		written, err := time.ParseDuration(number + map[string]string{"": "s"}[unit] + unit)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		switch {
		case written == value:
		case unit == "":
			number = strconv.FormatFloat(value.Seconds(), 'f', -1, 64)
		default:
			number, unit = strconv.FormatInt(value.Milliseconds(), 10), "ms"
		}
		all.WriteString(before + number + unit + after)
	}
	return all.String()
}

func atoi(t *testing.T, s string) time.Duration {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n)
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
