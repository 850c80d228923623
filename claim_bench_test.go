package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
)

// BenchmarkSave compares a save of an item with the same UPDATE, text and arguments, sent through database/sql: in bursts that take turns. The
// metric to look at is the ratio of the medians; at most 1.25 is promised.
func BenchmarkSave(b *testing.B) {
	for name, open := range map[string]func(testing.TB) *dbtest.Database{"sqlite": dbtest.SQLite, "postgres": dbtest.Postgres} {
		b.Run(name, func(b *testing.B) {
			database := open(b)
			db := withSchema(b, database)
			pool, err := db.DB()
			if err != nil {
				b.Fatal(err)
			}
			claim := func(db *gorm.DB, key string) *Holder {
				payload, _ := json.Marshal(map[string]any{"step": 1, "of": 12, "text": strings.Repeat("payload ", 20)})
				if err := Create(b.Context(), db, Item{Key: key, Payload: payload}); err != nil {
					b.Fatal(err)
				}
				h, err := Claim(b.Context(), db, key, "worker", "", time.Hour, nil)
				if err != nil {
					b.Fatal(err)
				}
				return h
			}
			ours := claim(db, "ours")
			it := ours.Item()
			// The other item is saved once, to learn how, and then raw.
			recorded, statements := recording(b, database, pool)
			other := claim(recorded, "same")
			const last = int64(math.MaxInt64)
			other.known, other.tried = 0, last-1
			if err := other.Save(b.Context(), other.Item()); err != nil {
				b.Fatal(err)
			}
			same := statements.last("UPDATE ")
			same.replace(last-1, last) // the highest revision that the row may have: this may be repeated
			revision := slices.Index(same.args, any(last))
			const burst = 20
			var times [2][]time.Duration
			ways := []func(context.Context) error{
				func(ctx context.Context) error { return ours.Save(ctx, it) },
				func(ctx context.Context) error {
					same.args[revision] = int64(len(times[1])) // SQLite writes nothing if nothing changes
					result, err := pool.ExecContext(ctx, same.text, same.args...)
					if err != nil {
						return err
					}
					n, err := result.RowsAffected()
					if err == nil && n != 1 {
						err = fmt.Errorf("%d rows", n)
					}
					return err
				},
			}
			for b.Loop() {
				for i, way := range ways {
					for range burst {
						begin := time.Now()
						ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second) // a save would bound itself, if its caller did not
						if err := way(ctx); err != nil {
							b.Fatal(err)
						}
						cancel()
						times[i] = append(times[i], time.Since(begin))
					}
				}
			}
			save, raw := median(times[0]), median(times[1])
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(save.Nanoseconds()), "ns/save")
			b.ReportMetric(float64(raw.Nanoseconds()), "ns/raw")
			b.ReportMetric(float64(save)/float64(raw), "x-the-same-UPDATE")
		})
	}
}

// A benchJob is a user's own model.
type benchJob struct {
	ID      int64
	Payload string
	Result  string
	Claimable
	CreatedAt time.Time
	UpdatedAt time.Time
}

// A drain is a table that the package works off, and its twin, which is worked off through database/sql.
type drain[T any] struct {
	table, twin string
	fill        string // an INSERT of rows from n
	work        func(*T)
	worked      string // the condition that this fulfils

	// What a careful user writes by hand: into what a row is scanned, what becomes of it then, and the arguments of a save.
	columns func(row *T, times *claimTimes) []any
	saved   func(row *T) []any
}

// claimTimes are a claim's times as they are in a row.
type claimTimes struct{ acquired, renewed, expires, created, updated int64 }

// BenchmarkDrain lets 16 workers drain a table of 10,000 items through ClaimNext, and Save with Done, and another one by the same two
// statements, with their results scanned, through database/sql: a thousand of each in turn. The metric to look at is the ratio of the median
// throughputs; the package's may be lower by a factor of 1.3 at most. What it costs in the client weighs as much as the whole if the server has to
// share its cores.
func BenchmarkDrain(b *testing.B) {
	database := dbtest.Postgres(b)
	db := database.Open(b)
	for _, err := range []error{
		EnsureSchema(db), EnsureSchema(Tables(db, "same_")),
		db.AutoMigrate(&benchJob{}), db.Table("same_jobs").AutoMigrate(&benchJob{}),
	} {
		if err != nil {
			b.Fatal(err)
		}
	}
	b.Run("items", func(b *testing.B) {
		payload := json.RawMessage(`{"done": "` + payloadOf200 + `"}`)
		drainBoth(b, database, db, drain[Item]{
			table: "lease_items", twin: "same_lease_items",
			fill:   `(key, payload, created_at, updated_at) SELECT 'item-' || n, '{"todo": "` + payloadOf200 + `"}', 0, 0`,
			work:   func(it *Item) { it.Payload, it.Done = payload, true },
			worked: "payload->'done' IS NOT NULL",
			columns: func(it *Item, t *claimTimes) []any {
				return []any{&it.Key, &it.Payload, &it.Owner, &it.StepID, &it.Epoch, &it.Revision, &it.Attempts, &t.acquired, &t.renewed, &t.expires, &it.Done,
					&t.created, &t.updated}
			},
			saved: func(it *Item) []any {
				return []any{string(it.Payload), time.Now().UnixMicro(), it.Revision + 1, it.Done, it.Key, it.Owner, it.Epoch, it.Revision, it.Revision}
			},
		})
	})
	b.Run("model", func(b *testing.B) {
		drainBoth(b, database, db, drain[benchJob]{
			table: "bench_jobs", twin: "same_jobs",
			fill:   "(id, payload, result, created_at, updated_at) SELECT n, '" + payloadOf200 + "', '', now(), now()",
			work:   func(j *benchJob) { j.Result, j.Done = "worked", true },
			worked: "result = 'worked'",
			columns: func(j *benchJob, t *claimTimes) []any {
				return []any{&j.ID, &j.Payload, &j.Result, &j.Owner, &j.StepID, &j.Epoch, &j.Revision, &j.Attempts, &t.acquired, &t.renewed, &t.expires, &j.Done,
					&j.CreatedAt, &j.UpdatedAt}
			},
			saved: func(j *benchJob) []any {
				return []any{j.Payload, j.Result, j.Revision + 1, j.Done, j.CreatedAt, time.Now(), j.ID, j.Owner, j.Epoch, j.Revision, j.Revision}
			},
		})
	})
}

// drainBoth measures a drain.
func drainBoth[T any, M Model[T]](b *testing.B, database *dbtest.Database, db *gorm.DB, d drain[T]) {
	const workers, items, turn = 16, 10_000, 1000
	pool, err := db.DB()
	if err != nil {
		b.Fatal(err)
	}
	pool.SetMaxOpenConns(workers)
	pool.SetMaxIdleConns(workers)
	fill := func(items int) {
		for _, table := range []string{d.table, d.twin} {
			for _, sql := range []string{"TRUNCATE " + table, fmt.Sprintf("INSERT INTO %s %s FROM generate_series(1, %d) AS n", table, d.fill, items), "ANALYZE " + table} {
				if _, err := pool.ExecContext(b.Context(), sql); err != nil {
					b.Fatalf("%s: %v", sql, err)
				}
			}
		}
	}
	claim := func(ctx context.Context, db *gorm.DB, owner string) (*HolderOf[T], error) {
		return ClaimNext[T, M](ctx, db, owner, "drain", time.Hour, nil)
	}
	save := func(ctx context.Context, h *HolderOf[T]) error {
		it := h.Item()
		d.work(&it)
		return h.Save(ctx, it)
	}
	ours := func(ctx context.Context, owner string) error {
		h, err := claim(ctx, db, owner)
		if err != nil {
			return err
		}
		return save(ctx, h)
	}

	// What the package sends is learnt from one item.
	fill(1)
	recorded, statements := recording(b, database, pool)
	onTwin := func() string { return strings.ReplaceAll(statements.last("UPDATE ").text, d.table, d.twin) }
	h, err := claim(b.Context(), recorded, "worker")
	if err != nil {
		b.Fatal(err)
	}
	claimSQL := onTwin()
	if err := save(b.Context(), h); err != nil {
		b.Fatal(err)
	}
	saveSQL := onTwin()
	claimRaw := func(ctx context.Context, owner string) (it T, err error) {
		rows, err := pool.QueryContext(ctx, claimSQL, nil, owner, "drain", time.Hour.Microseconds())
		if err != nil {
			return it, err
		}
		defer rows.Close()
		if !rows.Next() {
			return it, errors.Join(rows.Err(), gorm.ErrRecordNotFound)
		}
		var times claimTimes
		err = errors.Join(rows.Scan(d.columns(&it, &times)...), rows.Close())
		c := M(&it).claimable()
		c.Owner = owner // the statement returns the one before
		c.AcquiredAt, c.RenewedAt, c.ExpiresAt = time.UnixMicro(times.acquired), time.UnixMicro(times.renewed), time.UnixMicro(times.expires)
		return it, err
	}
	raw := func(ctx context.Context, owner string) error {
		it, err := claimRaw(ctx, owner)
		if err != nil {
			return err
		}
		d.work(&it)
		result, err := pool.ExecContext(ctx, saveSQL, d.saved(&it)...)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err == nil && n != 1 {
			err = fmt.Errorf("%d rows", n)
		}
		return err
	}

	var times [2][]time.Duration
	ways := []func(ctx context.Context, owner string) error{ours, raw}
	measure := func(way int) {
		var claimed atomic.Int64
		var done sync.WaitGroup
		begin := time.Now()
		for worker := range workers {
			done.Go(func() {
				owner := fmt.Sprintf("worker-%d", worker)
				for claimed.Add(1) <= turn {
					ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second) // the package would bound each statement, if its caller did not
					err := ways[way](ctx, owner)
					cancel()
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		done.Wait()
		times[way] = append(times[way], time.Since(begin))
	}
	for b.Loop() {
		fill(items)
		for i := range items / turn {
			measure(i % 2)
			measure(1 - i%2)
		}
		for _, table := range []string{d.table, d.twin} {
			var once int
			if err := pool.QueryRowContext(b.Context(), "SELECT count(*) FROM "+table+
				" WHERE claim_done AND claim_epoch = 1 AND claim_revision = 2 AND "+d.worked).Scan(&once); err != nil || once != items {
				b.Errorf("in %s %d of %d items were worked once: %v", table, once, items, err)
			}
		}
	}
	perSecond := func(d time.Duration) float64 { return turn / d.Seconds() }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(perSecond(median(times[0])), "items/s")
	b.ReportMetric(perSecond(median(times[1])), "raw-items/s")
	b.ReportMetric(float64(median(times[0]))/float64(median(times[1])), "x-slower-than-raw")
}

var payloadOf200 = strings.Repeat("payload ", 25)
