package spec

import (
	"context"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/faultproxy"
)

func TestAnOldTableGainsWhatItLacksAndLosesNothing(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "old", "*.sql"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				run(t, db, oldSchema(t, filepath.Base(file)))
				rows := func() (all []map[string]any) {
					gdb := db.Open(t) // anew, since SELECT * does not outlive a change of the table
					if err := gdb.Table("leases").Order("name DESC").Find(&all).Error; err != nil {
						t.Fatal(err)
					}
					return all
				}
				before := rows()
				gdb := db.Open(t)
				ensure(t, gdb)
				after := rows()
				if len(before) != 2 || len(after) != 2 {
					t.Fatalf("%d rows became %d", len(before), len(after))
				}
				for i, r := range before {
					for column, value := range r {
						if after[i][column] != value {
							t.Errorf("%s was %v and is %v", column, value, after[i][column])
						}
					}
				}
				if err := gdb.First(&lease.Record{}).Error; err != nil {
					t.Error(err)
				}
				// The live lease is live, and its holder's.
				refused(t, gdb, "B", databasesClock)
				if s, err := lease.Find(t.Context(), gdb, "job"); err != nil || !s.Held || s.Holder != "A" || s.Remaining < 24*time.Hour {
					t.Errorf("Find of a live lease is %+v, %v", s, err)
				}
				if all, err := lease.List(t.Context(), gdb); err != nil || len(all) != 2 {
					t.Errorf("List is %+v, %v", all, err)
				}
				epoch := ask[int64](t, gdb, "SELECT epoch FROM leases WHERE name = 'job'")
				granted(t, gdb, "A", databasesClock)
				if s, err := lease.Find(t.Context(), gdb, "job"); err != nil || s.Epoch != epoch || s.Remaining < 24*time.Hour || time.Since(s.RenewedAt) > time.Minute {
					t.Errorf("after a renewal in term %d it is %+v, %v", epoch, s, err)
				}
				release(t, gdb, "A", databasesClock)
				granted(t, gdb, "B", databasesClock)
				if s := find(t, gdb, "job"); s.Epoch != epoch+1 {
					t.Errorf("term %d followed term %d", s.Epoch, epoch)
				}
				if ok, err := lease.TryAcquire(t.Context(), gdb, "expired", "B", time.Minute, databasesClock); !ok || err != nil {
					t.Errorf("an expired lease: %v, %v", ok, err)
				}
				before2 := portrait(t, gdb)
				ensure(t, gdb)
				if again := portrait(t, gdb); again != before2 {
					t.Errorf("the second call made of\n%s\nthis:\n%s", before2, again)
				}
			})
		})
	}
}

func TestATableOfItemsThatLostItsIndexGetsItBack(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		before := portrait(t, gdb)
		exec(t, gdb, "DROP INDEX idx_lease_items_claim_queue")
		ensure(t, gdb)
		if after := portrait(t, gdb); after != before {
			t.Errorf("the tables were\n%s\nand are\n%s", before, after)
		}
	})
}

func TestLeadersKeepRenewingWhileEnsureSchemaWaitsForALockedTable(t *testing.T) {
	db := dbtest.Postgres(t)
	run(t, db, oldSchema(t, "3-columns.sql"))
	long := db.Open(t).Begin()
	defer long.Rollback()
	exec(t, long, "SELECT * FROM leases")
	gdb, spy := spied(t, db)
	var attempts atomic.Int32
	spy.after = func(query string, _ error) {
		if strings.HasPrefix(query, "ALTER") {
			attempts.Add(1)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- lease.EnsureSchema(gdb) }()
	leader := db.Open(t)
	var slowest time.Duration
	renew := func() { // as the old version did
		start := time.Now()
		exec(t, leader, "UPDATE leases SET expires_at = expires_at + 1 WHERE name = 'job' AND holder = 'A'")
		slowest = max(slowest, time.Since(start))
	}
	waitUntil(t, "EnsureSchema has tried three times", func() bool { renew(); return attempts.Load() >= 3 })
	select {
	case err := <-ended:
		t.Fatalf("it ended while the table was locked: %v", err)
	default:
	}
	if err := long.Rollback().Error; err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "EnsureSchema has ended", func() bool { renew(); return len(ended) > 0 })
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if slowest > 1500*time.Millisecond {
		t.Errorf("a renewal took %v", slowest)
	}
	granted(t, leader, "A", databasesClock)
	refused(t, leader, "B", databasesClock)
}

// oldLeases makes the table of an older version, with a leader, which a later EnsureSchema has to alter.
func oldLeases(t *testing.T, gdb *gorm.DB) {
	t.Helper()
	exec(t, gdb, `CREATE TABLE leases (name varchar(100) PRIMARY KEY, holder varchar(200) NOT NULL, expires_at bigint NOT NULL)`)
	exec(t, gdb, `INSERT INTO leases VALUES ('job', 'old', 0)`)
}

func TestAReplicaThatIsCutOffBetweenDDLAndCommitHoldsUpALeaderForASecond(t *testing.T) {
	const ttl = 3 * time.Second
	db := dbtest.Postgres(t)
	direct := db.Open(t)
	oldLeases(t, direct)
	proxy := faultproxy.New(t, db.Addr())
	far, spy := spied(t, &dbtest.Database{Backend: db.Backend, DSN: db.DSNVia(proxy.Addr())})
	cut := make(chan time.Time, 1)
	spy.after = func(query string, err error) {
		if strings.HasPrefix(query, "ALTER TABLE") && err == nil {
			select {
			case cut <- time.Now():
				proxy.Hang()
			default:
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	returned := make(chan error, 1)
	go func() { returned <- lease.EnsureSchema(far.WithContext(ctx)) }()
	begin := <-cut
	exec(t, direct, "UPDATE leases SET expires_at = expires_at + 1 WHERE name = 'job' AND holder = 'old'") // as its leader renews
	if took := time.Since(begin); took > ttl/3*2 {
		t.Errorf("a renewal took %v, which costs the leader its term", took)
	} else {
		t.Logf("a renewal took %v", took)
	}
	must(t, lease.EnsureSchema(direct))
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("another replica's EnsureSchema was done %v after the cut", took)
	}
	exec(t, direct, "UPDATE leases SET holder = ''")
	granted(t, direct, "A", databasesClock)
	cancel()
	proxy.Heal()
	<-returned
}

func TestEnsureSchemaGoesOnAfterTheServerEndedItsTransaction(t *testing.T) {
	db := dbtest.Postgres(t)
	direct := db.Open(t)
	oldLeases(t, direct)
	slow, spy := spied(t, db)
	first := true
	spy.after = func(query string, err error) {
		if first && strings.HasPrefix(query, "ALTER TABLE") {
			first = false
			waitUntil(t, "the server ends the session", func() bool {
				return ask[int](t, direct, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'") == 0
			})
		}
	}
	must(t, lease.EnsureSchema(slow))
	exec(t, direct, "UPDATE leases SET holder = ''")
	granted(t, direct, "A", databasesClock)
}
