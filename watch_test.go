package lease

import (
	"testing"
	"time"
)

// at is an instant of an elector's own clock, and clockAt one of the clock that decides.
func at(d time.Duration) instant        { return instant{mono: d + time.Hour, wall: d + time.Hour} }
func clockAt(d time.Duration) time.Time { return time.Unix(1e9, 0).Add(d) }

// held is the row as the leader renewed it at some time, seen later.
func held(renewed, seen time.Duration) sighting {
	return sighting{exists: true, now: clockAt(seen), Record: Record{
		Name: "job", Holder: "A", Epoch: 3, RenewedAt: clockAt(renewed), ExpiresAt: clockAt(renewed + T),
	}}
}

func TestAWatchTakesTheLeaseByTheseRules(t *testing.T) {
	type poll struct {
		row      sighting
		answered time.Duration
	}
	released := held(0, 1)
	released.Holder = ""
	longer := held(0, 0)
	longer.ExpiresAt = clockAt(2 * T)
	releasedLonger := longer
	releasedLonger.Holder, releasedLonger.ExpiresAt, releasedLonger.now = "", clockAt(T/4), clockAt(T/3)
	seeded := sighting{exists: true, now: clockAt(0), Record: Record{Name: "job"}}
	for name, tc := range map[string]struct {
		polls []poll
		led   bool // before the last poll
		guard guard
		wait  time.Duration
	}{
		"a lease without a row is free": {
			polls: []poll{{sighting{now: clockAt(0)}, 0}}, guard: ifExpired,
		},
		"a released one is free": {
			polls: []poll{{released, 0}}, guard: ifUnchanged,
		},
		"a live one expires by the clock that decides": {
			polls: []poll{{held(-T/4, 0), 0}}, guard: ifUnchanged, wait: T * 3 / 4,
		},
		"an expired one is free": {
			polls: []poll{{held(-T/4, 0), 0}, {held(-T/4, T*3/4), T * 3 / 4}}, guard: ifExpired,
		},
		"a row that stood for its TTL is free, whatever the clock says": {
			polls: []poll{{held(0, 0), T / 6}, {held(0, -time.Hour), T + T/6}}, guard: ifUnchanged,
		},
		"which counts from the answer that first showed it": {
			polls: []poll{{held(0, 0), T / 6}, {held(0, -time.Hour), T}}, guard: ifUnchanged, wait: T / 6,
		},
		"an expiry is doubted after the clock ran ahead": {
			polls: []poll{{held(0, 0), 0}, {held(0, 2*T), T / 3}}, guard: ifUnchanged, wait: T * 2 / 3,
		},
		"also if the row was renewed just before that": {
			polls: []poll{{held(-T/3, 0), 0}, {held(0, 2*T), T / 3}}, guard: ifUnchanged, wait: T,
		},
		"also if the clock went back before, by more": {
			polls: []poll{{held(-T/3, 0), 0}, {held(0, -time.Hour), T / 3}, {held(0, 2*T-time.Hour), T / 2}},
			guard: ifUnchanged, wait: T - T/6,
		},
		"and stays in doubt when the clock is put right": {
			polls: []poll{{held(0, 0), 0}, {held(0, 2*T), T / 3}, {held(0, T*2/3), T * 2 / 3}},
			guard: ifUnchanged, wait: T / 3,
		},
		"but is believed again once it was renewed": {
			polls: []poll{{held(0, 0), 0}, {held(0, 2*T), T / 3}, {held(2*T, 2*T+T/3), T * 2 / 3}, {held(2*T, 3*T), T * 4 / 3}},
			guard: ifExpired,
		},
		"a slow answer is no clock that ran ahead": {
			polls: []poll{{held(-T, -T/4), T / 4}, {held(-T, T/12), T / 3}}, guard: ifExpired,
		},
		"a step within the margin may be believed": {
			polls: []poll{{held(-T, -T/3), 0}, {held(-T, T/5), T / 3}}, guard: ifExpired,
		},
		"a row that changed while the database was away for long is believed": {
			polls: []poll{{held(-T, 0), 0}, {held(0, 2*T), 2 * T}}, guard: ifExpired,
		},
		"a row that changed while the elector led for longer than a TTL is doubted": {
			polls: []poll{{held(-T, 0), 0}, {held(0, 2*T), 2 * T}}, led: true, guard: ifUnchanged, wait: T,
		},
		"a deleted row is seeded after a TTL": {
			polls: []poll{{held(0, 0), 0}, {sighting{now: clockAt(T / 3)}, T / 3}}, guard: ifExpired, wait: T,
		},
		"a clock that ran ahead by more than a quarter of a TTL is doubted": {
			polls: []poll{{held(-T, -T/3), 0}, {held(-T, T/4+1), T / 3}}, guard: ifUnchanged, wait: T - T/3,
		},
		"but not one that went back and forth over a row that stood": {
			polls: []poll{{held(-T*5/6, 0), 0}, {held(-T*5/6, -T/2), T / 3}, {held(-T*5/6, T/2), T / 2}}, guard: ifExpired,
		},
		"nor one that answered slowly before a renewal": {
			polls: []poll{{held(-T/6, 0), T / 4}, {held(T/6, T/3), T / 3}, {held(T/6, T*7/6), T * 7 / 6}},
			guard: ifExpired,
		},
		"after it led for most of a TTL, what changed is doubted": {
			polls: []poll{{held(-T, 0), T / 4}, {held(T/12, T+T/8), T + T/8}}, led: true, guard: ifUnchanged, wait: T,
		},
		"a deleted row is waited for by the longer of two TTLs, though it was released": {
			polls: []poll{{longer, 0}, {releasedLonger, T / 3}, {sighting{now: clockAt(T * 2 / 3)}, T * 2 / 3}},
			guard: ifExpired, wait: 2 * T,
		},
		"and by the elector's own TTL if nobody held it": {
			polls: []poll{{seeded, 0}, {sighting{now: clockAt(T / 3)}, T / 3}}, guard: ifExpired, wait: T,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var w watch
			for i, p := range tc.polls {
				if tc.led && i == len(tc.polls)-1 {
					w.lead(4)
				}
				w.note(p.row, at(p.answered), T)
			}
			if guard, wait := w.free(T); guard != tc.guard || wait != tc.wait {
				t.Errorf("guard %v, wait %v; not %v, %v", guard, wait, tc.guard, tc.wait)
			}
		})
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

func TestALongTimeWithoutALookIsDoubtedOnlyRightAfterLeading(t *testing.T) {
	var w watch
	w.lead(3)
	w.note(held(0, 0), at(0), T)
	w.note(held(T, T+T/4), at(T+T/4), T)
	w.note(held(3*T, 5*T), at(5*T), T) // cut off meanwhile
	if guard, wait := w.free(T); guard != ifExpired || wait != 0 {
		t.Errorf("guard %v, wait %v", guard, wait)
	}
}
