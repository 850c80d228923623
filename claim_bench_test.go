package lease

import (
	"context"
	"database/sql"
	"database/sql/driver"
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

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/sqllease/lease/internal/dbtest"
)

// A dictation is a connection pool that writes down the last statement that passes through it, with its arguments as the driver gets them. One
// goroutine uses it.
type dictation struct {
	*sql.DB
	text string
	args []any
}

func (d *dictation) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	d.note(query, args)
	return d.DB.ExecContext(ctx, query, args...)
}

func (d *dictation) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	d.note(query, args)
	return d.DB.QueryContext(ctx, query, args...)
}

func (d *dictation) note(query string, args []any) {
	d.text, d.args = query, slices.Clone(args)
	for i, arg := range args {
		if v, ok := arg.(driver.Valuer); ok {
			d.args[i], _ = v.Value()
		}
	}
}

// replace puts another argument wherever one stands.
func (d *dictation) replace(arg, by any) {
	for i, a := range d.args {
		if a == arg {
			d.args[i] = by
		}
	}
}

// dictating opens a second handle, whose statements on the pool are written down.
func dictating(b *testing.B, database *dbtest.Database, pool *sql.DB) (*gorm.DB, *dictation) {
	b.Helper()
	d := &dictation{DB: pool}
	dialector := sqlite.New(sqlite.Config{Conn: d})
	if database.Backend == dbtest.BackendPostgres {
		dialector = postgres.New(postgres.Config{Conn: d})
	}
	db, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		b.Fatal(err)
	}
	return db, d
}

// BenchmarkSave compares a save of an item with the same UPDATE, text and arguments, sent through database/sql: in bursts that take turns. The
// metric to look at is the ratio of the medians; at most 1.25 is promised.
func BenchmarkSave(b *testing.B) {
	for name, open := range map[string]func(testing.TB) *dbtest.Database{"sqlite": dbtest.SQLite, "postgres": dbtest.Postgres} {
		b.Run(name, func(b *testing.B) {
			database := open(b)
			db := database.Open(b)
			pool, err := db.DB()
			if err != nil {
				b.Fatal(err)
			}
			if err := EnsureSchema(db); err != nil {
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
			dictated, same := dictating(b, database, pool)
			other := claim(dictated, "same")
			const last = int64(math.MaxInt64)
			other.known, other.tried = 0, last-1
			if err := other.Save(b.Context(), other.Item()); err != nil {
				b.Fatal(err)
			}
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

// BenchmarkDrain lets 16 workers drain a table of 10,000 items through ClaimNext, and Save with Done, and another one by the same two
// statements, with their results scanned, through database/sql: a thousand of each in turn. The metric to look at is the ratio of the median
// throughputs; the package's may be lower by a factor of 1.3 at most.
func BenchmarkDrain(b *testing.B) {
	const workers, items, turn = 16, 10_000, 1000
	database := dbtest.Postgres(b)
	db := database.Open(b)
	pool, err := db.DB()
	if err != nil {
		b.Fatal(err)
	}
	pool.SetMaxOpenConns(workers)
	pool.SetMaxIdleConns(workers)
	exec := func(sql string) {
		if _, err := pool.ExecContext(b.Context(), sql); err != nil {
			b.Fatalf("%s: %v", sql, err)
		}
	}
	for _, table := range []string{"bench_jobs", "same_jobs"} {
		if err := db.Table(table).AutoMigrate(&benchJob{}); err != nil {
			b.Fatal(err)
		}
	}
	work := func(ctx context.Context, db *gorm.DB, owner string) error {
		h, err := ClaimNext[benchJob](ctx, db, owner, "drain", time.Hour, nil)
		if err != nil {
			return err
		}
		job := h.Item()
		job.Result, job.Done = "worked", true
		return h.Save(ctx, job)
	}

	// What the package sends is learnt from one item.
	const learnt = int64(-7)
	dictated, said := dictating(b, database, pool)
	exec(fmt.Sprintf("INSERT INTO bench_jobs (id) VALUES (%d)", learnt))
	h, err := ClaimNext[benchJob](b.Context(), dictated, "worker", "drain", time.Hour, nil)
	if err != nil {
		b.Fatal(err)
	}
	onOther := func() dictation {
		return dictation{text: strings.ReplaceAll(said.text, "bench_jobs", "same_jobs"), args: said.args}
	}
	next, job := onOther(), h.Item()
	job.Payload, job.Result, job.Done = payloadOf200, "worked", true
	if err := h.Save(b.Context(), job); err != nil {
		b.Fatal(err)
	}
	save := onOther()
	exec(fmt.Sprintf("DELETE FROM bench_jobs WHERE id = %d", learnt))
	workRaw := func(ctx context.Context) error {
		rows, err := pool.QueryContext(ctx, next.text, next.args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		if !rows.Next() {
			return errors.Join(rows.Err(), gorm.ErrRecordNotFound)
		}
		var j benchJob
		var acquired, renewed, expires sql.NullInt64
		var created, updated sql.NullTime
		err = rows.Scan(&j.ID, &j.Payload, &j.Result, &j.Owner, &j.StepID, &j.Epoch, &j.Revision, &j.Attempts, &acquired, &renewed, &expires, &j.Done,
			&created, &updated)
		if err := errors.Join(err, rows.Close()); err != nil {
			return err
		}
		this := dictation{text: save.text, args: slices.Clone(save.args)}
		this.replace(learnt, j.ID)
		result, err := pool.ExecContext(ctx, this.text, this.args...)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		if err == nil && n != 1 {
			err = fmt.Errorf("%d rows", n)
		}
		return err
	}

	drain := func(work func(ctx context.Context, worker int) error) time.Duration {
		var claimed atomic.Int64
		var done sync.WaitGroup
		begin := time.Now()
		for worker := range workers {
			done.Go(func() {
				for claimed.Add(1) <= turn {
					ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
					err := work(ctx, worker)
					cancel()
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		done.Wait()
		return time.Since(begin)
	}
	ours := func() time.Duration {
		return drain(func(ctx context.Context, worker int) error { return work(ctx, db, fmt.Sprintf("worker-%d", worker)) })
	}
	raw := func() time.Duration {
		return drain(func(ctx context.Context, _ int) error { return workRaw(ctx) })
	}
	var times [2][]time.Duration
	for b.Loop() {
		for _, table := range []string{"bench_jobs", "same_jobs"} {
			exec("TRUNCATE " + table)
			exec(fmt.Sprintf("INSERT INTO %s (id, payload, result, created_at, updated_at) SELECT n, '%s', '', now(), now() FROM generate_series(1, %d) AS n",
				table, payloadOf200, items))
		}
		for i := range items / turn {
			first, second := ours, raw
			if i%2 == 1 {
				first, second = raw, ours
			}
			one, two := first(), second()
			times[i%2] = append(times[i%2], one)
			times[1-i%2] = append(times[1-i%2], two)
		}
		for _, table := range []string{"bench_jobs", "same_jobs"} {
			var once int
			if err := pool.QueryRowContext(b.Context(), "SELECT count(*) FROM "+table+
				" WHERE claim_done AND claim_epoch = 1 AND claim_revision = 2 AND result = 'worked'").Scan(&once); err != nil || once != items {
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
