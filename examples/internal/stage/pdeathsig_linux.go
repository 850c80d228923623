package stage

import (
	"runtime"
	"syscall"
)

// A child notices the end of its stdin, but not while it is frozen. On Linux the kernel kills it with its parent; more exactly
// with the thread that started it, so main, which starts them all, stays on the main thread.
func init() {
	runtime.LockOSThread()
	childAttributes = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
