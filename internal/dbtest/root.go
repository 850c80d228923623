package dbtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// rootPrefix begins the name of every test binary's directory for clusters.
const rootPrefix = "lease-pg-"

// root is this test binary's directory for clusters: one subdirectory each, one
// template that they are copied from, and a lock file that is held while the
// test binary lives.
var root struct {
	once sync.Once
	dir  string
	as   *account // who owns the clusters; nil is this process's own user
	lock *os.File
	err  error

	templateOnce sync.Once
	templateErr  error
}

// rootDir returns this test binary's directory for clusters, made at the first
// call.
func rootDir() (string, error) {
	root.once.Do(func() { root.err = makeRoot() })
	return root.dir, root.err
}

func makeRoot() error {
	base := rootBase()
	sweep(base)
	var err error
	if root.as, err = serverAccount(); err != nil {
		return err
	}
	if root.dir, err = os.MkdirTemp(base, rootPrefix); err != nil {
		return err
	}
	if err := root.as.own(root.dir); err != nil {
		return err
	}
	root.lock, err = lockNew(filepath.Join(root.dir, "lock"))
	return err
}

// rootBase returns where to make the root: where TMPDIR says, or else in memory,
// where a cluster is copied many times faster than on a disk, or else in /tmp.
func rootBase() string {
	dir := os.Getenv("TMPDIR")
	switch {
	// The path of a Unix socket has room for about a hundred bytes; and root may
	// keep its temporary files where another user cannot go.
	case dir != "" && len(dir) <= 40 && os.Geteuid() != 0:
		return dir
	case hasRoom("/dev/shm"):
		return "/dev/shm"
	default:
		return "/tmp"
	}
}

// removeRoot removes what makeRoot made.
func removeRoot() error {
	if root.dir == "" {
		return nil
	}
	err := os.RemoveAll(root.dir)
	if root.lock != nil {
		err = errors.Join(err, root.lock.Close())
	}
	return err
}

// sweep removes the directories of test binaries that died before they could,
// with whatever still runs in them.
func sweep(base string) {
	dirs, _ := filepath.Glob(filepath.Join(base, rootPrefix+"*"))
	for _, dir := range dirs {
		lock, free := lockAbandoned(filepath.Join(dir, "lock"))
		if !free {
			continue
		}
		if killAllIn(dir) == nil {
			pidFiles, _ := filepath.Glob(filepath.Join(dir, "*", "data", "postmaster.pid"))
			for _, file := range pidFiles {
				removeSharedMemory(file)
			}
			os.RemoveAll(dir)
		}
		lock.Close()
	}
}

// template returns the directory that every cluster is a copy of, made by
// initdb at the first call.
func template(bin string) (string, error) {
	dir, err := rootDir()
	if err != nil {
		return "", err
	}
	data := filepath.Join(dir, "template")
	root.templateOnce.Do(func() {
		cmd := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres",
			"-A", "trust", "--locale=C", "-E", "UTF8", "--no-sync")
		cmd.Dir, cmd.Env = dir, serverEnv()
		if out, err := runAs(cmd, root.as); err != nil {
			root.templateErr = errors.New("initdb: " + err.Error() + "\n" + lastLines(string(out)))
		}
	})
	return data, root.templateErr
}

// serverEnv is the environment without what would steer a server or a client.
func serverEnv() []string {
	var env []string
	for _, e := range os.Environ() {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case strings.HasPrefix(name, "PG"), strings.HasPrefix(name, "LC_"), strings.HasPrefix(name, "FAKETIME"):
		case name == "LANG", name == "LD_PRELOAD":
		default:
			env = append(env, e)
		}
	}
	return append(env, "LC_ALL=C")
}
