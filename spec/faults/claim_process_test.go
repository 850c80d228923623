//go:build unix

package faults

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

func TestWorkersThatAreTerminatedInTurnHandTheItemOnWithoutCountingACrash(t *testing.T) {
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 20 * time.Second // so that only a release hands it on in time
		gdb := withItem(t, db)
		workers := []*process{startProcess(t, worker, nil, db, "hand on", "0", ttl)}
		for i := range 4 {
			w := workers[i]
			if before := w.says("claimed after", 10*time.Second); before != "0" {
				t.Errorf("worker %d found the item after %s attempts", i, before)
			}
			if i < 3 {
				workers = append(workers, startProcess(t, worker, nil, db, "hand on", fmt.Sprint(i+1), ttl))
				workers[i+1].says("waits", 10*time.Second)
			}
			if it := item(t, gdb, "item"); it.Owner != w.holder || it.Attempts != 1 {
				t.Errorf("while worker %d works the row is %+v", i, it.Claimable)
			}
			w.signal(syscall.SIGTERM)
			if how := w.says("ran", 10*time.Second); !strings.HasPrefix(how, "false lost false") || !strings.Contains(how, "terminated") {
				t.Errorf("worker %d ran %s", i, how)
			}
		}
		if it := item(t, gdb, "item"); it.Owner != "" || it.Attempts != 0 || it.Epoch != 4 {
			t.Errorf("in the end the row is %+v", it.Claimable)
		}
	})
}

func TestAWorkerThatWasFrozenLearnsOfItsLossAndCanWriteNothing(t *testing.T) {
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 800 * time.Millisecond
		gdb := withItem(t, db)
		a := startProcess(t, worker, nil, db, "frozen", "A", ttl)
		a.says("claimed", 10*time.Second)
		renewsItem(t, gdb, "item")
		a.signal(syscall.SIGSTOP)
		frozen := time.Now()
		b, _ := claims(t, gdb, "B", time.Minute, 5*time.Second)
		if !b.Expired() || b.Item().Attempts != 2 {
			t.Errorf("B's claim took over: %v, in attempt %d", b.Expired(), b.Item().Attempts)
		}
		lasts(frozen.Add(3 * ttl))
		a.signal(syscall.SIGCONT)
		checkRefused(t, gdb, "frozen", a, b, frozen)
	})
}

func TestAWorkerFrozenInsideATransactionIsReplacedWithinTwoTTLs(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"fenced", "after SaveIn", "reading", "reading after SaveIn"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const ttl = 1500 * time.Millisecond
			db := dbtest.Postgres(t)
			gdb := withItem(t, db)
			a := startProcess(t, worker, nil, db, mode, "A", ttl)
			a.says("inside", 10*time.Second)
			a.signal(syscall.SIGSTOP)
			frozen := time.Now()
			if strings.HasPrefix(mode, "reading") {
				sendsInVain(t, gdb)
			}
			b, at := claims(t, gdb, "B", time.Minute, 10*time.Second)
			if took := at.Sub(frozen); took > 2*ttl+noise {
				t.Errorf("replaced after %v, more than two TTLs", took)
			} else {
				t.Logf("replaced after %v, %.1f TTLs", took, float64(took)/float64(ttl))
			}
			a.signal(syscall.SIGCONT)
			checkRefused(t, gdb, mode, a, b, frozen)
		})
	}
}

// checkRefused checks that a worker which was frozen, and replaced, trusts nothing and writes nothing when it runs on.
func checkRefused(t *testing.T, gdb *gorm.DB, mode string, a *process, b *lease.Holder, frozen time.Time) {
	t.Helper()
	how := a.says("ran", 10*time.Second)
	var trusted int64
	if _, err := fmt.Sscan(a.says("trusted until", time.Second), &trusted); err != nil {
		t.Fatal(err)
	}
	if at := time.Unix(0, trusted); at.After(frozen.Add(noise)) {
		t.Errorf("when it ran on it trusted its claim, %v after it was frozen", at.Sub(frozen))
	}
	refused := "false lost true"
	if strings.HasSuffix(mode, "after SaveIn") {
		refused = "false" // its transaction was no Transaction, which knows a loss when the session is gone
	}
	if outcome := a.says("committed", time.Second); !strings.HasPrefix(outcome, refused) {
		t.Errorf("its transaction: %s", outcome)
	}
	for _, save := range []string{"Save", "SaveIn"} {
		if outcome := a.says(save, time.Second); outcome != "false lost true" {
			t.Errorf("%s: %s", save, outcome)
		}
	}
	if !strings.HasPrefix(how, "false lost true") {
		t.Errorf("it ran %s", how)
	}
	if n := number(t, gdb, "SELECT count(*) FROM notes"); n != 0 {
		t.Error("its transaction committed")
	}
	if err := b.Renew(t.Context()); err != nil {
		t.Errorf("B's renewal: %v", err)
	}
	if it := item(t, gdb, "item"); it.Owner != "B" || string(it.Payload) != `"new"` {
		t.Errorf("the row is %+v", it)
	}
}
