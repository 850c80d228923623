package spec

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/schema"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// A touchy row's code calls the function that its context carries, with its own name.
type touchy struct {
	ID   uint
	Text string `gorm:"serializer:touchy"`
	lease.Claimable
}

type touchKey struct{}

func touch(ctx context.Context, name string) {
	if f, ok := ctx.Value(touchKey{}).(func(string)); ok {
		f(name)
	}
}

func (*touchy) BeforeSave(tx *gorm.DB) error { touch(tx.Statement.Context, "BeforeSave"); return nil }
func (*touchy) AfterSave(tx *gorm.DB) error  { touch(tx.Statement.Context, "AfterSave"); return nil }
func (*touchy) AfterFind(tx *gorm.DB) error  { touch(tx.Statement.Context, "AfterFind"); return nil }

type touchySerializer struct{}

func init() { schema.RegisterSerializer("touchy", touchySerializer{}) }

func (touchySerializer) Scan(ctx context.Context, f *schema.Field, dst reflect.Value, value any) error {
	touch(ctx, "Scan")
	f.ReflectValueOf(ctx, dst).SetString(fmt.Sprintf("%s", value))
	return nil
}

func (touchySerializer) Value(ctx context.Context, _ *schema.Field, _ reflect.Value, value any) (any, error) {
	touch(ctx, "Value")
	return value, nil
}

func TestAPanicInAHookOrASerializerComesOutAndLeavesEverythingUsable(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, touchy{ID: 1})
		pool(t, gdb).SetMaxOpenConns(1)
		h, err := lease.ClaimAs[touchy](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		panics := func(at string, call func(ctx context.Context)) {
			t.Helper()
			defer func() {
				t.Helper()
				if r := recover(); r != at {
					t.Fatalf("%s: what comes out is %v", at, r)
				}
				if n := pool(t, gdb).Stats().InUse; n != 0 {
					t.Fatalf("%s: %d connections are in use", at, n)
				}
			}()
			call(context.WithValue(t.Context(), touchKey{}, func(name string) {
				if name == at {
					panic(at)
				}
			}))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for _, at := range []string{"BeforeSave", "Value", "AfterSave"} {
			panics(at, func(ctx context.Context) { _ = h.Save(ctx, touchy{Text: "at " + at}) })
			if text := ask[string](t, gdb, "SELECT text FROM touchies"); text == "at "+at || h.Item().Text != text {
				t.Errorf("%s: the row says %q, and Item %q", at, text, h.Item().Text)
			}
			must(t, h.Save(ctx, touchy{Text: "after " + at}))
			must(t, h.Renew(ctx))
			if text := ask[string](t, gdb, "SELECT text FROM touchies"); text != "after "+at || h.Item().Text != text {
				t.Errorf("after %s the row says %q, and Item %q", at, text, h.Item().Text)
			}
		}
		for _, at := range []string{"Scan", "AfterFind"} {
			panics(at, func(ctx context.Context) { _, _ = lease.ClaimAs[touchy](ctx, gdb, 1, "A", "", time.Minute, nil) })
			exec(t, gdb, "UPDATE touchies SET claim_owner = ''")
			panics(at, func(ctx context.Context) { _, _ = lease.ClaimNext[touchy](ctx, gdb, "A", "", time.Minute, nil) })
			again, err := lease.ClaimAs[touchy](ctx, gdb, 1, "A", "", time.Minute, nil)
			must(t, err)
			must(t, again.Save(ctx, again.Item()))
		}
	})
}

// An unreadable value cannot be scanned.
type unreadable string

func (*unreadable) Scan(any) error { return errUnreadable }

var errUnreadable = errors.New("unreadable")

type unreadables struct {
	ID   uint
	Text unreadable
	lease.Claimable
}

func TestARowThatCannotBeReadIsAnErrorThatHoldsNoConnection(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, unreadables{ID: 1, Text: "x"})
		for range 3 {
			_, err := lease.ClaimAs[unreadables](t.Context(), gdb, 1, "A", "", time.Minute, nil)
			mustBe(t, err, errUnreadable)
			exec(t, gdb, "UPDATE unreadables SET claim_owner = ''")
			_, err = lease.ClaimNext[unreadables](t.Context(), gdb, "B", "", time.Minute, nil)
			mustBe(t, err, errUnreadable)
			exec(t, gdb, "UPDATE unreadables SET claim_owner = ''")
		}
		if n := pool(t, gdb).Stats().InUse; n != 0 {
			t.Errorf("%d connections are in use", n)
		}
	})
}

func TestAClaimWhoseReplyCannotBeReadToItsEndIsAnError(t *testing.T) {
	db := dbtest.Postgres(t)
	gdb := withRow(t, db, touchy{ID: 1})
	statements(t, gdb, // the claim's commit fails, and the row that it returns comes all the same
		`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$`,
		`CREATE CONSTRAINT TRIGGER refusing AFTER UPDATE ON touchies DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	for what, claim := range map[string]func(ctx context.Context) (*lease.HolderOf[touchy], error){
		"ClaimAs": func(ctx context.Context) (*lease.HolderOf[touchy], error) {
			return lease.ClaimAs[touchy](ctx, gdb, 1, "A", "", time.Minute, nil)
		},
		"ClaimNext": func(ctx context.Context) (*lease.HolderOf[touchy], error) {
			return lease.ClaimNext[touchy](ctx, gdb, "A", "", time.Minute, nil)
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		scanned := false
		h, err := claim(context.WithValue(ctx, touchKey{}, func(name string) {
			if name == "Scan" {
				scanned = true
				cancel()
				waitUntil(t, "the rest of the reply is given up", func() bool { return pool(t, gdb).Stats().InUse == 0 })
			}
		}))
		cancel()
		if err == nil || !scanned {
			t.Errorf("%s is %v, %v; the row was scanned: %v", what, h, err, scanned)
		}
		if epoch := ask[int](t, gdb, "SELECT claim_epoch FROM touchies"); epoch != 0 {
			t.Errorf("%s: the row is claimed", what)
		}
	}
}
