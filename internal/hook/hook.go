// Package hook lets the torture harness see what an elector trusts, before the
// elector trusts it. It also gives the elector a clock of its own, and delays
// its statements. Nothing else sets these hooks. The harness sets them before
// the first elector runs.
package hook

import "time"

// A Step is a step of an elector that trusts a term.
type Step string

// The steps.
const (
	Begin  Step = "begin"  // the work may start, until the deadline
	Extend Step = "extend" // the deadline moves
	End    Step = "end"    // IsLeader is false, and stays false
)

// Trust, if set, is called with every step. The call comes before Begin and
// Extend are taken. For End, the call comes after the step, but before anything
// that follows from it, such as a release. left returns how long the term is
// trusted from now on, without a further step.
var Trust func(step Step, lease string, epoch int64, left func() time.Duration)

// Clock, if set, turns the process's own clocks into the clocks that an elector
// reads. mono counts from an arbitrary start, and wall from the Unix epoch.
var Clock func(mono, wall time.Duration) (time.Duration, time.Duration)

// Delay, if set, is called before an elector polls, takes or renews its lease.
// It is called again when the answer has come, before the elector hears the
// answer. Delay may make the statement or the answer late.
var Delay func(statement string, answered bool)

// Around calls Delay, and returns the function to call for the answer.
func Around(statement string) (answered func()) {
	if Delay == nil {
		return func() {}
	}
	Delay(statement, false)
	return func() { Delay(statement, true) }
}
