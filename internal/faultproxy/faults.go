package faultproxy

import "time"

// Hang makes every connection hung, those to come included, until Thaw or Heal.
func (p *Proxy) Hang() {
	p.change(func() { p.hangAll = true }, (*conn).hang)
}

// HangExisting makes the connections that are open now hung; new ones pass. A
// connection is open once WaitConnections has seen it, or something came back
// over it; until then it may count as new.
func (p *Proxy) HangExisting() {
	p.change(nil, (*conn).hang)
}

// HangNext makes the next n connections hung from their first byte. They reach
// the server when they are thawed.
func (p *Proxy) HangNext(n int) {
	p.change(func() { p.hangNext = n }, nil)
}

// Thaw takes every hung connection back to passing and delivers what was held,
// in order. New connections pass. It changes nothing about dropped, delayed or
// refused ones.
func (p *Proxy) Thaw() {
	p.change(func() { p.hangAll, p.hangNext = false, 0 }, func(c *conn) { c.hung = false })
}

// Heal ends every fault: new connections pass, without delay. Hung and deaf
// connections are closed, and what was held on them is never delivered; replies
// that are under way with a delay still arrive with it.
func (p *Proxy) Heal() {
	p.change(func() {
		p.hangAll, p.hangNext, p.deafAll, p.refuse, p.delay = false, 0, false, false, 0
	}, func(c *conn) {
		if c.hung || c.deaf {
			c.close()
		}
	})
}

// DropReplies makes every connection deaf, those to come included, until Heal:
// requests reach the server, its replies are dropped.
func (p *Proxy) DropReplies() {
	p.change(func() { p.deafAll = true }, func(c *conn) { c.deaf = true })
}

// DelayReplies delivers what the server sends from now on d later, in order.
// Zero ends the delay.
func (p *Proxy) DelayReplies(d time.Duration) {
	p.change(func() { p.delay = d }, nil)
}

// Reset closes every connection with a reset, towards both sides. What becomes
// of new ones stays as it was.
func (p *Proxy) Reset() {
	p.change(nil, (*conn).reset)
}

// Refuse accepts new connections and closes them at once, until Accept or Heal.
// Open ones stay as they were.
func (p *Proxy) Refuse() {
	p.change(func() { p.refuse = true }, nil)
}

// Accept ends Refuse.
func (p *Proxy) Accept() {
	p.change(func() { p.refuse = false }, nil)
}
