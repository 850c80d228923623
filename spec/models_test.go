package spec

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// Parcels

// A parcel is a model as users have them.
type parcel struct {
	gorm.Model
	Owner   string // who sent it, and not who claimed it
	Weight  int
	Tracked string   // which another service writes
	Labels  []string `gorm:"serializer:json"`
	From    address  `gorm:"embedded;embeddedPrefix:from_"`
	Origin  string   `gorm:"<-:create"`
	Scans   int      `gorm:"->"`
	Memo    string   `gorm:"-"`

	CustomerID *uint
	Customer   *customer
	Stops      []stop

	lease.Claimable
}

type address struct{ Town, Zip string }

type customer struct {
	ID   uint
	Name string
}

type stop struct {
	ID       uint
	ParcelID uint
	Town     string
}

// migrated returns a handle on db with the tables of the parcels made.
func migrated(t *testing.T, db *dbtest.Database, opts ...gorm.Option) *gorm.DB {
	t.Helper()
	gdb := db.Open(t, opts...)
	must(t, gdb.AutoMigrate(&customer{}, &parcel{}, &stop{}))
	return gdb
}

// withParcels runs spec on every database, by its own clock and by the callers', with n parcels, numbered from 1, whose weight is their number.
func withParcels(t *testing.T, n int, spec func(t *testing.T, w *world)) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := migrated(t, db)
		for clock, by := range map[string]func(*world) *world{
			"its clock":       func(w *world) *world { return w.byTheDatabase(t) },
			"callers' clocks": (*world).byTheCallers,
		} {
			t.Run(clock, func(t *testing.T) {
				afresh(t, gdb, n)
				spec(t, by(&world{db: db, gdb: gdb, table: "parcels"}))
			})
		}
	})
}

// afresh leaves n new parcels in the tables.
func afresh(t *testing.T, gdb *gorm.DB, n int) {
	t.Helper()
	statements(t, gdb, "DELETE FROM stops", "DELETE FROM parcels", "DELETE FROM customers")
	parcels(t, gdb, n)
}

func parcels(t *testing.T, gdb *gorm.DB, n int) {
	t.Helper()
	for i := 1; i <= n; i++ {
		must(t, gdb.Create(&parcel{Model: gorm.Model{ID: uint(i)}, Weight: i}).Error)
	}
}

func (w *world) tryParcel(t *testing.T, id uint, owner string) (*lease.HolderOf[parcel], error) {
	t.Helper()
	return lease.ClaimAs[parcel](t.Context(), w.gdb, id, owner, "step of "+owner, time.Minute, w.now)
}

func (w *world) parcel(t *testing.T, id uint, owner string) *lease.HolderOf[parcel] {
	t.Helper()
	h, err := w.tryParcel(t, id, owner)
	must(t, err)
	return h
}

// tryNext is ClaimNext, which must not wait for anybody.
func (w *world) tryNext(t *testing.T, owner string, scopes ...func(*gorm.DB) *gorm.DB) (*lease.HolderOf[parcel], error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	return lease.ClaimNext[parcel](ctx, w.gdb, owner, "", time.Minute, w.now, scopes...)
}

func (w *world) next(t *testing.T, owner string, scopes ...func(*gorm.DB) *gorm.DB) *lease.HolderOf[parcel] {
	t.Helper()
	h, err := w.tryNext(t, owner, scopes...)
	must(t, err)
	return h
}

// stored is a parcel as GORM reads it, deleted or not.
func stored(t *testing.T, gdb *gorm.DB, id uint) (p parcel) {
	t.Helper()
	must(t, gdb.Unscoped().Take(&p, id).Error)
	return p
}

// asRead is a parcel for comparisons: times in UTC, as precise as any database keeps them.
func asRead(p parcel) string {
	for _, at := range []*time.Time{&p.CreatedAt, &p.UpdatedAt, &p.DeletedAt.Time} {
		*at = at.UTC().Truncate(time.Microsecond)
	}
	p.Customer, p.Stops, p.Memo = nil, nil, ""
	id := "none"
	if p.CustomerID != nil {
		id, p.CustomerID = fmt.Sprint(*p.CustomerID), nil
	}
	return fmt.Sprintf("%+v, of customer %s", p, id)
}

// Rows with hooks

// A hooked is a model whose hooks call the function that their context carries.
type hooked struct {
	ID   uint
	Name string
	Slug string
	lease.Claimable

	Found string `gorm:"-"` // whose claim AfterFind saw
}

type hookKey struct{}

// A hook is called with the name of GORM's.
type hook func(name string, h *hooked, tx *gorm.DB) error

func (h *hooked) call(name string, tx *gorm.DB) error {
	if f, ok := tx.Statement.Context.Value(hookKey{}).(hook); ok {
		return f(name, h, tx)
	}
	return nil
}

func (h *hooked) BeforeSave(tx *gorm.DB) error   { return h.call("BeforeSave", tx) }
func (h *hooked) BeforeUpdate(tx *gorm.DB) error { return h.call("BeforeUpdate", tx) }
func (h *hooked) AfterUpdate(tx *gorm.DB) error  { return h.call("AfterUpdate", tx) }
func (h *hooked) AfterSave(tx *gorm.DB) error    { return h.call("AfterSave", tx) }

func (h *hooked) AfterFind(tx *gorm.DB) error {
	h.Found = fmt.Sprintf("%s %d", h.Owner, h.Epoch)
	return h.call("AfterFind", tx)
}

// withHooks returns a handle on db with one row of the hooked, and a context with a hook.
func withHooks(t *testing.T, db *dbtest.Database) *gorm.DB {
	t.Helper()
	gdb := db.Open(t)
	exec(t, gdb, "CREATE TABLE notes (text varchar(20))")
	must(t, gdb.AutoMigrate(&hooked{}))
	must(t, gdb.Create(&hooked{ID: 1, Name: "One"}).Error)
	return gdb
}

func claimHooked(t *testing.T, gdb *gorm.DB, owner string) *lease.HolderOf[hooked] {
	t.Helper()
	h, err := lease.ClaimAs[hooked](t.Context(), gdb, 1, owner, "", time.Minute, nil)
	must(t, err)
	return h
}

func hookedBy(t *testing.T, f hook) context.Context {
	return context.WithValue(t.Context(), hookKey{}, f)
}

// note is what a hook writes.
func note(tx *gorm.DB) error { return write(tx.Session(&gorm.Session{NewDB: true})) }

// Rows that embed a pointer

type door struct {
	Name   string
	Number int
}

type housed struct {
	ID   uint
	Text string
	Door *door `gorm:"embedded;embeddedPrefix:door_"`
	lease.Claimable
}

func (h *housed) BeforeSave(*gorm.DB) error {
	if h.Door != nil {
		h.Door.Name = strings.TrimSpace(h.Door.Name)
	}
	return nil
}

func claimHoused(t *testing.T, gdb *gorm.DB) *lease.HolderOf[housed] {
	t.Helper()
	h, err := lease.ClaimAs[housed](t.Context(), gdb, 1, "A", "", time.Minute, nil)
	must(t, err)
	return h
}

// Any row

type byBytes struct {
	ID   []byte `gorm:"primaryKey"`
	Text string
	lease.Claimable
}

// withRow makes the table of a model, with one row.
func withRow[T any](t *testing.T, db *dbtest.Database, row T) *gorm.DB {
	t.Helper()
	gdb := db.Open(t)
	must(t, gdb.AutoMigrate(&row))
	must(t, gdb.Create(&row).Error)
	return gdb
}

// keyed runs the one row of a model through its life.
func keyed[T any, M lease.Model[T]](t *testing.T, db *dbtest.Database, row T, key, other any) {
	gdb := db.Open(t)
	must(t, gdb.Migrator().DropTable(new(T)))
	must(t, gdb.AutoMigrate(new(T)))
	must(t, gdb.Create(&row).Error)
	named := func(it T, name string) T {
		reflect.ValueOf(&it).Elem().FieldByName("Name").SetString(name)
		return it
	}
	h, err := lease.ClaimAs[T, M](t.Context(), gdb, key, "A", "", time.Minute, nil)
	must(t, err)
	_, err = lease.ClaimAs[T, M](t.Context(), gdb, key, "B", "", time.Minute, nil)
	mustBe(t, err, lease.ErrHeld)
	_, err = lease.ClaimAs[T, M](t.Context(), gdb, other, "B", "", time.Minute, nil)
	mustBe(t, err, gorm.ErrRecordNotFound)
	must(t, h.Save(t.Context(), named(h.Item(), "one")))
	must(t, h.Save(t.Context(), named(h.Item(), "two"), "name"))
	must(t, h.Renew(t.Context()))
	must(t, gdb.Transaction(func(tx *gorm.DB) error { return errors.Join(h.Fence(tx), h.SaveIn(tx, named(h.Item(), "three"))) }))
	must(t, h.Release(t.Context()))
	h, err = lease.ClaimNext[T, M](t.Context(), gdb, "B", "", time.Minute, nil)
	must(t, err)
	must(t, h.Save(t.Context(), named(*new(T), "four"))) // without a key
	var got T
	must(t, gdb.Take(&got).Error)
	if name := reflect.ValueOf(got).FieldByName("Name").String(); name != "four" || h.Epoch() != 2 || !reflect.DeepEqual(h.Item(), got) {
		t.Errorf("Item is\n%+v, and the row\n%+v", h.Item(), got)
	}
	must(t, h.Release(t.Context()))
}

func willNotDo[T any, M lease.Model[T]](t *testing.T, gdb *gorm.DB) {
	t.Helper()
	_, err := lease.ClaimAs[T, M](t.Context(), gdb, 1, "A", "", time.Minute, nil)
	_, nextErr := lease.ClaimNext[T, M](t.Context(), gdb, "A", "", time.Minute, nil)
	if !errors.Is(err, lease.ErrInvalid) || !errors.Is(nextErr, lease.ErrInvalid) {
		t.Errorf("%T: ClaimAs is %v, and ClaimNext %v", *new(T), err, nextErr)
	}
}

// Fields that narrow every query

func where(conditions ...clause.Expression) []clause.Interface {
	return []clause.Interface{clause.Where{Exprs: conditions}}
}

type level int

func (level) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Lt{Column: f.DBName, Value: 16}, clause.Gt{Column: f.DBName, Value: -16}, clause.Expr{SQL: "COALESCE(?, 1) = 1", Vars: []any{nil}})
}

type levelled struct {
	ID    uint
	Level level
	lease.Claimable
}

// Plugins

// An idle plugin does nothing, but may have a say for all that the package knows.
type idle struct{}

func (idle) Name() string              { return "idle" }
func (idle) Initialize(*gorm.DB) error { return nil }

// Indexes

// queueIndex is the definition of the parcels' index for ClaimNext.
func queueIndex(t *testing.T, gdb *gorm.DB, table string) string {
	t.Helper()
	query := "SELECT coalesce(max(sql), '') FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND name LIKE '%claim_queue'"
	if gdb.Name() == "postgres" {
		query = "SELECT coalesce(max(indexdef), '') FROM pg_indexes WHERE tablename = ? AND indexname LIKE '%claim_queue'"
	}
	return ask[string](t, gdb, query, table)
}

func mustHaveQueue(t *testing.T, gdb *gorm.DB, table string) {
	t.Helper()
	plain := strings.NewReplacer(" ", "", "(", "", ")", "", "`", "", "'0'::bigint", "0", "::bigint", "")
	if index := queueIndex(t, gdb, table); !strings.HasSuffix(strings.ToLower(plain.Replace(index)), "coalesceclaim_acquired_at,0wherenotclaim_done") {
		t.Errorf("the index is %q", index)
	}
}
