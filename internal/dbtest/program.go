package dbtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// Program lends this package to a program that is no test: it runs fn with a stand-in for its test, and returns when everything that was made
// for it is gone. What would fail a test, or skip it, is the error. A fatal failure ends fn.
func Program(ctx context.Context, fn func(t testing.TB)) error {
	inMain.Store(true)
	defer inMain.Store(false)
	s := &stage{ctx: ctx}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		fn(s)
	}()
	<-ended
	s.cleanUp()
	return errors.Join(append(s.failures, takeDown())...)
}

// A stage stands in for a test. It has what this package and faultproxy ask of one.
type stage struct {
	testing.TB
	ctx context.Context

	mu       sync.Mutex // guards the fields below
	failures []error
	cleanups []func()
}

func (s *stage) Helper()                  {}
func (s *stage) Context() context.Context { return s.ctx }

func (s *stage) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

func (s *stage) Errorf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = append(s.failures, fmt.Errorf(format, args...))
}

func (s *stage) Fatalf(format string, args ...any) {
	s.Errorf(format, args...)
	runtime.Goexit()
}

func (s *stage) Fatal(args ...any)                { s.Fatalf("%s", fmt.Sprint(args...)) }
func (s *stage) Skipf(format string, args ...any) { s.Fatalf(format, args...) }

func (s *stage) TempDir() string {
	dir, err := os.MkdirTemp("", "lease-")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (s *stage) cleanUp() {
	s.mu.Lock()
	cleanups := slices.Clone(s.cleanups)
	s.mu.Unlock()
	for _, f := range slices.Backward(cleanups) {
		done := make(chan struct{})
		go func() { // it may be fatal
			defer close(done)
			f()
		}()
		<-done
	}
}
