package main

import (
	"context"

	"github.com/sqllease/lease/examples/internal/stage"
	"gorm.io/gorm"
)

// An event is one line that a replica writes to its parent.
type event struct {
	Kind     kind
	Epoch    int64  `json:",omitempty"`
	Sequence int64  `json:",omitempty"`
	Detail   string `json:",omitempty"`
}

type kind string

const (
	ready     kind = "ready"     // Detail: the address of its metrics
	leads     kind = "leads"     // the work began, in term Epoch
	ticked    kind = "ticked"    // a tick was committed
	troubled  kind = "troubled"  // a tick was not committed, although the term is not over. Detail: the error
	ended     kind = "ended"     // the work's context was cancelled. Detail: the cause
	committed kind = "committed" // the last write, after that, was committed
	refused   kind = "refused"   // the fence refused the last write. Detail: the error
	failed    kind = "failed"    // the last write failed otherwise. Detail: the error
	stopped   kind = "stopped"   // Run has returned: the lease is released
)

// child runs a replica in its process, until the replica is asked to stop.
func child(ctx context.Context, db *gorm.DB, s stage.Settings) error {
	r := &replica{db: db, name: s.Name, ttl: s.TTL, tell: stage.Tell[event]}
	return r.run(ctx)
}
