package faultproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"time"
)

// conn is one connection through the proxy: from a client and, once it passes,
// to the server.
//
// Each direction has a reader, which takes in what comes, and a writer, which
// delivers it when it may.
type conn struct {
	proxy  *Proxy
	client *net.TCPConn
	ctx    context.Context // done when the connection is closed
	cancel context.CancelFunc

	// proxy.mu guards the fields below.
	server   *net.TCPConn // nil until the first time that the connection passes
	hung     bool
	deaf     bool
	requests queue
	replies  queue
}

// queue is what was read in one direction and is not delivered yet.
type queue struct {
	chunks []chunk
	ended  bool // the last chunk was delivered
}

// chunk is some bytes, or the end of them.
type chunk struct {
	bytes []byte
	end   error     // io.EOF after a close, another error after a reset
	due   time.Time // when it may be delivered
	held  bool      // it is counted in proxy.held
}

func (c *conn) readRequests() { c.read(c.client, &c.requests) }

// writeRequests connects to the server once that is allowed, and forwards.
func (c *conn) writeRequests() {
	if !c.waitPassing() {
		return
	}
	var dialer net.Dialer
	server, err := dialer.DialContext(c.ctx, "tcp", c.proxy.target)
	if err != nil {
		c.end()
		return
	}
	if c.connected(server.(*net.TCPConn)) {
		c.write(server.(*net.TCPConn), &c.requests)
	}
}

func (c *conn) writeReplies() { c.write(c.client, &c.replies) }

// connected takes the connection to the server over and starts to read from it,
// unless the connection has been closed meanwhile.
func (c *conn) connected(server *net.TCPConn) bool {
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	if c.ctx.Err() != nil {
		server.Close()
		return false
	}
	c.server = server
	c.proxy.tasks.Go(func() { c.read(server, &c.replies) })
	return true
}

// waitPassing returns true when the connection is not hung, and false when it
// is closed.
func (c *conn) waitPassing() bool {
	for {
		c.proxy.mu.Lock()
		hung, changed := c.hung, c.proxy.changed
		c.proxy.mu.Unlock()
		if c.ctx.Err() != nil {
			return false
		}
		if !hung {
			return true
		}
		select {
		case <-changed:
		case <-c.ctx.Done():
		}
	}
}

// read takes in everything that src sends.
func (c *conn) read(src *net.TCPConn, q *queue) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		c.take(q, append([]byte(nil), buf[:n]...), err)
		if err != nil {
			return
		}
	}
}

// take appends what was read to a queue.
func (c *conn) take(q *queue, bytes []byte, end error) {
	p := c.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.ctx.Err() != nil {
		return
	}
	due := time.Now()
	if q == &c.replies {
		due = due.Add(p.delay)
	}
	if len(bytes) > 0 {
		q.chunks = append(q.chunks, chunk{bytes: bytes, due: due})
	}
	if end != nil {
		q.chunks = append(q.chunks, chunk{end: end, due: due})
	}
	if c.hung {
		c.count(q)
	}
	p.broadcast()
}

// count counts the bytes of a queue as held. The caller holds mu.
func (c *conn) count(q *queue) {
	for i := range q.chunks {
		if ch := &q.chunks[i]; !ch.held {
			ch.held = true
			c.proxy.held += int64(len(ch.bytes))
		}
	}
}

// write delivers a queue to dst until its end.
func (c *conn) write(dst *net.TCPConn, q *queue) {
	for {
		ch, ok := c.next(q)
		if !ok {
			return
		}
		switch {
		case ch.end == nil:
			if _, err := dst.Write(ch.bytes); err != nil {
				c.end()
				return
			}
		case errors.Is(ch.end, io.EOF):
			dst.CloseWrite()
			c.endOf(q)
			return
		default:
			dst.SetLinger(0) // pass the reset on
			c.end()
			return
		}
	}
}

// next waits for the next chunk that may be delivered, and takes it out of the
// queue. It returns false when the connection is closed.
func (c *conn) next(q *queue) (chunk, bool) {
	for {
		ch, wait, changed := c.poll(q)
		if c.ctx.Err() != nil {
			return chunk{}, false
		}
		if wait == 0 {
			return ch, true
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
		case <-c.ctx.Done():
		}
		timer.Stop()
	}
}

const forever = time.Duration(1<<63 - 1)

// poll takes the first chunk out of the queue if it may be delivered. Otherwise
// it returns how long to wait at most before trying again; a change may come
// earlier.
func (c *conn) poll(q *queue) (ch chunk, wait time.Duration, changed <-chan struct{}) {
	p := c.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(q.chunks) > 0 && !c.hung {
		first := q.chunks[0]
		if wait := time.Until(first.due); wait > 0 {
			return chunk{}, wait, p.changed
		}
		if c.deaf && q == &c.replies && first.end == nil {
			c.count(&queue{chunks: q.chunks[:1]})
			q.chunks = q.chunks[1:]
			p.broadcast()
			continue
		}
		q.chunks = q.chunks[1:]
		return first, 0, nil
	}
	return chunk{}, forever, p.changed
}

// endOf notes that a direction has ended; after both, the connection closes.
func (c *conn) endOf(q *queue) {
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	q.ended = true
	if c.requests.ended && c.replies.ended {
		c.close()
	}
}

// end closes the connection.
func (c *conn) end() {
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	c.close()
}

// close closes both sides and drops what was not delivered. The caller holds
// mu.
func (c *conn) close() {
	c.cancel()
	c.client.Close()
	if c.server != nil {
		c.server.Close()
	}
	c.requests.chunks, c.replies.chunks = nil, nil
	delete(c.proxy.conns, c)
	c.proxy.broadcast()
}

// reset is close with a reset in place of a goodbye. The caller holds mu.
func (c *conn) reset() {
	c.client.SetLinger(0)
	if c.server != nil {
		c.server.SetLinger(0)
	}
	c.close()
}

// hang makes the connection hung. The caller holds mu.
func (c *conn) hang() {
	c.hung = true
	c.count(&c.requests)
	c.count(&c.replies)
}
