package lease

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A claimedRow is a claim's way to its row, with the faults of a fakeStore.
type claimedRow struct {
	*fakeStore
	epoch int64
	kept  []bool // what each release that landed said of the attempts
}

func (s *claimedRow) own() bool {
	r := s.table.row
	return r != nil && r.Holder == s.holder && r.Epoch == s.epoch
}

func (s *claimedRow) sendRenewal(ctx context.Context) (ok bool, err error) {
	err = s.do(ctx, "renew", func(time.Time) {
		if ok = s.own(); ok {
			now := s.table.now()
			s.table.write(Record{"item", s.holder, s.epoch, now.Add(s.ttl), s.table.row.AcquiredAt, now})
		}
	})
	return ok && err == nil, err
}

func (s *claimedRow) sendRelease(ctx context.Context, keep bool) (ok bool, err error) {
	err = s.do(ctx, "release", func(time.Time) {
		if ok = s.own(); ok {
			s.table.write(Record{Name: "item", Epoch: s.epoch, ExpiresAt: s.table.now()})
			s.kept = append(s.kept, keep)
		}
	})
	return ok && err == nil, err
}

// taken lets somebody else claim the item.
func (s *claimedRow) taken() {
	s.table.edit(func(r *Record) { r.Holder, r.Epoch, r.ExpiresAt = "B", r.Epoch+1, time.Now().Add(time.Hour) })
}

// A keeper is a claim that was just made, and what keeps it alive.
type keeper struct {
	*Holder
	jumpingClock
	t      *testing.T
	store  *claimedRow
	losses prometheus.Counter
	beats  []*beating
	runs   []*running
}

func newKeeper(t *testing.T, ttl time.Duration) *keeper {
	now := time.Now()
	k := &keeper{t: t, losses: prometheus.NewCounter(prometheus.CounterOpts{Name: "losses"})}
	row := &Record{"item", "A", 7, now.Add(ttl), now, now}
	k.store = &claimedRow{fakeStore: &fakeStore{table: &fakeTable{row: row}, holder: "A", ttl: ttl}, epoch: 7}
	k.Holder = &Holder{
		hold: hold{key: "item", owner: "A", epoch: 7}, ttl: ttl, item: Item{Key: "item"},
		saving: make(chan struct{}, 1), running: make(chan struct{}, 1),
	}
	k.life = newClaim(k.store, k.clock(), ttl, k.clock, &claimCounts{lost: k.losses})
	return k
}

// keeping runs a test of one claim in a bubble.
func keeping(t *testing.T, ttl time.Duration, test func(t *testing.T, k *keeper)) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper(t, ttl)
		defer k.end()
		test(t, k)
	})
}

// end ends everything that the claim runs, also statements in deaf drivers.
func (k *keeper) end() {
	k.store.heal()
	for _, b := range k.beats {
		b.stop()
		<-b.returned
	}
	for _, r := range k.runs {
		r.stop(nil)
		<-r.returned
	}
	<-time.After(3 * time.Hour)
	if n := k.store.pending(); n != 0 {
		k.t.Errorf("%d statements have not returned", n)
	}
	if n := len(k.life.tenures); n != 0 {
		k.t.Errorf("%d tenures are kept for nobody", n)
	}
}

// lost fails the test unless so many losses were counted.
func (k *keeper) lost(want float64) {
	k.t.Helper()
	if n := testutil.ToFloat64(k.losses); n != want {
		k.t.Errorf("%v losses were counted, not %v", n, want)
	}
}

// released fails the test unless the item was released once, and the attempt taken back or not.
func (k *keeper) released(back bool) {
	k.t.Helper()
	if row := k.store.table.read(); row.Holder != "" || len(k.store.kept) != 1 || k.store.kept[0] != back {
		k.t.Errorf("the row is %+v; the attempt was taken back: %v, not %v", row, k.store.kept, back)
	}
}

// leftAlone fails the test if a release was sent, or if anything is sent still.
func (k *keeper) leftAlone() {
	k.t.Helper()
	sent := k.store.count("")
	elapse(2 * T)
	if n := k.store.count("release"); n != 0 {
		k.t.Errorf("%d releases", n)
	}
	if n := k.store.count("") - sent; n != 0 {
		k.t.Errorf("%d statements after the end", n)
	}
}

// A beating is one call of Heartbeat.
type beating struct {
	t        *testing.T
	stop     context.CancelFunc
	returned chan struct{}

	mu      sync.Mutex // guards the fields below
	renewed int
	losses  []error
	lostAt  time.Time // the first
}

// heartbeat begins one, and lets it settle.
func (k *keeper) heartbeat(interval time.Duration) *beating {
	return k.beat(k.t.Context(), interval, nil)
}

// beat begins one whose onRenewed does something.
func (k *keeper) beat(ctx context.Context, interval time.Duration, onRenewed func()) *beating {
	ctx, stop := context.WithCancel(ctx)
	b := &beating{t: k.t, stop: stop, returned: make(chan struct{})}
	k.beats = append(k.beats, b)
	go func() {
		defer close(b.returned)
		k.Heartbeat(ctx, interval, func(Item) {
			b.mu.Lock()
			b.renewed++
			b.mu.Unlock()
			if onRenewed != nil {
				onRenewed()
			}
		}, func(err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if len(b.losses) == 0 {
				b.lostAt = time.Now()
			}
			b.losses = append(b.losses, err)
		})
	}()
	synctest.Wait()
	return b
}

// lostOnce fails the test unless onLost was called once, at that time, with ErrLost. It returns the error.
func (b *beating) lostOnce(at time.Time) error {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.losses) != 1 {
		b.t.Errorf("onLost was called %d times, not once: %v", len(b.losses), b.losses)
		return nil
	}
	if !b.lostAt.Equal(at) || !errors.Is(b.losses[0], ErrLost) {
		b.t.Errorf("onLost was called %v after its time, with %v", b.lostAt.Sub(at), b.losses[0])
	}
	return b.losses[0]
}

// neverLost fails the test if onLost was called.
func (b *beating) neverLost() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.losses) > 0 {
		b.t.Errorf("onLost was called: %v", b.losses)
	}
}

func (b *beating) renewals() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.renewed
}

// over reports whether Heartbeat has returned.
func (b *beating) over() bool { return closed(b.returned) }

// A running is one call of Run.
type running struct {
	t        *testing.T
	stop     context.CancelCauseFunc
	returned chan struct{}
	err      error // of Run, once it has returned
	panicked any

	mu    sync.Mutex      // guards the fields below
	ctx   context.Context // the work's
	ended time.Time       // when that did
}

// run begins one, and lets it settle.
func (k *keeper) run(work func(context.Context) error) *running { return k.runIn(k.t.Context(), work) }

func (k *keeper) runIn(ctx context.Context, work func(context.Context) error) *running {
	ctx, stop := context.WithCancelCause(ctx)
	r := &running{t: k.t, stop: stop, returned: make(chan struct{})}
	k.runs = append(k.runs, r)
	go func() {
		defer close(r.returned)
		defer func() { r.panicked = recover() }()
		r.err = k.Run(ctx, func(ctx context.Context) error {
			r.mu.Lock()
			r.ctx = ctx
			r.mu.Unlock()
			context.AfterFunc(ctx, func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.ended = time.Now()
			})
			return work(ctx)
		})
	}()
	synctest.Wait()
	return r
}

// over reports whether Run has returned.
func (r *running) over() bool { return closed(r.returned) }

// began reports whether work did.
func (r *running) began() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ctx != nil
}

// cause fails the test unless the work's context has ended for this reason.
func (r *running) cause(want error) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx == nil {
		r.t.Error("work never began")
	} else if got := context.Cause(r.ctx); got != want {
		r.t.Errorf("the cause of the end of the work's context is %v, not %v", got, want)
	}
}

// endedAt fails the test unless the work's context ended then.
func (r *running) endedAt(at time.Time) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended.Equal(at) {
		r.t.Errorf("the work's context ended %v after its time", r.ended.Sub(at))
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

var (
	errWork     = errors.New("work failed")
	errShutdown = errors.New("rolling deploy")
)

// working is work that takes some time, whatever its context does.
func working(d time.Duration, err error) func(context.Context) error {
	return func(context.Context) error {
		<-time.After(d)
		return err
	}
}

// until is work that ends some time after its context.
func until(d time.Duration, err error) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		<-time.After(d)
		return err
	}
}

func endedContext(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
