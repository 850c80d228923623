package lease

import (
	"testing"
	"time"
)

// within asks for a state that somebody else reaches, and tells nobody.
func within(t *testing.T, limit time.Duration, what string, reached func() bool) {
	t.Helper()
	look := time.NewTicker(3 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(limit); !reached(); <-look.C {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
