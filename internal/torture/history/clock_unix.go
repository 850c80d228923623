//go:build unix

package history

import "golang.org/x/sys/unix"

// Now reads CLOCK_MONOTONIC, in nanoseconds.
func Now() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}
