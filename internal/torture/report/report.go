// Package report shows a torture run to people: a line during the run
// (Progress), a table at its end (Summary), and a timeline (Picture). Package
// report judges nothing. Violations come from the checker.
package report

import (
	"time"

	"github.com/sqllease/lease/internal/torture/check"
)

// Options add facts that a history.Run does not have. With the zero value,
// Summary and Picture show everything else.
type Options struct {
	Backend    string
	Violations []check.Violation

	// The part that Picture shows, counted from the first event. If both are 0,
	// Picture shows the whole run, or the most eventful minute of a run longer
	// than a minute and a quarter.
	From, To time.Duration
}
