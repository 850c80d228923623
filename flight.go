package lease

import (
	"context"
	"errors"
	"time"
)

// maxInFlight bounds the statements of one run that have not returned, even in a driver that ignores contexts.
const maxInFlight = 4

// A flight is the statements of one run that have not returned. Each has a goroutine of its own, so that a driver that hangs, or ignores
// its context, holds up nobody but itself.
type flight chan struct{}

var (
	errBusy   = errors.New("too many statements without an answer")
	errSilent = errors.New("no answer in time")
)

// send runs a statement in a goroutine of its own, with limit as its timeout. It is false when too many have not returned.
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

// ask sends a statement and waits for its answer: for limit at most, and no longer than ctx, whatever the driver does with either.
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

// settle waits for all of them to return, for limit at most.
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

// sleep pauses, and reports whether ctx lived through it.
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
