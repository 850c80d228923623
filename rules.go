//go:build !lease_broken

package lease

// Five rules that everything else rests on. Each has a broken twin in rules_broken.go, by which the torture harness proves that it would notice.

// trustFrom is where the count of a deadline starts: when the statement was sent, whenever its answer came.
func trustFrom(sent, _ instant) instant { return sent }

// watchFrom is where a standby's count of what a poll showed starts: when the answer came, whenever the poll was sent.
func watchFrom(_, answered instant) instant { return answered }

// inherits reports whether an elector may lead in a term that it did not take itself, since the holder is the same.
func inherits(sighting, string) bool { return false }

// mayRelease reports whether a lease may be released while the work goes on.
func mayRelease() bool { return false }

// fencing is the statement of a fence, with its lock.
func fencing(locked string) string { return locked }
