package lease

import (
	"context"
	"errors"
	"time"
)

// maxInFlight bounds the statements of a run that have not returned, even if
// the driver ignores contexts.
const maxInFlight = 4

// A flight holds the statements of a run that have not returned. Each statement
// has a goroutine of its own. So a driver that hangs, or ignores its context,
// holds up nobody else.
type flight chan struct{}

var (
	errBusy   = errors.New("too many statements without an answer")
	errSilent = errors.New("no answer in time")
)

// send runs a statement in a goroutine of its own, with limit as its timeout.
// send returns false if too many statements have not returned.
func (f flight) send(ctx context.Context, limit time.Duration, statement func(context.Context)) bool {
	select {
	case f <- struct{}{}:
	default:
		return false
	}
	go func() {
		defer func() { <-f }()
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		statement(ctx)
	}()
	return true
}

// ask sends a statement and waits for its answer: for limit at most, and no
// longer than ctx lives, even if the driver ignores both.
func ask[T any](ctx context.Context, f flight, limit time.Duration, statement func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	answers := make(chan answer, 1)
	if !f.send(ctx, limit, func(ctx context.Context) {
		value, err := statement(ctx)
		answers <- answer{value, err}
	}) {
		return none, errBusy
	}
	bound := time.NewTimer(limit)
	defer bound.Stop()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	case <-bound.C:
		return none, errSilent
	}
}

// settle waits for all statements to return, for limit at most.
func (f flight) settle(limit time.Duration) {
	bound := time.NewTimer(limit)
	defer bound.Stop()
	for range cap(f) {
		select {
		case f <- struct{}{}:
			defer func() { <-f }()
		case <-bound.C:
			return
		}
	}
}

// sleep pauses for d, or until ctx ends. It returns false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
