package lease

import (
	"testing"
	"time"
)

// This is a model of a leader and one standby, whose watch is the real one. Its
// time goes in ticks of a twelfth of a TTL. At each tick each of the two may do
// what it may do, and every order is tried, without end:
//
//   - The leader renews whenever it trusts its term. A renewal lands at once or
//     up to four ticks later. Some never land.
//   - The standby polls, after pauses of three to twelve ticks. The database
//     looks at the row, and the answer comes, at any of the next four ticks.
//   - The database's clock is stepped, back and forth, by any amount and any
//     number of times between any two looks at it. So a row that a poll is the
//     first to show may look as old as it likes.
//
// The first poll alone saw a clock that nobody had stepped.
const (
	modelTrust  = 8  // how long a renewal is trusted, from its sending
	modelLate   = 4  // how late a renewal may land
	modelAnswer = 4  // how late an answer may come
	modelPause  = 3  // the least pause of the standby
	modelAbsent = 12 // the longest
)

var modelAges = []int{0, 1, 2, 3, 4, 6, 8, 12, 3000}

// A modelState is a state of the model. Its ticks are counted from now.
type modelState struct {
	since, age int  // the watch's count, and how old its row was then
	current    bool // the row stands as the watch knows it

	trust int // when the leader stops
	sent  int // when the renewal in flight was sent; 1 for none

	polled   int  // when the poll in flight was sent, or the last answer came
	polling  bool // a poll is in flight
	looked   bool // the database has looked at the row,
	sawNew   bool // which was not as the watch knew it,
	outdated bool // and has changed since
}

// modelRow is the row after so many renewals, as a clock shows it by which it is
// so many ticks old.
func modelRow(renewals, age int) sighting {
	renewed := clockAt(time.Duration(renewals) * time.Microsecond)
	return sighting{exists: true, now: renewed.Add(modelTicks(age)), Record: Record{
		Name: "job", Holder: "A", Epoch: 3, RenewedAt: renewed, ExpiresAt: renewed.Add(T),
	}}
}

func modelTicks(n int) time.Duration { return time.Duration(n) * T / 12 }

// leader calls then with what the leader may do, and what becomes of that.
func (s modelState) leader(then func(modelState)) {
	then(s)
	if s.sent > 0 {
		s.sent = 0
		then(s)
	}
	if s.sent > 0 {
		return
	}
	landed := s
	landed.trust, landed.sent = s.sent+modelTrust, 1
	landed.current, landed.outdated = false, s.looked
	then(landed)
	lost := s
	lost.sent = 1
	then(lost)
}

// standby calls then with what the standby may do. It reports whether one of
// these things is to take the lease while the leader acts.
func (s modelState) standby(then func(modelState)) (broken bool) {
	if !s.polling {
		if s.polled > -modelAbsent {
			then(s)
		}
		if s.polled > -modelPause {
			return false
		}
		s.polling, s.polled, s.looked = true, 0, false
	}
	if !s.looked {
		if s.polled > -modelAnswer {
			then(s)
		}
		s.looked, s.sawNew, s.outdated = true, !s.current, false
	}
	if s.polled > -modelAnswer {
		then(s)
	}
	for _, age := range modelAges {
		broken = s.answer(age, then) || broken
		if !s.sawNew {
			break
		}
	}
	return broken
}

// answer lets the standby hear the answer to its poll, and take the lease if
// the real watch says so.
func (s modelState) answer(age int, then func(modelState)) (broken bool) {
	w := watch{polled: true, known: true, epoch: 3, ttl: T, row: modelRow(0, 0), since: at(modelTicks(s.since)), age: modelTicks(s.age)}
	row := modelRow(0, age)
	if s.sawNew {
		row = modelRow(1, age)
	}
	w.note(row, at(0), T)
	unchanged := !s.outdated
	if w.wait(T) == 0 && unchanged { // else the guard of the take fails
		return s.trust > 0
	}
	s.since, s.age = int((w.since.mono-at(0).mono)/(T/12)), int(w.age/(T/12))
	s.current = unchanged
	s.polled, s.polling, s.looked, s.sawNew, s.outdated = 0, false, false, false, false
	then(s)
	return false
}

// tick lets a tick pass. It reports whether anything can still go wrong.
func (s *modelState) tick() bool {
	s.since, s.trust, s.polled = s.since-1, s.trust-1, s.polled-1
	if s.sent <= 0 {
		if s.sent--; s.sent < -modelLate {
			s.sent = 1
		}
	}
	return s.trust > 0
}

func TestNoStepOfTheClockMakesAWatchingElectorTakeALiveLease(t *testing.T) {
	states := map[modelState]bool{}
	var open []modelState
	reach := func(s modelState) {
		if s.tick() && !states[s] {
			states[s] = true
			open = append(open, s)
		}
	}
	for age := range modelTrust { // as the first poll found the row
		reach(modelState{age: age, current: true, trust: modelTrust - age, sent: 1})
		reach(modelState{age: age, current: false, trust: modelTrust, sent: 1})
	}
	for len(open) > 0 {
		s := open[len(open)-1]
		open = open[:len(open)-1]
		s.leader(func(next modelState) {
			if next.standby(reach) {
				t.Fatalf("the standby takes the lease of a leader that acts for %d more ticks: %+v", next.trust, next)
			}
		})
	}
	if t.Logf("%d states", len(states)); len(states) < 10_000 {
		t.Error("the model does not move")
	}
}
