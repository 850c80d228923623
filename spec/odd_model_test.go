package spec

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/schema"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// Fields that demand something of every query

// until is when a row goes, and NULL if it stays.
type until struct{ sql.NullTime }

func (until) GormDataType() string { return "time" }

type (
	rawUntil      struct{ until } // its condition is SQL with an OR, which GORM does not see through
	composedUntil struct{ until } // its condition is an OR of GORM's
)

func (rawUntil) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Expr{SQL: f.DBName + " IS NULL OR " + f.DBName + " > CURRENT_TIMESTAMP"})
}

func (composedUntil) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Or(clause.Eq{Column: f.DBName, Value: nil}, clause.Gt{Column: f.DBName, Value: "2024-03-01"}))
}

func where(conditions ...clause.Expression) []clause.Interface {
	return []clause.Interface{clause.Where{Exprs: conditions}}
}

type (
	rawLodger struct {
		ID   uint
		Text string
		Gone rawUntil
		lease.Claimable
	}
	composedLodger struct {
		ID   uint
		Text string
		Gone composedUntil
		lease.Claimable
	}
)

func (rawLodger) TableName() string      { return "lodgers" }
func (composedLodger) TableName() string { return "lodgers" }

// lodgers makes the table of a model, with these rows, of which NULL stays.
func lodgers[T any](t *testing.T, db *dbtest.Database, gone ...string) *gorm.DB {
	t.Helper()
	gdb := db.Open(t)
	must(t, gdb.Migrator().DropTable("lodgers"))
	must(t, gdb.AutoMigrate(new(T)))
	for i, gone := range gone {
		exec(t, gdb, fmt.Sprintf("INSERT INTO lodgers (id, text, gone) VALUES (%d, '', %s)", i+1, gone))
	}
	return gdb
}

// ids are those of the rows that meet a condition.
func ids(t *testing.T, gdb *gorm.DB, table, condition string) (found []int) {
	t.Helper()
	must(t, gdb.Raw("SELECT id FROM "+table+" WHERE "+condition+" ORDER BY id").Scan(&found).Error)
	return found
}

func TestAFieldsConditionWidensNoClaim(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Run("raw", func(t *testing.T) { claimsOnlyTheLodgerAskedFor[rawLodger](t, db) })
		t.Run("composed", func(t *testing.T) { claimsOnlyTheLodgerAskedFor[composedLodger](t, db) })
	})
}

func claimsOnlyTheLodgerAskedFor[T any, M lease.Model[T]](t *testing.T, db *dbtest.Database) {
	gdb := lodgers[T](t, db, "NULL", "'2999-01-01'", "'2999-01-01'", "'2000-01-01'")
	_, err := lease.ClaimAs[T, M](t.Context(), gdb, 4, "A", "", time.Minute, nil)
	mustBe(t, err, gorm.ErrRecordNotFound)
	h, err := lease.ClaimAs[T, M](t.Context(), gdb, 2, "A", "", time.Minute, nil)
	must(t, err)
	if id := reflect.ValueOf(h.Item()).FieldByName("ID").Uint(); id != 2 {
		t.Errorf("the claim is of %d", id)
	}
	must(t, h.Renew(t.Context()))
	it := h.Item()
	reflect.ValueOf(&it).Elem().FieldByName("Text").SetString("saved")
	must(t, h.Save(t.Context(), it))
	if claimed, saved := ids(t, gdb, "lodgers", "claim_owner = 'A'"), ids(t, gdb, "lodgers", "text = 'saved'"); !slices.Equal(claimed, []int{2}) || !slices.Equal(saved, claimed) {
		t.Errorf("%v are claimed, and %v saved", claimed, saved)
	}
	must(t, h.Release(t.Context()))
	if touched := ids(t, gdb, "lodgers", "claim_epoch > 0"); !slices.Equal(touched, []int{2}) {
		t.Errorf("%v were touched", touched)
	}
}

func TestAFieldsConditionLetsClaimNextTakeNoLiveAndNoDoneRow(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		t.Run("raw", func(t *testing.T) { takesNoLiveAndNoDoneLodger[rawLodger](t, db) })
		t.Run("composed", func(t *testing.T) { takesNoLiveAndNoDoneLodger[composedLodger](t, db) })
	})
}

func takesNoLiveAndNoDoneLodger[T any, M lease.Model[T]](t *testing.T, db *dbtest.Database) {
	gdb := lodgers[T](t, db, "'2999-01-01'", "'2000-01-01'")
	h, err := lease.ClaimNext[T, M](t.Context(), gdb, "A", "", time.Minute, nil)
	must(t, err)
	none := func() {
		t.Helper()
		for _, scopes := range [][]func(*gorm.DB) *gorm.DB{{}, {func(db *gorm.DB) *gorm.DB { return db.Where("1 = 1") }}} {
			_, err := lease.ClaimNext[T, M](t.Context(), gdb, "B", "", time.Minute, nil, scopes...)
			mustBe(t, err, gorm.ErrRecordNotFound)
		}
	}
	none()
	must(t, h.Renew(t.Context()))
	it := h.Item()
	reflect.ValueOf(&it).Elem().FieldByName("Done").SetBool(true)
	must(t, h.Save(t.Context(), it))
	must(t, h.Release(t.Context()))
	none()
}

type (
	state  string
	rank   int
	hidden bool
)

func (state) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Neq{Column: f.DBName, Value: "deleted"}, clause.Neq{Column: f.DBName, Value: "don't"})
}
func (rank) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Gt{Column: f.DBName, Value: 2})
}
func (hidden) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Eq{Column: f.DBName, Value: false})
}

type filtered struct {
	ID      uint
	State   state
	Deleted string // as one of the states
	Rank    rank
	Hidden  hidden `gorm:"type:boolean"`
	lease.Claimable
}

func TestAFieldsConditionMayHaveConstantsAsInGORM(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, filtered{ID: 1, State: "open", Rank: 3})
		must(t, gdb.Create([]filtered{
			{ID: 2, State: "deleted", Rank: 3}, {ID: 3, State: "don't", Rank: 3}, {ID: 4, State: "open", Rank: 2},
			{ID: 5, State: "open", Rank: 3, Hidden: true}, {ID: 6, State: "odd", Deleted: "odd", Rank: 3},
		}).Error)
		var gorms, claimed, next []uint
		must(t, gdb.Model(&filtered{}).Order("id").Pluck("id", &gorms).Error)
		for id := uint(1); id <= 6; id++ {
			h, err := lease.ClaimAs[filtered](t.Context(), gdb, id, "A", "", time.Minute, nil)
			if err != nil {
				mustBe(t, err, gorm.ErrRecordNotFound)
				continue
			}
			claimed = append(claimed, h.Item().ID)
			must(t, h.Save(t.Context(), h.Item()))
			must(t, h.Renew(t.Context()))
			must(t, h.Release(t.Context()))
		}
		for range claimed {
			h, err := lease.ClaimNext[filtered](t.Context(), gdb, "A", "", time.Minute, nil)
			must(t, err)
			next = append(next, h.Item().ID)
		}
		_, err := lease.ClaimNext[filtered](t.Context(), gdb, "A", "", time.Minute, nil)
		mustBe(t, err, gorm.ErrRecordNotFound)
		slices.Sort(next)
		if want := []uint{1, 6}; !slices.Equal(gorms, want) || !slices.Equal(claimed, want) || !slices.Equal(next, want) {
			t.Errorf("GORM sees %v, ClaimAs takes %v, and ClaimNext %v", gorms, claimed, next)
		}
	})
}

type (
	expiry struct{ until }
	path   string
)

func (expiry) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Gt{Column: f.DBName, Value: time.Now()})
}
func (path) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Neq{Column: f.DBName, Value: `C:\gone`})
}

type (
	expiring struct {
		ID     uint
		Expiry expiry
		lease.Claimable
	}
	pathed struct {
		ID   uint
		Path path
		lease.Claimable
	}
)

func TestAFieldsConditionThatIsMoreThanConstantsIsInvalidBeforeAnySQL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb, spy := spied(t, db)
		willNotDo[expiring](t, gdb)
		willNotDo[pathed](t, gdb)
		_, timeErr := lease.ClaimAs[expiring](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		_, pathErr := lease.ClaimNext[pathed](t.Context(), gdb, "A", "", time.Minute, nil)
		for model, err := range map[string]error{"expiring": timeErr, "pathed": pathErr} {
			if err == nil || !strings.Contains(err.Error(), "T spec."+model) {
				t.Errorf("the error is %v", err)
			}
		}
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
	})
}

// Names of columns

type Stamped struct {
	Name      string
	UpdatedAt time.Time
}

// A restamped row has the fields of its base again.
type restamped struct {
	ID uint
	Stamped
	Name      string
	UpdatedAt time.Time
	lease.Claimable
}

func TestAFieldThatIsShadowedIsNotTheOneNamed(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, restamped{ID: 1, Name: "old"})
		h, err := lease.ClaimAs[restamped](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		it := h.Item()
		it.Name, it.Stamped.Name = "new", "shadowed"
		must(t, h.Save(t.Context(), it, "Name"))
		if name := ask[string](t, gdb, "SELECT name FROM restampeds"); name != "new" || h.Item().Name != "new" {
			t.Errorf("the name is %q, and in Item %q", name, h.Item().Name)
		}
		exec(t, gdb, "UPDATE restampeds SET updated_at = '2020-01-01 00:00:00'")
		must(t, h.Save(t.Context(), it, "UpdatedAt"))
		var got restamped
		must(t, gdb.Take(&got).Error)
		if got.UpdatedAt.Year() == 2020 || !h.Item().UpdatedAt.Truncate(time.Microsecond).Equal(got.UpdatedAt.Truncate(time.Microsecond)) {
			t.Errorf("it was updated at %v, and by Item at %v", got.UpdatedAt, h.Item().UpdatedAt)
		}
	})
}

type routed struct {
	ID   uint
	From address `gorm:"embedded;embeddedPrefix:from_"`
	To   address `gorm:"embedded;embeddedPrefix:to_"`
	lease.Claimable
}

func TestANameThatSeveralColumnsBearIsInvalidAndTheErrorListsThem(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, routed{ID: 1, From: address{Town: "Graz"}, To: address{Town: "Linz"}})
		h, err := lease.ClaimAs[routed](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		it := routed{From: address{Town: "Oslo"}, To: address{Town: "Voss"}}
		err = h.Save(t.Context(), it, "Town")
		mustBe(t, err, lease.ErrInvalid)
		if err != nil && (!strings.Contains(err.Error(), "from_town") || !strings.Contains(err.Error(), "to_town")) {
			t.Errorf("the error is %v", err)
		}
		must(t, h.Save(t.Context(), it, "to_town"))
		if from, to := ask[string](t, gdb, "SELECT from_town FROM routeds"), ask[string](t, gdb, "SELECT to_town FROM routeds"); from != "Graz" || to != "Voss" {
			t.Errorf("it goes from %q to %q", from, to)
		}
	})
}

type oddlyNamed struct {
	ID uint
	A  string `gorm:"column:a$1"`
	B  string `gorm:"column:?1"`
	C  string `gorm:"column:@name"`
	D  string `gorm:"column:it's"`
	E  string `gorm:"column:select"`
	F  string `gorm:"column:durable"`
	G  string `gorm:"column:{now}"`
	H  string `gorm:"column:{from}"`
	I  string `gorm:"column:$1"`
	J  string `gorm:"column:::text"`
	K  string `gorm:"column:lease_c"`
	lease.Claimable
}

func TestAColumnMayHaveAnyName(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		clean := db.Open(t)
		must(t, clean.AutoMigrate(&oddlyNamed{}))
		handles := map[string]*gorm.DB{"plain": clean, "prepared, with the fields listed": db.Open(t, &gorm.Config{QueryFields: true, PrepareStmt: true})}
		if db.Backend == dbtest.BackendPostgres {
			simple, err := gorm.Open(postgres.New(postgres.Config{DSN: db.DSN, PreferSimpleProtocol: true}))
			must(t, err)
			defer pool(t, simple).Close()
			handles["by the simple protocol"] = simple
		}
		for what, gdb := range handles {
			t.Run(what, func(t *testing.T) {
				must(t, clean.Create(&oddlyNamed{ID: 1, A: "a", D: `$1 ' \ `, I: "?"}).Error)
				defer clean.Delete(&oddlyNamed{}, 1)
				h, err := lease.ClaimNext[oddlyNamed](t.Context(), gdb, "A", "", time.Minute, nil)
				must(t, err)
				it := h.Item()
				it.B, it.C = "b$1?@name", `"'\`
				must(t, h.Save(t.Context(), it))
				it.H = "{now}"
				must(t, h.Save(t.Context(), it, "@name", "?1", "$1", "it's", "::text", "H"))
				must(t, h.Renew(t.Context()))
				it.K = "in a transaction"
				must(t, gdb.Transaction(func(tx *gorm.DB) error { return errors.Join(h.Fence(tx), h.SaveIn(tx, it)) }))
				must(t, h.Release(t.Context()))
				var got oddlyNamed
				must(t, clean.Take(&got).Error)
				got.Claimable, it.Claimable = lease.Claimable{}, lease.Claimable{}
				if got != it || it.A != "a" || it.D != `$1 ' \ ` || it.I != "?" {
					t.Errorf("the row is\n%+v, not\n%+v", got, it)
				}
			})
		}
	})
}

type swappable struct {
	ID  uint
	Foo string
	Bar string
	lease.Claimable
}

func TestTwoHandlesMayNameTheColumnsOfAModelDifferentlyAtOnce(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		swapped := db.Open(t, &gorm.Config{NamingStrategy: schema.NamingStrategy{NameReplacer: strings.NewReplacer("Foo", "Bar", "Bar", "Foo")}})
		plain := withRow(t, db, swappable{ID: 1, Foo: "foo", Bar: "bar"})
		for id := uint(2); id <= 8; id++ {
			must(t, plain.Create(&swappable{ID: id, Foo: "foo", Bar: "bar"}).Error)
		}
		race(t, 8, func(i int) (bool, error) {
			gdb, foo := plain, "foo"
			if i%2 == 0 {
				gdb, foo = swapped, "bar"
			}
			h, err := lease.ClaimAs[swappable](t.Context(), gdb, i+1, "A", "", time.Minute, nil)
			if err != nil {
				return false, err
			}
			it := h.Item()
			if it.Foo != foo {
				t.Errorf("%d is claimed as %+v", i+1, it)
			}
			it.Foo += "!"
			return true, errors.Join(h.Save(t.Context(), it, "Foo"), h.Save(t.Context(), it))
		})
		asSaved := "foo = 'foo!' AND bar = 'bar' AND id % 2 = 0 OR foo = 'foo' AND bar = 'bar!' AND id % 2 = 1"
		if n := ask[int](t, plain, "SELECT count(*) FROM swappables WHERE "+asSaved); n != 8 {
			t.Errorf("%d of 8 rows are as they should be", n)
		}
	})
}

// Hooks and callbacks that leave columns out

func TestASaveLeavesOutWhatAHookOrACallbackDoes(t *testing.T) {
	leaves := map[string]func(tx *gorm.DB){
		"Omit":   func(tx *gorm.DB) { tx.Statement.Omit("Slug") },
		"Select": func(tx *gorm.DB) { tx.Statement.Select("Name") },
	}
	for what, leave := range leaves {
		t.Run(what+" in a hook", func(t *testing.T) {
			ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
				if name == "BeforeUpdate" {
					leave(tx)
				}
				return nil
			})
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) { leavesOutTheSlug(ctx, t, withHooks(t, db)) })
		})
		t.Run(what+" in a callback", func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				gdb := withHooks(t, db)
				must(t, gdb.Callback().Update().Before("gorm:update").Register("leaving", leave))
				leavesOutTheSlug(t.Context(), t, gdb)
			})
		})
	}
}

// An idle plugin does nothing, but may have a say for all that the package knows.
type idle struct{}

func (idle) Name() string              { return "idle" }
func (idle) Initialize(*gorm.DB) error { return nil }

func TestASaveLeavesOutWhatAHookOmitsThoughThereIsAPlugin(t *testing.T) {
	ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
		if name == "BeforeUpdate" {
			tx.Statement.Omit("Slug")
		}
		return nil
	})
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		must(t, gdb.Use(idle{}))
		leavesOutTheSlug(ctx, t, gdb)
	})
}

func TestAHookThatLeavesTheClaimOutWhereThereIsAPluginIsInvalid(t *testing.T) {
	ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
		if name == "BeforeUpdate" {
			tx.Statement.Select("Name")
		}
		return nil
	})
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		must(t, gdb.Use(idle{}))
		h := claimHooked(t, gdb, "A")
		it := h.Item()
		it.Name, it.Done = "changed", true
		mustBe(t, h.Save(ctx, it), lease.ErrInvalid)
		var got hooked
		must(t, gdb.Take(&got).Error)
		if got.Name != "One" || got.Done {
			t.Errorf("the row is %+v", got)
		}
		must(t, h.Save(t.Context(), it))
	})
}

// leavesOutTheSlug saves in a context, or by a handle, that leaves the slug out, and the name in.
func leavesOutTheSlug(ctx context.Context, t *testing.T, gdb *gorm.DB) {
	statements(t, gdb, "UPDATE hookeds SET slug = 'one'")
	h := claimHooked(t, gdb, "A")
	save := func(what string, save func(it hooked) error) {
		t.Helper()
		it, revision := h.Item(), ask[int64](t, gdb, "SELECT claim_revision FROM hookeds")
		it.Name, it.Slug, it.Done = what, "changed", !it.Done
		must(t, save(it))
		var got hooked
		must(t, gdb.Take(&got).Error)
		if got.Name != what || got.Slug != "one" || h.Item().Slug != "one" {
			t.Errorf("%s: the row is %+v, and Item %+v", what, got, h.Item())
		}
		if got.Revision != revision+1 || got.Done != it.Done || got.Owner != "A" {
			t.Errorf("%s: the claim is %+v", what, got.Claimable)
		}
	}
	save("all", func(it hooked) error { return h.Save(ctx, it) })
	save("named", func(it hooked) error { return h.Save(ctx, it, "Name", "slug") })
	save("in a transaction", func(it hooked) error {
		return gdb.WithContext(ctx).Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, it) })
	})
}

type tenanted struct {
	ID     uint
	Tenant string
	lease.Claimable
}

func TestACallbackThatNarrowsQueriesNarrowsClaimNext(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		for what, scopes := range map[string][]func(*gorm.DB) *gorm.DB{
			"without scopes": nil, "with a scope": {func(db *gorm.DB) *gorm.DB { return db.Where("1 = 1") }},
		} {
			t.Run(what, func(t *testing.T) {
				gdb := withRow(t, db, tenanted{ID: 1, Tenant: "another"})
				defer func() { must(t, gdb.Migrator().DropTable(&tenanted{})) }()
				must(t, gdb.Create([]tenanted{{ID: 2, Tenant: "mine"}, {ID: 3, Tenant: "another"}}).Error)
				must(t, gdb.Callback().Query().Before("gorm:query").Register("tenant", func(db *gorm.DB) {
					if db.Statement.Schema != nil && db.Statement.Schema.LookUpField("tenant") != nil {
						db.Statement.AddClause(clause.Where{Exprs: []clause.Expression{clause.Eq{Column: "tenant", Value: "mine"}}})
					}
				}))
				h, err := lease.ClaimNext[tenanted](t.Context(), gdb, "A", "", time.Minute, nil, scopes...)
				must(t, err)
				if h.Item().ID != 2 {
					t.Errorf("it took %+v", h.Item())
				}
				_, err = lease.ClaimNext[tenanted](t.Context(), gdb, "A", "", time.Minute, nil, scopes...)
				mustBe(t, err, gorm.ErrRecordNotFound)
			})
		}
	})
}

// Structs that are embedded by pointers

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

func TestACopyOfAnItemIsNotChangedByLaterSavesAndMayBeReadMeanwhile(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		h := claimHoused(t, withRow(t, db, housed{ID: 1, Door: &door{"first", 0}}))
		before := h.Item()
		ended, end := context.WithCancel(t.Context())
		defer end()
		var reader sync.WaitGroup
		reader.Go(func() { // as a callback of a heartbeat does
			for ended.Err() == nil {
				if before.Door.Name != "first" || h.Item().Door.Name == "" {
					t.Errorf("the copy says %+v, and Item %+v", before.Door, h.Item().Door)
					return
				}
			}
		})
		for i := range 20 {
			must(t, h.Save(t.Context(), housed{Door: &door{fmt.Sprint(" ", i), i}}))
			must(t, h.Save(t.Context(), h.Item(), "door_name"))
			must(t, h.Save(t.Context(), housed{Door: &door{fmt.Sprint("again ", i), i}}, "door_name"))
		}
		end()
		reader.Wait()
		if *before.Door != (door{"first", 0}) || *h.Item().Door != (door{"again 19", 19}) {
			t.Errorf("the copy from before says %+v, and Item %+v", before.Door, h.Item().Door)
		}
	})
}

func TestTheCallersOwnStructsAreNotChangedBySaves(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		h := claimHoused(t, withRow(t, db, housed{ID: 1}))
		mine := &door{" mine ", 1}
		must(t, h.Save(t.Context(), housed{Door: mine})) // with a hook that would
		if got := *h.Item().Door; got != (door{"mine", 1}) {
			t.Errorf("Item says %+v", got)
		}
		must(t, h.Save(t.Context(), housed{Door: &door{"another", 2}}))
		must(t, h.Save(t.Context(), housed{}))
		if *mine != (door{" mine ", 1}) {
			t.Errorf("the caller's own became %+v", mine)
		}
	})
}

func TestAnEmbeddedStructThatWasSavedAsNilIsNil(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		for what, row := range map[string]housed{"it was nil before": {ID: 1}, "it was not": {ID: 1, Door: &door{"first", 1}}} {
			t.Run(what, func(t *testing.T) {
				gdb := withRow(t, db, row)
				defer func() { must(t, gdb.Migrator().DropTable(&housed{})) }()
				h := claimHoused(t, gdb)
				isNil := func() {
					t.Helper()
					if n := ask[int](t, gdb, "SELECT count(*) FROM houseds WHERE door_name IS NULL AND door_number IS NULL"); n != 1 || h.Item().Door != nil {
						t.Errorf("%d rows have NULL, and Item has %+v", n, h.Item().Door)
					}
				}
				must(t, h.Save(t.Context(), housed{}))
				isNil()
				must(t, h.Save(t.Context(), h.Item()))
				isNil()
				must(t, h.Save(t.Context(), housed{Text: "x"}, "door_name", "Text"))
				isNil()
			})
		}
	})
}

// A returned row's hook asks the database for all of the row.
type returned struct {
	ID   uint
	Text string
	Door *door `gorm:"embedded;embeddedPrefix:door_"`
	lease.Claimable
}

func (*returned) BeforeUpdate(tx *gorm.DB) error {
	tx.Statement.AddClause(clause.Returning{})
	return nil
}

func TestAHookMayAskForTheRowBack(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, returned{ID: 1})
		h, err := lease.ClaimAs[returned](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		for i := range 3 {
			must(t, h.Save(t.Context(), returned{Text: fmt.Sprint(i)}))
			var got returned
			must(t, gdb.Take(&got).Error)
			if !reflect.DeepEqual(got, h.Item()) || got.Text != fmt.Sprint(i) {
				t.Errorf("Item is\n%+v, and the row\n%+v", h.Item(), got)
			}
		}
	})
}

// A rebuilt row's hook makes it anew.
type rebuilt struct {
	ID   uint
	Text string
	lease.Claimable
}

func (r *rebuilt) BeforeSave(*gorm.DB) error {
	*r = rebuilt{ID: r.ID, Text: strings.TrimSpace(r.Text)}
	return nil
}

func TestAHookThatRebuildsTheRowDoesNotResetTheRevision(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, rebuilt{ID: 1})
		h, err := lease.ClaimAs[rebuilt](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		first := h.Item().Revision
		for i := range int64(3) {
			must(t, h.Save(t.Context(), rebuilt{Text: fmt.Sprint(i, " ")}))
			var got rebuilt
			must(t, gdb.Take(&got).Error)
			if got.Text != fmt.Sprint(i) || got.Revision != first+i+1 || h.Item().Revision != got.Revision || got.Owner != "A" {
				t.Errorf("after %d saves of revision %d the row is %+v, and Item %+v", i+1, first, got, h.Item())
			}
		}
	})
}

func TestAHookThatRebuildsTheRowIsInvalidWhereGORMComposesAllOfASave(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, rebuilt{ID: 1, Text: "old"})
		must(t, gdb.Use(idle{}))
		h, err := lease.ClaimAs[rebuilt](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		mustBe(t, h.Save(t.Context(), rebuilt{Text: "new"}), lease.ErrInvalid)
		var got rebuilt
		must(t, gdb.Take(&got).Error)
		if got.Text != "old" || got.Revision != h.Item().Revision {
			t.Errorf("the row is %+v, and Item %+v", got, h.Item())
		}
		must(t, h.Renew(t.Context()))
	})
}

// Keys

func TestAKeyThatIsChangedInsideACopySavesNoOtherRow(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, byBytes{ID: []byte("aa")})
		must(t, gdb.Create(&byBytes{ID: []byte("bb")}).Error)
		h, err := lease.ClaimAs[byBytes](t.Context(), gdb, []byte("aa"), "A", "", time.Minute, nil)
		must(t, err)
		_, err = lease.ClaimAs[byBytes](t.Context(), gdb, []byte("bb"), "A", "", time.Minute, nil) // so that nothing but the key tells them apart
		must(t, err)
		it := h.Item()
		copy(it.ID, "bb")
		it.Text = "elsewhere"
		mustBe(t, h.Save(t.Context(), it), lease.ErrInvalid)
		must(t, h.Save(t.Context(), byBytes{Text: "here"}))
		must(t, h.Renew(t.Context()))
		if a, b := ask[string](t, gdb, "SELECT text FROM by_bytes WHERE id = ?", []byte("aa")), ask[string](t, gdb, "SELECT text FROM by_bytes WHERE id = ?", []byte("bb")); a != "here" || b != "" {
			t.Errorf("the rows say %q and %q", a, b)
		}
	})
}

type byTime struct {
	ID   time.Time `gorm:"primaryKey"`
	Text string
	lease.Claimable
}

func TestAKeyThatIsATimeIsTheSameInAnyZone(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, byTime{ID: noon})
		h, err := lease.ClaimAs[byTime](t.Context(), gdb, noon, "A", "", time.Minute, nil)
		must(t, err)
		must(t, h.Save(t.Context(), h.Item()))
		for _, at := range []time.Time{noon, noon.Local(), noon.In(time.FixedZone("Graz", 3600))} {
			must(t, h.Save(t.Context(), byTime{ID: at, Text: at.String()}))
			if text := ask[string](t, gdb, "SELECT text FROM by_times"); text != at.String() {
				t.Errorf("the row says %q, not %q", text, at)
			}
		}
		mustBe(t, h.Save(t.Context(), byTime{ID: noon.Add(time.Second)}), lease.ErrInvalid)
	})
}

// An outspoken row's key is not what it was, once it is found.
type outspoken struct {
	ID   string
	Text string
	lease.Claimable
}

func (o *outspoken) AfterFind(*gorm.DB) error {
	o.ID, o.Claimable = strings.ToUpper(o.ID), lease.Claimable{}
	return nil
}

func TestAnAfterFindThatChangesTheKeyLosesNoClaim(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, outspoken{ID: "a"})
		for i, claim := range []func() (*lease.HolderOf[outspoken], error){
			func() (*lease.HolderOf[outspoken], error) {
				return lease.ClaimAs[outspoken](t.Context(), gdb, "a", "A", "", time.Minute, nil)
			},
			func() (*lease.HolderOf[outspoken], error) {
				return lease.ClaimNext[outspoken](t.Context(), gdb, "A", "", time.Minute, nil)
			},
		} {
			h, err := claim()
			must(t, err)
			must(t, h.Renew(t.Context()))
			text := fmt.Sprint("saved ", i)
			must(t, h.Save(t.Context(), outspoken{Text: text}))
			must(t, h.Release(t.Context()))
			if n := ask[int](t, gdb, "SELECT count(*) FROM outspokens WHERE claim_owner = '' AND text = ? AND claim_epoch = ?", text, i+1); n != 1 || h.Epoch() != int64(i+1) {
				t.Errorf("claim %d is %+v, and its row is not as it should be", i+1, h.Item())
			}
		}
	})
}

// Where Claimable is

type PointedBase struct {
	ID uint
	lease.Claimable
}

type ClaimAlone struct{ lease.Claimable }

type (
	onPointedBase struct {
		*PointedBase
		Text string
	}
	onPointedClaim struct {
		ID uint
		*ClaimAlone
	}
	bySerialized struct {
		ID   int64 `gorm:"primaryKey;autoIncrement:false;serializer:json;type:text"`
		Text string
		lease.Claimable
	}
)

func TestClaimableBehindAPointerOrASerializedKeyIsInvalidBeforeAnySQL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb, spy := spied(t, db)
		willNotDo[onPointedBase](t, gdb)
		willNotDo[onPointedClaim](t, gdb)
		willNotDo[bySerialized](t, gdb)
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
	})
}

type Alias = lease.Claimable

type aliased struct {
	ID   uint
	Name string
	Alias
}

func TestClaimableMayBeEmbeddedByAnAlias(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) { keyed(t, db, aliased{ID: 3}, 3, 4) })
}

type terms struct {
	Claimable struct{ Amount int } `gorm:"embedded;embeddedPrefix:claimable_"`
}

type insured struct {
	ID    uint
	Terms terms `gorm:"embedded"`
	lease.Claimable
}

func TestAnothersStructThatIsCalledClaimableIsSaved(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, insured{ID: 1})
		h, err := lease.ClaimAs[insured](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		for i, columns := range [][]string{nil, {"Amount"}, {"claimable_amount"}} {
			it := h.Item()
			it.Terms.Claimable.Amount = 5 + i
			must(t, h.Save(t.Context(), it, columns...))
			if n := ask[int](t, gdb, "SELECT claimable_amount FROM insureds"); n != 5+i || h.Item().Terms.Claimable.Amount != 5+i {
				t.Errorf("a save of %q: the amount is %d, and in Item %d", columns, n, h.Item().Terms.Claimable.Amount)
			}
		}
	})
}

// Conditions that a save adds

func TestASaveThatAHooksConditionStopsIsAnErrorAndNoLoss(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		must(t, gdb.Create(&hooked{ID: 2, Name: "Two"}).Error)
		h := claimHooked(t, gdb, "A")
		ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
			if name == "BeforeUpdate" {
				tx.Statement.AddClause(clause.Where{Exprs: []clause.Expression{clause.Expr{SQL: "name <> 'One' OR name IS NULL"}}})
			}
			return note(tx)
		})
		it := h.Item()
		it.Name = "changed"
		in := func(tx *gorm.DB) error { return h.SaveIn(tx, it) }
		hindered := func(what string, err error) {
			t.Helper()
			if err == nil || errors.Is(err, lease.ErrLost) {
				t.Errorf("%s is %v", what, err)
			}
			names := ask[string](t, gdb, "SELECT min(name) || max(name) FROM hookeds")
			if n := notes(t, gdb); n != 0 || names != "OneTwo" || h.Item().Name != "One" {
				t.Errorf("after %s there are %d notes, the names are %q, and in Item %q", what, n, names, h.Item().Name)
			}
			must(t, h.Renew(t.Context()))
		}
		hindered("Save", h.Save(ctx, it))
		hindered("Save of a column", h.Save(ctx, it, "name"))
		hindered("SaveIn", gdb.WithContext(ctx).Transaction(in))
		must(t, h.Save(t.Context(), it))
		must(t, h.Save(ctx, it)) // the row meets it now
		if n := ask[int](t, gdb, "SELECT count(*) FROM hookeds WHERE name = 'changed' AND id = 1 OR name = 'Two' AND claim_revision = 0"); n != 2 {
			t.Errorf("%d rows are as they should be", n)
		}
		it.Name = "One"
		must(t, h.Save(t.Context(), it))
		claimHooked(t, gdb, "A")
		mustBe(t, gdb.WithContext(ctx).Transaction(in), lease.ErrLost)
		mustBe(t, h.Save(ctx, it), lease.ErrLost)
	})
}

// A lockedVersion is a version that must be as it was read, if it was.
type lockedVersion int64

func (lockedVersion) UpdateClauses(f *schema.Field) []clause.Interface {
	return []clause.Interface{locking{counting{f}}}
}

type locking struct{ counting }

func (l locking) ModifyStatement(s *gorm.Statement) {
	if _, counted := s.Clauses["counted"]; counted {
		return
	}
	if v, zero := l.field.ValueOf(s.Context, s.ReflectValue); !zero {
		s.AddClause(clause.Where{Exprs: []clause.Expression{clause.Eq{Column: l.field.DBName, Value: v}}})
	}
	l.counting.ModifyStatement(s)
}

type versioned struct {
	ID      int
	Text    string
	Version lockedVersion
	lease.Claimable
}

func TestASaveThatAnOptimisticLockStopsIsAnErrorAndNoLoss(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, versioned{ID: 1, Version: 1})
		h, err := lease.ClaimAs[versioned](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		statements(t, gdb, "UPDATE versioneds SET version = 2, text = 'by another'")
		stale := versioned{Version: 1, Text: "stale"}
		in := func(tx *gorm.DB) error { return h.SaveIn(tx, stale) }
		for what, save := range map[string]func() error{
			"Save": func() error { return h.Save(t.Context(), stale) }, "SaveIn": func() error { return gdb.Transaction(in) },
		} {
			if err := save(); err == nil || errors.Is(err, lease.ErrLost) {
				t.Errorf("%s is %v", what, err)
			}
			must(t, h.Renew(t.Context()))
		}
		if text := ask[string](t, gdb, "SELECT text FROM versioneds"); text != "by another" {
			t.Errorf("the row says %q", text)
		}
		must(t, h.Save(t.Context(), versioned{Version: 2, Text: "fresh"}))
		must(t, h.Save(t.Context(), versioned{Text: "whatever the version"}))
		if n := ask[int](t, gdb, "SELECT count(*) FROM versioneds WHERE version = 4 AND text = 'whatever the version'"); n != 1 {
			t.Error("the later saves were not written")
		}
		_, err = lease.ClaimAs[versioned](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		mustBe(t, gdb.Transaction(in), lease.ErrLost)
		mustBe(t, h.Save(t.Context(), stale), lease.ErrLost)
	})
}

// Plugins that write

// An auditing plugin notes every update.
type auditing struct{}

func (auditing) Name() string { return "auditing" }
func (auditing) Initialize(db *gorm.DB) error {
	return db.Callback().Update().Before("gorm:update").Register("auditing", func(db *gorm.DB) { _ = db.AddError(note(db)) })
}

func TestWhatAPluginWritesIsRolledBackWithASaveThatIsLost(t *testing.T) {
	for what, skip := range map[string]bool{"by default": false, "unless the user wants to do without": true} {
		t.Run(what, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				withRow(t, db, tenanted{ID: 1})
				gdb := db.Open(t, &gorm.Config{SkipDefaultTransaction: skip})
				exec(t, gdb, "CREATE TABLE notes (text varchar(20))")
				must(t, gdb.Use(auditing{}))
				h, err := lease.ClaimAs[tenanted](t.Context(), gdb, 1, "A", "", time.Minute, nil)
				must(t, err)
				must(t, h.Save(t.Context(), h.Item()))
				if n := notes(t, gdb); n != 1 {
					t.Errorf("%d notes were committed with a save", n)
				}
				exec(t, gdb, "DELETE FROM notes")
				_, err = lease.ClaimAs[tenanted](t.Context(), gdb, 1, "A", "", time.Minute, nil)
				must(t, err)
				mustBe(t, h.Save(t.Context(), h.Item()), lease.ErrLost)
				if n := notes(t, gdb); (n == 1) != skip || n > 1 {
					t.Errorf("%d notes were committed with a save that is lost", n)
				}
			})
		})
	}
}

// Code of the model's own that fails

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
