package lease

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// A view is what others may see of a run. Run writes it, and anyone may ask it.
type view struct {
	clock func() instant
	fresh time.Duration // how long an answer of the database counts: a TTL

	mu         sync.Mutex // guards the fields below
	current    *tenure    // set from before the work starts until the work has returned
	holds      string     // the leader as last observed
	holdsUntil instant    // the end of that observation's validity
	epoch      int64      // the highest seen
	heard      bool       // the database has given a good answer
	answered   instant    // when the last good answer came
	failure    error      // the last failure since then
}

// publish lets others see the tenure whose work runs, or nil if no work runs.
func (v *view) publish(t *tenure) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.current = t
}

// tenure returns the tenure whose work runs, whether or not the work may still
// go on. It returns nil if no work runs.
func (v *view) tenure() *tenure {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.current
}

// observe publishes an answered poll: the leader, until when, and the highest
// epoch.
func (v *view) observe(holder string, until instant, epoch int64) {
	v.mu.Lock()
	v.holds, v.holdsUntil, v.epoch = holder, until, epoch
	v.mu.Unlock()
	v.hear()
}

// highest returns the highest epoch seen.
func (v *view) highest() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.current != nil {
		return max(v.epoch, v.current.term.Epoch)
	}
	return v.epoch
}

// leader returns the leader as last observed.
func (v *view) leader() (string, bool) {
	if t := v.tenure(); t != nil && t.held() {
		return t.term.Holder, true
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.holdsUntil.left(v.clock()) == 0 {
		return "", false
	}
	return v.holds, true
}

// hear notes a good answer of the database.
func (v *view) hear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.heard, v.answered, v.failure = true, v.clock(), nil
}

// fail notes a failure: no answer in time, or an error.
func (v *view) fail(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failure = err
}

// health returns nil while the database answers and no work outlives its term.
func (v *view) health() error {
	if t := v.tenure(); t != nil && !t.held() {
		return fmt.Errorf("work outlives its term: %w", ErrLost)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	silence := v.clock().mono - v.answered.mono
	switch {
	case v.heard && silence <= v.fresh:
		return nil
	case v.failure != nil:
		return fmt.Errorf("no good answer from the database: %w", v.failure)
	case v.heard:
		return fmt.Errorf("no answer from the database for %v", silence)
	}
	return errors.New("no answer from the database yet")
}
