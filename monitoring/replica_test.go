package monitoring

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
)

const (
	leaseName = "reconciler"
	ttl       = 2 * time.Second
)

// work is what a leader does: it waits for the end of its context, and if it is stubborn for its parent's word, too.
type work struct{ Stubborn bool }

// A replica is a process of its own: this test binary, which runs replicaMain. It keeps its address when it starts again.
type replica struct {
	t *testing.T
	settings
	process *process
	stdin   io.WriteCloser
}

// settings are what a replica's process reads from its standard input, before the word that its work may end.
type settings struct {
	Address, DSN string
	Work         work
}

const (
	replicaEnv = "LEASE_MONITORING_REPLICA"
	endOfWork  = "end"
)

func newReplica(t *testing.T, db *dbtest.Database, w work) *replica {
	t.Helper()
	return &replica{t: t, settings: settings{Address: freeAddress(t), DSN: db.DSN, Work: w}}
}

// start starts the process, and does not wait for what it does.
func (r *replica) start() {
	r.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), replicaEnv+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	r.process, r.stdin = startProcess(r.t, cmd), stdin
	if err := json.NewEncoder(stdin).Encode(r.settings); err != nil {
		r.t.Fatal(err)
	}
}

func (r *replica) kill() { r.process.kill() }

// stop asks the process to end, and waits until it has.
func (r *replica) stop() {
	r.t.Helper()
	if err := r.process.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		r.t.Fatal(err)
	}
	select {
	case <-r.process.exited:
	case <-time.After(soon):
		r.t.Fatalf("the replica at %s does not stop", r.Address)
	}
	if r.process.err != nil {
		r.t.Errorf("the replica at %s: %v", r.Address, r.process.err)
	}
}

func (r *replica) endWork() {
	r.t.Helper()
	if _, err := fmt.Fprintln(r.stdin, endOfWork); err != nil {
		r.t.Fatal(err)
	}
}

// replicaMain is what a replica's process runs. It returns the exit status.
func replicaMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := campaign(ctx, os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// campaign serves its metrics, and campaigns until ctx ends. The process ends with its parent.
func campaign(ctx context.Context, parent io.Reader) error {
	lines := bufio.NewScanner(parent)
	lines.Scan()
	var s settings
	if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
		return err
	}
	mayEnd := make(chan struct{})
	go func() {
		for lines.Scan() {
			if lines.Text() == endOfWork {
				close(mayEnd)
			}
		}
		os.Exit(1)
	}()

	db, err := gorm.Open(sqlite.Open(s.DSN))
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(lease.NewCollector())
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	listener, err := net.Listen("tcp", s.Address)
	if err != nil {
		return err
	}
	go func() {
		server := &http.Server{ReadHeaderTimeout: 5 * time.Second}
		fmt.Fprintln(os.Stderr, server.Serve(listener))
	}()

	elector := &lease.Elector{
		DB: db, Name: leaseName, Holder: s.Address, TTL: ttl,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	return elector.Run(ctx, func(ctx context.Context) {
		<-ctx.Done()
		if s.Work.Stubborn {
			<-mayEnd
		}
	})
}
