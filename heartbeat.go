package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// A claimStore is what a claim asks of its row: two statements. Each may block
// until its context ends, or longer if the driver ignores the context.
type claimStore interface {
	sendRenewal(ctx context.Context) (bool, error)
	sendRelease(ctx context.Context, keep bool) (bool, error)
}

// A claim is the life of one claim. It is held until it is found to be lost, or
// is released. Neither state ever changes back.
//
// A claim may run out without being lost: until somebody takes the item, a
// renewal revives the claim. Every heartbeat has a tenure. Without a renewal,
// by any caller, no tenure outlives two thirds of the TTL.
type claim struct {
	store claimStore
	pace  pace
	clock func() instant
	count *claimCounts

	mu      sync.Mutex // guards the fields below
	sent    instant    // when the claim, or its last good renewal, was sent
	leaving int        // releases sent so far. Once there is one, a row that no longer matches is no loss
	over    error      // why the claim is over: ErrLost or errReleased. nil while it is held
	missed  bool       // the loss was counted
	failed  error      // why the last renewal failed, or nil
	tenures map[*tenure]bool
}

var errReleased = fmt.Errorf("%w: it was released", ErrLost)

func newClaim(s claimStore, sent instant, ttl time.Duration, clock func() instant, count *claimCounts) *claim {
	return &claim{store: s, pace: pace(ttl), clock: clock, count: count, sent: sent, tenures: map[*tenure]bool{}}
}

// ended returns why the claim is over, or nil.
func (c *claim) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// renew sends one renewal, and records its result.
func (c *claim) renew(ctx context.Context) error {
	if err := c.ended(); err != nil {
		return err
	}
	sent := c.clock()
	renewed, err := c.store.sendRenewal(ctx)
	switch {
	case err != nil:
		c.trouble(ctx, sent, err)
		return err
	case !renewed:
		return c.gone()
	}
	for _, t := range c.renewed(sent) {
		t.extend(sent.plus(c.pace.trust()))
	}
	return nil
}

// renewed notes a good renewal, and returns the tenures to extend.
func (c *claim) renewed(sent instant) []*tenure {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sent.mono > c.sent.mono {
		c.sent, c.failed = sent, nil
	}
	return slices.Collect(maps.Keys(c.tenures))
}

// trouble notes a failed renewal, unless a later renewal was good or the
// renewal's heartbeat has ended.
func (c *claim) trouble(ctx context.Context, sent instant, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sent.mono > c.sent.mono && !errors.Is(ctx.Err(), context.Canceled) {
		c.failed = err
	}
}

// release sends a release. After an error the caller may repeat the call.
func (c *claim) release(ctx context.Context, keep bool) error {
	c.mu.Lock()
	over := c.over
	if over == nil {
		c.leaving++
	}
	c.mu.Unlock()
	if over != nil {
		return unlessReleased(over)
	}
	released, err := c.store.sendRelease(ctx, keep)
	if err != nil {
		return err
	}
	if !released && c.refuted() {
		return c.end(ErrLost, byTakeover)
	}
	return unlessReleased(c.end(errReleased, byRelease))
}

// refuted reports whether a release that changed nothing proves the claim lost.
// The proof needs that no other release was sent, because another may have
// landed. If a renewal has blamed the release for the changed row, refuted
// corrects the reason to ErrLost.
func (c *claim) refuted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving > 1 {
		return false
	}
	if errors.Is(c.over, errReleased) {
		c.over = ErrLost
	}
	return true
}

func unlessReleased(err error) error {
	return ignore(err, func(err error) bool { return errors.Is(err, errReleased) })
}

// gone ends the claim because the row does not bear the claim, and returns the
// error to report. If a release was sent, gone counts the release as the
// reason, because it may have landed without an answer.
func (c *claim) gone() error {
	c.mu.Lock()
	leaving := c.leaving > 0
	c.mu.Unlock()
	if leaving {
		return c.end(errReleased, byRelease)
	}
	return c.end(ErrLost, byTakeover)
}

// end ends the claim and all its tenures. The first reason stays, and end
// returns it.
func (c *claim) end(why error, reason string) error {
	c.mu.Lock()
	if c.over == nil {
		c.over = why
	}
	why = c.over
	tenures := slices.Collect(maps.Keys(c.tenures))
	c.mu.Unlock()
	if reason != byRelease {
		c.miss()
	}
	for _, t := range tenures {
		t.end(reason)
	}
	return why
}

// miss counts a loss, once.
func (c *claim) miss() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.missed && !errors.Is(c.over, errReleased) {
		c.missed = true
		c.count.lose()
	}
}

// begin starts a tenure. The tenure's context is a child of parent. If the last
// renewal is too old to be counted on, begin renews the claim first.
func (c *claim) begin(parent context.Context) (*tenure, error) {
	if c.overdue() {
		limit := c.pace.patience()
		_, err := ask(parent, make(flight, 1), limit, func(ctx context.Context) (struct{}, error) { return struct{}{}, c.renew(ctx) })
		switch {
		// Somebody else may have renewed or ended the claim meanwhile.
		case err == nil || !c.overdue():
		case parent.Err() != nil:
			return nil, err
		default:
			c.miss()
			return nil, fmt.Errorf("%w: it ran out, and could not be renewed: %w", ErrLost, err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over != nil {
		return nil, c.over
	}
	t := startTenure(parent, Term{}, c.sent, c.pace.ttl(), c.clock)
	c.tenures[t] = true
	return t, nil
}

// overdue reports whether a held claim can no longer be counted on.
func (c *claim) overdue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over == nil && c.clock().until(c.sent.plus(c.pace.trust())) <= 0
}

// finish gives a tenure back. The tenure then ends, unless its deadline has
// ended it already.
func (c *claim) finish(t *tenure) {
	c.mu.Lock()
	delete(c.tenures, t)
	c.mu.Unlock()
	if t.held() {
		t.end(byRelease)
	}
}

// maxBeats bounds one heartbeat's renewals that have not returned, because one
// pool may serve many claims.
const maxBeats = 3

// beat renews the claim every interval, until ctx ends or the tenure is over.
// Nothing in beat waits for a statement. Its statements may outlast it. If the
// tenure ends with a loss, beat returns the reason.
func (c *claim) beat(ctx context.Context, t *tenure, sending flight, interval time.Duration, renewed func()) error {
	type answer struct {
		sent instant
		err  error
	}
	attempts, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	answers := make(chan answer)
	due := time.NewTimer(c.untilDue(interval))
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.over:
			return c.loss(t)
		case <-due.C:
			sending.send(attempts, c.pace.patience(), func(ctx context.Context) {
				a := answer{sent: c.clock()}
				a.err = c.renew(ctx)
				select {
				case answers <- a:
				case <-attempts.Done():
				}
			})
			due.Reset(c.pace.joining()) // the next attempt, unless an answer to this attempt comes first
		case a := <-answers:
			switch {
			case a.err == nil:
				due.Reset(c.untilDue(interval))
				renewed()
			case c.renewedSince(a.sent):
				due.Reset(c.untilDue(interval))
			default:
				due.Reset(c.pace.retrying())
			}
		}
	}
}

// renewedSince reports whether a renewal that was sent later was good.
func (c *claim) renewedSince(sent instant) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent.mono > sent.mono
}

// loss returns why a tenure is over, if the end is a loss, or nil.
func (c *claim) loss(t *tenure) error {
	reason, lost := t.lost()
	if !lost {
		return nil
	}
	c.miss()
	if reason != byDeadline {
		return ErrLost
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("%w: it was not renewed in time: %w", ErrLost, cmp.Or(c.failed, errSilent))
}

// untilDue returns the time until the next renewal.
func (c *claim) untilDue(interval time.Duration) time.Duration {
	if interval <= 0 {
		interval = c.pace.renewal()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.clock().until(c.sent.plus(min(interval, c.pace.longestBeat()))), leastPause)
}

// leave releases the claim, within bounds. If that fails, the claim runs out by
// itself.
func (c *claim) leave(ctx context.Context, keep bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*c.pace.parting())
	defer cancel()
	sending := make(flight, maxBeats)
	for {
		_, err := ask(ctx, sending, c.pace.parting(), func(ctx context.Context) (struct{}, error) { return struct{}{}, c.release(ctx, keep) })
		if err == nil || errors.Is(err, ErrLost) || !sleep(ctx, spread(c.pace.parting()/8)) {
			return err
		}
	}
}
