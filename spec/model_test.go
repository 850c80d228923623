package spec

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	osexec "os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"
	"gorm.io/plugin/dbresolver"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

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

func statements(t *testing.T, gdb *gorm.DB, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		must(t, gdb.Exec(sql).Error)
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

// Claiming and saving

func TestAModelOfTheUsersOwnIsClaimedAsAnItemIs(t *testing.T) {
	withParcels(t, 2, func(t *testing.T, w *world) {
		a := w.parcel(t, 1, "A")
		if p := a.Item(); p.ID != 1 || p.Claimable.Owner != "A" || p.Owner != "" || a.StepID() != "step of A" || a.Epoch() != 1 || p.Attempts != 1 {
			t.Errorf("the claim is %+v", p)
		}
		if got, want := asRead(a.Item()), asRead(stored(t, w.gdb, 1)); got != want {
			t.Errorf("Item is\n%s, and the row\n%s", got, want)
		}
		_, err := w.tryParcel(t, 1, "B")
		mustBe(t, err, lease.ErrHeld)
		_, err = w.tryParcel(t, 3, "B")
		mustBe(t, err, gorm.ErrRecordNotFound)
		other := w.parcel(t, 2, "B")
		w.pass(40 * time.Second)
		must(t, a.Renew(t.Context()))
		w.pass(40 * time.Second)
		_, err = w.tryParcel(t, 1, "B")
		mustBe(t, err, lease.ErrHeld)
		w.pass(20 * time.Second)
		b := w.parcel(t, 1, "B")
		if !b.Expired() || b.Epoch() != 2 || b.Item().Attempts != 2 {
			t.Errorf("the next claim is %+v, Expired %v", b.Item(), b.Expired())
		}
		row := asRead(stored(t, w.gdb, 1))
		p := a.Item()
		p.Weight = 99
		mustBe(t, a.Save(t.Context(), p), lease.ErrLost)
		mustBe(t, a.Renew(t.Context()), lease.ErrLost)
		mustBe(t, a.Release(t.Context()), lease.ErrLost)
		if after := asRead(stored(t, w.gdb, 1)); after != row {
			t.Errorf("a lost claim changed\n%s into\n%s", row, after)
		}
		must(t, other.Save(t.Context(), other.Item())) // it ran out, and nobody took it
		p = b.Item()
		p.Done = true
		must(t, b.Save(t.Context(), p))
		must(t, b.Release(t.Context()))
		_, err = w.tryParcel(t, 1, "A")
		mustBe(t, err, lease.ErrDone)
	})
}

func TestASaveWritesTheModelsOwnColumns(t *testing.T) { // C85
	withParcels(t, 2, func(t *testing.T, w *world) {
		must(t, w.gdb.Create(&customer{ID: 7, Name: "Smith"}).Error)
		statements(t, w.gdb, "UPDATE parcels SET origin = 'Oslo', scans = 3")
		h := w.parcel(t, 1, "A")
		claim := stored(t, w.gdb, 1).Claimable
		began := time.Now()
		seven := uint(7)
		p := parcel{
			Owner: "Jane", Weight: -5, Tracked: "x", Labels: []string{"a", "ü"}, From: address{"Graz", "8010"}, Origin: "forged", Scans: 99,
			CustomerID: &seven, Model: gorm.Model{CreatedAt: noon}, Claimable: lease.Claimable{Owner: "B", Epoch: 9, Attempts: 9, Done: true},
		}
		must(t, h.Save(t.Context(), p))
		got := stored(t, w.gdb, 1)
		if got.Owner != "Jane" || got.Weight != -5 || got.Tracked != "x" || !slices.Equal(got.Labels, p.Labels) || got.From != p.From ||
			got.CustomerID == nil || *got.CustomerID != 7 || !got.CreatedAt.Equal(noon) {
			t.Errorf("the row is %s", asRead(got))
		}
		if got.Origin != "Oslo" || got.Scans != 3 {
			t.Errorf("what is only created, and only read, became %q and %d", got.Origin, got.Scans)
		}
		if got.UpdatedAt.Before(began.Truncate(time.Millisecond)) {
			t.Errorf("it was updated at %v, before %v", got.UpdatedAt, began)
		}
		claim.Done, claim.Revision = true, claim.Revision+1
		if got.Claimable != claim {
			t.Errorf("the claim is %+v, not %+v", got.Claimable, claim)
		}
		if item := h.Item(); asRead(item) != asRead(got) {
			t.Errorf("Item is\n%s, and the row\n%s", asRead(item), asRead(got))
		}
		must(t, h.Save(t.Context(), parcel{})) // zeroes are written too
		if got := stored(t, w.gdb, 1); got.Owner != "" || got.Weight != 0 || got.Labels != nil || got.CustomerID != nil || got.Done {
			t.Errorf("the row is %s", asRead(got))
		}
		if other := stored(t, w.gdb, 2); other.Weight != 2 || other.Revision != 0 {
			t.Errorf("the other row is %s", asRead(other))
		}
	})
}

func TestASaveOfNamedColumnsLeavesAnotherWritersAlone(t *testing.T) { // C85
	for how, names := range map[string][]string{
		"as in the table": {"weight", "owner", "from_zip", "labels"}, "as in Go": {"Weight", "Owner", "Zip", "Labels"},
	} {
		t.Run(how, func(t *testing.T) {
			withParcels(t, 1, func(t *testing.T, w *world) {
				h := w.parcel(t, 1, "A")
				statements(t, w.gdb, "UPDATE parcels SET tracked = 'by another', from_town = 'Linz', updated_at = '2020-01-01 00:00:00'")
				p := h.Item()
				p.Weight, p.Owner, p.Tracked, p.From, p.Labels, p.Done = 8, "Jane", "stale", address{"stale", "8010"}, []string{"x"}, true
				must(t, h.Save(t.Context(), p, names...))
				got := stored(t, w.gdb, 1)
				if got.Weight != 8 || got.Owner != "Jane" || got.From.Zip != "8010" || !slices.Equal(got.Labels, []string{"x"}) || !got.Done {
					t.Errorf("what was named is %s", asRead(got))
				}
				if got.Tracked != "by another" || got.From.Town != "Linz" || got.Claimable.Owner != "A" {
					t.Errorf("what was not named is %s", asRead(got))
				}
				if got.UpdatedAt.Year() == 2020 {
					t.Errorf("it was updated at %v", got.UpdatedAt)
				}
				item := h.Item()
				if item.Weight != 8 || item.Owner != "Jane" || item.Tracked != "" || item.From != (address{"", "8010"}) || !item.Done ||
					!item.UpdatedAt.Truncate(time.Microsecond).Equal(got.UpdatedAt.Truncate(time.Microsecond)) {
					t.Errorf("Item is %s", asRead(item))
				}
			})
		})
	}
}

func TestOnlyDoneIsWrittenWithoutBeingNamed(t *testing.T) {
	withParcels(t, 1, func(t *testing.T, w *world) {
		h := w.parcel(t, 1, "A")
		for _, name := range []string{"Done", "claim_done"} {
			for _, done := range []bool{true, false} {
				p := h.Item()
				p.Weight, p.Done = 50, done
				must(t, h.Save(t.Context(), p, name))
				if got := stored(t, w.gdb, 1); got.Weight != 1 || got.Done != done || h.Item().Done != done || h.Item().Weight != 1 {
					t.Errorf("the row is %s", asRead(got))
				}
			}
		}
	})
}

func TestAColumnMayBeNamedMoreThanOnce(t *testing.T) {
	withParcels(t, 1, func(t *testing.T, w *world) {
		h := w.parcel(t, 1, "A")
		p := h.Item()
		p.Weight = 50
		must(t, h.Save(t.Context(), p, "weight", "Weight", "updated_at", "UpdatedAt", "Done", "claim_done"))
		if got := stored(t, w.gdb, 1); got.Weight != 50 || asRead(h.Item()) != asRead(got) {
			t.Errorf("Item is\n%s, and the row\n%s", asRead(h.Item()), asRead(got))
		}
	})
}

// A watched row has every kind of time that GORM keeps up to date, and a column with an odd name.
type watched struct {
	ID        string `gorm:"column:i?d"`
	Text      string `gorm:"column:what? \"text\""`
	Other     string
	UpdatedAt time.Time
	Nanos     int64 `gorm:"autoUpdateTime:nano"`
	Millis    int64 `gorm:"autoUpdateTime:milli"`
	Seconds   int64 `gorm:"autoUpdateTime"`
	Never     int64 `gorm:"autoUpdateTime;<-:create"`
	lease.Claimable
}

func TestEverySaveSetsTheTimesOfUpdates(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		at := noon
		gdb := db.Open(t, &gorm.Config{NowFunc: func() time.Time { return at }})
		must(t, gdb.AutoMigrate(&watched{}))
		must(t, gdb.Create(&watched{ID: "a"}).Error)
		h, err := lease.ClaimAs[watched](t.Context(), gdb, "a", "A", "", time.Minute, nil)
		must(t, err)
		for i, columns := range [][]string{nil, {"Text"}, {"Text", "Nanos"}, {"Done"}} {
			at = noon.Add(time.Duration(i+1) * time.Hour)
			row := h.Item()
			row.Text, row.Other = fmt.Sprint("saved ", i), "once"
			row.Millis, row.UpdatedAt = 7, time.Time{}
			must(t, h.Save(t.Context(), row, columns...))
			var got watched
			must(t, gdb.Take(&got).Error)
			if !got.UpdatedAt.Equal(at) || got.Nanos != at.UnixNano() || got.Millis != at.UnixMilli() || got.Seconds != at.Unix() || got.Never != noon.Unix() {
				t.Errorf("save %d, of %q: it was updated at %+v, not %v", i, columns, got, at)
			}
			if want := fmt.Sprint("saved ", min(i, 2)); got.Text != want || got.Other != "once" {
				t.Errorf("save %d, of %q: the texts are %q and %q", i, columns, got.Text, got.Other)
			}
			item := h.Item()
			item.UpdatedAt, item.Claimable = got.UpdatedAt, got.Claimable
			if item != got || !h.Item().UpdatedAt.Equal(at) {
				t.Errorf("save %d, of %q: Item is\n%+v, and the row\n%+v", i, columns, h.Item(), got)
			}
		}
	})
}

// A version is a column that counts its row's updates, in the way of GORM's optimistic locks.
type version int64

func (version) UpdateClauses(f *schema.Field) []clause.Interface {
	return []clause.Interface{counting{f}}
}

type counting struct{ field *schema.Field }

func (counting) Name() string               { return "" }
func (counting) Build(clause.Builder)       {}
func (counting) MergeClause(*clause.Clause) {}

func (c counting) ModifyStatement(s *gorm.Statement) {
	if _, counted := s.Clauses["counted"]; counted {
		return
	}
	s.Clauses["counted"] = clause.Clause{}
	values := map[string]any{}
	selected, _ := s.SelectAndOmitColumns(false, true)
	for name, f := range s.Schema.FieldsByDBName {
		if selected[name] {
			values[name], _ = f.ValueOf(s.Context, s.ReflectValue)
		}
	}
	values[c.field.DBName] = gorm.Expr(c.field.DBName + " + 1")
	s.Dest = values
}

type counted struct {
	ID      int
	Text    string
	Version version
	lease.Claimable
}

func TestAFieldWithAWayOfItsOwnToBeUpdatedIsUpdatedSo(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		must(t, gdb.AutoMigrate(&counted{}))
		must(t, gdb.Create(&counted{ID: 1}).Error)
		h, err := lease.ClaimAs[counted](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		for i := range 3 {
			row := h.Item()
			row.Text = fmt.Sprint(i)
			must(t, h.Save(t.Context(), row))
			var got counted
			must(t, gdb.Take(&got).Error)
			if got.Text != row.Text || got.Version != version(i+1) {
				t.Errorf("after %d saves the row is %+v", i+1, got)
			}
		}
	})
}

// An editing plugin notes who edits a parcel, also when the caller does not name the column.
type editing struct{}

func (editing) Name() string { return "editing" }

func (editing) Initialize(db *gorm.DB) error {
	return db.Callback().Update().Before("gorm:update").Register("editing", func(db *gorm.DB) {
		if len(db.Statement.Selects) > 0 {
			db.Statement.Selects = append(db.Statement.Selects, "owner")
		}
		db.Statement.SetColumn("owner", "the plugin")
	})
}

func TestPluginsHaveTheirSayInASaveOfAModel(t *testing.T) {
	for how, use := range map[string]func(*gorm.DB) error{
		"a plugin":   func(db *gorm.DB) error { return db.Use(editing{}) },
		"a callback": editing{}.Initialize,
	} {
		t.Run(how, func(t *testing.T) {
			withParcels(t, 1, func(t *testing.T, w *world) {
				clean := w.gdb
				w.gdb = w.db.Open(t)
				must(t, use(w.gdb))
				h := w.parcel(t, 1, "A")
				p := h.Item()
				p.Weight = 50
				if how == "a plugin" {
					must(t, h.Save(t.Context(), p, "Weight"))
				} else {
					must(t, h.Save(t.Context(), p))
				}
				if got := stored(t, clean, 1); got.Weight != 50 || got.Owner != "the plugin" {
					t.Errorf("the row is %s", asRead(got))
				}
			})
		})
	}
}

func TestAColumnThatIsNotForSaveToWriteIsInvalid(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		parcels(t, migrated(t, db), 2)
		gdb, spy := spied(t, db)
		h, err := lease.ClaimAs[parcel](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		spy.sent()
		for _, name := range []string{
			"id", "ID", "claim_owner", "claim_epoch", "claim_revision", "Revision", "StepID", "Epoch", "origin", "Origin", "scans", "Scans", "Memo", "memo",
			"Customer", "Stops", "From", "Model", "Claimable", "*", "", "WEIGHT", "weight, owner", "nothing", "from_Zip", "parcels.weight",
		} {
			if err := h.Save(t.Context(), h.Item(), "weight", name); !errors.Is(err, lease.ErrInvalid) {
				t.Errorf("a save of %q is %v", name, err)
			}
		}
		other := h.Item()
		other.ID = 2
		mustBe(t, h.Save(t.Context(), other), lease.ErrInvalid)
		mustBe(t, h.Save(t.Context(), other, "weight"), lease.ErrInvalid)
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
		other.ID, other.Weight = 0, 77
		must(t, h.Save(t.Context(), other))
		if h.Item().ID != 1 || stored(t, gdb, 1).Weight != 77 || stored(t, gdb, 2).Weight != 2 {
			t.Errorf("without a key it wrote %s and %s", asRead(stored(t, gdb, 1)), asRead(stored(t, gdb, 2)))
		}
	})
}

func TestAssociationsAreNeverSavedAlong(t *testing.T) {
	for what, config := range map[string]*gorm.Config{"plain": {}, "FullSaveAssociations": {FullSaveAssociations: true}} {
		t.Run(what, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := migrated(t, db, config)
				must(t, gdb.Create(&parcel{Customer: &customer{Name: "Smith"}, Stops: []stop{{Town: "Oslo"}}}).Error)
				h, err := lease.ClaimNext[parcel](t.Context(), gdb, "A", "", time.Minute, nil)
				must(t, err)
				p := h.Item()
				if p.CustomerID == nil || p.Customer != nil {
					t.Fatalf("the claim is %s", asRead(p))
				}
				p.Customer = &customer{ID: *p.CustomerID, Name: "Jones"}
				p.Stops = []stop{{Town: "Graz"}, {Town: "Linz"}}
				p.Weight = 5
				must(t, h.Save(t.Context(), p))
				must(t, h.Save(t.Context(), p, "weight", "customer_id"))
				must(t, gdb.Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, p) }))
				p.CustomerID, p.Customer = nil, &customer{Name: "Brown"}
				must(t, h.Save(t.Context(), p))
				if got := stored(t, gdb, p.ID); got.Weight != 5 || got.CustomerID != nil {
					t.Errorf("the row is %s", asRead(got))
				}
				if n, name := ask[int](t, gdb, "SELECT count(*) FROM customers"), ask[string](t, gdb, "SELECT name FROM customers"); n != 1 || name != "Smith" {
					t.Errorf("there are %d customers, and one is %s", n, name)
				}
				if n := ask[int](t, gdb, "SELECT count(*) FROM stops"); n != 1 {
					t.Errorf("there are %d stops", n)
				}
			})
		})
	}
}

func TestARowThatIsSoftDeletedIsNotThere(t *testing.T) {
	withParcels(t, 2, func(t *testing.T, w *world) {
		h := w.parcel(t, 1, "A")
		renewing := w.parcel(t, 2, "A")
		must(t, w.gdb.Delete(&parcel{}, 2).Error)
		mustBe(t, renewing.Renew(t.Context()), lease.ErrLost)
		must(t, w.gdb.Unscoped().Model(&parcel{}).Where("id = 2").Update("deleted_at", nil).Error)
		must(t, w.gdb.Delete(&parcel{}, 1).Error)
		before := asRead(stored(t, w.gdb, 1))
		_, err := w.tryParcel(t, 1, "A")
		mustBe(t, err, gorm.ErrRecordNotFound)
		mustBe(t, w.gdb.Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx.Unscoped(), h.Item()) }), lease.ErrLost)
		mustBe(t, h.Save(t.Context(), h.Item()), lease.ErrLost)
		if after := asRead(stored(t, w.gdb, 1)); after != before {
			t.Errorf("the row was\n%s and is\n%s", before, after)
		}
		w.pass(time.Hour)
		if id := w.next(t, "B").Item().ID; id != 2 {
			t.Errorf("ClaimNext took parcel %d", id)
		}
		_, err = w.tryNext(t, "B")
		mustBe(t, err, gorm.ErrRecordNotFound)
		h = w.parcel(t, 2, "B")
		p := h.Item()
		p.DeletedAt = gorm.DeletedAt{Time: noon, Valid: true}
		must(t, h.Save(t.Context(), p)) // a column like others, for a save
		_, err = w.tryParcel(t, 2, "B")
		mustBe(t, err, gorm.ErrRecordNotFound)
	})
}

// Keys

// A uid is a key that is neither a number nor a string.
type uid [4]byte

func (u uid) Value() (driver.Value, error) { return hex.EncodeToString(u[:]), nil }
func (uid) GormDataType() string           { return "text" }

func (u *uid) Scan(v any) error {
	_, err := hex.Decode(u[:], []byte(fmt.Sprintf("%s", v)))
	return err
}

type code string

type (
	byUint struct {
		ID   uint
		Name string
		lease.Claimable
	}
	byString struct {
		Code string `gorm:"primaryKey;size:50"`
		Name string
		lease.Claimable
	}
	byNamedString struct {
		ID   code
		Name string
		lease.Claimable
	}
	byUID struct {
		ID   uid `gorm:"primaryKey"`
		Name string
		lease.Claimable
	}
	byNumber struct {
		No   int64 `gorm:"primaryKey;autoIncrement:false;column:Number Of It"`
		Name string
		lease.Claimable
	}
	byBase struct {
		Base
		Name string
	}
	Base struct {
		ID uint
		lease.Claimable
	}
	odd struct {
		ID    uint
		Name  string
		Group string `gorm:"column:order"`
		Now   string `gorm:"column:now"`
		Key   string `gorm:"column:lease_key"`
		C     string `gorm:"column:c"`
		Quest string `gorm:"column:what is Ünïcode"`
		lease.Claimable
	}
)

func TestAKeyMayBeOfAnyType(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Run("uint", func(t *testing.T) { keyed(t, db, byUint{ID: 3}, uint(3), uint(4)) })
		t.Run("uint given as int", func(t *testing.T) { keyed(t, db, byUint{ID: 3}, 3, 4) })
		t.Run("string", func(t *testing.T) { keyed(t, db, byString{Code: "a'b"}, "a'b", "a") })
		t.Run("a named string", func(t *testing.T) { keyed(t, db, byNamedString{ID: "x"}, code("x"), code("y")) })
		t.Run("one with Value and Scan", func(t *testing.T) { keyed(t, db, byUID{ID: uid{1, 2, 3, 4}}, uid{1, 2, 3, 4}, uid{4, 3, 2, 1}) })
		t.Run("a column with spaces", func(t *testing.T) { keyed(t, db, byNumber{No: 5}, int64(5), int64(6)) })
		t.Run("zero", func(t *testing.T) { keyed(t, db, byNumber{No: 0}, int64(0), int64(6)) })
		t.Run("in a base", func(t *testing.T) { keyed(t, db, byBase{Base: Base{ID: 3}}, uint(3), uint(4)) })
		t.Run("odd columns", func(t *testing.T) {
			keyed(t, db, odd{ID: 3, Group: "g", Now: "n", Key: "k", C: "c", Quest: "?"}, uint(3), uint(4))
		})
	})
}

func TestAKeyOfTheWrongKindIsInvalidBeforeAnySQL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb, spy := spied(t, db)
		for _, key := range []any{"abc", struct{}{}, []int{1}, nil, (*uint)(nil)} {
			_, err := lease.ClaimAs[byUint](t.Context(), gdb, key, "A", "", time.Minute, nil)
			mustBe(t, err, lease.ErrInvalid)
			if !strings.Contains(err.Error(), "key is ") {
				t.Errorf("%#v: %v", key, err)
			}
		}
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
	})
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

type (
	inC struct {
		ID   uint
		Name string
		lease.Claimable
	}
	inG   inC
	inOdd inC
)

func (inC) TableName() string   { return "c" }
func (inG) TableName() string   { return "g" }
func (inOdd) TableName() string { return "The order" }

func TestATableMayHaveAnyName(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Run("c", func(t *testing.T) { keyed(t, db, inC{ID: 3}, 3, 4) })
		t.Run("g", func(t *testing.T) { keyed(t, db, inG{ID: 3}, 3, 4) })
		t.Run("one with a space", func(t *testing.T) { keyed(t, db, inOdd{ID: 3}, 3, 4) })
	})
}

// Models that will not do

type (
	byTwo struct {
		A int `gorm:"primaryKey"`
		B int `gorm:"primaryKey"`
		lease.Claimable
	}
	byNone struct {
		Name string
		lease.Claimable
	}
	byPointer struct {
		ID uint
		*lease.Claimable
	}
	shadowing struct {
		ID    uint
		Owner string `gorm:"column:claim_owner"`
		lease.Claimable
	}
	shadowingDone struct {
		ID       uint
		Finished int `gorm:"column:claim_done"`
		lease.Claimable
	}
	renaming struct {
		ID              uint
		lease.Claimable `gorm:"embedded;embeddedPrefix:my_"`
	}
	ignoring struct {
		ID              uint
		lease.Claimable `gorm:"-"`
	}
)

func TestAModelThatWillNotDoIsInvalidBeforeAnySQL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb, spy := spied(t, db)
		willNotDo[byTwo](t, gdb)
		willNotDo[byNone](t, gdb)
		willNotDo[byPointer](t, gdb)
		willNotDo[shadowing](t, gdb)
		willNotDo[shadowingDone](t, gdb)
		willNotDo[renaming](t, gdb)
		willNotDo[ignoring](t, gdb)
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
	})
}

func willNotDo[T any, M lease.Model[T]](t *testing.T, gdb *gorm.DB) {
	t.Helper()
	_, err := lease.ClaimAs[T, M](t.Context(), gdb, 1, "A", "", time.Minute, nil)
	_, nextErr := lease.ClaimNext[T, M](t.Context(), gdb, "A", "", time.Minute, nil)
	if !errors.Is(err, lease.ErrInvalid) || !errors.Is(nextErr, lease.ErrInvalid) {
		t.Errorf("%T: ClaimAs is %v, and ClaimNext %v", *new(T), err, nextErr)
	}
}

func TestAModelThatDoesNotEmbedTheClaimDoesNotCompile(t *testing.T) {
	out, err := osexec.Command("go", "build", "-o", t.TempDir(), "./testdata/unclaimable").CombinedOutput()
	if err == nil {
		t.Fatal("it compiles")
	}
	for _, call := range []string{"main.go:17:", "main.go:18:"} {
		if !strings.Contains(string(out), call) {
			t.Errorf("%s does not fail: %s", call, out)
		}
	}
	if n := strings.Count(string(out), "main.go:"); n != 2 || !strings.Contains(string(out), "missing method claimable") {
		t.Errorf("it fails for another reason: %s", out)
	}
}

// Hooks

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

func TestHooksRunAndWhatTheyWriteIsCommittedWithTheSave(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		h := claimHooked(t, gdb, "A")
		var ran []string
		ctx := hookedBy(t, func(name string, h *hooked, tx *gorm.DB) error {
			ran = append(ran, name)
			if name == "BeforeUpdate" {
				h.Slug = strings.ToLower(h.Name)
			}
			return note(tx)
		})
		it := h.Item()
		it.Name = "Two"
		must(t, h.Save(ctx, it))
		if want := []string{"BeforeSave", "BeforeUpdate", "AfterUpdate", "AfterSave"}; !slices.Equal(ran, want) {
			t.Errorf("the hooks that ran are %q", ran)
		}
		if n, slug := notes(t, gdb), ask[string](t, gdb, "SELECT slug FROM hookeds"); n != 4 || slug != "two" || h.Item().Slug != "two" {
			t.Errorf("%d notes were committed; the slug is %q, and in Item %q", n, slug, h.Item().Slug)
		}
		if it.Slug != "" {
			t.Errorf("the caller's copy is %+v", it)
		}
		must(t, gdb.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, it) }))
		if n := notes(t, gdb); n != 8 {
			t.Errorf("%d notes were committed", n)
		}
		must(t, h.Save(t.Context(), it))
		must(t, h.Renew(ctx))
		must(t, h.Release(ctx))
		if n := notes(t, gdb); n != 8 {
			t.Errorf("a renewal or a release ran hooks: %d notes", n)
		}
	})
}

func TestAfterFindSeesTheClaim(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		if h := claimHooked(t, gdb, "A"); h.Item().Found != "A 1" {
			t.Errorf("in ClaimAs it saw %q", h.Item().Found)
		}
		exec(t, gdb, "UPDATE hookeds SET claim_expires_at = 0")
		h, err := lease.ClaimNext[hooked](t.Context(), gdb, "B", "", time.Minute, nil)
		must(t, err)
		if it := h.Item(); it.Found != "B 2" || it.Owner != "B" {
			t.Errorf("in ClaimNext it saw %q, and Item is %+v", it.Found, it)
		}
	})
}

func TestWhatAHookWroteIsRolledBackWithASaveThatIsLost(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		h := claimHooked(t, gdb, "A")
		claimHooked(t, gdb, "A")
		ctx := hookedBy(t, func(_ string, _ *hooked, tx *gorm.DB) error { return note(tx) })
		mustBe(t, h.Save(ctx, h.Item()), lease.ErrLost)
		if n := notes(t, gdb); n != 0 {
			t.Errorf("%d notes were committed", n)
		}
	})
}

func TestWhatAHookWroteIsRolledBackHoweverTheSaveIsRepeated(t *testing.T) {
	for _, isolation := range []string{"serializable", "repeatable read"} {
		t.Run(isolation, func(t *testing.T) {
			db := dbtest.Postgres(t)
			other := withHooks(t, db)
			gdb := db.OpenDSN(t, db.DSNVia("", "default_transaction_isolation="+isolation))
			h := claimHooked(t, gdb, "A")
			first := true
			ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
				if err := note(tx); err != nil || name != "BeforeUpdate" || !first {
					return err
				}
				first = false
				return other.Exec("UPDATE hookeds SET claim_epoch = claim_epoch + 1").Error // as a claim does, after tx's snapshot
			})
			mustBe(t, h.Save(ctx, h.Item()), lease.ErrLost)
			if n := notes(t, gdb); n != 0 {
				t.Errorf("%d notes were committed", n)
			}
		})
	}
}

func TestAHooksErrorComesOutAndUndoesTheSave(t *testing.T) {
	failure := errors.New("out of paper")
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		h := claimHooked(t, gdb, "A")
		for _, failing := range []string{"BeforeSave", "BeforeUpdate", "AfterUpdate", "AfterSave"} {
			ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
				if name == failing {
					return failure
				}
				return note(tx)
			})
			it := h.Item()
			it.Name = "changed"
			err := h.Save(ctx, it)
			if !errors.Is(err, failure) || errors.Is(err, lease.ErrLost) {
				t.Errorf("%s: %v", failing, err)
			}
			mustBe(t, gdb.Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx.WithContext(ctx), it) }), failure)
			if n, name := notes(t, gdb), ask[string](t, gdb, "SELECT name FROM hookeds"); n != 0 || name != "One" || h.Item().Name != "One" {
				t.Errorf("%s: %d notes were committed; the name is %q, and in Item %q", failing, n, name, h.Item().Name)
			}
		}
		must(t, h.Save(t.Context(), h.Item()))
		ctx := hookedBy(t, func(string, *hooked, *gorm.DB) error { return failure })
		_, err := lease.ClaimAs[hooked](ctx, gdb, 1, "A", "", time.Minute, nil)
		mustBe(t, err, failure) // AfterFind's
	})
}

func TestSavesWithHooksWorkAtEveryIsolation(t *testing.T) {
	everyIsolation(t, func(t *testing.T, db *dbtest.Database) {
		gdb := keepConnections(t, withHooks(t, db))
		h := claimHooked(t, gdb, "A")
		ctx := hookedBy(t, func(_ string, _ *hooked, tx *gorm.DB) error { return note(tx) })
		winners := race(t, 4, func(i int) (bool, error) {
			for range 5 {
				err := h.Renew(ctx)
				if i%2 == 0 && err == nil {
					err = h.Save(ctx, h.Item())
				}
				if err != nil {
					return false, err
				}
			}
			return true, nil
		})
		if n := notes(t, gdb); len(winners) != 4 || n != 40 {
			t.Errorf("%v were always good, and %d notes were committed", winners, n)
		}
	})
}

// Migrations

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

// oldParcel is what parcels were before they could be claimed.
type oldParcel struct {
	gorm.Model
	Owner  string
	Weight int
}

func (oldParcel) TableName() string { return "parcels" }

func TestAutoMigrateBringsTheColumnsAndTheIndex(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := migrated(t, db)
		mustHaveQueue(t, gdb, "parcels")
		again, spy := spied(t, db)
		must(t, again.AutoMigrate(&customer{}, &parcel{}, &stop{}))
		if sent := spy.sent(); slices.ContainsFunc(sent, changes.MatchString) {
			t.Errorf("a second AutoMigrate sends %q", slices.DeleteFunc(sent, func(sql string) bool { return !changes.MatchString(sql) }))
		}
		parcels(t, again, 1)
		if p := stored(t, again, 1); p.Claimable != (lease.Claimable{}) {
			t.Errorf("a new row is %+v", p.Claimable)
		}
	})
}

func TestAutoMigrateBringsThemToATableWithRows(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		must(t, gdb.AutoMigrate(&oldParcel{}))
		must(t, gdb.Create([]oldParcel{{Owner: "Jane", Weight: 1}, {Owner: "Joe", Weight: 2}}).Error)
		migrated(t, db)
		mustHaveQueue(t, gdb, "parcels")
		again, spy := spied(t, db)
		must(t, again.AutoMigrate(&parcel{}))
		if sent := spy.sent(); slices.ContainsFunc(sent, changes.MatchString) {
			t.Errorf("a second AutoMigrate sends %q", slices.DeleteFunc(sent, func(sql string) bool { return !changes.MatchString(sql) }))
		}
		if n := ask[int](t, gdb, "SELECT count(*) FROM parcels WHERE claim_acquired_at IS NULL AND claim_renewed_at IS NULL AND claim_expires_at IS NULL"); n != 2 {
			t.Errorf("%d rows have no times", n)
		}
		// What nobody ever claimed comes first, and then a row that was.
		w := (&world{db: db, gdb: gdb, table: "parcels"}).byTheCallers()
		must(t, gdb.Create(&parcel{Weight: 3}).Error)
		must(t, w.parcel(t, 3, "A").Release(t.Context()))
		for range 2 {
			h := w.next(t, "A")
			if p := h.Item(); p.ID > 2 || p.Weight != int(p.ID) || p.Owner == "" || p.Claimable.Owner != "A" || h.Epoch() != 1 || h.Expired() {
				t.Errorf("ClaimNext is %s", asRead(p))
			}
			must(t, h.Renew(t.Context()))
			must(t, h.Save(t.Context(), h.Item()))
		}
		if id := w.next(t, "A").Item().ID; id != 3 {
			t.Errorf("then comes %d", id)
		}
	})
}

func TestRowsThatOtherServicesInsertAreClaimed(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := migrated(t, db)
		exec(t, gdb, "INSERT INTO parcels (id, weight) VALUES (1, 5), (2, 6)") // which leaves NULL in the model's own columns
		w := &world{db: db, gdb: gdb, table: "parcels"}
		for id := uint(1); id <= 2; id++ {
			h := w.parcel(t, id, "A")
			if p := h.Item(); p.ID != id || p.Weight != 4+int(id) || p.Owner != "" || p.Labels != nil || p.Attempts != 1 {
				t.Errorf("the claim is %s", asRead(p))
			}
			must(t, h.Save(t.Context(), h.Item(), "weight"))
			must(t, h.Release(t.Context()))
		}
	})
}

func TestATableWithoutTheColumnsIsAnErrorThatTellsTheWayOut(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		fails := func() {
			t.Helper()
			_, err := lease.ClaimAs[parcel](t.Context(), gdb, 1, "A", "", time.Minute, nil)
			_, nextErr := lease.ClaimNext[parcel](t.Context(), gdb, "A", "", time.Minute, nil)
			for _, err := range []error{err, nextErr} {
				if err == nil || !strings.Contains(err.Error(), "AutoMigrate") || !strings.Contains(err.Error(), "parcels") {
					t.Errorf("the error is %v", err)
				}
			}
		}
		fails()
		must(t, gdb.AutoMigrate(&oldParcel{}))
		fails()
	})
}

// Where tables are

type inInfra struct {
	ID     uint
	Weight int
	lease.Claimable
	DeletedAt gorm.DeletedAt
}

func (inInfra) TableName() string { return "infra.parcels" }

func TestAModelMayLiveInAnotherSchema(t *testing.T) { // C26
	db := dbtest.Postgres(t)
	gdb := migrated(t, db) // with parcels of the same name in public
	parcels(t, gdb, 1)
	exec(t, gdb, "CREATE SCHEMA infra")
	must(t, gdb.AutoMigrate(&inInfra{}))
	again, spy := spied(t, db)
	must(t, again.AutoMigrate(&inInfra{}))
	if sent := spy.sent(); slices.ContainsFunc(sent, changes.MatchString) {
		t.Errorf("a second AutoMigrate sends DDL: %q", sent)
	}
	must(t, gdb.Create(&inInfra{ID: 1, Weight: 7}).Error)
	h, err := lease.ClaimAs[inInfra](t.Context(), gdb, 1, "A", "", time.Minute, nil)
	must(t, err)
	must(t, h.Save(t.Context(), inInfra{Weight: 8}))
	must(t, h.Renew(t.Context()))
	must(t, gdb.Transaction(func(tx *gorm.DB) error { return errors.Join(h.Fence(tx), h.SaveIn(tx, inInfra{Weight: 9})) }))
	must(t, h.Release(t.Context()))
	h, err = lease.ClaimNext[inInfra](t.Context(), gdb, "B", "", time.Minute, nil, func(db *gorm.DB) *gorm.DB {
		return db.Joins("JOIN public.parcels AS p ON p.id = infra.parcels.id").Where("p.weight = 1").Where("infra.parcels.weight = ?", 9)
	})
	must(t, err)
	if it := h.Item(); it.Weight != 9 || it.Owner != "B" {
		t.Errorf("the claim is %+v", it)
	}
	if p := stored(t, gdb, 1); p.Claimable != (lease.Claimable{}) || p.Weight != 1 {
		t.Errorf("the table in public has %s", asRead(p))
	}
}

func TestAModelFollowsTheNamingStrategy(t *testing.T) { // C26
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		plain := migrated(t, db)
		gdb := migrated(t, db, &gorm.Config{NamingStrategy: schema.NamingStrategy{TablePrefix: "app_", SingularTable: true}})
		mustHaveQueue(t, gdb, "app_parcel")
		parcels(t, gdb, 1)
		w := &world{db: db, gdb: lease.Tables(gdb, "other_"), table: "app_parcel"} // Tables is not for the user's own
		h := w.parcel(t, 1, "A")
		must(t, h.Save(t.Context(), parcel{Weight: 5}))
		must(t, h.Release(t.Context()))
		if p := w.next(t, "B").Item(); p.Weight != 5 {
			t.Errorf("the claim is %s", asRead(p))
		}
		if n := ask[int](t, plain, "SELECT count(*) FROM parcels"); n != 0 {
			t.Errorf("the other table has %d rows", n)
		}
	})
}

func TestWhatDecidesAClaimIsReadFromThePrimary(t *testing.T) {
	for backend, open := range map[string]func(testing.TB) *dbtest.Database{"sqlite": dbtest.SQLite, "postgres": dbtest.Postgres} {
		t.Run(backend, func(t *testing.T) {
			primary, replica := open(t), open(t)
			dialector := sqlite.Open(replica.DSN)
			if backend == dbtest.BackendPostgres {
				dialector = postgres.Open(replica.DSN)
			}
			gdb := primary.Open(t)
			resolver := dbresolver.Register(dbresolver.Config{Replicas: []gorm.Dialector{dialector}})
			must(t, gdb.Use(resolver))
			t.Cleanup(func() {
				if err := resolver.Call(func(pool gorm.ConnPool) error { return pool.(*sql.DB).Close() }); err != nil {
					t.Error(err)
				}
			})
			fresh(t, primary)
			migrated(t, primary)
			for _, handle := range []*gorm.DB{gdb, gdb.Clauses(dbresolver.Read), gdb.Clauses(dbresolver.Write), gdb.Session(&gorm.Session{PrepareStmt: true})} {
				exec(t, gdb, "DELETE FROM lease_items")
				afresh(t, gdb, 0)
				itemsWork(t, handle)
				parcelsWork(t, handle, primary.Open(t))
			}
			if names := tables(t, replica.Open(t)); len(names) != 0 {
				t.Errorf("the replica has %q", names)
			}
		})
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

func TestWhateverTheHandleCarriesModelsWorkAsOnACleanOne(t *testing.T) { // C24
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		clean := migrated(t, db)
		for what, carry := range strange {
			t.Run(what, func(t *testing.T) {
				afresh(t, clean, 0)
				parcelsWork(t, carry(db.Open(t)), clean)
			})
		}
	})
}

func TestAHandleThatSkipsHooksDoesNotSkipThoseOfASave(t *testing.T) { // C24
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db).Session(&gorm.Session{SkipHooks: true})
		h := claimHooked(t, gdb, "A")
		ctx := hookedBy(t, func(_ string, _ *hooked, tx *gorm.DB) error { return note(tx) })
		must(t, h.Save(ctx, h.Item()))
		if n := notes(t, gdb); n != 4 || h.Item().Found != "A 1" {
			t.Errorf("%d hooks ran, and AfterFind saw %q", n, h.Item().Found)
		}
	})
}

// Items with more columns

type richItem struct {
	lease.Item
	Extra string
}

func TestAModelMayEmbedAnItem(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := fresh(t, db)
		exec(t, gdb, "ALTER TABLE lease_items ADD COLUMN extra text")
		must(t, lease.Create(t.Context(), gdb, lease.Item{Key: "item", Payload: payload(1)}))
		h, err := lease.ClaimAs[richItem](t.Context(), gdb, "item", "A", "", time.Minute, nil)
		must(t, err)
		it := h.Item()
		it.Extra, it.Payload = "more", payload(2)
		must(t, h.Save(t.Context(), it))
		it.Payload = []byte("{")
		mustBe(t, h.Save(t.Context(), it), lease.ErrInvalid)
		got, _, err := lease.Load(t.Context(), gdb, "item")
		must(t, err)
		is(t, got, 2)
		if extra := ask[string](t, gdb, "SELECT extra FROM lease_items"); extra != "more" || got.UpdatedAt != h.Item().UpdatedAt {
			t.Errorf("the extra is %q; it was updated at %v, and by Item at %v", extra, got.UpdatedAt, h.Item().UpdatedAt)
		}
	})
}
