// Package monitoring holds what Prometheus needs to watch leases: alerts.yml, and prometheus.yml, a configuration that loads it. Its tests
// check both with promtool, and with a real Prometheus that scrapes real replicas in trouble.
package monitoring

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(replicaEnv) != "" {
		os.Exit(replicaMain())
	}
	// The tests wait for Prometheus, nearly all of the time: all at once, unless told otherwise.
	flag.Parse()
	told := false
	flag.Visit(func(f *flag.Flag) { told = told || f.Name == "test.parallel" })
	if !told {
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// soon is far more than anything takes that is waited for.
const soon = 30 * time.Second

func TestPrometheusNeverSeesTwoLeadersWhileLeadersAreKilled(t *testing.T) {
	t.Parallel()
	w := watch(t)
	w.start(database(t), 3, work{})
	leader := w.leader()
	const kills = 3
	for range kills {
		leader.kill()
		w.eventually("the series of the killed leader are gone", func() bool {
			return len(w.query(fmt.Sprintf(`{__name__=~"lease_.*", instance=%q}`, leader.Address))) == 0
		})
		next := w.leader()
		leader.start()
		w.allScraped()
		leader = next
	}

	most, falls := w.leaders()
	if most != 1 {
		t.Errorf("Prometheus saw %v leaders at once", most)
	}
	if falls < kills {
		t.Errorf("Prometheus saw leadership end %d times, while %d leaders were killed", falls, kills)
	}

	leader.stop() // hands over, which two scrapes may see as two leaders
	w.leader()
	w.neverFired("LeaseMoreThanOneLeader")
	w.neverFired("LeaseNoLeader")
	w.neverFired("LeaseNoReplicas")
}

func TestALockedDatabaseBringsALeaderCloseToItsDeadlineAndThenLeavesNone(t *testing.T) {
	t.Parallel()
	w := watch(t)
	db := database(t)
	w.start(db, 3, work{})
	w.leader()
	w.neverFired("LeaseNoLeader")

	// A leader is close to its deadline for half a second, and then leads no more. On a machine that is very busy no scrape may come through
	// just then: the next leader comes as close.
	unlock := func() {}
	for range 5 {
		unlock()
		w.leader()
		unlock = lock(t, db)
		w.eventually("the leader has lost its lease", func() bool { return w.value(`sum(lease_leader)`) == 0 })
		if len(w.query(firing("LeaseDeadlineClose"))) > 0 {
			break
		}
	}
	w.fires("LeaseDeadlineClose")
	w.fires("LeaseNoLeader")
	unlock()
	w.leader()
	w.clears("LeaseNoLeader")
	w.clears("LeaseDeadlineClose")
	w.neverFired("LeaseNoReplicas")
	w.neverFired("LeaseMoreThanOneLeader")
}

func TestAServiceWithoutReplicasIsMissed(t *testing.T) {
	t.Parallel()
	w := watch(t)
	w.start(database(t), 3, work{})
	w.leader()
	w.neverFired("LeaseNoReplicas")

	for _, r := range w.replicas {
		r.kill()
	}
	w.fires("LeaseNoReplicas")
	w.replicas[0].start()
	w.clears("LeaseNoReplicas")
	w.neverFired("LeaseMoreThanOneLeader")
}

func TestReplicasThatDoNotShareADatabaseAreMoreThanOneLeader(t *testing.T) {
	t.Parallel()
	w := watch(t)
	w.start(database(t), 2, work{})
	w.leader()
	w.neverFired("LeaseMoreThanOneLeader")

	w.start(database(t), 1, work{})
	w.fires("LeaseMoreThanOneLeader")
	if most, _ := w.leaders(); most != 2 {
		t.Errorf("Prometheus saw %v leaders at once", most)
	}
	w.replicas[2].stop()
	w.clears("LeaseMoreThanOneLeader")
}

func TestRenewalsThatFailAreToldOf(t *testing.T) {
	t.Parallel()
	w := watch(t)
	db := database(t)
	w.start(db, 3, work{})
	w.leader()
	w.neverFired("LeaseRenewalsFailing")

	// As if its disk were full, for 200 ms of every 250: a renewal fails a few times, and then succeeds.
	mustExec(t, db, `CREATE TRIGGER disk BEFORE UPDATE ON leases WHEN CAST(strftime('%f') * 1000 AS INTEGER) % 250 < 200
		BEGIN SELECT RAISE(ABORT, 'the disk is full'); END`)
	w.fires("LeaseRenewalsFailing")
	mustExec(t, db, `DROP TRIGGER disk`)
	w.clears("LeaseRenewalsFailing")
}

func TestWorkThatOutlivesItsLeaseIsToldOf(t *testing.T) {
	t.Parallel()
	w := watch(t)
	db := database(t)
	w.start(db, 2, work{Stubborn: true})
	stubborn := w.leader()
	for _, r := range w.replicas {
		if r != stubborn {
			r.endWork() // whenever it leads
		}
	}
	w.neverFired("LeaseWorkOverrunning")

	unlock := lock(t, db) // so that the lease is lost
	w.eventually("the work has outlived its lease", func() bool {
		return w.value(fmt.Sprintf(`lease_work_overrunning{instance=%q}`, stubborn.Address)) == 1
	})
	unlock()
	if w.leader() == stubborn {
		t.Error("a replica leads again whose work has not ended")
	}
	w.fires("LeaseWorkOverrunning")
	stubborn.endWork()
	w.clears("LeaseWorkOverrunning")
}

// database makes a database for replicas that share it. It does not wait for the disk: processes are killed here, not machines.
func database(t *testing.T) *dbtest.Database {
	t.Helper()
	db := dbtest.SQLite(t)
	db.DSN += "&_synchronous=OFF"
	if err := lease.EnsureSchema(db.Open(t)); err != nil {
		t.Fatal(err)
	}
	return db
}

// mustExec runs the test's own SQL.
func mustExec(t *testing.T, db *dbtest.Database, sql string) {
	t.Helper()
	if err := db.Open(t).Exec(sql).Error; err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// lock takes SQLite's one lock in a session of its own, and returns what gives it back.
func lock(t *testing.T, db *dbtest.Database) (unlock func()) {
	t.Helper()
	session, err := db.SQL(t).Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	run := func(sql string) {
		t.Helper()
		if _, err := session.ExecContext(context.Background(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	run("BEGIN IMMEDIATE")
	return func() { t.Helper(); run("ROLLBACK") }
}
