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

// Settings come from the parent over stdin: a data source may hold a password, and arguments and environments are for all to see.
type Settings struct {
	Name  string
	TTL   time.Duration
	Where Location
}

// child is what a child's process runs. It returns the exit status.
func (p Program) child() int {
	// Ctrl-C reaches every process of the terminal; how a child ends is its parent's business.
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

// exitWithParent waits for the end of stdin, which comes when the parent dies, in whatever way.
func exitWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1)
}

// Tell reports an event to the parent, as a line of JSON. A parent that is gone ends this process through SIGPIPE. It may be called by several
// goroutines at a time.
func Tell[E any](event E) {
	if err := json.NewEncoder(os.Stdout).Encode(event); err != nil { // in one Write
		fmt.Fprintln(os.Stderr, err)
	}
}
