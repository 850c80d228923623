//go:build !linux

package main

import "os/exec"

func startPinned(cmd *exec.Cmd) error { return cmd.Start() }
