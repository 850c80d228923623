package stage

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Settings come from the parent over stdin. A data source may hold a password,
// and anybody can read arguments and environments.
type Settings struct {
	Name  string
	TTL   time.Duration
	Where Location
}

// child runs in a child's process, and returns the exit status.
func (p Program) child() int {
	// Ctrl-C reaches every process of the terminal, but only the parent decides
	// how a child ends.
	signal.Ignore(os.Interrupt, syscall.SIGHUP)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()

	if err := p.serve(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (p Program) serve(ctx context.Context) error {
	var s Settings
	if err := json.NewDecoder(os.Stdin).Decode(&s); err != nil {
		return err
	}
	go exitWithParent()
	db, err := p.Open(ctx, s.Where)
	if err != nil {
		return err
	}
	defer closeDB(db)
	return p.Child(ctx, db, s)
}

// exitWithParent waits for the end of stdin, and then exits. stdin ends when
// the parent dies, in whatever way.
func exitWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// Tell reports an event to the parent, as a line of JSON. If the parent is
// gone, SIGPIPE ends this process. Tell is safe for concurrent use.
func Tell[E any](event E) {
	if err := json.NewEncoder(os.Stdout).Encode(event); err != nil { // in a single Write
		fmt.Fprintln(os.Stderr, err)
	}
}
