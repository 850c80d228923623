package faultproxy

import (
	"context"
	"fmt"
)

// Connections returns how many connections are open. One whose client has left
// counts for as long as the proxy keeps that from the server, as it does while
// the connection is hung.
func (p *Proxy) Connections() int { return int(p.read(p.connections)) }

// Hung returns how many of the open connections are hung.
func (p *Proxy) Hung() int { return int(p.read(p.hung)) }

// Held returns how many bytes have been held on hung connections or dropped on
// deaf ones since the proxy was made, delivered later or not. It only grows, so
// that a test can take it before and wait for more.
func (p *Proxy) Held() int64 { return p.read(func() int64 { return p.held }) }

// WaitConnections waits until at least n connections are open. When ctx ends it
// returns an error that wraps ctx.Err().
func (p *Proxy) WaitConnections(ctx context.Context, n int) error {
	return p.wait(ctx, func() error { return atLeast(int64(n), p.connections(), "connections open") })
}

// WaitNone waits until no connection is open. When ctx ends it returns an error
// that wraps ctx.Err().
func (p *Proxy) WaitNone(ctx context.Context) error {
	return p.wait(ctx, func() error {
		if n := p.connections(); n > 0 {
			return fmt.Errorf("%d connections open, want none", n)
		}
		return nil
	})
}

// WaitHung waits until at least n connections are hung. When ctx ends it returns
// an error that wraps ctx.Err().
func (p *Proxy) WaitHung(ctx context.Context, n int) error {
	return p.wait(ctx, func() error { return atLeast(int64(n), p.hung(), "connections hung") })
}

// WaitHeld waits until Held is at least n: until something really reached the
// fault. When ctx ends it returns an error that wraps ctx.Err().
func (p *Proxy) WaitHeld(ctx context.Context, n int64) error {
	return p.wait(ctx, func() error { return atLeast(n, p.held, "bytes held") })
}

// wait waits until missing, called with mu held, returns nil.
func (p *Proxy) wait(ctx context.Context, missing func() error) error {
	for {
		p.mu.Lock()
		err, changed := missing(), p.changed
		p.mu.Unlock()
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("faultproxy: %w: %w", err, ctx.Err())
		}
	}
}

func atLeast(want, got int64, what string) error {
	if got < want {
		return fmt.Errorf("%d %s, want at least %d", got, what, want)
	}
	return nil
}

func (p *Proxy) read(value func() int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return value()
}

// connections counts the open connections. The caller holds mu.
func (p *Proxy) connections() int64 { return int64(len(p.conns)) }

// hung counts the hung ones among them. The caller holds mu.
func (p *Proxy) hung() (n int64) {
	for c := range p.conns {
		if c.hung {
			n++
		}
	}
	return n
}
