// Package report shows people what a torture run did: a line while it goes on (Progress), a table at its end (Summary), and a timeline (Picture).
// It judges nothing: what is a violation comes from the checker.
package report

import (
	"time"

	"github.com/sqllease/lease/internal/torture/check"
)

// Options are what a history.Run does not tell of itself. The zero value shows what it can.
type Options struct {
	Backend    string
	Violations []check.Violation

	// What Picture shows, since the first event. Both 0 mean all of it; of a run longer than a minute and a quarter its most eventful minute.
	From, To time.Duration
}
