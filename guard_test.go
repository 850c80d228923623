package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
)

// The tenure

func TestATenureIsExtendedByTheseRules(t *testing.T) {
	now := at(0)
	begin := func(ttl time.Duration) *tenure {
		return newTenure(t.Context(), Term{Name: "job", Holder: "A", Epoch: 1}, now, ttl, func() instant { return now })
	}
	long := begin(time.Hour)
	defer long.end(byRelease)
	if !long.extend(at(2*time.Hour)) || !long.extend(at(time.Hour)) || long.left() != 2*time.Hour {
		t.Errorf("an answer that came late took the deadline back, to %v", long.left())
	}
	now = at(2 * time.Hour) // no timer has noticed
	if long.extend(at(3 * time.Hour)) {
		t.Error("an answer that came after the deadline revived the term")
	}
	for _, ttl := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 / 2} {
		huge := begin(ttl)
		if !huge.leads() || huge.left() < 90*365*24*time.Hour {
			t.Errorf("a TTL of %v leaves %v", ttl, huge.left())
		}
		huge.end(byRelease)
	}
	if i := at(0).plus(math.MaxInt64); i.mono != math.MaxInt64 || i.wall != math.MaxInt64 {
		t.Errorf("an instant wrapped around: %v", i)
	}
}

// The elector

func TestARenewalThatIsAnsweredSlowlyCountsFromItsSending(t *testing.T) { // C04
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		renewals := 0
		var sent time.Time
		a.store.inject(func(s string) fault {
			if renewals++; renewals > 1 {
				return hung
			}
			sent = time.Now()
			return fault{after: T / 13}
		})
		c.passUntil(2*T, "A stops leading", func() bool { return !a.IsLeader() })
		if ended, _ := a.lastEnd(t); ended.Sub(sent) != T-T/3 {
			t.Errorf("the term ended %v after the last good renewal was sent, not %v", ended.Sub(sent), T-T/3)
		}
	})
}

func TestAnOldAnswerThatComesAfterANewerOneChangesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		r := a.Elector.run
		c.run(a, untilCancelled)
		tenure := r.tenure()
		defer func(sent instant) { tenure.sent = sent }(tenure.sent)
		start := r.clock()
		r.judge(tenure, renewal{sent: start.plus(T / 6), renewed: true})
		left := tenure.left()
		r.judge(tenure, renewal{sent: start.plus(T / 12), renewed: true})
		if tenure.left() != left || tenure.sent != start.plus(T/6) {
			t.Errorf("%v left, not %v; the next renewal counts from %v", tenure.left(), left, tenure.sent)
		}
	})
}

func TestRenewalsThatTakeTheirTimeGoOnWhileWorkWindsDown(t *testing.T) { // C62
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(3 * T)
		})
		b := c.start("B")
		a.store.inject(func(string) fault { return fault{before: T / 100, after: T / 100} })
		c.pass(T)
		a.stop(nil)
		c.pass(3*T - tick)
		if b.terms() != 0 {
			t.Error("B led while A's work wound down")
		}
		c.passUntil(T, "B leads", b.IsLeader)
	})
}

func TestNothingIsRenewedOrReleasedAfterATakeover(t *testing.T) { // C47
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(2 * T)
		})
		c.pass(T)
		c.table.edit(func(r *Record) { r.Epoch++; r.ExpiresAt = r.ExpiresAt.Add(time.Hour) }) // by a twin, of the same name
		took := c.passUntil(T, "A stops", func() bool { return !a.IsLeader() })
		if took > T/3+T/12 {
			t.Errorf("it took A %v to see that", took)
		}
		if !strings.Contains(a.log.String(), "reason=taken") {
			t.Errorf("the log is\n%s", a.log)
		}
		renewals := a.store.count("renew")
		c.pass(3 * T)
		if n := a.store.count("renew") - renewals; n != 0 {
			t.Errorf("%d renewals of a term that is over", n)
		}
		if n := a.store.count("release"); n != 0 {
			t.Errorf("%d releases of somebody else's term", n)
		}
	})
}

func TestNothingIsRenewedAfterTheDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(5 * T)
		})
		a.store.inject(func(s string) fault { return fault{fail: errRefused} })
		c.passUntil(T, "A stops", func() bool { return !a.IsLeader() })
		synctest.Wait()
		renewals := a.store.count("renew")
		c.pass(3 * T)
		if n := a.store.count("renew") - renewals; n != 0 {
			t.Errorf("%d renewals of a term that is over", n)
		}
	})
}

func TestATermThatCanNoLongerBeRenewedEndsAtOnceAndIsReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		c.table.stepClock(T / 2) // the next renewal finds a sixth left
		took := c.passUntil(T, "A stops", func() bool { return !a.IsLeader() })
		if took > T/3+T/100 {
			t.Errorf("A led for another %v", took)
		}
		synctest.Wait()
		if !strings.Contains(a.log.String(), "reason=expired") || a.store.count("release") != 1 {
			t.Errorf("%d releases; the log is\n%s", a.store.count("release"), a.log)
		}
	})
}

func TestALossThatNobodySawBeforeWorkReturnedIsALoss(t *testing.T) { // C03
	inBubble(t, func(t *testing.T, c *cluster) {
		woken := make(chan struct{})
		a := c.add("A")
		ctx, stop := context.WithCancelCause(t.Context())
		a.stop = stop
		go func() { // not through c.run, whose work asks its context how it ended
			defer close(a.done)
			a.Elector.run.campaign(ctx, func(context.Context) { <-woken })
		}()
		<-time.After(T / 50)
		a.jump(T, T) // frozen; no timer has had its turn
		close(woken)
		synctest.Wait()
		if !strings.Contains(a.log.String(), "lease: lost") {
			t.Errorf("the log is\n%s", a.log)
		}
	})
}

func TestWorkThatWoundDownPastItsDeadlineIsNotSaidToKeepTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(6 * T)
		})
		a.Resign()
		a.store.cut()
		c.pass(T - tick) // lost at two thirds, and not yet reminded
		before := strings.Count(a.log.String(), "keeps the lease")
		c.pass(4 * T)
		if n := strings.Count(a.log.String(), "keeps the lease") - before; n != 0 {
			t.Errorf("said %d times after the loss\n%s", n, a.log)
		}
		a.store.heal()
		c.pass(2 * T)
	})
}

func TestTheContextOfWorkThatReturnedHasEndedBeforeTheRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		var left context.Context // to a goroutine that work left behind
		var trusted, released bool
		a.store.inject(func(s string) fault {
			if s == "release" && !released {
				released, trusted = true, left.Err() == nil
			}
			return fault{}
		})
		c.run(a, func(ctx context.Context) { left = ctx })
		if !released || trusted {
			t.Errorf("released: %v; while the work's context was trusted: %v", released, trusted)
		}
	})
}

func TestStandbysDoNotAllPollAtTheExpiry(t *testing.T) { // C71
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		for i := range 30 {
			c.start(fmt.Sprint(i))
		}
		c.pass(T)
		a.store.cut()
		expiry := c.table.read().ExpiresAt
		c.pass(2 * T)
		at := map[time.Time]int{}
		for _, p := range c.replicas[1:] {
			for _, sent := range p.store.times {
				if d := sent.Sub(expiry); d >= 0 && d < T/32 {
					at[sent.Truncate(T/1000)]++
				}
			}
		}
		for when, n := range at {
			if n > 10 {
				t.Errorf("%d polls %v after the expiry", n, when.Sub(expiry))
			}
		}
	})
}

func TestAnAcquisitionInFlightAtTheEndIsAwaitedWithinABound(t *testing.T) { // C37, C60
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(firstly(1, "take", fault{before: time.Hour, deaf: true}))
		c.run(a, untilCancelled)
		a.stop(nil)
		begin := time.Now()
		<-a.done
		if took := time.Since(begin); took > T/3 {
			t.Errorf("Run returned after %v", took)
		}
	})
}

func TestAReleaseThatFailsIsTriedAgain(t *testing.T) { // C60
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		a.store.inject(firstly(2, "release", fault{fail: errRefused}))
		a.stop(nil)
		<-a.done
		if row := c.table.read(); row.Holder != "" {
			t.Errorf("the row is %+v\n%s", row, a.log)
		}
	})
}

func TestADeafDriverIsNotGivenMoreThanAFewStatements(t *testing.T) { // C37
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		before := len(a.store.sent)
		a.store.inject(func(string) fault { return fault{before: 2 * time.Hour, deaf: true} })
		c.pass(20 * T)
		if n := len(a.store.sent) - before; n > 4 {
			t.Errorf("%d statements have not been answered", n)
		}
	})
}

func TestStatementsThatHungDoNotOutliveTheirTimeouts(t *testing.T) { // C42
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.cut()
		c.run(a, untilCancelled)
		c.pass(5 * T)
		a.store.heal()
		c.passUntil(T*3/4, "A leads", a.IsLeader)
	})
}

func TestAStandbyWithATinyTTLIsPaced(t *testing.T) { // C10
	inBubble(t, func(t *testing.T, c *cluster) {
		c.ttl = time.Millisecond
		c.table.row = &Record{Name: "job", Holder: "B", Epoch: 1, RenewedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour)}
		a := c.start("A")
		<-time.After(time.Second)
		if n := a.store.count("poll"); n > 101 {
			t.Errorf("%d polls in a second", n)
		}
	})
}

func TestWorkThatWindsDownStillHasItsLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(T)
		})
		a.Resign()
		synctest.Wait()
		if holder, ok := a.Leader(); holder != "A" || !ok || a.IsLeader() {
			t.Errorf("Leader is %q, %v; IsLeader is %v", holder, ok, a.IsLeader())
		}
	})
}

func TestResigningALostTermDoesNotHideTheLoss(t *testing.T) { // C03
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		<-time.After(T / 50)
		a.jump(T, T) // no timer has had its turn
		a.Resign()
		synctest.Wait()
		if _, cause := a.lastEnd(t); cause != ErrLost {
			t.Errorf("the cause is %v", cause)
		}
	})
}

func TestWorkThatOutlivesItsLeaseCountsOnceAndHealthSaysSo(t *testing.T) { // C63
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.run(c.add("A"), func(ctx context.Context) {
			<-ctx.Done()
			<-time.After(6 * T)
		})
		a.store.cut()
		c.pass(5 * T)
		want(t, scrape(t), map[string]float64{`lease_work_overruns_total{lease="job"}`: 1})
		a.store.heal()
	})
}

func TestElectorsOfOneNameOnTwoTablesAreOneSeries(t *testing.T) { // C74
	inBubble(t, func(t *testing.T, c *cluster) {
		c.table.row = &Record{Name: "job", Epoch: 4} // released
		a := c.start("A")
		c.table, c.ttl = &fakeTable{}, T/2
		b := c.start("B")
		if !a.IsLeader() || !b.IsLeader() {
			t.Fatal("both should lead, each on its own table")
		}
		series := scrape(t)
		want(t, series, map[string]float64{`lease_leader{lease="job"}`: 1, `lease_epoch{lease="job"}`: 5})
		if left := series[`lease_deadline_seconds{lease="job"}`]; left < (T / 2).Seconds() {
			t.Errorf("the longest deadline is %v", left)
		}
	})
}

// The statements, one term of a guard at a time

func TestEveryTermOfAGuardCounts(t *testing.T) {
	noon := time.Date(2024, 3, 1, 12, 0, 0, 0, time.UTC)
	us := time.Microsecond
	term := func(holder string, epoch int64) Term { return Term{Name: "job", Holder: holder, Epoch: epoch} }
	seen := func(epoch int64, renewed time.Time) sighting {
		return sighting{exists: true, Record: Record{Name: "job", Epoch: epoch, RenewedAt: renewed}}
	}
	type try struct {
		name    string
		change  string // of the row: A's, in epoch 5, renewed at noon for a minute
		run     func(ctx context.Context, h *handle, tx *handle) (bool, error)
		granted bool
	}
	take := func(name string, now time.Time, s sighting) func(context.Context, *handle, *handle) (bool, error) {
		return func(ctx context.Context, h, _ *handle) (bool, error) {
			return h.take(ctx, name, "B", time.Minute, now, s)
		}
	}
	takeUnchanged := func(name string, now time.Time, s sighting) func(context.Context, *handle, *handle) (bool, error) {
		return func(ctx context.Context, h, _ *handle) (bool, error) {
			return h.takeUnchanged(ctx, name, "B", time.Minute, now, s)
		}
	}
	renew := func(tm Term, now time.Time) func(context.Context, *handle, *handle) (bool, error) {
		return func(ctx context.Context, h, _ *handle) (bool, error) {
			return h.renew(ctx, tm, time.Minute, now, 20*time.Second)
		}
	}
	renewSeen := func(tm Term, renewed, now time.Time) func(context.Context, *handle, *handle) (bool, error) {
		return func(ctx context.Context, h, _ *handle) (bool, error) {
			s := sighting{Record: Record{Name: tm.Name, Holder: tm.Holder, Epoch: tm.Epoch, RenewedAt: renewed}}
			return h.renewSeen(ctx, s, time.Minute, now)
		}
	}
	released := func(free func(ctx context.Context, h *handle) error) func(context.Context, *handle, *handle) (bool, error) {
		return func(ctx context.Context, h, _ *handle) (bool, error) {
			if err := free(ctx, h); err != nil {
				return false, err
			}
			row, err := h.poll(ctx, "job", noon)
			return row.Holder == "", err
		}
	}
	releaseTerm := func(tm Term, now time.Time) func(context.Context, *handle, *handle) (bool, error) {
		return released(func(ctx context.Context, h *handle) error { return h.releaseTerm(ctx, tm, now) })
	}
	releaseHeld := func(holder string, now time.Time) func(context.Context, *handle, *handle) (bool, error) {
		return released(func(ctx context.Context, h *handle) error { return h.releaseHeld(ctx, "job", holder, now) })
	}
	fence := func(tm Term, now time.Time) func(context.Context, *handle, *handle) (bool, error) {
		return func(ctx context.Context, _, tx *handle) (bool, error) { return tx.fence(ctx, tm, now) }
	}
	end := noon.Add(time.Minute)
	tries := []try{
		{"take an expired row", "", take("job", end, seen(5, noon)), true},
		{"take a live row", "", take("job", end.Add(-us), seen(5, noon)), false},
		{"take a released row, whatever the clock says", "holder = ''", take("job", noon, seen(5, noon)), true},
		{"take in an older epoch", "", take("job", end, seen(4, noon)), false},
		{"take in a newer epoch", "", take("job", end, seen(6, noon)), false},
		{"take another name", "", take("jo", end, seen(5, noon)), false},
		{"take a live row that stood", "", takeUnchanged("job", noon, seen(5, noon)), true},
		{"take an expired row that stood", "", takeUnchanged("job", end, seen(5, noon)), true},
		{"take a released row that was renewed since", "holder = ''", takeUnchanged("job", noon, seen(5, noon.Add(-us))), true},
		{"take a live row renewed since", "", takeUnchanged("job", noon, seen(5, noon.Add(-us))), false},
		{"take a live row renewed before", "", takeUnchanged("job", noon, seen(5, noon.Add(us))), false},
		{"take an expired row renewed since", "", takeUnchanged("job", end, seen(5, noon.Add(-us))), false},
		{"take a row that stood in an older epoch", "", takeUnchanged("job", noon, seen(4, noon)), false},
		{"take another name's row that stood", "", takeUnchanged("jo", noon, seen(5, noon)), false},
		{"renew", "", renew(term("A", 5), noon.Add(time.Second)), true},
		{"renew for another holder", "", renew(term("B", 5), noon.Add(time.Second)), false},
		{"renew in an older epoch", "", renew(term("A", 4), noon.Add(time.Second)), false},
		{"renew in a newer epoch", "", renew(term("A", 6), noon.Add(time.Second)), false},
		{"renew with little left", "", renew(term("A", 5), end.Add(-20*time.Second)), false},
		{"renew with enough left", "", renew(term("A", 5), end.Add(-20*time.Second-us)), true},
		{"renew out of order", "", renew(term("A", 5), noon.Add(-us)), true},
		{"renew by hand", "", renewSeen(term("A", 5), noon, noon.Add(time.Second)), true},
		{"renew by hand for another holder", "", renewSeen(term("B", 5), noon, noon.Add(time.Second)), false},
		{"renew by hand in an older epoch", "", renewSeen(term("A", 4), noon, noon.Add(time.Second)), false},
		{"renew by hand in a newer epoch", "", renewSeen(term("A", 6), noon, noon.Add(time.Second)), false},
		{"renew by hand what was renewed since", "", renewSeen(term("A", 5), noon.Add(-us), noon.Add(time.Second)), false},
		{"renew by hand what was renewed before", "", renewSeen(term("A", 5), noon.Add(us), noon.Add(time.Second)), false},
		{"renew by hand at the expiry", "", renewSeen(term("A", 5), noon, end), false},
		{"renew by hand just before", "", renewSeen(term("A", 5), noon, end.Add(-us)), true},
		{"renew by hand after the clock was put right", "", renewSeen(term("A", 5), noon, noon.Add(-time.Hour)), true},
		{"release a term", "", releaseTerm(term("A", 5), noon), true},
		{"release a term that expired", "", releaseTerm(term("A", 5), end), true},
		{"release another's term", "", releaseTerm(term("B", 5), noon), false},
		{"release an older term", "", releaseTerm(term("A", 4), noon), false},
		{"release a newer term", "", releaseTerm(term("A", 6), noon), false},
		{"release by hand", "", releaseHeld("A", end.Add(-us)), true},
		{"release by hand what expired", "", releaseHeld("A", end), false},
		{"release by hand what another holds", "", releaseHeld("B", noon), false},
		{"fence", "", fence(term("A", 5), end.Add(-us)), true},
		{"fence an expired term", "", fence(term("A", 5), end), false},
		{"fence another's term", "", fence(term("B", 5), noon), false},
		{"fence an older term", "", fence(term("A", 4), noon), false},
		{"fence a newer term", "", fence(term("A", 6), noon), false},
	}
	onOtherTables(t, func(t *testing.T, db *gorm.DB, table string) {
		for _, tc := range tries {
			row := Record{Name: "job", Holder: "A", Epoch: 5, ExpiresAt: end, AcquiredAt: noon, RenewedAt: noon}
			if err := db.Table(table).Save(&row).Error; err != nil {
				t.Fatal(err)
			}
			if tc.change != "" {
				if err := db.Exec("UPDATE " + table + " SET " + tc.change).Error; err != nil {
					t.Fatal(err)
				}
			}
			var got bool
			err := db.Transaction(func(tx *gorm.DB) error {
				h, err := open("db", tx)
				if err != nil {
					return err
				}
				got, err = tc.run(t.Context(), h, h)
				return err
			})
			if err != nil || got != tc.granted {
				t.Errorf("%s: %v, %v", tc.name, got, err)
			}
		}
	})
}

func TestLeasesElectionsAndFencesWorkOnOtherTables(t *testing.T) { // C26, C82
	onOtherTables(t, func(t *testing.T, db *gorm.DB, table string) {
		ctx := t.Context()
		if _, err := Find(ctx, db, "job"); !errors.Is(err, gorm.ErrRecordNotFound) {
			t.Errorf("Find: %v", err)
		}
		won := make(chan bool)
		for i := range 12 {
			go func() {
				ok, err := TryAcquire(ctx, db, "job", fmt.Sprint(i), time.Minute, time.Time{})
				won <- ok && err == nil
			}()
		}
		winners := 0
		for range 12 {
			if <-won {
				winners++
			}
		}
		row, err := Find(ctx, db, "job")
		if winners != 1 || err != nil || !row.Held || row.Epoch != 1 {
			t.Fatalf("%d winners; %+v, %v", winners, row, err)
		}
		old := Term{Name: "job", Holder: row.Holder, Epoch: 1}
		if err := Transaction(WithTerm(ctx, old), db, func(*gorm.DB) error { return nil }); err != nil {
			t.Error(err)
		}
		if err := Release(ctx, db, "job", row.Holder, time.Time{}); err != nil {
			t.Error(err)
		}
		if err := Transaction(WithTerm(ctx, old), db, func(*gorm.DB) error { return nil }); !errors.Is(err, ErrLost) {
			t.Errorf("after the release: %v", err)
		}
		ctx, stop := context.WithCancel(ctx)
		e := &Elector{DB: db, Name: "job", Holder: "elector", TTL: time.Minute, Logger: slog.New(slog.DiscardHandler)}
		err = e.Run(ctx, func(ctx context.Context) {
			defer stop()
			if term, ok := e.Term(); !ok || term.Epoch != 2 {
				t.Errorf("%v, %v", term, ok)
			}
			plain := Tables(db, "") // the elector's term knows its own table
			if err := Transaction(ctx, plain, func(*gorm.DB) error { return nil }); err != nil {
				t.Error(err)
			}
		})
		all, listed := List(t.Context(), db)
		if err != nil || listed != nil || len(all) != 1 || all[0].Held || all[0].Epoch != 2 {
			t.Errorf("%v; %+v, %v", err, all, listed)
		}
		var rows int64
		if err := db.Table(table).Count(&rows).Error; err != nil || rows != 1 {
			t.Errorf("%d rows in %s, %v", rows, table, err)
		}
	})
}

func TestATTLIsCutToMicrosecondsAndNeverToNothing(t *testing.T) { // C10
	for ttl, want := range map[time.Duration]int64{1: 1, 999: 1, 1000: 1, 1999: 1, 2000: 2, math.MaxInt64: math.MaxInt64 / 1000} {
		if got := ttlMicros(ttl); got != want {
			t.Errorf("%d ns are %d µs, not %d", ttl, got, want)
		}
	}
}

func TestAStandbyIsUnhealthyOnceNothingWasAnsweredForATTL(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.start("A")
		b := c.start("B")
		c.pass(T)
		b.store.cut()
		c.pass(T / 2)
		if err := b.Health(); err != nil {
			t.Errorf("after half a TTL: %v", err)
		}
		c.pass(T)
		if err := b.Health(); err == nil {
			t.Error("healthy, although nothing was answered for a TTL")
		}
	})
}

// The schema

func TestOnlyANameThatIsUniqueByItselfMakesTheTableOurs(t *testing.T) { // C82
	db := dbtest.Postgres(t).Open(t)
	const columns = `name text NOT NULL, holder text NOT NULL DEFAULT '', epoch bigint NOT NULL DEFAULT 0,
		expires_at bigint NOT NULL DEFAULT 0, acquired_at bigint NOT NULL DEFAULT 0, renewed_at bigint NOT NULL DEFAULT 0`
	for name, tc := range map[string]struct {
		more, index string
		ours        bool
	}{
		"its own primary key":            {"", "CREATE UNIQUE INDEX ON leases (name)", true},
		"unique among some rows only":    {"", "CREATE UNIQUE INDEX ON leases (name) WHERE holder <> ''", false},
		"unique with another column":     {"", "CREATE UNIQUE INDEX ON leases (name, epoch)", false},
		"not unique":                     {"", "CREATE INDEX ON leases (name)", false},
		"unique beside an identity":      {", id bigint GENERATED ALWAYS AS IDENTITY", "CREATE UNIQUE INDEX ON leases (name)", true},
		"unique with an included column": {"", "CREATE UNIQUE INDEX ON leases (name) INCLUDE (holder)", true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, statement := range []string{"DROP TABLE IF EXISTS leases", "CREATE TABLE leases (" + columns + tc.more + ")", tc.index} {
				if err := db.Exec(statement).Error; err != nil {
					t.Fatal(err)
				}
			}
			err := EnsureSchema(db)
			if (err == nil) != tc.ours {
				t.Errorf("the error is %v", err)
			}
			if ok, err := TryAcquire(t.Context(), db, "job", "A", time.Minute, time.Time{}); tc.ours && (err != nil || !ok) {
				t.Errorf("TryAcquire: %v, %v", ok, err)
			}
		})
	}
}

// The handle

func TestContentionInACallersTransactionIsTheirsToHear(t *testing.T) { // C25
	db := withSchema(t, dbtest.Postgres(t))
	if ok, err := TryAcquire(t.Context(), db, "job", "A", time.Minute, time.Time{}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	other := db.Begin()
	defer other.Rollback()
	if err := other.Exec("SELECT 1 FROM leases FOR UPDATE").Error; err != nil {
		t.Fatal(err)
	}
	tx := db.Begin()
	defer tx.Rollback()
	if err := tx.Exec("SET LOCAL lock_timeout = '50ms'").Error; err != nil {
		t.Fatal(err)
	}
	_, err := TryAcquire(t.Context(), tx, "job", "A", time.Minute, time.Time{})
	if !states("55P03")(err) { // not 25P02, which a second attempt would give
		t.Errorf("the error is %v", err)
	}
}

func TestAStatementByHandIsBounded(t *testing.T) {
	db := withSchema(t, dbtest.Postgres(t))
	h, err := open("db", db)
	if err != nil || h.timeout != byHand {
		t.Fatal(h, err)
	}
	if ok, err := TryAcquire(t.Context(), db, "job", "A", time.Minute, time.Time{}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	other := db.Begin()
	defer other.Rollback()
	if err := other.Exec("SELECT 1 FROM leases FOR UPDATE").Error; err != nil {
		t.Fatal(err)
	}
	h.timeout = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = h.acquire(ctx, "job", "A", time.Minute, time.Time{})
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("the error is %v; the caller's context: %v", err, ctx.Err())
	}
}

// What once made two leaders, blocked a row, or outlasted a bound

func TestASlowPollHidesNoStepOfTheClock(t *testing.T) { // C81
	inBubble(t, func(t *testing.T, c *cluster) {
		a, b := c.start("A"), c.add("B")
		<-time.After(T / 240)
		b.store.inject(firstly(1, "poll", fault{before: T/3 - T/600})) // lands just after A renewed
		c.run(b, untilCancelled)
		c.pass(T / 3)
		if row := c.table.read(); !row.RenewedAt.After(row.AcquiredAt) {
			t.Fatal("A has not renewed")
		}
		a.store.cut()
		c.table.stepClock(T * 39 / 100)
		c.pass(T)
		c.checkTerms()
	})
}

func TestRunKeepsItsBoundThoughATakeoverIsInFlightAndTheReleaseHangs(t *testing.T) { // C60
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(func(s string) fault {
			switch s {
			case "take":
				return fault{after: T / 10}
			case "release":
				return fault{before: time.Hour, deaf: true}
			}
			return fault{}
		})
		c.run(a, untilCancelled)
		<-time.After(T / 100)
		begin := time.Now()
		a.stop(nil)
		<-a.done
		if took := time.Since(begin); took > T/3 {
			t.Errorf("Run returned after %v", took)
		}
	})
}

func TestAHugeTTLNeitherWrapsNorFloods(t *testing.T) { // C10
	inBubble(t, func(t *testing.T, c *cluster) {
		c.ttl = math.MaxInt64
		a, b := c.start("A"), c.start("B")
		<-time.After(time.Hour)
		synctest.Wait()
		if polls := b.store.count("poll"); !a.IsLeader() || b.IsLeader() || polls > 2 {
			t.Errorf("A leads: %v, B leads: %v, after %d polls of B", a.IsLeader(), b.IsLeader(), polls)
		}
	})
}

func TestASlowLogStartsNoWorkWhoseTermIsOver(t *testing.T) { // C04
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.Elector.run.log = slog.New(slog.NewTextHandler(blockingWriter(func() { <-time.After(T) }), nil))
		late := make(chan error, 10)
		c.run(a, func(ctx context.Context) {
			if err := ctx.Err(); err != nil {
				late <- err
			}
			<-ctx.Done()
		})
		c.pass(3 * T)
		if len(late) > 0 {
			t.Errorf("%d works began with %v", len(late), <-late)
		}
	})
}

func TestARowOfAnOlderVersionIsWaitedForByTheElectorsOwnTTL(t *testing.T) {
	for name, fault := range map[string]func(c *cluster){
		"that was deleted":                func(c *cluster) { c.table.delete() },
		"under a clock that was put back": func(c *cluster) { c.table.stepClock(-time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.table.write(Record{Name: "job", Holder: "old", ExpiresAt: time.Now().Add(T)}) // its renewal is not known
				b := c.start("B")
				c.pass(T / 2)
				fault(c)
				c.passUntil(2*T, "B leads", b.IsLeader)
			})
		})
	}
}

func TestStatementCachesAreTakenOffHoweverManyThereAre(t *testing.T) { // C23, C34
	db := dbtest.SQLite(t).Open(t, &gorm.Config{PrepareStmt: true})
	for range 3 {
		h, err := open("db", db)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := h.pool.(*sql.DB); !ok {
			t.Errorf("the pool is a %T", h.pool)
		}
		tx := db.Begin()
		if h, err := open("tx", tx); err != nil {
			t.Error(err)
		} else if live, ok := h.pool.(*liveGORMTx); !ok || !h.inTx {
			t.Errorf("in a transaction the pool is a %T", h.pool)
		} else if _, ok := live.ConnPool.(*sql.Tx); !ok {
			t.Errorf("in a transaction the pool is one of a %T", live.ConnPool)
		}
		tx.Rollback()
		db = db.Session(&gorm.Session{PrepareStmt: true})
	}
}

func TestAClientThatFreezesBeforeTheCommitOfARepeatedStatementIsCutOff(t *testing.T) { // C75
	database := dbtest.Postgres(t)
	db := withSchema(t, database)
	if ok, err := TryAcquire(t.Context(), db, "job", "A", time.Second, time.Time{}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	h, err := open("db", db)
	if err != nil {
		t.Fatal(err)
	}
	frozen, thaw, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- h.readCommitted(func(ctx context.Context, pool gorm.ConnPool) error {
			_, err := pool.ExecContext(ctx, h.statements.renew, nil, "job", "A", 1, ttlMicros(time.Second), 0)
			close(frozen)
			<-thaw
			return err
		})(t.Context(), h.pool)
	}()
	<-frozen
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for got := false; !got; {
		if got, err = TryAcquire(ctx, db, "job", "B", time.Minute, time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	close(thaw)
	if err := <-done; err == nil {
		t.Error("the frozen client committed")
	}
}
