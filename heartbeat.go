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

// A claimStore is what a claim asks of its row: two statements, each of which may block until its context ends, or longer with a
// driver that ignores it.
type claimStore interface {
	sendRenewal(ctx context.Context) (bool, error)
	sendRelease(ctx context.Context, keep bool) (bool, error)
}

// A claim is the life of one claim: held until it is found to be lost, or released. Neither ever changes back.
//
// It may run out without being lost: until somebody takes the item, a renewal revives it. Every heartbeat has a tenure, which does not
// outlive two thirds of the TTL without a renewal, whoever sent that.
type claim struct {
	store claimStore
	pace  pace
	clock func() instant
	count *claimCounts

	mu      sync.Mutex // guards the fields below
	sent    instant    // the claim, or its last good renewal, was
	leaving int        // releases that were sent; a row that no longer matches is no loss then
	over    error      // why the claim is: ErrLost or errReleased; nil while it is held
	missed  bool       // its loss was counted
	failed  error      // why the last renewal did; nil if it did not
	tenures map[*tenure]bool
}

var errReleased = fmt.Errorf("%w: it was released", ErrLost)

func newClaim(s claimStore, sent instant, ttl time.Duration, clock func() instant, count *claimCounts) *claim {
	return &claim{store: s, pace: pace(ttl), clock: clock, count: count, sent: sent, tenures: map[*tenure]bool{}}
}

// ended is why the claim is over, or nil.
func (c *claim) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// renew sends one renewal, and draws the conclusions.
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

// renewed notes a good renewal, and returns the tenures that it extends.
func (c *claim) renewed(sent instant) []*tenure {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sent.mono > c.sent.mono {
		c.sent, c.failed = sent, nil
	}
	return slices.Collect(maps.Keys(c.tenures))
}

// trouble notes a renewal that failed, unless a later one was good, or its heartbeat ended.
func (c *claim) trouble(ctx context.Context, sent instant, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if sent.mono > c.sent.mono && !errors.Is(ctx.Err(), context.Canceled) {
		c.failed = err
	}
}

// release sends a release. It may be repeated after an error.
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

// refuted reports whether a release that changed nothing proves that the claim is lost, as no other was sent, one that may have landed. What a
// renewal took for the release's doing is then known to be a loss.
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

// gone draws the conclusion of a row that does not bear the claim, and returns the error that says so. It may be the doing of a release that
// has not been answered.
func (c *claim) gone() error {
	c.mu.Lock()
	leaving := c.leaving > 0
	c.mu.Unlock()
	if leaving {
		return c.end(errReleased, byRelease)
	}
	return c.end(ErrLost, byTakeover)
}

// end makes the claim over, and every tenure of it; the first reason stays, and is returned.
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

// begin starts a tenure; its context is a child of parent. A claim whose last renewal is too old to be counted on is renewed first.
func (c *claim) begin(parent context.Context) (*tenure, error) {
	if c.overdue() {
		limit := c.pace.patience()
		_, err := ask(parent, make(flight, 1), limit, func(ctx context.Context) (struct{}, error) { return struct{}{}, c.renew(ctx) })
		switch {
		case err == nil || !c.overdue(): // somebody else may have renewed it meanwhile, or ended it
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

// overdue reports whether the claim, if it is held, can no longer be counted on.
func (c *claim) overdue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over == nil && c.clock().until(c.sent.plus(c.pace.trust())) <= 0
}

// finish gives a tenure back, which ends it, unless its deadline has.
func (c *claim) finish(t *tenure) {
	c.mu.Lock()
	delete(c.tenures, t)
	c.mu.Unlock()
	if t.held() {
		t.end(byRelease)
	}
}

// maxBeats bounds the renewals of one heartbeat that have not returned: there may be many claims to one pool.
const maxBeats = 3

// beat renews the claim every interval, until ctx ends or the tenure is over. Nothing in it waits for a statement; those that it sends may
// outlast it. It returns why the tenure is over, if that is a loss.
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
			due.Reset(c.pace.joining()) // the next attempt, unless this one is answered before
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

// renewedSince reports whether a renewal was good that was sent later.
func (c *claim) renewedSince(sent instant) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent.mono > sent.mono
}

// loss is why a tenure is over, if that is a loss.
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

// untilDue is how long it is until the next renewal.
func (c *claim) untilDue(interval time.Duration) time.Duration {
	if interval <= 0 {
		interval = c.pace.renewal()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.clock().until(c.sent.plus(min(interval, c.pace.longestBeat()))), leastPause)
}

// leave releases the claim, within bounds; failing that, it runs out by itself.
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
