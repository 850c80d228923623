//go:build unix

package stage

import (
	"os"
	"syscall"
)

func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }
func thaw(p *os.Process) error   { return p.Signal(syscall.SIGCONT) }
func askToStop(p *os.Process) error {
	return p.Signal(syscall.SIGTERM)
}
