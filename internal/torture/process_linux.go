package main

import (
	"os/exec"
	"runtime"
	"syscall"
)

// The kernel kills a child with its parent, or more exactly with the thread
// that started the child. So a single thread starts all children, and lives as
// long as the program.
var starting = make(chan func())

func init() {
	childAttributes = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	go func() {
		runtime.LockOSThread()
		for start := range starting {
			start()
		}
	}()
}

func startPinned(cmd *exec.Cmd) error {
	started := make(chan error)
	starting <- func() { started <- cmd.Start() }
	return <-started
}
