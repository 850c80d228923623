package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// scrape asks the replica at address for its lease_leader, as Prometheus would.
// If the replica has no such series yet, ok is false.
func scrape(ctx context.Context, address string) (value string, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return "", false, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", false, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", false, fmt.Errorf("scrape %s: %s", address, response.Status)
	}
	const series = `lease_leader{lease="` + leaseName + `"} `
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if value, found := strings.CutPrefix(lines.Text(), series); found {
			return value, true, nil
		}
	}
	return "", false, lines.Err()
}
