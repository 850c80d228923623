package stage

import (
	"runtime"
	"syscall"
)

// A child notices the end of its stdin, but not while the child is frozen. On
// Linux the kernel kills a child with its parent, or more exactly with the
// thread that started the child. So main starts all children, and stays on the
// main thread.
func init() {
	runtime.LockOSThread()
	childAttributes = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
