package lease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/leasetest"
)

// What these tests share with those in spec.
var (
	noon, databasesClock = leasetest.Noon, leasetest.DatabasesClock

	fresh           = leasetest.Fresh
	granted         = leasetest.Granted
	refused         = leasetest.Refused
	release         = leasetest.Release
	find            = leasetest.Find
	row             = leasetest.Row
	exec            = leasetest.Exec
	mustBe          = leasetest.MustBe
	keepConnections = leasetest.KeepConnections
	race            = leasetest.Race
	everyIsolation  = leasetest.EveryIsolation
)

// Granting and refusing

func TestAFreeLeaseIsGrantedAndALiveOneIsRefusedToOthers(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		for _, now := range []time.Time{databasesClock, noon} {
			exec(t, gdb, "DELETE FROM leases")
			granted(t, gdb, "A", now)
			before := row(t, gdb)
			refused(t, gdb, "B", now)
			if after := row(t, gdb); after != before {
				t.Errorf("a refused attempt changed the row from %s to %s", before, after)
			}
		}
	})
}

func TestTheHolderRenewsAndKeepsItsTerm(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		granted(t, gdb, "A", noon)
		granted(t, gdb, "A", noon) // within one tick of the clock
		granted(t, gdb, "A", noon.Add(40*time.Second))
		s := find(t, gdb, "job")
		want := lease.Record{
			Name: "job", Holder: "A", Epoch: 1,
			AcquiredAt: noon, RenewedAt: noon.Add(40 * time.Second), ExpiresAt: noon.Add(100 * time.Second),
		}
		if s.Record != want {
			t.Errorf("the record is %v, not %v", s.Record, want)
		}
	})
}

func TestALeaseIsRefusedUntilItsExpiryAndGrantedAtIt(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		granted(t, gdb, "A", noon)
		for _, early := range []time.Duration{time.Minute, time.Millisecond, time.Microsecond} {
			refused(t, gdb, "B", noon.Add(time.Minute-early))
		}
		granted(t, gdb, "B", noon.Add(time.Minute))
		refused(t, gdb, "A", noon.Add(time.Minute))
	})
}

func TestNamesAndHoldersThatLookAlikeAreDifferent(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		granted(t, gdb, "Pod-A", noon)
		for _, holder := range []string{"pod-a", "Pod-A ", " Pod-A", "Pód-A", "Po\u0301d-A", "Pod-A\t"} {
			refused(t, gdb, holder, noon)
			release(t, gdb, holder, noon)
		}
		for _, name := range []string{"Job", "job ", "jo", "jobs", "job%", "jöb", "job'", `job"`, "job\n", "job?", "$1"} {
			if ok, err := lease.TryAcquire(t.Context(), gdb, name, "B", time.Minute, noon); !ok || err != nil {
				t.Errorf("lease %q: %v, %v", name, ok, err)
			}
			if s := find(t, gdb, name); s.Name != name || s.Holder != "B" || s.Epoch != 1 {
				t.Errorf("lease %q reads %v", name, s)
			}
		}
		if s := find(t, gdb, "job"); s.Holder != "Pod-A" {
			t.Errorf("the holder is %q", s.Holder)
		}
	})
}

// Clocks

func TestASkewOfAQuarterNeverLetsTwoWorkAtOnce(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		for _, skew := range []time.Duration{time.Minute / 4, -time.Minute / 4} {
			exec(t, gdb, "DELETE FROM leases")
			granted(t, gdb, "A", noon)
			workEnds := noon.Add(time.Minute - time.Minute/3) // by A's clock
			refused(t, gdb, "B", workEnds.Add(skew))
			granted(t, gdb, "B", noon.Add(time.Minute))
		}
	})
}

func TestAClockThatWasTenYearsAheadIsPutRightByTheNextRenewal(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		granted(t, gdb, "A", noon.AddDate(10, 0, 0))
		refused(t, gdb, "B", noon)
		granted(t, gdb, "A", noon)
		if s := find(t, gdb, "job"); !s.RenewedAt.Equal(noon) || !s.ExpiresAt.Equal(noon.Add(time.Minute)) || s.Epoch != 1 {
			t.Errorf("after the renewal at %v it expires at %v, in term %d", s.RenewedAt, s.ExpiresAt, s.Epoch)
		}
		refused(t, gdb, "B", noon.Add(time.Minute-time.Microsecond))
		granted(t, gdb, "B", noon.Add(time.Minute))
	})
}

func TestTheZoneOfATimeMeansNothing(t *testing.T) {
	zone := func(name string) *time.Location {
		loc, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		return loc
	}
	kolkata, newYork := zone("Asia/Kolkata"), zone("America/New_York")
	winter := time.Date(2024, 11, 3, 6, 0, 0, 0, time.UTC) // 02:00 in New York becomes 01:00
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		for _, test := range []struct {
			what          string
			start, before time.Time
			after         time.Time
		}{
			{
				"12:00 +05:30 is 06:30 UTC", time.Date(2024, 3, 1, 12, 0, 0, 0, kolkata),
				time.Date(2024, 3, 1, 6, 30, 59, 0, time.UTC), time.Date(2024, 3, 1, 6, 31, 0, 0, time.UTC),
			},
			{
				"before the lease began, by a clock that is behind", time.Date(2024, 3, 1, 12, 0, 0, 0, kolkata),
				time.Date(2024, 3, 1, 6, 29, 59, 0, time.UTC), time.Date(2024, 3, 1, 6, 31, 0, 0, time.UTC),
			},
			{
				"zones swapped", time.Date(2024, 3, 1, 6, 30, 0, 0, time.UTC),
				time.Date(2024, 3, 1, 12, 0, 59, 0, kolkata), time.Date(2024, 3, 1, 12, 1, 0, 0, kolkata),
			},
			{
				"the clocks go back", winter.Add(-30 * time.Second).In(newYork),
				winter.Add(29 * time.Second).In(newYork), winter.Add(30 * time.Second).In(newYork),
			},
		} {
			t.Run(test.what, func(t *testing.T) {
				exec(t, gdb, "DELETE FROM leases")
				granted(t, gdb, "A", test.start)
				refused(t, gdb, "B", test.before)
				if s := find(t, gdb, "job"); !s.ExpiresAt.Equal(test.start.Add(time.Minute)) || s.ExpiresAt.Location() != time.UTC {
					t.Errorf("it expires at %v", s.ExpiresAt)
				}
				granted(t, gdb, "B", test.after)
			})
		}
	})
}

func TestTheTimeZoneOfASessionMeansNothing(t *testing.T) {
	db := dbtest.Postgres(t)
	newYork := fresh(t, &dbtest.Database{Backend: db.Backend, DSN: db.DSNVia("", "timezone=America/New_York")})
	tokyo := db.OpenDSN(t, db.DSNVia("", "timezone=Asia/Tokyo"))
	granted(t, newYork, "A", databasesClock)
	refused(t, tokyo, "B", databasesClock)
	if a, b := find(t, newYork, "job").Record, find(t, tokyo, "job").Record; a != b {
		t.Errorf("New York reads %v, and Tokyo %v", a, b)
	}
	exec(t, tokyo, "DELETE FROM leases")
	granted(t, tokyo, "A", databasesClock)
	refused(t, newYork, "B", databasesClock)
}

func TestWithoutATimeOfTheCallersTheDatabasesClockDecides(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		before := time.Now()
		granted(t, gdb, "A", databasesClock)
		s := find(t, gdb, "job")
		// The server is on this machine; SQLite's clock counts milliseconds.
		if early, late := before.Add(-time.Millisecond), time.Now().Add(time.Millisecond); s.RenewedAt.Before(early) || s.RenewedAt.After(late) {
			t.Errorf("renewed at %v, which is not between %v and %v", s.RenewedAt, early, late)
		}
		if s.AcquiredAt != s.RenewedAt || s.ExpiresAt.Sub(s.RenewedAt) != time.Minute {
			t.Errorf("acquired at %v, renewed at %v, expires at %v", s.AcquiredAt, s.RenewedAt, s.ExpiresAt)
		}
		exec(t, gdb, "UPDATE leases SET expires_at = renewed_at - 1")
		granted(t, gdb, "B", databasesClock)
	})
}

func TestInATransactionTheDatabasesClockRunsOn(t *testing.T) {
	gdb := fresh(t, dbtest.Postgres(t))
	tx := gdb.Begin()
	defer tx.Rollback()
	exec(t, tx, "SELECT now()")
	granted(t, tx, "A", databasesClock)
	if !leasetest.Ask[bool](t, tx, "SELECT renewed_at > (extract(epoch FROM now())*1000000)::bigint FROM leases") {
		t.Error("the lease counts from the start of the transaction")
	}
}

// Contention

func TestOneOfTwelveContendersWinsAnExpiredLease(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		gdb := keepConnections(t, fresh(t, db))
		for round := range 60 {
			now := noon.Add(time.Duration(round) * time.Hour)
			winners := race(t, 12, func(i int) (bool, error) {
				return lease.TryAcquire(t.Context(), gdb, "job", fmt.Sprint(i), time.Minute, now)
			})
			s := find(t, gdb, "job")
			if len(winners) != 1 || s.Holder != fmt.Sprint(winners[0]) || s.Epoch != int64(round+1) {
				t.Fatalf("round %d: %v won; the row says %q, term %d", round, winners, s.Holder, s.Epoch)
			}
		}
	})
}

func TestOneOfTwelveContendersWinsALeaseThatHasNoRowYet(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		gdb := keepConnections(t, fresh(t, db))
		for round := range 15 {
			// Neighbours in the index, whose inserts a database may lock together.
			names := []string{fmt.Sprintf("job-%02d", round), fmt.Sprintf("job-%02d0", round), fmt.Sprintf("job-%02da", round)}
			winners := race(t, 12*len(names), func(i int) (bool, error) {
				return lease.TryAcquire(t.Context(), gdb, names[i%len(names)], fmt.Sprint(i), time.Minute, noon)
			})
			won := make([]int, len(names))
			for _, w := range winners {
				won[w%len(names)]++
			}
			if slices.ContainsFunc(won, func(n int) bool { return n != 1 }) {
				t.Fatalf("round %d: winners by lease: %v", round, won)
			}
		}
	})
}

func TestALeadersRenewalIsNotLostToContenders(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		gdb := keepConnections(t, fresh(t, db))
		granted(t, gdb, "A", noon)
		winners := race(t, 8, func(i int) (bool, error) {
			all := true
			for range 20 {
				holder := "A"
				if i > 0 {
					holder = fmt.Sprint(i)
				}
				ok, err := lease.TryAcquire(t.Context(), gdb, "job", holder, time.Minute, noon)
				if err != nil {
					return false, err
				}
				all = all && ok
			}
			return all, nil
		})
		if !slices.Equal(winners, []int{0}) {
			t.Errorf("%v were always granted it, not the leader alone", winners)
		}
	})
}

func TestTwoHandlesOnOneSQLiteFileHaveOneWinner(t *testing.T) {
	for _, params := range []string{
		"?_journal_mode=WAL&_busy_timeout=5000", "?_journal_mode=WAL&_busy_timeout=0", "?_busy_timeout=5000", "?_busy_timeout=0",
	} {
		t.Run(params, func(t *testing.T) {
			file, _, _ := strings.Cut(dbtest.SQLite(t).DSN, "?")
			db := &dbtest.Database{Backend: dbtest.BackendSQLite, DSN: file + params}
			handles := []*gorm.DB{fresh(t, db), fresh(t, db)}
			for round := range 10 {
				now := noon.Add(time.Duration(round) * time.Hour)
				winners := race(t, 16, func(i int) (bool, error) {
					return lease.TryAcquire(t.Context(), handles[i%2], "job", fmt.Sprint(i), time.Minute, now)
				})
				if len(winners) != 1 {
					t.Fatalf("round %d: %v won", round, winners)
				}
			}
		})
	}
}

func TestALockedDatabaseIsWaitedForUntilTheCallersContextEnds(t *testing.T) {
	file, _, _ := strings.Cut(dbtest.SQLite(t).DSN, "?")
	db := &dbtest.Database{Backend: dbtest.BackendSQLite, DSN: file + "?_journal_mode=WAL&_busy_timeout=0"}
	gdb := fresh(t, db)
	other := db.Open(t).Begin()
	defer other.Rollback()
	exec(t, other, "DELETE FROM leases")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	ok, err := lease.TryAcquire(ctx, gdb, "job", "A", time.Minute, noon)
	if ok {
		t.Error("it was granted")
	}
	mustBe(t, err, context.DeadlineExceeded)
	if err := other.Rollback().Error; err != nil {
		t.Fatal(err)
	}
	granted(t, gdb, "A", noon)
}

// Releasing

func TestReleaseFreesTheLeaseAtOnceAndKeepsTheRow(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		for _, now := range []time.Time{databasesClock, noon} {
			exec(t, gdb, "DELETE FROM leases")
			granted(t, gdb, "A", now)
			release(t, gdb, "A", now)
			if s := find(t, gdb, "job"); s.Held || s.Holder != "" || s.Epoch != 1 || s.Remaining != 0 {
				t.Errorf("after the release the lease reads %+v", s)
			}
			granted(t, gdb, "B", now)
		}
	})
}

func TestReleaseTouchesNothingThatTheCallerDoesNotHold(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		release(t, gdb, "A", noon)
		if n := leasetest.Ask[int](t, gdb, "SELECT count(*) FROM leases"); n != 0 {
			t.Errorf("releasing a lease that nobody ever held made %d rows", n)
		}
		untouchedBy := func(what, holder string, now time.Time) {
			t.Helper()
			before := row(t, gdb)
			release(t, gdb, holder, now)
			if after := row(t, gdb); after != before {
				t.Errorf("%s changed the row from %s to %s", what, before, after)
			}
		}
		granted(t, gdb, "A", noon)
		untouchedBy("a release by another", "B", noon)
		untouchedBy("a release after the expiry", "A", noon.Add(time.Minute))
		granted(t, gdb, "B", noon.Add(time.Minute))
		untouchedBy("a late release", "A", noon.Add(time.Minute))
		release(t, gdb, "B", noon.Add(time.Minute))
		untouchedBy("a second release", "B", noon.Add(time.Minute))
	})
}

// Epochs

func TestTheEpochGrowsByOneWithEveryTermAndNeverGoesBack(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		now := noon
		epochIs := func(want int64, what string) {
			t.Helper()
			if s := find(t, gdb, "job"); s.Epoch != want {
				t.Errorf("%s, the epoch is %d, not %d", what, s.Epoch, want)
			}
		}
		granted(t, gdb, "A", now)
		epochIs(1, "at first")
		granted(t, gdb, "A", now)
		epochIs(1, "after a renewal")
		now = now.Add(time.Minute)
		epochIs(1, "after the expiry")
		granted(t, gdb, "A", now)
		epochIs(2, "when the same holder takes its expired lease again")
		release(t, gdb, "A", now)
		epochIs(2, "after a release")
		granted(t, gdb, "A", now)
		epochIs(3, "when the same holder takes the lease that it released")
		release(t, gdb, "A", now)
		granted(t, gdb, "B", now)
		epochIs(4, "when another takes a released lease")
		granted(t, gdb, "A", now.Add(time.Hour))
		epochIs(5, "when another takes an expired lease")
		refused(t, gdb, "B", now.Add(time.Hour))
		epochIs(5, "after a refusal")
	})
}

func TestADeletedRowIsALeaseThatWasNeverHeld(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		granted(t, gdb, "A", noon)
		exec(t, gdb, "DELETE FROM leases")
		_, err := lease.Find(t.Context(), gdb, "job")
		mustBe(t, err, gorm.ErrRecordNotFound)
		release(t, gdb, "A", noon)
		granted(t, gdb, "B", noon)
		refused(t, gdb, "A", noon)
	})
}

// Reading

func TestFindOfALeaseThatNobodyEverHeldIsRecordNotFound(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		s, err := lease.Find(t.Context(), gdb, "job")
		mustBe(t, err, gorm.ErrRecordNotFound)
		if s != (lease.Status{}) {
			t.Errorf("the status is %v", s)
		}
	})
}

func TestAStatusIsWhatTheDatabasesClockSees(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		granted(t, gdb, "A", databasesClock)
		if s := find(t, gdb, "job"); !s.Held || s.Holder != "A" || s.Remaining <= 0 || s.Remaining > time.Minute {
			t.Errorf("a live lease reads %+v", s)
		}
		exec(t, gdb, "UPDATE leases SET expires_at = renewed_at - 1")
		if s := find(t, gdb, "job"); s.Held || s.Holder != "A" || s.Remaining != 0 {
			t.Errorf("an expired lease reads %+v", s)
		}
		granted(t, gdb, "B", databasesClock)
		release(t, gdb, "B", databasesClock)
		if s := find(t, gdb, "job"); s.Held || s.Holder != "" || s.Remaining != 0 {
			t.Errorf("a released lease reads %+v", s)
		}
	})
}

func TestListIsEveryLeaseByName(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		if all, err := lease.List(t.Context(), gdb); err != nil || len(all) != 0 {
			t.Errorf("without leases, List is %v, %v", all, err)
		}
		for i, name := range []string{"b", "c", "a"} {
			ttl := time.Duration(i+1) * time.Hour
			if ok, err := lease.TryAcquire(t.Context(), gdb, name, "holder of "+name, ttl, databasesClock); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		if err := lease.Release(t.Context(), gdb, "b", "holder of b", databasesClock); err != nil {
			t.Fatal(err)
		}
		all, err := lease.List(t.Context(), gdb)
		if err != nil || len(all) != 3 {
			t.Fatalf("List is %v, %v", all, err)
		}
		for i, name := range []string{"a", "b", "c"} {
			if all[i].Record != find(t, gdb, name).Record || all[i].Held != (name != "b") || (all[i].Remaining > 0) != (name != "b") {
				t.Errorf("number %d is %+v", i, all[i])
			}
		}
	})
}

func TestAnInstanceIDIsAHolderThatNobodyElseHas(t *testing.T) {
	gdb := fresh(t, dbtest.SQLite(t))
	seen := map[string]bool{}
	for range 1000 {
		seen[lease.InstanceID()] = true
	}
	if len(seen) != 1000 {
		t.Errorf("of 1000, %d are different", len(seen))
	}
	granted(t, gdb, lease.InstanceID(), noon)
	refused(t, gdb, lease.InstanceID(), noon)
}

// In the caller's transaction

func TestALeaseTakenInATransactionIsFreeAfterItsRollBack(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		tx := gdb.Begin()
		granted(t, tx, "A", noon)
		granted(t, tx, "A", noon)
		refused(t, tx, "B", noon)
		if err := tx.Rollback().Error; err != nil {
			t.Fatal(err)
		}
		granted(t, gdb, "B", noon)
	})
}

func TestALeaseTakenInATransactionIsHeldAfterItsCommit(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		err := gdb.Transaction(func(tx *gorm.DB) error {
			granted(t, tx, "A", noon)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		refused(t, gdb, "B", noon)
		err = gdb.Transaction(func(tx *gorm.DB) error {
			release(t, tx, "A", noon)
			return errors.New("roll back")
		})
		if err == nil {
			t.Fatal("the transaction was committed")
		}
		refused(t, gdb, "B", noon)
	})
}

func TestARefusalInATransactionLeavesItUsable(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		exec(t, gdb, "CREATE TABLE notes (text varchar(10))")
		granted(t, gdb, "A", noon)
		err := gdb.Transaction(func(tx *gorm.DB) error {
			refused(t, tx, "B", noon)
			return tx.Exec("INSERT INTO notes VALUES ('after')").Error
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := leasetest.Ask[int](t, gdb, "SELECT count(*) FROM notes"); n != 1 {
			t.Errorf("%d notes were committed", n)
		}
	})
}
