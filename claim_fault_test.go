//go:build unix

package lease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/faultproxy"
)

// Claims on real databases, under faults that are real. All are of the item "item", whose row says what became of it.

// withItem returns a handle as withTable does, and makes the items.
func withItem(t *testing.T, db *dbtest.Database, keys ...string) *gorm.DB {
	t.Helper()
	gdb := withTable(t, db)
	mustExec(t, gdb, "CREATE TABLE notes (n BIGINT)")
	for _, key := range append(keys, "item") {
		if err := Create(t.Context(), gdb, Item{Key: key, Payload: []byte(`"new"`)}); err != nil {
			t.Fatal(err)
		}
	}
	return gdb
}

// item is the row of one.
func item(t *testing.T, gdb *gorm.DB, key string) Item {
	t.Helper()
	it, _, err := Load(context.Background(), gdb, key)
	if err != nil {
		t.Fatal(err)
	}
	return it
}

// mustClaim claims an item that is free.
func mustClaim(t *testing.T, gdb *gorm.DB, key, owner string, ttl time.Duration) *Holder {
	t.Helper()
	h, err := Claim(context.Background(), gdb, key, owner, "", ttl, nil)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// claims claims the item "item" as soon as it can be, and says when it was.
func claims(t *testing.T, gdb *gorm.DB, owner string, ttl, limit time.Duration) (h *Holder, at time.Time) {
	t.Helper()
	within(t, limit, owner+" claims the item", func() bool {
		var err error
		if h, err = Claim(context.Background(), gdb, "item", owner, "", ttl, nil); err != nil && !errors.Is(err, ErrHeld) {
			t.Fatal(err)
		}
		return err == nil
	})
	return h, time.Now()
}

// A workRun is one call of a claim's Run, until the test ends.
type workRun struct {
	t    *testing.T
	h    *Holder
	stop context.CancelFunc
	done chan struct{} // closed when Run has returned
	err  error         // what it returned then

	mu    sync.Mutex // guards the fields below
	ended time.Time  // the work's context; zero while it lasts
	cause error
}

func startWork(t *testing.T, h *Holder, work func(context.Context) error) *workRun {
	ctx, stop := context.WithCancel(context.Background())
	r := &workRun{t: t, h: h, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = h.Run(ctx, func(ctx context.Context) error {
			defer context.AfterFunc(ctx, func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.ended, r.cause = time.Now(), context.Cause(ctx)
			})()
			return work(ctx)
		})
	}()
	t.Cleanup(func() {
		stop()
		r.returns(20 * time.Second)
	})
	return r
}

// untilEnded is work that lasts until its context ends.
func untilEnded(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// returns waits until Run has, and returns its error.
func (r *workRun) returns(limit time.Duration) error {
	r.t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(limit):
		r.t.Errorf("%v: Run has not returned after %v", r.h, limit)
		return nil
	}
}

// lost waits until the work's context has ended, and says when; it must be for the loss.
func (r *workRun) lost(limit time.Duration) (at time.Time) {
	r.t.Helper()
	var cause error
	within(r.t, limit, r.h.String()+" is cancelled", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		at, cause = r.ended, r.cause
		return !at.IsZero()
	})
	if cause != ErrLost {
		r.t.Errorf("%v was cancelled with %v", r.h, cause)
	}
	return at
}

// goesOn fails the test if the work's context has ended.
func (r *workRun) goesOn() {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended.IsZero() {
		r.t.Fatalf("%v was cancelled with %v", r.h, r.cause)
	}
}

// renewsItem waits for a renewal, and returns the row after it.
func renewsItem(t *testing.T, gdb *gorm.DB, key string) (after Item) {
	t.Helper()
	before := item(t, gdb, key)
	within(t, 10*time.Second, "a renewal of "+key, func() bool {
		after = item(t, gdb, key)
		return after.RenewedAt.After(before.RenewedAt)
	})
	return after
}

// Workers in processes of their own

const workerEnv = "LEASE_TEST_WORKER"

// startWorker starts a worker on a database, which claims the item as soon as it can.
func startWorker(t *testing.T, db *dbtest.Database, mode, owner string, ttl time.Duration) *process {
	t.Helper()
	p := &process{t: t, holder: owner, exited: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0], "-test.run=^TestWorkerInAProcessOfItsOwn$", "-test.count=1", "-test.timeout=2m")
	p.cmd.Env = append(os.Environ(), workerEnv+"="+strings.Join([]string{mode, owner, ttl.String(), db.Backend, db.DSN}, "\n"))
	p.cmd.Dir = filepath.Dir(os.Args[0])
	p.cmd.Stderr = os.Stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.read(stdout, nil)
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		p.end()
	})
	return p
}

// signal sends one to the process.
func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// TestWorkerInAProcessOfItsOwn is no test but what startWorker starts. It works until SIGTERM, or until its standard input ends.
func TestWorkerInAProcessOfItsOwn(t *testing.T) {
	args := strings.SplitN(os.Getenv(workerEnv), "\n", 5)
	if len(args) < 5 {
		return
	}
	mode, owner, db := args[0], args[1], &dbtest.Database{Backend: args[3], DSN: args[4]}
	ttl, err := time.ParseDuration(args[2])
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	go func() {
		defer stop()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	gdb := db.Open(t, &gorm.Config{DisableAutomaticPing: true})
	fmt.Println("waits for", "item")
	h, _ := claims(t, gdb, owner, ttl, time.Minute)
	fmt.Println("claimed after", h.Item().Attempts-1)
	err = h.Run(ctx, func(ctx context.Context) error {
		trusted := time.Now()
		untilFrozen := func() {
			look := time.NewTicker(time.Millisecond)
			defer look.Stop()
			for now := time.Now(); ctx.Err() == nil; now = time.Now() {
				trusted = now
				<-look.C
			}
		}
		// What it does regardless of its context, the database has to refuse.
		regardless := context.WithoutCancel(ctx)
		saveIn := func(tx *gorm.DB) error {
			it := h.Item()
			it.Payload = []byte(`"stale"`)
			return h.SaveIn(tx, it)
		}
		inside := func(tx *gorm.DB) error {
			if err := tx.Exec("INSERT INTO notes (n) VALUES (1)").Error; err != nil {
				return err
			}
			if strings.HasSuffix(mode, "after SaveIn") {
				if err := saveIn(tx); err != nil {
					return err
				}
			}
			inside := func() { fmt.Println("inside", mode) }
			if strings.HasPrefix(mode, "reading") {
				return readOn(tx, inside, func() bool {
					now := time.Now()
					goOn := ctx.Err() == nil
					if goOn {
						trusted = now
					}
					return goOn
				})
			}
			inside()
			untilFrozen()
			return nil
		}
		switch mode {
		case "fenced", "reading":
			err = Transaction(regardless, gdb, inside)
		case "after SaveIn", "reading after SaveIn":
			err = gdb.WithContext(regardless).Transaction(inside)
		case "frozen":
			untilFrozen()
			err = Transaction(regardless, gdb, func(tx *gorm.DB) error { return tx.Exec("INSERT INTO notes (n) VALUES (1)").Error })
		default:
			return untilEnded(ctx)
		}
		fmt.Println("trusted until", trusted.UnixNano())
		fmt.Println("committed", err == nil, "lost", errors.Is(err, ErrLost), "error", strings.ReplaceAll(fmt.Sprint(err), "\n", "; "))
		it := h.Item()
		it.Payload = []byte(`"stale"`)
		err = h.Save(regardless, it)
		fmt.Println("Save", err == nil, "lost", errors.Is(err, ErrLost))
		err = gdb.WithContext(regardless).Transaction(saveIn)
		fmt.Println("SaveIn", err == nil, "lost", errors.Is(err, ErrLost))
		return nil
	})
	fmt.Println("ran", err == nil, "lost", errors.Is(err, ErrLost), "error", strings.ReplaceAll(fmt.Sprint(err), "\n", "; "))
}

// A shutdown

func TestWorkersThatAreTerminatedInTurnHandTheItemOnWithoutCountingACrash(t *testing.T) { // C84
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 20 * time.Second // so that only a release hands it on in time
		gdb := withItem(t, db)
		workers := []*process{startWorker(t, db, "hand on", "0", ttl)}
		for i := range 4 {
			w := workers[i]
			if before := w.says("claimed after", 10*time.Second); before != "0" {
				t.Errorf("worker %d found the item after %s attempts", i, before)
			}
			if i < 3 {
				workers = append(workers, startWorker(t, db, "hand on", fmt.Sprint(i+1), ttl))
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

// A freeze

func TestAWorkerThatWasFrozenLearnsOfItsLossAndCanWriteNothing(t *testing.T) { // C03
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		const ttl = 800 * time.Millisecond
		gdb := withItem(t, db)
		a := startWorker(t, db, "frozen", "A", ttl)
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

func TestAWorkerFrozenInsideATransactionIsReplacedWithinTwoTTLs(t *testing.T) { // C75, C110
	t.Parallel()
	for _, mode := range []string{"fenced", "after SaveIn", "reading", "reading after SaveIn"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const ttl = 1500 * time.Millisecond
			db := dbtest.Postgres(t)
			gdb := withItem(t, db)
			a := startWorker(t, db, mode, "A", ttl)
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
func checkRefused(t *testing.T, gdb *gorm.DB, mode string, a *process, b *Holder, frozen time.Time) {
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

func TestAWorkerCutOffInsideATransactionIsReplacedWithinTwoTTLs(t *testing.T) { // C75
	t.Parallel()
	for _, mode := range []string{"fenced", "after SaveIn"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			const ttl = 1500 * time.Millisecond
			db := dbtest.Postgres(t)
			direct := withItem(t, db)
			proxy, far := behind(t, db)
			inside, commit, committed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			h := mustClaim(t, far, "item", "A", ttl)
			a := startWork(t, h, func(ctx context.Context) error {
				note := func(tx *gorm.DB) error {
					if err := tx.Exec("INSERT INTO notes (n) VALUES (1)").Error; err != nil {
						return err
					}
					if mode == "after SaveIn" {
						if err := h.SaveIn(tx, h.Item()); err != nil {
							return err
						}
					}
					close(inside)
					<-commit
					return nil
				}
				ctx = context.WithoutCancel(ctx)
				if mode == "fenced" {
					committed <- Transaction(ctx, far, note)
				} else {
					committed <- far.WithContext(ctx).Transaction(note)
				}
				return nil
			})
			<-inside
			proxy.Hang()
			cut := time.Now()
			b, at := claims(t, direct, "B", time.Minute, 10*time.Second)
			if took := at.Sub(cut); took > 2*ttl+noise {
				t.Errorf("replaced after %v, more than two TTLs", took)
			} else {
				t.Logf("replaced after %v, %.1f TTLs", took, float64(took)/float64(ttl))
			}
			a.lost(time.Second)
			proxy.Thaw()
			close(commit)
			if err := <-committed; err == nil || mode == "fenced" && !errors.Is(err, ErrLost) {
				t.Errorf("its commit returns %v", err)
			}
			if err := a.returns(10 * time.Second); !errors.Is(err, ErrLost) {
				t.Errorf("Run: %v", err)
			}
			if n := number(t, direct, "SELECT count(*) FROM notes"); n != 0 {
				t.Error("it committed")
			}
			if err := b.Renew(t.Context()); err != nil {
				t.Errorf("B's renewal: %v", err)
			}
		})
	}
}

func TestAWorkerThatDiesDuringALongFencedStatementIsReplaced(t *testing.T) { // C75
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	db := dbtest.Postgres(t)
	direct := withItem(t, db)
	proxy, far := behind(t, db)
	died := make(chan error, 1)
	startWork(t, mustClaim(t, far, "item", "A", ttl), func(ctx context.Context) error {
		err := Transaction(ctx, far, func(tx *gorm.DB) error { return tx.Exec("SELECT pg_sleep(60)").Error })
		died <- err
		return err
	})
	within(t, 5*time.Second, "the statement runs", func() bool {
		return number(t, direct, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%pg_sleep(60)' AND state = 'active'") == 1
	})
	proxy.Refuse()
	proxy.Reset()
	gone := time.Now()
	_, at := claims(t, direct, "B", time.Minute, 2*ttl+noise)
	t.Logf("replaced %v after it died", at.Sub(gone))
	if err := <-died; err == nil {
		t.Error("it committed")
	}
}

// A fence

func TestAClaimWaitsForItsPredecessorsFenceAndARenewalDoesNot(t *testing.T) { // C77
	t.Parallel()
	const ttl = time.Second
	db := dbtest.Postgres(t)
	gdb := withItem(t, db)
	a := mustClaim(t, gdb, "item", "A", ttl)
	tx := db.Open(t).WithContext(withFence(t.Context(), a)).Begin()
	defer tx.Rollback()
	if err := Fence(tx); err != nil {
		t.Fatal(err)
	}
	if err := a.Renew(t.Context()); err != nil {
		t.Errorf("a renewal beside the fence: %v", err)
	}
	expires := item(t, gdb, "item").ExpiresAt
	if _, err := Claim(t.Context(), gdb, "item", "B", "", ttl, nil); !errors.Is(err, ErrHeld) {
		t.Errorf("B's claim of a live one: %v", err)
	}
	lasts(expires.Add(-ttl / 3))
	mustExec(t, tx, "INSERT INTO notes (n) VALUES (1)") // nor does it lie idle for a TTL
	lasts(expires.Add(ttl / 20))
	var committed atomic.Bool
	claimed := make(chan error, 1)
	go func() {
		_, err := Claim(context.Background(), gdb, "item", "B", "", time.Minute, nil)
		if !committed.Load() {
			err = fmt.Errorf("it did not wait for the fence: %v", err)
		}
		claimed <- err
	}()
	within(t, 5*time.Second, "the claim waits", func() bool { return lockWaiters(t, gdb) == 1 })
	if h, err := ClaimNext[Item](t.Context(), gdb, "C", "", ttl, nil); !errors.Is(err, gorm.ErrRecordNotFound) {
		t.Errorf("ClaimNext does not pass over the item: %v, %v", h, err)
	}
	committed.Store(true)
	if err := tx.Commit().Error; err != nil {
		t.Errorf("the commit: %v", err)
	}
	if err := <-claimed; err != nil {
		t.Error(err)
	}
	if it := item(t, gdb, "item"); it.Owner != "B" || it.Epoch != 2 || number(t, gdb, "SELECT count(*) FROM notes") != 1 {
		t.Errorf("the row is %+v", it)
	}
}

// Renewals

func TestAWorkerIsCancelledInTimeWhileARenewalOfItsClaimHangs(t *testing.T) { // C36
	t.Parallel()
	for fault, strike := range map[string]func(*faultproxy.Proxy){
		"nothing comes through": (*faultproxy.Proxy).Hang,
		"no answer comes back":  (*faultproxy.Proxy).DropReplies,
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			const ttl = 3 * time.Second
			const trust = ttl - ttl/3
			db := dbtest.Postgres(t)
			direct := withItem(t, db, "beaten")
			proxy, far := behind(t, db)
			a := startWork(t, mustClaim(t, far, "item", "A", ttl), untilEnded)
			beaten := mustClaim(t, far, "beaten", "A", ttl)
			var losses atomic.Int32
			lost := make(chan time.Time, 10)
			returned := make(chan struct{})
			go func() {
				defer close(returned)
				beaten.Heartbeat(context.Background(), 0, nil, func(err error) {
					if losses.Add(1); !errors.Is(err, ErrLost) {
						t.Errorf("onLost was called with %v", err)
					}
					lost <- time.Now()
				})
			}()
			renewsItem(t, direct, "item")
			renewsItem(t, direct, "beaten")
			strike(proxy)
			struck := time.Now()
			for key, at := range map[string]time.Time{"item": a.lost(5 * time.Second), "beaten": <-lost} {
				// A renewal is carried out after it was sent, so the clock of the test allows this much.
				deadline := item(t, direct, key).RenewedAt.Add(trust)
				if fault == "no answer comes back" {
					deadline = struck.Add(trust) // the last answer was to an earlier question
				}
				if late := at.Sub(deadline); late > noise || at.Before(struck) {
					t.Errorf("%s was cancelled %v after its deadline, %v after the fault", key, late, at.Sub(struck))
				}
			}
			<-returned
			if n := losses.Load(); n != 1 {
				t.Errorf("onLost was called %d times", n)
			}
			if err := a.returns(5 * time.Second); !errors.Is(err, ErrLost) || !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

func TestDeadConnectionsInThePoolDoNotCostAClaim(t *testing.T) { // C79
	t.Parallel()
	const ttl = 4 * time.Second // the third attempt has a sixth of it to connect and be answered
	db := dbtest.Postgres(t)
	direct := withItem(t, db)
	proxy, far := behind(t, db)
	a := startWork(t, mustClaim(t, far, "item", "A", ttl), untilEnded)
	warm(t, poolOf(t, far), 2)
	if err := proxy.WaitConnections(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	renewsItem(t, direct, "item")
	proxy.HangExisting()
	held := proxy.Held()
	lasts(time.Now().Add(2 * ttl))
	a.goesOn()
	if proxy.Held() == held {
		t.Error("nothing was sent on a dead connection")
	}
	a.stop()
	if err := a.returns(5 * time.Second); !errors.Is(err, context.Canceled) || errors.Is(err, ErrLost) {
		t.Errorf("Run: %v", err)
	}
	if it := item(t, direct, "item"); it.Owner != "" || it.Attempts != 0 {
		t.Errorf("the row is %+v", it.Claimable)
	}
}

func TestNothingThatIsDoneWithAClaimDuringItsHeartbeatReadsAsALoss(t *testing.T) { // C69
	t.Parallel()
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Parallel()
		gdb := withItem(t, db)
		if db.Backend == dbtest.BackendPostgres {
			proxy, far := behind(t, db)
			proxy.DelayReplies(3 * time.Millisecond)
			gdb = far
		}
		for round := range 5 {
			h := mustClaim(t, gdb, "item", "A", time.Minute)
			ctx, stop := context.WithCancel(context.Background())
			var beats, uses sync.WaitGroup
			for range 2 {
				beats.Go(func() { h.Heartbeat(ctx, time.Millisecond, nil, func(err error) { t.Errorf("onLost: %v", err) }) })
			}
			for i := range 2 {
				uses.Go(func() {
					for n := range 10 {
						it := h.Item()
						it.Payload = fmt.Appendf(nil, "%d", n)
						err := h.Save(ctx, it)
						if i == 0 && n%3 == 0 {
							err = errors.Join(err, gdb.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, it) }))
						}
						if err := errors.Join(err, h.Renew(ctx)); err != nil {
							t.Errorf("round %d: %v", round, err)
						}
					}
				})
			}
			uses.Wait()
			for range 3 {
				uses.Go(func() {
					if err := h.Release(ctx); err != nil {
						t.Errorf("Release: %v", err)
					}
				})
			}
			uses.Wait()
			beats.Wait() // by the release, and not by the context
			stop()
		}
	})
}

// Saves

// Over the simple protocol a statement is one message, so that one which was held on its way is carried out whole when it is delivered at last.
func TestASaveWhoseReplyWasLostNeverReplacesALaterOne(t *testing.T) { // C80
	t.Parallel()
	for name, strike := range map[string]func(*faultproxy.Proxy){
		"it lands at once":           (*faultproxy.Proxy).DropReplies,
		"it lands after a later one": (*faultproxy.Proxy).HangExisting,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := dbtest.Postgres(t)
			direct := withItem(t, db)
			proxy := faultproxy.New(t, db.Addr())
			far := db.OpenDSN(t, db.DSNVia(proxy.Addr(), "default_query_exec_mode=simple_protocol"))
			// It counts the saves that are carried out, whether or not they find their row.
			mustExec(t, direct, `CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO notes VALUES (1); RETURN NULL; END $$;
CREATE TRIGGER noted AFTER UPDATE OF payload ON lease_items FOR EACH STATEMENT EXECUTE FUNCTION noted()`)
			carriedOut := func(n int64) {
				t.Helper()
				within(t, 5*time.Second, fmt.Sprintf("%d saves are carried out", n), func() bool { return number(t, direct, "SELECT count(*) FROM notes") == n })
			}
			save := func(h *Holder, payload string, patience time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				it := h.Item()
				it.Payload = []byte(payload)
				return h.Save(ctx, it)
			}

			h := mustClaim(t, far, "item", "A", time.Minute)
			warm(t, poolOf(t, far), 1)
			if err := save(h, `"first"`, 5*time.Second); err != nil {
				t.Fatal(err)
			}
			carriedOut(1)
			strike(proxy)
			held := proxy.Held()
			if err := save(h, `"unheard"`, 200*time.Millisecond); err == nil || errors.Is(err, ErrLost) {
				t.Fatalf("a save whose reply is lost: %v", err)
			}
			if proxy.Held() == held {
				t.Fatal("it met no fault")
			}
			if it := h.Item(); string(it.Payload) != `"first"` {
				t.Errorf("the claim's item is %s after a save of unknown outcome", it.Payload)
			}
			landed := int64(1)
			if name == "it lands at once" {
				carriedOut(2)
				proxy.Heal()
				landed = 2
			}
			if err := save(h, `"later"`, 5*time.Second); err != nil {
				t.Fatalf("a later save: %v", err)
			}
			carriedOut(landed + 1)
			proxy.Thaw()
			carriedOut(3)
			it := item(t, direct, "item")
			if string(it.Payload) != `"later"` || string(h.Item().Payload) != `"later"` || it.Revision != h.Item().Revision {
				t.Errorf("the row is %s in revision %d, the claim's item %s in %d", it.Payload, it.Revision, h.Item().Payload, h.Item().Revision)
			}
			if err := save(h, `"last"`, 5*time.Second); err != nil {
				t.Errorf("the last save: %v", err)
			}
			if it := item(t, direct, "item"); string(it.Payload) != `"last"` {
				t.Errorf("the row is %s", it.Payload)
			}
		})
	}
}

// The server goes, and comes back

func TestARestartShorterThanAThirdOfATTLDoesNotCostAClaim(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	server := dbtest.NewServer(t)
	db := server.Database(t)
	gdb := withItem(t, db, "a", "b")
	var workers []*workRun
	finish := make(chan struct{})
	for _, key := range []string{"item", "a", "b"} {
		workers = append(workers, startWork(t, mustClaim(t, gdb, key, InstanceID(), ttl), func(ctx context.Context) error {
			select {
			case <-finish:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}))
	}
	for _, mode := range []string{"fast", "immediate"} {
		begin := time.Now()
		server.Restart(t, mode)
		down := time.Since(begin)
		t.Logf("%s: down for %v", mode, down)
		if down > ttl/3-ttl/12 {
			t.Skipf("this machine takes %v for a restart, which is no shorter than a third of the TTL", down)
		}
		look := db.Open(t) // the other's connections are dead, which its first users find
		for _, w := range workers {
			renewsItem(t, look, fmt.Sprint(w.h.hold.key))
			w.goesOn()
		}
	}
	close(finish)
	for _, w := range workers {
		if err := w.returns(5 * time.Second); err != nil {
			t.Error(err)
		}
		if it := item(t, db.Open(t), fmt.Sprint(w.h.hold.key)); it.Owner != "" || it.Attempts != 0 || it.Epoch != 1 {
			t.Errorf("the row is %+v", it)
		}
	}
}

func TestWorkersStopInTimeInALongOutageAndTheItemIsTakenOverAfterIt(t *testing.T) { // C42
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	server := dbtest.NewServer(t)
	db := server.Database(t)
	gdb := withItem(t, db)
	a := startWork(t, mustClaim(t, gdb, "item", "A", ttl), untilEnded)
	last := renewsItem(t, gdb, "item").RenewedAt
	server.Stop(t, "fast")
	if late := a.lost(5 * time.Second).Sub(last.Add(ttl - ttl/3)); late > noise {
		t.Errorf("cancelled %v after the deadline", late)
	}
	if err := a.returns(5 * time.Second); !errors.Is(err, ErrLost) {
		t.Errorf("Run: %v", err)
	}
	lasts(last.Add(2 * ttl))
	server.Start(t)
	b, _ := claims(t, withTable(t, db), "B", time.Minute, 5*time.Second)
	if it := b.Item(); !b.Expired() || it.Attempts != 2 || it.Epoch != 2 {
		t.Errorf("B's claim is %+v", it.Claimable)
	}
	if err := a.h.Save(t.Context(), a.h.Item()); !errors.Is(err, ErrLost) {
		t.Errorf("A's save: %v", err)
	}
}
