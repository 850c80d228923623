//go:build !linux

package dbtest

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// Throwaway servers need Linux. Elsewhere findBinaries finds none, and nothing
// below is reached.

const canRunServers = false

var errNotHere = errors.New("throwaway servers need Linux")

type account struct{}

func serverAccount() (*account, error) { return nil, errNotHere }
func (*account) own(string) error      { return errNotHere }

func runAs(*exec.Cmd, *account) ([]byte, error) { return nil, errNotHere }

type process struct {
	exited chan struct{}
	err    error
}

func startProcess(*exec.Cmd, *account, string) (*process, error) { return nil, errNotHere }

func (*process) signal(syscall.Signal) error { return errNotHere }
func (*process) freeze(string) error         { return errNotHere }
func (*process) thaw(string) error           { return errNotHere }

func killAllIn(string) error                { return errNotHere }
func hasRoom(string) bool                   { return false }
func removeSharedMemory(string)             {}
func lockNew(string) (*os.File, error)      { return nil, errNotHere }
func lockAbandoned(string) (*os.File, bool) { return nil, false }
