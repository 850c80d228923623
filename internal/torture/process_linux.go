package main

import (
	"os/exec"
	"runtime"
	"syscall"
)

// The kernel kills a child with its parent; more exactly with the thread that started it, so one thread, which lives as long as the program,
// starts them all.
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
