package lease

import (
	"math"
	"testing"
	"time"
)

// held is the row as the leader renewed it at some time, seen later.
func held(renewed, seen time.Duration) sighting {
	return sighting{exists: true, now: clockAt(seen), Record: Record{
		Name: "job", Holder: "A", Epoch: 3, RenewedAt: clockAt(renewed), ExpiresAt: clockAt(renewed + T),
	}}
}

// A look is one answered poll of a watch.
type look struct {
	row      sighting
	answered time.Duration
}

// see shows a watch these looks, and returns how long the row must still stand.
func see(w *watch, looks ...look) time.Duration {
	for _, l := range looks {
		w.note(l.row, at(l.answered), T)
	}
	return w.wait(T)
}

func TestAWatchTakesTheLeaseByTheseRules(t *testing.T) {
	released := held(0, 1)
	released.Holder = ""
	longer := held(0, 0)
	longer.ExpiresAt = clockAt(2 * T)
	longerLater := longer
	longerLater.now = clockAt(T)
	releasedLonger := longer
	releasedLonger.Holder, releasedLonger.ExpiresAt, releasedLonger.now = "", clockAt(T/4), clockAt(T/3)
	seeded := sighting{exists: true, now: clockAt(0), Record: Record{Name: "job"}}
	none := sighting{now: clockAt(0)}
	old := held(0, T/3)
	old.RenewedAt = time.Time{}
	for name, tc := range map[string]struct {
		looks []look
		wait  time.Duration
	}{
		"a lease without a row is free":                        {[]look{{none, 0}}, 0},
		"a released one is free":                               {[]look{{released, 0}}, 0},
		"also if its expiry lies ahead of the clock":           {[]look{{releasedLonger, 0}}, 0},
		"at the start the age of a row is believed":            {[]look{{held(-T*3/4, 0), 0}}, T / 4},
		"so an expired one is free":                            {[]look{{held(-T, 0), 0}}, 0},
		"one that expired long ago, too":                       {[]look{{held(-time.Hour, 0), 0}}, 0},
		"one dated ahead of the clock stands for its TTL":      {[]look{{held(time.Hour, 0), 0}}, T},
		"one that tells no renewal is as old as it says":       {[]look{{old, 0}}, T * 2 / 3},
		"a row that stood for its TTL is free":                 {[]look{{held(0, 0), T / 6}, {held(0, T), T + T/6}}, 0},
		"whatever the clock says":                              {[]look{{held(0, 0), T / 6}, {held(0, -time.Hour), T + T/6}}, 0},
		"which counts from the answer that first showed it":    {[]look{{held(0, 0), T / 6}, {held(0, T*5/6), T}}, T / 6},
		"a clock that runs ahead shortens nothing":             {[]look{{held(0, 0), 0}, {held(0, time.Hour), T / 3}}, T * 2 / 3},
		"nor one that runs ahead before the start's first row": {[]look{{none, 0}, {held(0, time.Hour), T / 3}}, T * 3 / 4},
		"a new row is as old as it says":                       {[]look{{held(-T/3, 0), 0}, {held(0, T/5), T / 3}}, T * 4 / 5},
		"but for a quarter of its TTL at most":                 {[]look{{held(-T/3, 0), 0}, {held(0, T/4+1), T / 3}}, T * 3 / 4},
		"also if it says that it expired long ago":             {[]look{{held(-T/3, 0), 0}, {held(-time.Hour, T/3), T / 3}}, T * 3 / 4},
		"and if it was not looked at for long":                 {[]look{{held(-T, 0), 0}, {held(0, 2*T), 2 * T}}, T * 3 / 4},
		"a quarter of the TTL that the row has":                {[]look{{none, 0}, {longerLater, T / 3}}, 2*T - T/2},
		"a renewed row is not yet old":                         {[]look{{held(0, 0), 0}, {held(T/3, T/3), T / 3}, {held(T*2/3, T*2/3), T * 2 / 3}}, T},
		"a deleted row is seeded after a TTL":                  {[]look{{held(0, 0), 0}, {sighting{now: clockAt(T / 3)}, T / 3}}, T},
		"a deleted row is waited for by the longer of two TTLs, though it was released": {
			[]look{{longer, 0}, {releasedLonger, T / 3}, {sighting{now: clockAt(T * 2 / 3)}, T * 2 / 3}}, 2 * T,
		},
		"and by the elector's own TTL if nobody held it": {[]look{{seeded, 0}, {sighting{now: clockAt(T / 3)}, T / 3}}, T},
	} {
		t.Run(name, func(t *testing.T) {
			if wait := see(new(watch), tc.looks...); wait != tc.wait {
				t.Errorf("wait %v, not %v", wait, tc.wait)
			}
		})
	}
}

func TestAWatchWaitsForNoTermOfItsOwn(t *testing.T) {
	var w watch
	see(&w, look{held(-T, 0), 0})
	w.lead(Term{Name: "job", Holder: "B", Epoch: 4})
	own := held(0, T/3)
	own.Holder, own.Epoch = "B", 4
	if wait := see(&w, look{own, T}); wait != 0 {
		t.Errorf("it waits %v for its own term, which is over", wait)
	}
	for name, change := range map[string]func(*sighting){
		"a later term of the same holder": func(s *sighting) { s.Epoch = 5 },
		"a term of another":               func(s *sighting) { s.Holder = "C" },
		"an earlier term, made by hand":   func(s *sighting) { s.Epoch = 3 },
	} {
		other, after := own, w
		change(&other)
		if wait := see(&after, look{other, T * 4 / 3}); wait != T*3/4 {
			t.Errorf("%s: it waits %v", name, wait)
		}
	}
}

func TestAWatchThatLedCountsWhatChangedMeanwhileFromItsNextLook(t *testing.T) {
	var w watch
	see(&w, look{held(-T, 0), 0})
	w.lead(Term{Name: "job", Holder: "B", Epoch: 4})
	next := held(0, 2*T)
	next.Epoch = 5
	if wait := see(&w, look{next, 2 * T}); wait != T*3/4 {
		t.Errorf("it waits %v", wait)
	}
}

func TestALeaderIsKnownForWhatRemainsFromTheLastLook(t *testing.T) {
	var w watch
	see(&w, look{held(0, 0), 0}, look{held(0, -T/2), T / 3})
	if holder, until := w.leader(); holder != "A" || until.left(at(T/3)) != T+T/2 {
		t.Errorf("%q for %v", holder, until.left(at(T/3)))
	}
}

func TestAWallClockThatJumpsMakesNoRowStandForLonger(t *testing.T) {
	var w watch
	w.note(held(0, 0), at(0), T)
	jumped := at(T / 3)
	jumped.wall += 10 * T
	w.note(held(0, T/3), jumped, T)
	if wait := w.wait(T); wait != T*2/3 {
		t.Errorf("it waits %v", wait)
	}
}

func TestAWatchKnowsTheHighestEpochOfALeaseWhoseRowIsGone(t *testing.T) {
	var w watch
	w.note(held(0, 0), at(0), T)
	w.remember(7)
	w.note(sighting{now: clockAt(T)}, at(T), T)
	if w.epoch != 7 || !w.known {
		t.Errorf("epoch %d, known %v", w.epoch, w.known)
	}
}

func TestAWatchKeepsTheHighestEpochThoughARowWithALowerOneAppears(t *testing.T) {
	var w watch
	w.remember(7)
	w.note(held(0, 0), at(0), T) // epoch 3, made by hand
	if w.epoch != 7 {
		t.Errorf("epoch %d", w.epoch)
	}
}

func TestAWatchCountsForAMissingRowFromItsNextLookAfterATerm(t *testing.T) {
	none := sighting{now: clockAt(0)}
	var w watch
	if wait := see(&w, look{none, 0}); wait != 0 {
		t.Fatalf("it waits %v for a lease that never had a row", wait)
	}
	w.lead(Term{Name: "job", Holder: "B", Epoch: 1})
	if wait := see(&w, look{none, 10 * T}); wait != T {
		t.Errorf("it waits %v after the answer that first showed the row gone", wait)
	}
}

func TestARowThatTellsNoRenewalIsWaitedForAsLongAsItSays(t *testing.T) {
	var w watch
	row := held(0, 0)
	row.RenewedAt, row.ExpiresAt = time.Time{}, clockAt(10*T)
	if wait := see(&w, look{row, 0}); wait != 10*T {
		t.Errorf("it waits %v at first", wait)
	}
	row.now = clockAt(4 * T)
	if wait := see(&w, look{row, 4 * T}); wait != 6*T {
		t.Errorf("it waits %v later", wait)
	}
}

func TestAnExpiredRowIsOldHoweverHugeTheTTL(t *testing.T) {
	row := held(0, 0)
	row.RenewedAt, row.ExpiresAt = time.Time{}, clockAt(-time.Hour)
	var w watch
	w.note(row, at(0), math.MaxInt64)
	if wait := w.wait(math.MaxInt64); wait != 0 {
		t.Errorf("it waits %v", wait)
	}
}
