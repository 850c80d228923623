package lease

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sqllease/lease/internal/dbtest"
)

// BenchmarkRenewal compares a renewal with the same UPDATE sent through database/sql, and with one that has no clock and no guard but the key:
// in bursts that take turns, since machines are noisy. The metrics to look at are the ratios of the medians.
func BenchmarkRenewal(b *testing.B) {
	for name, database := range map[string]*dbtest.Database{"sqlite": dbtest.SQLite(b), "postgres": dbtest.Postgres(b)} {
		b.Run(name, func(b *testing.B) {
			db := withSchema(b, database)
			ctx := b.Context()
			if ok, err := TryAcquire(ctx, db, "job", "A", time.Hour, time.Time{}); !ok || err != nil {
				b.Fatal(ok, err)
			}
			h := opened(b, db)
			pool, err := db.DB()
			if err != nil {
				b.Fatal(err)
			}
			store := newRow(h, "job", "A", time.Hour, nil)
			term := Term{Name: "job", Holder: "A", Epoch: 1}
			raw := func(query string, args func() []any) func(context.Context) error {
				return func(ctx context.Context) error {
					result, err := pool.ExecContext(ctx, query, args()...)
					if err != nil {
						return err
					}
					n, err := result.RowsAffected()
					if err == nil && n != 1 {
						err = fmt.Errorf("%d rows", n)
					}
					return err
				}
			}
			ways := []func(context.Context) error{
				func(ctx context.Context) error {
					ok, err := store.renew(ctx, term)
					if err == nil && !ok {
						err = ErrLost
					}
					return err
				},
				raw(h.statements.renew, func() []any {
					return []any{nil, "job", "A", int64(1), time.Hour.Microseconds(), (time.Hour / 3).Microseconds()}
				}),
				raw(strings.ReplaceAll("UPDATE leases SET expires_at = ?1, renewed_at = ?2 WHERE name = ?3", "?", h.dialect.parameter), func() []any {
					now := time.Now().UnixMicro()
					return []any{now + time.Hour.Microseconds(), now, "job"}
				}),
			}
			const burst = 20
			times := make([][]time.Duration, len(ways))
			for b.Loop() {
				for i, way := range ways {
					for range burst {
						begin := time.Now()
						ctx, cancel := context.WithTimeout(ctx, time.Minute)
						if err := way(ctx); err != nil {
							b.Fatal(err)
						}
						cancel()
						times[i] = append(times[i], time.Since(begin))
					}
				}
			}
			ours, same, plain := median(times[0]), median(times[1]), median(times[2])
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(ours.Nanoseconds()), "ns/renewal")
			b.ReportMetric(float64(ours)/float64(same), "x-the-same-UPDATE")
			b.ReportMetric(float64(ours)/float64(plain), "x-a-plain-UPDATE")
		})
	}
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
