package faultproxy_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// echoServer echoes every byte and remembers what it was sent.
type echoServer struct {
	listener net.Listener
	tasks    sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	conns    []net.Conn
	received string
	changed  chan struct{} // closed and replaced when anything arrives
	broken   chan error    // how each connection ended
}

func newEchoServer(t *testing.T) *echoServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &echoServer{listener: listener, changed: make(chan struct{}), broken: make(chan error, 100)}
	s.tasks.Go(s.accept)
	t.Cleanup(s.close)
	return s
}

func (s *echoServer) addr() string { return s.listener.Addr().String() }

func (s *echoServer) close() {
	s.listener.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.tasks.Wait()
}

func (s *echoServer) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns = append(s.conns, c)
		s.signal()
		s.mu.Unlock()
		s.tasks.Go(func() {
			defer c.Close()
			_, err := io.Copy(c, io.TeeReader(c, s))
			s.broken <- err
		})
	}
}

// Write remembers what arrived.
func (s *echoServer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received += string(b)
	s.signal()
	return len(b), nil
}

func (s *echoServer) signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// waitReceived waits until the server has been sent exactly want.
func (s *echoServer) waitReceived(t *testing.T, want string) {
	t.Helper()
	for {
		s.mu.Lock()
		got, changed := s.received, s.changed
		s.mu.Unlock()
		if got == want {
			return
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatalf("the server received %q, want %q", got, want)
		}
	}
}

func (s *echoServer) got() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received
}

func (s *echoServer) accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}
