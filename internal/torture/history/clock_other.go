//go:build !unix

package history

// Now panics: there is no clock that orders the processes of this machine.
func Now() int64 { panic("history: no CLOCK_MONOTONIC on this system") }
