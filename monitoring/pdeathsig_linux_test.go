package monitoring

import "syscall"

func init() { childAttributes = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
