package lease

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestAskingEndsWithItsContextOrItsLimitWhateverTheDriverDoes(t *testing.T) {
	deaf := func(context.Context) (int, error) {
		<-time.After(time.Hour)
		return 1, nil
	}
	for name, tc := range map[string]struct {
		ends  time.Duration // the context
		limit time.Duration
		after time.Duration
		err   error
	}{
		"its context": {ends: T, limit: 2 * T, after: T, err: errRefused},
		"its limit":   {ends: 2 * T, limit: T, after: T, err: errSilent},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancelCause(t.Context())
				defer end(nil)
				time.AfterFunc(tc.ends, func() { end(errRefused) })
				begin, f := time.Now(), make(flight, maxInFlight)
				if n, err := ask(ctx, f, tc.limit, deaf); n != 0 || err != tc.err || time.Since(begin) != tc.after {
					t.Errorf("%d, %v, after %v", n, err, time.Since(begin))
				}
				<-time.After(2 * time.Hour) // the deaf driver returns
				synctest.Wait()
				if len(f) != 0 {
					t.Errorf("%d statements are still counted", len(f))
				}
			})
		})
	}
}

func TestSettlingLeavesRoomForALateRelease(t *testing.T) {
	f := make(flight, maxInFlight)
	f.settle(time.Second)
	if len(f) != 0 {
		t.Errorf("%d statements are counted, though none is on its way", len(f))
	}
}
