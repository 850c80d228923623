package spec

import (
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/plugin/dbresolver"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// works runs a lease through its life on a handle: whatever the handle carries, it must behave as a clean one.
func works(t *testing.T, gdb *gorm.DB) {
	t.Helper()
	ctx := t.Context()
	try := func(want bool, holder string, now time.Time) {
		t.Helper()
		if ok, err := lease.TryAcquire(ctx, gdb, "life", holder, time.Minute, now); ok != want || err != nil {
			t.Fatalf("TryAcquire by %s is %v, %v", holder, ok, err)
		}
	}
	now := time.Now()
	try(true, "A", now)
	try(false, "B", now)
	try(true, "A", now.Add(time.Minute/2))
	s, err := lease.Find(ctx, gdb, "life")
	if err != nil || s.Holder != "A" || s.Epoch != 1 || !s.Held || s.RenewedAt.Sub(s.AcquiredAt) != time.Minute/2 {
		t.Fatalf("Find is %+v, %v", s, err)
	}
	if all, err := lease.List(ctx, gdb); err != nil || len(all) != 1 || all[0].Record != s.Record {
		t.Fatalf("List is %+v, %v", all, err)
	}
	try(true, "B", now.Add(2*time.Minute))
	if err := lease.Release(ctx, gdb, "life", "B", now.Add(2*time.Minute)); err != nil {
		t.Fatal(err)
	}
	try(true, "C", now.Add(2*time.Minute))
	if s, err = lease.Find(ctx, gdb, "life"); err != nil || s.Holder != "C" || s.Epoch != 3 || !s.AcquiredAt.Equal(now.Add(2*time.Minute).Truncate(time.Microsecond)) {
		t.Fatalf("Find is %+v, %v", s, err)
	}
}

// itemsWork runs items through their lives on a handle: whatever the handle carries, it must behave as a clean one.
func itemsWork(t *testing.T, gdb *gorm.DB) {
	t.Helper()
	ctx := t.Context()
	var passed atomic.Int64
	now := func() time.Time { return noon.Add(time.Duration(passed.Load())) }
	claim := func(owner string, want error) *lease.Holder {
		t.Helper()
		h, err := lease.Claim(ctx, gdb, "life", owner, "s", time.Minute, now)
		if !errors.Is(err, want) {
			t.Fatalf("the claim of %s is %v", owner, err)
		}
		return h
	}
	must(t, lease.Create(ctx, gdb, lease.Item{Key: "life", Payload: payload(1)}))
	mustBe(t, lease.Create(ctx, gdb, lease.Item{Key: "life", Payload: payload(2)}), gorm.ErrDuplicatedKey)
	h := claim("A", nil)
	claim("B", lease.ErrHeld)
	passed.Store(int64(40 * time.Second))
	must(t, h.Renew(ctx))
	must(t, h.Save(ctx, with(h, 3)))
	passed.Store(int64(80 * time.Second))
	claim("B", lease.ErrHeld)
	is(t, h.Item(), 3)
	passed.Store(int64(100 * time.Second))
	next, err := lease.ClaimNext[lease.Item](ctx, gdb, "B", "s", time.Minute, now)
	must(t, err)
	if it := next.Item(); it.Key != "life" || it.Owner != "B" || it.Epoch != 2 || it.Attempts != 2 || !it.AcquiredAt.Equal(now()) || !next.Expired() {
		t.Errorf("ClaimNext is %s, Expired %v", shows(it), next.Expired())
	}
	is(t, next.Item(), 3)
	mustBe(t, h.Save(ctx, with(h, 4)), lease.ErrLost)
	mustBe(t, h.Release(ctx), lease.ErrLost)
	it := with(next, 5)
	it.Done = true
	must(t, next.Save(ctx, it, "payload"))
	must(t, next.Release(ctx))
	claim("A", lease.ErrDone)
	_, err = lease.ClaimNext[lease.Item](ctx, gdb, "A", "", time.Minute, now)
	mustBe(t, err, gorm.ErrRecordNotFound)
	it, _, err = lease.Load(ctx, gdb, "life")
	must(t, err)
	want := lease.Claimable{Epoch: 2, Revision: 4, AcquiredAt: now(), RenewedAt: now(), ExpiresAt: now(), Done: true}
	if string(it.Payload) != string(payload(5)) || it.Claimable != want {
		t.Errorf("in the end it is %s", shows(it))
	}
}

// parcelsWork runs parcels through their lives on a handle, which is as good as a clean one.
func parcelsWork(t *testing.T, gdb, clean *gorm.DB) {
	t.Helper()
	must(t, clean.Create(&parcel{Model: gorm.Model{ID: 1}, Weight: 3, Customer: &customer{Name: "Smith"}}).Error)
	must(t, clean.Create(&parcel{Model: gorm.Model{ID: 2, DeletedAt: gorm.DeletedAt{Time: noon, Valid: true}}, Weight: 3}).Error)
	w := (&world{gdb: gdb, table: "parcels"}).byTheCallers()
	h := w.parcel(t, 1, "A")
	_, err := w.tryParcel(t, 1, "B")
	mustBe(t, err, lease.ErrHeld)
	_, err = w.tryParcel(t, 2, "B")
	mustBe(t, err, gorm.ErrRecordNotFound)
	p := h.Item()
	p.Weight, p.Owner = 4, "Jane"
	must(t, h.Save(t.Context(), p))
	p.Weight, p.Owner = 5, "stale"
	must(t, h.Save(t.Context(), p, "weight"))
	must(t, h.Renew(t.Context()))
	if got := stored(t, clean, 1); got.Weight != 5 || got.Owner != "Jane" || asRead(h.Item()) != asRead(got) {
		t.Errorf("Item is\n%s, and the row\n%s", asRead(h.Item()), asRead(got))
	}
	w.pass(time.Minute)
	h = w.next(t, "B", func(db *gorm.DB) *gorm.DB {
		return db.Joins("JOIN customers ON customers.id = parcels.customer_id").Where("weight = ?", 5)
	})
	if !h.Expired() || h.Item().ID != 1 {
		t.Errorf("ClaimNext is %s, Expired %v", asRead(h.Item()), h.Expired())
	}
	_, err = w.tryNext(t, "B")
	mustBe(t, err, gorm.ErrRecordNotFound)
	must(t, clean.Transaction(func(tx *gorm.DB) error {
		p.Weight = 6
		return errors.Join(h.Fence(tx), h.SaveIn(tx, p))
	}))
	must(t, h.Release(t.Context()))
	if got := stored(t, clean, 1); got.Weight != 6 || got.Epoch != 2 || got.Claimable.Owner != "" {
		t.Errorf("in the end it is %s", asRead(got))
	}
}

// readsFrom gives gdb a plugin that sends reads to a replica.
func readsFrom(t *testing.T, gdb *gorm.DB, replica *dbtest.Database) {
	t.Helper()
	dialector := sqlite.Open(replica.DSN)
	if replica.Backend == dbtest.BackendPostgres {
		dialector = postgres.Open(replica.DSN)
	}
	resolver := dbresolver.Register(dbresolver.Config{Replicas: []gorm.Dialector{dialector}})
	must(t, gdb.Use(resolver))
	t.Cleanup(func() {
		if err := resolver.Call(func(pool gorm.ConnPool) error { return pool.(*sql.DB).Close() }); err != nil {
			t.Error(err)
		}
	})
}
