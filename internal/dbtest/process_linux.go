package dbtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// canRunServers says whether this platform can run throwaway servers: it takes
// a signal at the death of the parent, and /proc.
const canRunServers = true

// account is the user that servers run as; nil is this process's own.
type account struct{ uid, gid uint32 }

// serverAccount returns whom to run servers as: Postgres refuses to run as root.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		return &account{uint32(uid), uint32(gid)}, errors.Join(err1, err2)
	}
	return nil, errors.New("postgres does not run as root, and there is neither a user postgres nor nobody")
}

// own gives a file to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

func (a *account) sysProcAttr(onDeath syscall.Signal) *syscall.SysProcAttr {
	// A process group of its own, so that an interrupt from the terminal reaches
	// the test binary alone.
	attr := &syscall.SysProcAttr{Pdeathsig: onDeath, Setpgid: true}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// runAs runs a command to its end and returns what it said.
func runAs(cmd *exec.Cmd, as *account) ([]byte, error) {
	// The signal comes when the thread that started the child is gone.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = as.sysProcAttr(syscall.SIGKILL)
	return cmd.CombinedOutput()
}

// process is a running server.
type process struct {
	p      *os.Process
	exited chan struct{} // closed when the process is gone
	err    error         // how it ended; set before exited is closed
}

// startProcess starts a server that shuts down at once should this process die.
func startProcess(cmd *exec.Cmd, as *account, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = as.sysProcAttr(syscall.SIGQUIT)
	p := &process{exited: make(chan struct{})}
	started := make(chan error)
	go p.run(cmd, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the process and stays until it ends: the signal at the death of
// the parent comes when the thread that started the child is gone, so that
// thread belongs to this goroutine for as long.
func (p *process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		started <- err
		return
	}
	p.p = cmd.Process
	started <- nil
	p.err = cmd.Wait()
	if p.err == nil {
		p.err = errors.New("exit status 0")
	}
	close(p.exited)
}

func (p *process) signal(sig syscall.Signal) error {
	err := p.p.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// processesIn returns the ids of the processes whose working directory is below
// dir. Every process of a server stays in its data directory. Zombies have no
// working directory any more.
func processesIn(dir string) []int {
	entries, _ := filepath.Glob("/proc/[0-9]*")
	var pids []int
	for _, entry := range entries {
		cwd, err := os.Readlink(entry + "/cwd")
		if err != nil || !strings.HasPrefix(cwd, dir+"/") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(entry)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killAllIn sends SIGKILL to every process below dir until there is none left.
func killAllIn(dir string) error {
	return eventually("processes survive SIGKILL", func() (bool, error) {
		pids := processesIn(dir)
		for _, pid := range pids {
			if err := kill(pid, syscall.SIGKILL); err != nil {
				return false, err
			}
		}
		return len(pids) == 0, nil
	})
}

// freeze stops the process first and then every other below dir, and returns
// when they stand still.
func (p *process) freeze(dir string) error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	// Only then is it certain that no more processes appear.
	err := eventually("postgres does not stop at SIGSTOP", func() (bool, error) { return standsStill(p.p.Pid), nil })
	if err != nil {
		return err
	}
	return eventually("processes do not stop at SIGSTOP", func() (bool, error) {
		still := true
		for _, pid := range processesIn(dir) {
			if standsStill(pid) {
				continue
			}
			still = false
			if err := kill(pid, syscall.SIGSTOP); err != nil {
				return false, err
			}
		}
		return still, nil
	})
}

// thaw continues every process below dir.
func (p *process) thaw(dir string) error {
	for _, pid := range processesIn(dir) {
		if err := kill(pid, syscall.SIGCONT); err != nil {
			return err
		}
	}
	return nil
}

// kill sends a signal to a process that may be gone already.
func kill(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %v to process %d: %w", sig, pid, err)
	}
	return nil
}

// standsStill says whether a process is stopped, or gone.
func standsStill(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	// The state follows the name, which stands in parentheses and may hold any.
	_, after, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	return strings.HasPrefix(after, "T") || strings.HasPrefix(after, "Z") || strings.HasPrefix(after, "X")
}

func eventually(otherwise string, done func() (bool, error)) error {
	deadline := time.Now().Add(stopTimeout)
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s after %v", otherwise, stopTimeout)
		}
		time.Sleep(time.Millisecond)
	}
}

// removeSharedMemory removes the System V segment that a killed server left, as
// its pid file names it. If that fails, a few bytes stay.
func removeSharedMemory(pidFile string) {
	b, err := os.ReadFile(pidFile)
	if err != nil {
		return
	}
	lines := strings.Split(string(b), "\n")
	if len(lines) < 7 {
		return
	}
	// The seventh line is "key id".
	named := strings.Fields(lines[6])
	segments, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil || len(named) != 2 {
		return
	}
	for line := range strings.Lines(string(segments)) {
		// key, id, mode, size, creator, last user, how many are attached, …
		f := strings.Fields(line)
		if len(f) > 6 && f[0] == named[0] && f[1] == named[1] && f[6] == "0" {
			exec.Command("ipcrm", "-m", f[1]).Run()
		}
	}
}

// hasRoom says whether a directory can take a good many clusters, of some 60 MB
// each.
func hasRoom(dir string) bool {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return false
	}
	const writable = 2 // W_OK
	return fs.Bavail*uint64(fs.Bsize) >= 2<<30 && syscall.Access(dir, writable) == nil
}

// lockNew makes a lock file that this process holds for as long as it lives.
func lockNew(name string) (*os.File, error) {
	// Locked before it has its name, so that nobody finds it abandoned.
	f, err := os.Create(name + ".new")
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lockAbandoned takes a lock file over from a process that is gone.
func lockAbandoned(name string) (*os.File, bool) {
	f, err := os.Open(name)
	if err != nil {
		return nil, false
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, false
	}
	return f, true
}
