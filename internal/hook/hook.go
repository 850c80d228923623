// Package hook lets the torture harness see what an elector trusts, before it does, and gives it a clock of its own. Nothing else sets
// anything here, and what is set is set before the first elector runs.
package hook

import "time"

// A Step is one that an elector takes in trusting a term.
type Step string

// The steps.
const (
	Begin  Step = "begin"  // the work may start, until the deadline
	Extend Step = "extend" // the deadline moves
	End    Step = "end"    // IsLeader is false, and will be
)

// Trust, if it is set, is called with every step: before Begin and Extend are taken, and after End, but before anything that follows from
// it, such as a release. Left says how long the term is then trusted from now on, without a further step.
var Trust func(step Step, lease string, epoch int64, left func() time.Duration)

// Clock, if it is set, turns the process's own clocks into what an elector takes for them: the monotonic one, from an arbitrary start, and the
// wall clock, since the Unix epoch.
var Clock func(mono, wall time.Duration) (time.Duration, time.Duration)

// Delay, if it is set, is called before an elector sends a statement, and again when its answer has come, before the elector hears it: it may make
// either late.
var Delay func(statement string, answered bool)

// Around calls Delay, and returns what calls it for the answer.
func Around(statement string) (answered func()) {
	if Delay == nil {
		return func() {}
	}
	Delay(statement, false)
	return func() { Delay(statement, true) }
}
