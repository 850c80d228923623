package lease

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// A view is what others may see of a run. Run's goroutine alone writes it; anyone may ask.
type view struct {
	clock func() instant
	fresh time.Duration // how long an answer of the database counts: a TTL

	mu         sync.Mutex // guards the fields below
	current    *tenure    // from before its work starts until that returned
	holds      string     // the leader as last observed,
	holdsUntil instant    // and for how long that is worth something
	epoch      int64      // the highest seen
	heard      bool       // the database gave a good answer,
	answered   instant    // the last time
	failure    error      // what it gave instead since then
}

// publish lets others see the tenure whose work runs, or that there is none.
func (v *view) publish(t *tenure) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.current = t
}

// tenure is the one whose work runs, whether or not it may still go on; nil if none does.
func (v *view) tenure() *tenure {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.current
}

// observe lets others see who leads until when, and the highest epoch, after a poll that was answered.
func (v *view) observe(holder string, until instant, epoch int64) {
	v.mu.Lock()
	v.holds, v.holdsUntil, v.epoch = holder, until, epoch
	v.mu.Unlock()
	v.hear()
}

// highest is the highest epoch seen.
func (v *view) highest() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.current != nil {
		return max(v.epoch, v.current.term.Epoch)
	}
	return v.epoch
}

// leader is who leads, as last observed.
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

// hear notes that the database answered.
func (v *view) hear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.heard, v.answered, v.failure = true, v.clock(), nil
}

// fail notes that it did not, or with an error.
func (v *view) fail(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failure = err
}

// health is nil while the database answers, and no work outlives its term.
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
