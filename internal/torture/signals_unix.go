//go:build unix

package main

import "syscall"

const (
	sigStop     = syscall.SIGSTOP
	sigContinue = syscall.SIGCONT
)
