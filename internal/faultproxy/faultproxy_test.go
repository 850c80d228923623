package faultproxy_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sqllease/lease/internal/faultproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func setUp(t *testing.T) (*echoServer, *faultproxy.Proxy) {
	t.Helper()
	s := newEchoServer(t)
	return s, faultproxy.New(t, s.addr())
}

func TestAPassingConnectionForwardsUntilBothSidesHaveClosed(t *testing.T) {
	_, p := setUp(t)
	c := dial(t, p)
	echo(t, c, "hello")
	echo(t, c, strings.Repeat("much ", 100_000))
	if n := p.Connections(); n != 1 {
		t.Fatalf("%d connections, want 1", n)
	}
	send(t, c, "last words")
	c.CloseWrite()
	if rest, err := io.ReadAll(c); err != nil || string(rest) != "last words" {
		t.Fatalf("after closing one direction: %q, %v", rest, err)
	}
	check(t, p.WaitNone(t.Context()))
}

func TestHangHoldsEveryConnectionAndThawDelivers(t *testing.T) {
	s, p := setUp(t)
	old := dial(t, p)
	echo(t, old, "a")
	p.Hang()
	recent := dial(t, p)
	send(t, old, "bc")
	send(t, recent, "def")
	check(t, p.WaitHeld(t.Context(), 5))
	check(t, p.WaitHung(t.Context(), 2))
	if got, n := s.got(), s.accepted(); got != "a" || n != 1 {
		t.Fatalf("%q reached the server on %d connections", got, n)
	}
	p.Thaw()
	receive(t, old, "bc")
	receive(t, recent, "def")
	echo(t, old, "again")
	if p.Hung() != 0 || p.Held() != 5 {
		t.Fatalf("%d hung, %d bytes held in all", p.Hung(), p.Held())
	}
}

func TestHangKeepsACloseFromTheOtherSide(t *testing.T) {
	s, p := setUp(t)
	c := dial(t, p)
	echo(t, c, "a")
	p.Hang()
	send(t, c, "b")
	c.Close()
	check(t, p.WaitHeld(t.Context(), 1))
	select {
	case err := <-s.broken:
		t.Fatalf("the server's connection ended: %v", err)
	default:
	}
	if n := p.Connections(); n != 1 {
		t.Fatalf("%d connections, want 1", n)
	}
	p.Thaw()
	s.waitReceived(t, "ab")
	<-s.broken
	check(t, p.WaitNone(t.Context()))
}

func TestHangHoldsRepliesToo(t *testing.T) {
	s, p := setUp(t)
	c := dial(t, p)
	echo(t, c, "a")
	p.HangExisting()
	s.mu.Lock()
	server := s.conns[0]
	s.mu.Unlock()
	if _, err := server.Write([]byte("news")); err != nil {
		t.Fatal(err)
	}
	check(t, p.WaitHeld(t.Context(), 4))
	p.Thaw()
	receive(t, c, "news")
}

func TestHangExistingLetsNewConnectionsPass(t *testing.T) {
	s, p := setUp(t)
	old := dial(t, p)
	echo(t, old, "a")
	p.HangExisting()
	send(t, old, "b")
	check(t, p.WaitHeld(t.Context(), 1))
	echo(t, dial(t, p), "c")
	if got := s.got(); got != "ac" {
		t.Fatalf("the server received %q", got)
	}
}

func TestHangNextHoldsTheNextConnectionsFromTheirFirstByte(t *testing.T) {
	s, p := setUp(t)
	p.HangNext(2)
	first, second := dial(t, p), dial(t, p)
	check(t, p.WaitHung(t.Context(), 2))
	echo(t, dial(t, p), "a")
	send(t, first, "b")
	send(t, second, "c")
	check(t, p.WaitHeld(t.Context(), 2))
	if got, n := s.got(), s.accepted(); got != "a" || n != 1 {
		t.Fatalf("%q reached the server on %d connections", got, n)
	}
	p.Thaw()
	receive(t, first, "b")
	receive(t, second, "c")
}

func TestHealClosesHungConnectionsAndDeliversNothing(t *testing.T) {
	s, p := setUp(t)
	hung := dial(t, p)
	echo(t, hung, "a")
	p.HangExisting()
	fresh := dial(t, p)
	echo(t, fresh, "b")
	send(t, hung, "lost")
	check(t, p.WaitHeld(t.Context(), 4))
	p.HangNext(1)
	p.Heal()
	closed(t, hung)
	<-s.broken
	echo(t, fresh, "c")
	echo(t, dial(t, p), "d")
	if got := s.got(); got != "abcd" {
		t.Fatalf("the server received %q", got)
	}
	if n := p.Connections(); n != 2 {
		t.Fatalf("%d connections, want 2", n)
	}
}

func TestDropRepliesLetsRequestsThrough(t *testing.T) {
	s, p := setUp(t)
	c := dial(t, p)
	echo(t, c, "a")
	p.DropReplies()
	recent := dial(t, p)
	send(t, c, "bc")
	s.waitReceived(t, "abc")
	send(t, recent, "d")
	s.waitReceived(t, "abcd")
	check(t, p.WaitHeld(t.Context(), 3))
	if n := p.Connections(); n != 2 {
		t.Fatalf("%d connections, want 2", n)
	}
	p.Heal()
	closed(t, c)
	closed(t, recent)
	echo(t, dial(t, p), "e")
}

func TestDelayRepliesDeliversLaterAndInOrder(t *testing.T) {
	_, p := setUp(t)
	c := dial(t, p)
	echo(t, c, "a")
	const delay = 30 * time.Millisecond
	p.DelayReplies(delay)
	start := time.Now()
	send(t, c, "b")
	receive(t, c, "b")
	if took := time.Since(start); took < delay {
		t.Fatalf("a reply came after %v", took)
	}
	send(t, c, "c")
	p.DelayReplies(0)
	send(t, c, "d")
	receive(t, c, "cd")
}

func TestResetBreaksBothSides(t *testing.T) {
	s, p := setUp(t)
	c := dial(t, p)
	echo(t, c, "a")
	p.Hang()
	p.Reset()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the client sees %v", err)
	}
	if err := <-s.broken; !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the server sees %v", err)
	}
	check(t, p.WaitNone(t.Context()))
}

func TestAResetByOneSideReachesTheOther(t *testing.T) {
	s, p := setUp(t)
	c := dial(t, p)
	echo(t, c, "a")
	c.SetLinger(0)
	c.Close()
	if err := <-s.broken; !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the server sees %v", err)
	}
	check(t, p.WaitNone(t.Context()))
}

func TestRefuseClosesNewConnectionsOnly(t *testing.T) {
	_, p := setUp(t)
	old := dial(t, p)
	echo(t, old, "a")
	p.Refuse()
	closed(t, dial(t, p))
	echo(t, old, "b")
	p.Accept()
	echo(t, dial(t, p), "c")
	p.Refuse()
	p.Heal()
	echo(t, dial(t, p), "d")
}

func TestAConnectionToAServerThatIsDownIsClosed(t *testing.T) {
	s, p := setUp(t)
	s.close()
	closed(t, dial(t, p))
	check(t, p.WaitNone(t.Context()))
}

func TestAWaitThatEndsSaysWhatItWaitedFor(t *testing.T) {
	_, p := setUp(t)
	dial(t, p)
	check(t, p.WaitConnections(t.Context(), 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for want, err := range map[string]error{
		"1 connections open, want at least 2": p.WaitConnections(ctx, 2),
		"1 connections open, want none":       p.WaitNone(ctx),
		"0 connections hung, want at least 1": p.WaitHung(ctx, 1),
		"0 bytes held, want at least 1":       p.WaitHeld(ctx, 1),
	} {
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestEveryFaultAtOnceLeavesNoGoroutine(t *testing.T) {
	_, p := setUp(t)
	for range 20 {
		c := dial(t, p)
		go c.Write([]byte("x"))
	}
	check(t, p.WaitConnections(t.Context(), 20))
	p.HangNext(5)
	for range 10 {
		dial(t, p)
	}
	p.DelayReplies(time.Hour)
	p.DropReplies()
	p.Hang()
}

func dial(t *testing.T, p *faultproxy.Proxy) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

func send(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("received %q, %v, want %q", got[:n], err, want)
	}
}

func echo(t *testing.T, c net.Conn, s string) {
	t.Helper()
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(c, s)
		sent <- err
	}()
	receive(t, c, s)
	check(t, <-sent)
}

// closed fails the test unless the peer has closed c, having sent nothing.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	n, err := c.Read(make([]byte, 1))
	if n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d bytes, %v, want the end", n, err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
