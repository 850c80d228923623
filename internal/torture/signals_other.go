//go:build !unix

package main

import "syscall"

// There is no such thing here; faultNames leaves out what would need it.
const (
	sigStop     = syscall.Signal(0)
	sigContinue = syscall.Signal(0)
)
