package spec

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// A chore is a user's own model.
type chore struct {
	ID     int64
	Street string `gorm:"not null;default:''"`
	Driver string `gorm:"not null;default:''"`
	lease.Claimable
	UpdatedAt time.Time
}

// many is how many rows stand around the one that matters.
const many = 100_000

// fill puts n rows of a kind into a table: chores 1 to n, or items "1" to "n". The columns say how they stand, by expressions of n.
func fill(t *testing.T, gdb *gorm.DB, table string, n int, columns map[string]string) {
	t.Helper()
	all := map[string]string{"id": "n"}
	if table == "lease_items" {
		all = map[string]string{"key": "CAST(n AS TEXT)", "payload": "'{\"n\": 1}'"}
	}
	var names, values []string
	for _, columns := range []map[string]string{all, columns} {
		for name, value := range columns {
			names, values = append(names, `"`+name+`"`), append(values, value)
		}
	}
	exec(t, gdb, fmt.Sprintf("INSERT INTO %s (%s) WITH RECURSIVE numbers AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM numbers WHERE n < %d) SELECT %s FROM numbers",
		table, strings.Join(names, ", "), n, strings.Join(values, ", ")))
}

func TestSixteenWorkersDrainTenThousandItemsOnceEach(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		const workers = 16
		n := 10_000
		if db.Backend == dbtest.BackendSQLite || testing.Short() {
			n = 1000
		}
		gdb := keepConnections(t, db.Open(t))
		if err := gdb.AutoMigrate(&chore{}); err != nil {
			t.Fatal(err)
		}
		fill(t, gdb, "chores", n, nil)
		times := make([]atomic.Int32, n+1)
		var working sync.WaitGroup
		for worker := range workers {
			name := fmt.Sprintf("worker %d", worker)
			working.Go(func() {
				for {
					h, err := lease.ClaimNext[chore](t.Context(), gdb, name, "", time.Hour, nil)
					if errors.Is(err, gorm.ErrRecordNotFound) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					p := h.Item()
					times[p.ID].Add(1)
					p.Driver, p.Done = name, true
					if err := h.Save(t.Context(), p); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		working.Wait()
		once := 0
		for id := range times {
			if times := times[id].Load(); times == 1 {
				once++
			} else if times > 1 {
				t.Errorf("item %d was worked %d times", id, times)
			}
		}
		if once != n {
			t.Errorf("%d of %d items were worked once", once, n)
		}
		var off []chore
		err := gdb.Where("claim_epoch <> 1 OR claim_revision <> 2 OR claim_attempts <> 1 OR NOT claim_done OR claim_owner = '' OR driver <> claim_owner").Find(&off).Error
		if err != nil {
			t.Fatal(err)
		}
		if len(off) > 0 {
			t.Errorf("%d rows do not tell of one claim, such as %+v", len(off), off[0])
		}
		if rows := ask[int](t, gdb, "SELECT count(*) FROM chores"); rows != n {
			t.Errorf("%d rows are left of %d", rows, n)
		}
	})
}

// hear returns what a call sends on a handle on db, with the arguments as the
// driver gets them.
func hear(t *testing.T, db *dbtest.Database, call func(gdb *gorm.DB)) []sentence {
	t.Helper()
	gdb, spy := spied(t, db)
	call(gdb)
	sent := spy.heard()
	for _, s := range sent {
		for i, arg := range s.args {
			if v, ok := arg.(driver.Valuer); ok {
				s.args[i], _ = v.Value()
			}
		}
	}
	return sent
}

// A plan is how Postgres ran a statement.
type plan struct {
	Took float64 `json:"Execution Time"` // in milliseconds
	Plan node
}

type node struct {
	Kind  string `json:"Node Type"`
	Table string `json:"Relation Name"`
	Index string `json:"Index Name"`
	Plans []node
}

// each visits a plan's nodes.
func (n node) each(visit func(node)) {
	visit(n)
	for _, n := range n.Plans {
		n.each(visit)
	}
}

func (n node) String() string {
	s := strings.TrimSpace(strings.Join([]string{n.Kind, n.Table, n.Index}, " "))
	if len(n.Plans) > 0 {
		s += fmt.Sprint(n.Plans)
	}
	return s
}

// literal is an argument as a text of SQL.
func literal(arg any) string {
	switch arg := arg.(type) {
	case nil:
		return "NULL"
	case int, int64, bool:
		return fmt.Sprint(arg)
	case time.Time:
		return "'" + arg.Format(time.RFC3339Nano) + "'"
	}
	return "'" + strings.ReplaceAll(fmt.Sprint(arg), "'", "''") + "'"
}

// explain carries a statement out on Postgres, prepared as pgx prepares it, and undoes it.
func explain(t *testing.T, gdb *gorm.DB, s sentence, mode string) (p plan) {
	t.Helper()
	var literals []string
	for _, arg := range s.args {
		literals = append(literals, literal(arg))
	}
	tx, err := pool(t, gdb).Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, sql := range []string{"SET LOCAL plan_cache_mode = " + mode, "PREPARE heard AS " + s.text} {
		if _, err := tx.Exec(sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	defer tx.Exec("DEALLOCATE heard")
	execute := "EXECUTE heard"
	if len(literals) > 0 {
		execute += "(" + strings.Join(literals, ", ") + ")"
	}
	var text string
	if err := tx.QueryRow("EXPLAIN (ANALYZE, FORMAT JSON) " + execute).Scan(&text); err != nil {
		t.Fatalf("%s: %v", execute, err)
	}
	plans := []plan{}
	if err := json.Unmarshal([]byte(text), &plans); err != nil || len(plans) != 1 {
		t.Fatalf("%s: %v", text, err)
	}
	return plans[0]
}

// A crowd is how the rows around a claim stand.
type crowd struct {
	what    string
	columns func(now int64) map[string]string
	nothing bool // that ClaimNext could claim
}

func crowds() []crowd {
	const hour = int64(time.Hour / time.Microsecond)
	claimed := func(which string, acquired, expires int64) map[string]string {
		when := func(then, otherwise string) string {
			return fmt.Sprintf("CASE WHEN %s THEN %s ELSE %s END", which, then, otherwise)
		}
		return map[string]string{
			"claim_owner": when("'W' || n", "''"), "claim_epoch": when("1", "0"),
			"claim_acquired_at": when(fmt.Sprint(acquired, " + n"), "0"), "claim_expires_at": when(fmt.Sprint(expires, " - n"), "NULL"),
		}
	}
	return []crowd{
		{what: "all done", nothing: true, columns: func(int64) map[string]string { return map[string]string{"claim_done": "true"} }},
		{what: "all free", columns: func(int64) map[string]string { return nil }},
		{what: "all free, after many claims", columns: func(now int64) map[string]string {
			return map[string]string{"claim_epoch": "7", "claim_acquired_at": fmt.Sprint(now-hour, " + n"), "claim_expires_at": fmt.Sprint(now-hour, " + n + 1")}
		}},
		{what: "half of them live", columns: func(now int64) map[string]string { return claimed("n % 2 = 0", now, now+hour) }},
		{what: "all run out", columns: func(now int64) map[string]string { return claimed("n > 0", now-2*hour, now-hour) }},
		{what: "all free, behind a few hundred live ones", columns: func(now int64) map[string]string {
			c := claimed("n <= 300", now-hour, now+hour)
			c["claim_acquired_at"] = fmt.Sprint(now-hour, " + n")
			return c
		}},
	}
}

// A queue is a table of items, and how its rows are claimed: the one whose key is 1, and the next.
type queue struct {
	table string
	claim func(t *testing.T, gdb *gorm.DB) (renew func(context.Context) error, err error)
	next  func(t *testing.T, gdb *gorm.DB) error
}

var queues = []queue{
	{"chores",
		func(t *testing.T, gdb *gorm.DB) (func(context.Context) error, error) {
			h, err := lease.ClaimAs[chore](t.Context(), gdb, 1, "W", "", time.Hour, nil)
			return h.Renew, err
		},
		func(t *testing.T, gdb *gorm.DB) error {
			_, err := lease.ClaimNext[chore](t.Context(), gdb, "W", "", time.Hour, nil)
			return err
		},
	},
	{"lease_items",
		func(t *testing.T, gdb *gorm.DB) (func(context.Context) error, error) {
			h, err := lease.Claim(t.Context(), gdb, "1", "W", "", time.Hour, nil)
			return h.Renew, err
		},
		func(t *testing.T, gdb *gorm.DB) error {
			_, err := lease.ClaimNext[lease.Item](t.Context(), gdb, "W", "", time.Hour, nil)
			return err
		},
	},
}

func (q queue) keyIndex() string   { return q.table + "_pkey" }
func (q queue) queueIndex() string { return "idx_" + q.table + "_claim_queue" }

// onQueues runs spec on each table among each crowd: before there are any statistics of it, and after, when the database has them. The statements
// are those that ClaimNext and Claim sent when there was one row.
func onQueues(t *testing.T, db *dbtest.Database, spec func(t *testing.T, gdb *gorm.DB, q queue, c crowd, next, claim []sentence)) {
	for _, q := range queues {
		gdb := fresh(t, db)
		anew := func() {
			exec(t, gdb, "DROP TABLE IF EXISTS "+q.table)
			ensure(t, gdb)
			if err := gdb.AutoMigrate(&chore{}); err != nil {
				t.Fatal(err)
			}
			if gdb.Name() == "postgres" {
				exec(t, gdb, "ALTER TABLE "+q.table+" SET (autovacuum_enabled = off)") // statistics come when the test says so
			}
		}
		anew()
		fill(t, gdb, q.table, 1, nil)
		next := hear(t, db, func(gdb *gorm.DB) {
			if err := q.next(t, gdb); err != nil {
				t.Fatal(err)
			}
		})
		anew()
		fill(t, gdb, q.table, 1, nil)
		claim := hear(t, db, func(gdb *gorm.DB) {
			if _, err := q.claim(t, gdb); err != nil {
				t.Fatal(err)
			}
		})
		if len(next) > 2 || len(claim) != 2 {
			t.Fatalf("ClaimNext sends %d statements, Claim %d", len(next), len(claim))
		}
		around := crowds()
		if q.table == "lease_items" {
			around = around[:2] // which differs from the other in nothing that matters
		}
		for _, c := range around {
			anew()
			fill(t, gdb, q.table, many, c.columns(time.Now().UnixMicro()))
			t.Run(q.table+", "+c.what, func(t *testing.T) { spec(t, gdb, q, c, next, claim) })
			exec(t, gdb, map[string]string{"sqlite": "ANALYZE", "postgres": "VACUUM ANALYZE " + q.table}[gdb.Name()])
			t.Run(q.table+", "+c.what+", with statistics", func(t *testing.T) {
				spec(t, gdb, q, c, next, claim)
				// And they do what they say.
				if err := q.next(t, gdb); c.nothing != errors.Is(err, gorm.ErrRecordNotFound) || err != nil && !c.nothing {
					t.Errorf("ClaimNext: %v", err)
				}
			})
		}
	}
}

func TestOnPostgresAClaimAmongAHundredThousandUsesAnIndexAndTakesNoMillisecond(t *testing.T) {
	onQueues(t, dbtest.Postgres(t), func(t *testing.T, gdb *gorm.DB, q queue, c crowd, next, claim []sentence) {
		look := func(s sentence, want ...string) {
			t.Helper()
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} { // Postgres decides for one or the other as it goes
				best := explain(t, gdb, s, mode)
				for range 9 {
					if p := explain(t, gdb, s, mode); p.Took < best.Took {
						best = p
					}
				}
				var used []string
				best.Plan.each(func(n node) {
					switch {
					case n.Kind == "Index Scan":
						used = append(used, n.Index)
					case n.Table != "" && n.Kind != "ModifyTable" || strings.Contains(n.Kind, "Sort"):
						used = append(used, n.Kind)
					}
				})
				slices.Sort(used)
				slices.Sort(want)
				if !slices.Equal(slices.Compact(used), want) {
					t.Errorf("%s: it uses %q, not %q: %v", mode, used, want, best.Plan)
				}
				if best.Took >= 1 {
					t.Errorf("%s: it takes %.3f ms: %v", mode, best.Took, best.Plan)
				}
			}
		}
		for _, s := range next {
			look(s, q.queueIndex(), q.keyIndex())
		}
		for _, s := range claim {
			look(s, q.keyIndex())
		}
	})
}

func TestOnSQLiteAClaimAmongAHundredThousandUsesAnIndex(t *testing.T) {
	onQueues(t, dbtest.SQLite(t), func(t *testing.T, gdb *gorm.DB, q queue, c crowd, next, claim []sentence) {
		look := func(s sentence, want ...string) {
			t.Helper()
			var steps []struct{ Detail string }
			if err := gdb.Raw("EXPLAIN QUERY PLAN "+s.text, s.args...).Scan(&steps).Error; err != nil {
				t.Fatal(err)
			}
			if len(steps) != 1 || !slices.ContainsFunc(want, func(w string) bool { return strings.Contains(steps[0].Detail, w) }) {
				t.Errorf("it uses %q, not %q\n%s", steps, want, s.text)
			}
		}
		look(next[0], "USING INDEX "+q.queueIndex())
		for _, s := range append(claim, next[1:]...) {
			look(s, "USING INTEGER PRIMARY KEY", "USING INDEX sqlite_autoindex_"+q.table+"_1 (key=?)")
		}
	})
}

func TestClaimNextClaimsOneRowHoweverFewPostgresBelievesThereAre(t *testing.T) {
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		db := dbtest.Postgres(t)
		gdb := db.OpenDSN(t, db.DSNVia("", "plan_cache_mode="+mode))
		if err := gdb.AutoMigrate(&chore{}); err != nil {
			t.Fatal(err)
		}
		// Vacuumed when there was one, and there is one page still.
		exec(t, gdb, "ALTER TABLE chores SET (autovacuum_enabled = off)")
		exec(t, gdb, "INSERT INTO chores (id) VALUES (1)")
		exec(t, gdb, "VACUUM ANALYZE chores")
		exec(t, gdb, "INSERT INTO chores (id) SELECT * FROM generate_series(2, 30)")
		for claims := range 10 {
			if _, err := lease.ClaimNext[chore](t.Context(), gdb, "W", "", time.Hour, nil); err != nil {
				t.Fatal(err)
			}
			if n := ask[int](t, gdb, "SELECT count(*) FROM chores WHERE claim_owner <> ''"); n != claims+1 {
				t.Fatalf("%s: after %d claims %d rows are claimed", mode, claims+1, n)
			}
		}
	}
}

func TestRenewalsOfAClaimAmongManyAreHeapOnly(t *testing.T) {
	const renewals, others = 500, 1000
	for _, q := range queues {
		t.Run(q.table, func(t *testing.T) {
			gdb := fresh(t, dbtest.Postgres(t))
			pool(t, gdb).SetMaxOpenConns(1) // statistics are kept by session until they are flushed
			if err := gdb.AutoMigrate(&chore{}); err != nil {
				t.Fatal(err)
			}
			exec(t, gdb, "ALTER TABLE "+q.table+" SET (autovacuum_enabled = off)")
			fill(t, gdb, q.table, others, nil) // which fill their pages
			renew, err := q.claim(t, gdb)
			if err != nil {
				t.Fatal(err)
			}
			count := func(column string) int {
				exec(t, gdb, "SELECT pg_stat_force_next_flush()")
				return ask[int](t, gdb, "SELECT "+column+" FROM pg_stat_user_tables WHERE relname = '"+q.table+"'")
			}
			updates, heapOnly := count("n_tup_upd"), count("n_tup_hot_upd")
			for range renewals {
				if err := renew(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			updates, heapOnly = count("n_tup_upd")-updates, count("n_tup_hot_upd")-heapOnly
			if updates != renewals || heapOnly != renewals {
				t.Errorf("of %d updates by %d renewals, %d are heap-only", updates, renewals, heapOnly)
			}
		})
	}
}
