package faultproxy

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy forwards connections to one target. Its methods may be called by
// several goroutines and do not block, except for those that take a context.
type Proxy struct {
	t        testing.TB
	target   string
	listener net.Listener
	tasks    sync.WaitGroup // every goroutine of the proxy

	mu       sync.Mutex // guards the fields below
	conns    map[*conn]struct{}
	changed  chan struct{} // closed and replaced when anything below mu changes
	held     int64         // bytes held or dropped so far
	hangAll  bool          // future connections are hung
	hangNext int           // so many future connections are hung
	deafAll  bool          // future connections are deaf
	refuse   bool          // future connections are closed at once
	closed   bool          // so they are for good
	delay    time.Duration // of replies
}

// New starts a proxy to target, a host:port, on a free port of 127.0.0.1. At
// the end of t it closes every connection and waits for its goroutines.
func New(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("faultproxy: %v", err)
	}
	p := &Proxy{
		t:        t,
		target:   target,
		listener: listener,
		conns:    make(map[*conn]struct{}),
		changed:  make(chan struct{}),
	}
	p.tasks.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr returns the host:port that the proxy listens on.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			p.t.Errorf("faultproxy: no more connections: %v", err)
			return
		}
		p.admit(client.(*net.TCPConn))
	}
}

// admit decides what becomes of a new connection.
func (p *Proxy) admit(client *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse || p.closed {
		client.Close()
		return
	}
	c := &conn{proxy: p, client: client, hung: p.hangAll, deaf: p.deafAll}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if p.hangNext > 0 {
		p.hangNext--
		c.hung = true
	}
	p.conns[c] = struct{}{}
	p.broadcast()
	p.tasks.Go(c.readRequests)
	p.tasks.Go(c.writeRequests)
	p.tasks.Go(c.writeReplies)
}

func (p *Proxy) close() {
	p.change(func() { p.closed = true }, (*conn).close)
	p.listener.Close()
	p.tasks.Wait()
}

// change calls fields, then each for every open connection, and wakes up
// everybody who waits for a change, all in one step. Either may be nil.
func (p *Proxy) change(fields func(), each func(*conn)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if fields != nil {
		fields()
	}
	if each != nil {
		for c := range p.conns {
			each(c)
		}
	}
	p.broadcast()
}

// broadcast wakes up everybody who waits for a change. The caller holds mu.
func (p *Proxy) broadcast() {
	close(p.changed)
	p.changed = make(chan struct{})
}
