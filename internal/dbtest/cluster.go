package dbtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	startTimeout = time.Minute
	stopTimeout  = time.Minute
	pollInterval = 10 * time.Millisecond
)

// errPortTaken means that somebody else listens on the cluster's port.
var errPortTaken = errors.New("the port is taken")

// cluster is a Postgres server made from the machine's binaries: a data
// directory, a port on 127.0.0.1 and, while it is up, a process.
//
// Its methods are called by one goroutine at a time.
type cluster struct {
	bin  string
	dir  string   // holds all of the below
	data string   // the data directory, and the working directory of every process
	log  string   // what the server says, over all starts
	env  []string // added to the server's environment

	port int
	proc *process // nil while the server is down
}

// newCluster makes a cluster of that name, which is not started yet.
func newCluster(bin, name string, settings []setting, env []string) (*cluster, error) {
	from, err := template(bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(root.dir, name+"-")
	if err != nil {
		return nil, err
	}
	c := &cluster{
		bin:  bin,
		dir:  dir,
		data: filepath.Join(dir, "data"),
		log:  filepath.Join(dir, "log"),
		env:  env,
	}
	if err := c.create(from, settings); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return c, nil
}

func (c *cluster) create(from string, settings []setting) error {
	if out, err := exec.Command("cp", "-a", from, c.data).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	all := append([]setting{
		{"listen_addresses", "127.0.0.1"},
		{"unix_socket_directories", c.dir},
		{"max_connections", "200"},
		{"shared_buffers", "32MB"},
		// In files of the data directory, so that a killed server leaves none in
		// /dev/shm.
		{"dynamic_shared_memory_type", "mmap"},
		{"log_line_prefix", "%m [%p] "},
	}, settings...)
	var conf strings.Builder
	for _, s := range all {
		fmt.Fprintf(&conf, "%s = '%s'\n", s.name, strings.ReplaceAll(s.value, "'", "''"))
	}
	f, err := os.OpenFile(filepath.Join(c.data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(conf.String()); err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(f.Close(), root.as.own(c.dir))
}

func (c *cluster) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)) }

// dsn is the superuser's, in the database postgres.
func (c *cluster) dsn() string {
	return fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable", c.port)
}

// start starts the server and returns when it answers. The first start chooses
// the port, later ones keep it.
func (c *cluster) start() error {
	if c.port != 0 {
		return c.startOnPort()
	}
	var err error
	for range 5 {
		if c.port, err = freePort(); err != nil {
			return err
		}
		if err = c.startOnPort(); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

func (c *cluster) startOnPort() error {
	said := fileSize(c.log)
	cmd := exec.Command(filepath.Join(c.bin, "postgres"), "-D", c.data, "-p", strconv.Itoa(c.port))
	cmd.Dir, cmd.Env = c.data, append(serverEnv(), c.env...)
	var err error
	if c.proc, err = startProcess(cmd, root.as, c.log); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	if err = c.waitReady(); err == nil {
		return nil
	}
	// Out of the way, whatever state it is in.
	err = errors.Join(err, c.kill())
	if strings.Contains(readFrom(c.log, said), "Address already in use") {
		err = fmt.Errorf("%w: %d: %w", errPortTaken, c.port, err)
	}
	return err
}

// waitReady returns when the server answers.
func (c *cluster) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		err := c.answers(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.proc.exited:
			return c.explain(fmt.Errorf("postgres ended while starting: %w", c.proc.err))
		case <-ctx.Done():
			return c.explain(fmt.Errorf("postgres did not answer within %v: %w", startTimeout, err))
		case <-time.After(pollInterval):
		}
	}
}

// answers returns nil if it is this cluster's server that answers on its port.
func (c *cluster) answers(ctx context.Context) error {
	// Bounded, so that a server that accepts but does not answer is tried again.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.dsn())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var data string
	if err := conn.QueryRow(ctx, "SELECT current_setting('data_directory')").Scan(&data); err != nil {
		return err
	}
	if data != c.data {
		return fmt.Errorf("%w by the server of %s", errPortTaken, data)
	}
	return nil
}

// stop sends the server a signal that ends it, and returns when it has ended.
func (c *cluster) stop(sig syscall.Signal) error {
	if err := c.proc.signal(sig); err != nil {
		return err
	}
	select {
	case <-c.proc.exited:
		c.proc = nil
		return nil
	case <-time.After(stopTimeout):
		return c.explain(fmt.Errorf("postgres did not stop within %v of %v", stopTimeout, sig))
	}
}

// kill ends every process of the cluster with SIGKILL, frozen or not, and
// clears away what would be in the way of the next start.
func (c *cluster) kill() error {
	if c.proc != nil {
		// First, so that it starts no others.
		c.proc.signal(syscall.SIGKILL)
		<-c.proc.exited
		c.proc = nil
	}
	if err := killAllIn(c.dir); err != nil {
		return err
	}
	// A later server would believe these if their process id were in use again.
	removeSharedMemory(filepath.Join(c.data, "postmaster.pid"))
	sockets, _ := filepath.Glob(filepath.Join(c.dir, ".s.PGSQL.*"))
	for _, file := range append(sockets, filepath.Join(c.data, "postmaster.pid")) {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// remove ends the server and deletes its directory.
func (c *cluster) remove() error {
	var err error
	if c.proc != nil {
		err = c.stop(syscall.SIGQUIT)
	}
	return errors.Join(err, c.kill(), os.RemoveAll(c.dir))
}

// explain adds the last lines of the server's log to an error.
func (c *cluster) explain(err error) error {
	return fmt.Errorf("%w\nlast lines of its log:\n%s", err, lastLines(readFrom(c.log, 0)))
}

// freePort returns a port that nobody listens on, from below the range that the
// system takes ports for outgoing connections from: while the server is down,
// nobody shall get its port by accident.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := 16000 + rand.IntN(16000)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}

func fileSize(name string) int64 {
	info, err := os.Stat(name)
	if err != nil {
		return 0
	}
	return info.Size()
}

func readFrom(name string, offset int64) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(b[min(offset, int64(len(b))):])
}

// lastLines returns the end of a text, indented.
func lastLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return "\t" + strings.Join(lines[max(0, len(lines)-15):], "\n\t")
}
