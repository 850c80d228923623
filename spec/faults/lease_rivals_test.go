//go:build unix

package faults

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/faultproxy"
)

func TestElectorsOfOneProcessWithOneHolderNeverBothLead(t *testing.T) {
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 1500 * time.Millisecond
		l := newLedger(t)
		gdb := withTable(t, db)
		first := l.start(gdb, "A", ttl, nil)
		first.leads(5 * time.Second)
		second := l.start(withTable(t, db), "A", ttl, nil)
		if db.Backend == dbtest.BackendSQLite {
			second = l.start(gdb, "A", ttl, nil) // a third, on one pool
		}
		first.keeps(lease.Term{Epoch: 1}, 2*ttl)
		if second.IsLeader() {
			t.Error("both lead")
		}
		first.stop()
		first.returns(5 * time.Second)
		within(t, 5*time.Second, "another leads", func() bool { return len(l.of("A")) == 2 })
	})
}

func TestElectorsThatResignTakeTurns(t *testing.T) {
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 900 * time.Millisecond
		l := newLedger(t)
		electors := map[string]*contender{}
		gate := make(chan struct{})
		for _, holder := range []string{"A", "B", "C"} {
			electors[holder] = l.start(withTable(t, db), holder, ttl, func(ctx context.Context) {
				<-gate
				electors[holder].Resign()
				<-ctx.Done()
			})
		}
		close(gate)
		terms := func() int { return len(l.of("A")) + len(l.of("B")) + len(l.of("C")) }
		within(t, 20*time.Second, "ten terms", func() bool { return terms() >= 10 })
		for holder := range electors {
			if n := len(l.of(holder)); n == 0 || n == terms() {
				t.Errorf("%s had %d of %d terms", holder, n, terms())
			}
		}
	})
}

func TestNoTwoLeadAndNoStaleWriteCommitsUnderRandomFaults(t *testing.T) {
	t.Parallel()
	const ttl = 900 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withTable(t, db)
	mustExec(t, direct, "CREATE TABLE state (epoch BIGINT)")
	mustExec(t, direct, "INSERT INTO state VALUES (0)")
	seed := uint64(time.Now().UnixNano())
	t.Logf("the seed is %d", seed)
	l := newLedger(t)
	var writes, refused atomic.Int64
	var proxies []*faultproxy.Proxy
	for _, holder := range []string{"A", "B", "C"} {
		proxy, far := behind(t, db)
		proxies = append(proxies, proxy)
		l.start(far, holder, ttl, func(ctx context.Context) {
			pace := time.NewTicker(10 * time.Millisecond)
			defer pace.Stop()
			for term, _ := lease.TermFrom(ctx); ctx.Err() == nil; <-pace.C {
				// Whoever finds a later term's write has found a fault: the fence let it pass.
				err := lease.Transaction(ctx, far, func(tx *gorm.DB) error {
					var epoch int64
					if err := tx.Raw("SELECT epoch FROM state FOR UPDATE").Scan(&epoch).Error; err != nil {
						return err
					}
					if epoch > term.Epoch {
						t.Errorf("a write of term %d comes after one of term %d", term.Epoch, epoch)
					}
					return tx.Exec("UPDATE state SET epoch = ?", term.Epoch).Error
				})
				if err != nil {
					refused.Add(1)
					continue
				}
				writes.Add(1)
			}
		})
	}
	random := rand.New(rand.NewPCG(seed, 0))
	faults := []func(*faultproxy.Proxy){
		(*faultproxy.Proxy).Hang, (*faultproxy.Proxy).HangExisting, (*faultproxy.Proxy).Thaw, (*faultproxy.Proxy).DropReplies,
		(*faultproxy.Proxy).Reset, (*faultproxy.Proxy).Refuse, (*faultproxy.Proxy).Heal, (*faultproxy.Proxy).Heal,
		func(p *faultproxy.Proxy) { p.HangNext(2) },
		func(p *faultproxy.Proxy) { p.DelayReplies(ttl / 3) },
	}
	next := time.NewTicker(ttl / 8)
	defer next.Stop()
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); <-next.C {
		faults[random.IntN(len(faults))](proxies[random.IntN(len(proxies))])
	}
	for _, p := range proxies {
		p.Heal()
	}
	before := len(l.of("A")) + len(l.of("B")) + len(l.of("C"))
	written := writes.Load()
	within(t, 20*time.Second, "writes go on", func() bool { return writes.Load() > written+3 })
	t.Logf("%d terms, %d writes, %d of them failed", before, written, refused.Load())
}
