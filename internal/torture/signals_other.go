//go:build !unix

package main

import "syscall"

// There are no such signals here. The program compiles, but cannot run, because
// history.Now panics.
const (
	sigStop     = syscall.Signal(0)
	sigContinue = syscall.Signal(0)
)
