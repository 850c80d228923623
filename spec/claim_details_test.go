package spec

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/schema"
	"gorm.io/plugin/dbresolver"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// Models with one hook each, which writes a note.

type (
	beforeSaved struct {
		ID uint
		lease.Claimable
	}
	beforeUpdated beforeSaved
	afterUpdated  beforeSaved
	afterSaved    beforeSaved
)

func (*beforeSaved) BeforeSave(tx *gorm.DB) error     { return note(tx) }
func (*beforeUpdated) BeforeUpdate(tx *gorm.DB) error { return note(tx) }
func (*afterUpdated) AfterUpdate(tx *gorm.DB) error   { return note(tx) }
func (*afterSaved) AfterSave(tx *gorm.DB) error       { return note(tx) }

func TestWhatAModelsOnlyHookWroteIsRolledBackWithASaveThatIsLost(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		exec(t, db.Open(t), "CREATE TABLE notes (text varchar(20))")
		t.Run("BeforeSave", func(t *testing.T) { savesWithItsHook[beforeSaved](t, db) })
		t.Run("BeforeUpdate", func(t *testing.T) { savesWithItsHook[beforeUpdated](t, db) })
		t.Run("AfterUpdate", func(t *testing.T) { savesWithItsHook[afterUpdated](t, db) })
		t.Run("AfterSave", func(t *testing.T) { savesWithItsHook[afterSaved](t, db) })
	})
}

func savesWithItsHook[T any, M lease.Model[T]](t *testing.T, db *dbtest.Database) {
	gdb := db.Open(t)
	must(t, gdb.AutoMigrate(new(T)))
	must(t, gdb.Session(&gorm.Session{SkipHooks: true}).Create(new(T)).Error)
	exec(t, gdb, "DELETE FROM notes")
	lost, err := lease.ClaimAs[T, M](t.Context(), gdb, 1, "A", "", time.Minute, nil)
	must(t, err)
	h, err := lease.ClaimAs[T, M](t.Context(), gdb, 1, "A", "", time.Minute, nil)
	must(t, err)
	mustBe(t, lost.Save(t.Context(), lost.Item()), lease.ErrLost)
	if n := notes(t, gdb); n != 0 {
		t.Errorf("%d notes were committed with a save that is lost", n)
	}
	must(t, h.Save(t.Context(), h.Item()))
	if n := notes(t, gdb); n != 1 {
		t.Errorf("%d notes were committed with one that is good", n)
	}
}

func TestARepeatedSaveGivesItsHooksTheRowAsItsCallerDid(t *testing.T) {
	for _, isolation := range []string{"serializable", "repeatable read"} {
		t.Run(isolation, func(t *testing.T) {
			db := dbtest.Postgres(t)
			other := withHooks(t, db)
			gdb := db.OpenDSN(t, db.DSNVia("", "default_transaction_isolation="+isolation))
			h := claimHooked(t, gdb, "A")
			times := 0
			ctx := hookedBy(t, func(name string, h *hooked, tx *gorm.DB) error {
				if name != "BeforeUpdate" {
					return note(tx)
				}
				h.Slug += strings.ToLower(h.Name)
				if times++; times > 1 {
					return nil
				}
				return other.Exec("UPDATE hookeds SET slug = 'of another'").Error // after tx's snapshot
			})
			must(t, h.Save(ctx, h.Item()))
			if slug := ask[string](t, other, "SELECT slug FROM hookeds"); times != 2 || slug != "one" || h.Item().Slug != "one" {
				t.Errorf("after %d attempts the slug is %q, and in Item %q", times, slug, h.Item().Slug)
			}
		})
	}
}

func TestAHookThatChangesTheKeyAndFailsIsToldByItsOwnError(t *testing.T) {
	failure := errors.New("out of paper")
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		h := claimHooked(t, withHooks(t, db), "A")
		ctx := hookedBy(t, func(_ string, h *hooked, _ *gorm.DB) error {
			h.ID = 77
			return failure
		})
		err := h.Save(ctx, h.Item())
		if !errors.Is(err, failure) || errors.Is(err, lease.ErrInvalid) {
			t.Errorf("the error is %v", err)
		}
		must(t, h.Save(t.Context(), h.Item()))
	})
}

// A settled row has columns that are called as the claim's are in Go.
type settled struct {
	ID uint
	lease.Claimable
	Done  string
	Owner string
	Other string
}

func TestAColumnThatIsCalledAsOneOfTheClaimsIsTheModelsOwn(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, settled{ID: 1})
		h, err := lease.ClaimAs[settled](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		it := h.Item()
		it.Done, it.Owner, it.Other, it.Claimable.Done = "yes", "Jane", "stale", true
		must(t, h.Save(t.Context(), it, "Done"))
		if n := ask[int](t, gdb, "SELECT count(*) FROM settleds WHERE done = 'yes' AND owner = '' AND other = '' AND claim_done"); n != 1 || h.Item().Done != "yes" {
			t.Errorf("Done was not what was saved; Item is %+v", h.Item())
		}
		must(t, h.Save(t.Context(), it, "Owner"))
		if n := ask[int](t, gdb, "SELECT count(*) FROM settleds WHERE owner = 'Jane' AND other = '' AND claim_owner = 'A'"); n != 1 || h.Item().Owner != "Jane" {
			t.Errorf("Owner was not what was saved; Item is %+v", h.Item())
		}
	})
}

// A crossed row has two columns, each of which is called as the other one is in Go.
type crossed struct {
	ID   uint
	Text string `gorm:"column:Name"`
	Name string `gorm:"column:Text"`
	lease.Claimable
}

func TestANameIsTheTablesBeforeItIsGos(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, crossed{ID: 1})
		h, err := lease.ClaimAs[crossed](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		it := h.Item()
		it.Text, it.Name = "text", "name"
		must(t, h.Save(t.Context(), it, "Name"))
		var got crossed
		must(t, gdb.Take(&got).Error)
		if got.Text != "text" || got.Name != "" || h.Item() != got {
			t.Errorf("Item is\n%+v, and the row\n%+v", h.Item(), got)
		}
	})
}

func TestASaveOfDoneAloneTellsWhenAnItemWasUpdated(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db)).byTheCallers()
		h := w.claim(t, "A")
		w.pass(10 * time.Second)
		it := with(h, 1)
		it.Done = true
		must(t, h.Save(t.Context(), it, "Done"))
		got := w.load(t)
		if is(t, got, 0); !got.Done || !got.UpdatedAt.Equal(w.now()) {
			t.Errorf("the row is %s", shows(got))
		}
		w.agrees(t, "after a save of Done", h)
	})
}

// A replicated row has an updated_at that GORM does not keep up to date.
type replicated struct {
	ID        uint
	Text      string
	UpdatedAt time.Time `gorm:"autoUpdateTime:false"`
	lease.Claimable
}

func TestASaveOfNamedColumnsLeavesAnUpdatedAtThatIsAnothersAlone(t *testing.T) { // C85
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, replicated{ID: 1, UpdatedAt: noon})
		h, err := lease.ClaimAs[replicated](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		later := noon.Add(time.Hour)
		must(t, gdb.Model(&replicated{ID: 1}).UpdateColumn("updated_at", later).Error)
		it := h.Item()
		it.Text = "saved"
		must(t, h.Save(t.Context(), it, "text"))
		var got replicated
		must(t, gdb.Take(&got).Error)
		if got.Text != "saved" || !got.UpdatedAt.Equal(later) {
			t.Errorf("the row is %+v", got)
		}
	})
}

// A tenancy plugin narrows every query for parcels.
type tenancy struct{}

func (tenancy) Name() string { return "tenancy" }

func (tenancy) Initialize(db *gorm.DB) error {
	return db.Callback().Query().Before("gorm:query").Register("tenancy", func(db *gorm.DB) {
		db.Statement.AddClause(clause.Where{Exprs: []clause.Expression{clause.Expr{SQL: "parcels.weight > ?", Vars: []any{1}}}})
	})
}

func TestPluginsHaveTheirSayInWhatClaimNextChooses(t *testing.T) {
	withParcels(t, 2, func(t *testing.T, w *world) {
		w.gdb = w.db.Open(t)
		must(t, w.gdb.Use(tenancy{}))
		if id := w.next(t, "A").Item().ID; id != 2 {
			t.Errorf("it took %d", id)
		}
		_, err := w.tryNext(t, "A")
		mustBe(t, err, gorm.ErrRecordNotFound)
	})
}

func TestClaimNextOfAnItemWithAScopeNeverWaitsForAnothersRow(t *testing.T) {
	db := dbtest.Postgres(t)
	gdb := fresh(t, db)
	for _, key := range []string{"first", "second"} {
		must(t, lease.Create(t.Context(), gdb, lease.Item{Key: key}))
	}
	exec(t, gdb, "UPDATE lease_items SET claim_acquired_at = 1 WHERE key = 'second'")
	tx := gdb.Begin()
	defer tx.Rollback()
	exec(t, tx, "SELECT * FROM lease_items WHERE key = 'first' FOR UPDATE")
	impatient := db.OpenDSN(t, db.DSNVia("", "lock_timeout=1ms"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	next := func() (*lease.Holder, error) {
		return lease.ClaimNext[lease.Item](ctx, impatient, "A", "", time.Minute, nil, func(db *gorm.DB) *gorm.DB { return db.Where("key <> 'x'") })
	}
	h, err := next()
	must(t, err)
	if key := h.Item().Key; key != "second" {
		t.Errorf("it took %s", key)
	}
	_, err = next()
	mustBe(t, err, gorm.ErrRecordNotFound)
}

func TestAScopeMayAskTheDatabase(t *testing.T) {
	withParcels(t, 2, func(t *testing.T, w *world) {
		must(t, w.gdb.Create(&customer{ID: 7, Name: "Smith"}).Error)
		exec(t, w.gdb, "UPDATE parcels SET customer_id = 7 WHERE id = 2")
		smiths := func(db *gorm.DB) *gorm.DB {
			var id uint
			if err := db.Session(&gorm.Session{NewDB: true}).Model(&customer{}).Select("id").Where("name = 'Smith'").Scan(&id).Error; err != nil {
				_ = db.AddError(err)
			}
			return db.Where("customer_id = ?", id)
		}
		if id := w.next(t, "A", smiths).Item().ID; id != 2 {
			t.Errorf("it took %d", id)
		}
		_, err := w.tryNext(t, "A", smiths)
		mustBe(t, err, gorm.ErrRecordNotFound)
	})
}

func TestAScopeThatChoosesFromAnotherQueryIsInvalid(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := &world{db: db, gdb: migrated(t, db), table: "parcels"}
		parcels(t, w.gdb, 2)
		before := w.contents(t)
		for what, scope := range map[string]func(*gorm.DB) *gorm.DB{
			"a query": func(db *gorm.DB) *gorm.DB {
				return db.Table("(?)", db.Session(&gorm.Session{NewDB: true}).Model(&parcel{}).Where("weight = 2"))
			},
			"a query with a name": func(db *gorm.DB) *gorm.DB { return db.Table("(SELECT * FROM parcels WHERE weight = 2) AS parcels") },
			"two tables":          func(db *gorm.DB) *gorm.DB { return db.Table("parcels, stops") },
		} {
			if h, err := w.tryNext(t, "A", scope); !errors.Is(err, lease.ErrInvalid) {
				t.Errorf("%s: %v, %v", what, h, err)
			}
		}
		if after := w.contents(t); after != before {
			t.Errorf("the rows were\n%s and are\n%s", before, after)
		}
	})
}

func TestARenewalKeepsARowsPlaceInTheQueue(t *testing.T) {
	withParcels(t, 2, func(t *testing.T, w *world) {
		first := w.parcel(t, 1, "A")
		w.pass(time.Second)
		w.parcel(t, 2, "A")
		w.pass(time.Second)
		must(t, first.Renew(t.Context()))
		w.pass(2 * time.Minute)
		for _, want := range []uint{1, 2} {
			if id := w.next(t, "B").Item().ID; id != want {
				t.Errorf("it took %d, not %d", id, want)
			}
		}
	})
}

func TestRenewalsByAClockThatWasSetBackALittleNeverTakeTheExpiryBack(t *testing.T) { // C69
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db)).byTheCallers()
		h := w.claim(t, "A")
		for _, ago := range []time.Duration{5, 3, 4} {
			w.pass(-ago * time.Second)
			must(t, h.Renew(t.Context()))
			if it := w.load(t); !it.ExpiresAt.Equal(noon.Add(time.Minute)) || !it.RenewedAt.Equal(noon) {
				t.Errorf("a renewal by a clock %d s ago makes it %s", ago, shows(it))
			}
			w.pass(ago * time.Second)
		}
		w.agrees(t, "after such renewals", h)
	})
}

func TestARenewalByAClockThatWasFarAheadIsOfTheTimeItIsNow(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		w := newWorld(t, db, fresh(t, db)).byTheCallers()
		h := w.claim(t, "A")
		w.pass(-time.Hour)
		must(t, h.Renew(t.Context()))
		now := noon.Add(-time.Hour)
		if it := w.load(t); !it.ExpiresAt.Equal(now.Add(time.Minute)) || !it.RenewedAt.Equal(now) {
			t.Errorf("it is %s", shows(it))
		}
		w.agrees(t, "after it", h)
	})
}

// through is a handle on db by a pool of the test's.
func through(t *testing.T, db *dbtest.Database, pool gorm.ConnPool) *gorm.DB {
	t.Helper()
	dialector := sqlite.New(sqlite.Config{Conn: pool})
	if db.Backend == dbtest.BackendPostgres {
		dialector = postgres.New(postgres.Config{Conn: pool})
	}
	gdb, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
	must(t, err)
	return gdb
}

func TestALateSaveOfAModelNeverReplacesANewerOne(t *testing.T) { // C80
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		clean := migrated(t, db)
		parcels(t, clean, 1)
		pool := &lossy{DB: db.SQL(t)}
		h := (&world{db: db, gdb: through(t, db, pool), table: "parcels"}).parcel(t, 1, "A")
		weighing := func(n int) parcel {
			p := h.Item()
			p.Weight = n
			return p
		}
		weighs := func(n int) {
			t.Helper()
			if got := stored(t, clean, 1); got.Weight != n {
				t.Errorf("it weighs %d, not %d", got.Weight, n)
			}
		}
		pool.fate = delayed
		mustBe(t, h.Save(t.Context(), weighing(11)), errNoReply)
		pool.fate = unheard
		mustBe(t, h.Save(t.Context(), weighing(12), "weight"), errNoReply)
		pool.land(t, 0)
		weighs(12)
		pool.fate = answered
		must(t, h.Save(t.Context(), weighing(13)))
		pool.land(t, 0)
		weighs(13)
		must(t, clean.Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, weighing(14)) }))
		pool.land(t, 0)
		weighs(14)
		must(t, h.Save(t.Context(), weighing(15)))
		if got := stored(t, clean, 1); asRead(h.Item()) != asRead(got) {
			t.Errorf("Item is\n%s, and the row\n%s", asRead(h.Item()), asRead(got))
		}
	})
}

// A tardy pool keeps the reply to its first renewal until the test lets it go.
type tardy struct {
	*sql.DB
	first         atomic.Bool
	carried, goes chan struct{}
}

func (p *tardy) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := p.DB.QueryContext(ctx, query, args...)
	if strings.HasPrefix(query, "UPDATE") && p.first.CompareAndSwap(true, false) {
		close(p.carried)
		<-p.goes
	}
	return rows, err
}

func TestTheReplyToAnEarlierRenewalTakesNothingBackInItem(t *testing.T) { // C69
	db := dbtest.Postgres(t) // which carries a statement out before anybody reads the reply
	w := newWorld(t, db, fresh(t, db)).byTheCallers()
	pool := &tardy{DB: db.SQL(t), carried: make(chan struct{}), goes: make(chan struct{})}
	w.gdb = through(t, db, pool)
	h := w.claim(t, "A")
	pool.first.Store(true)
	w.pass(time.Second)
	earlier := make(chan error, 1)
	go func() { earlier <- h.Renew(t.Context()) }()
	<-pool.carried
	w.pass(time.Second)
	must(t, h.Renew(t.Context()))
	w.agrees(t, "after the later reply", h)
	close(pool.goes)
	must(t, <-earlier)
	w.agrees(t, "after the earlier reply", h)
}

func TestHooksOfASaveSeeTheClaimWhateverTheCallerGave(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		h := claimHooked(t, gdb, "A")
		claim := h.Item().Claimable
		claim.Revision, claim.Done = claim.Revision+1, true
		ctx := hookedBy(t, func(name string, h *hooked, _ *gorm.DB) error {
			if h.Claimable != claim || h.ID != 1 {
				t.Errorf("%s sees the row %d, and the claim\n%+v, not\n%+v", name, h.ID, h.Claimable, claim)
			}
			return nil
		})
		given := hooked{Name: "Two", Claimable: lease.Claimable{Owner: "B", Epoch: 9, Attempts: 9, Done: true}}
		must(t, h.Save(ctx, given))
		if given.Epoch != 9 || given.ID != 0 {
			t.Errorf("the caller's copy is %+v", given)
		}
	})
}

func TestAnotherWritersGORMSaveOfAnOldRowCostsTheClaimItsNextSave(t *testing.T) { // as documented
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, byBytes{ID: []byte("key")})
		h, err := lease.ClaimAs[byBytes](t.Context(), gdb, []byte("key"), "A", "", time.Minute, nil)
		must(t, err)
		var read byBytes
		must(t, gdb.First(&read).Error)
		must(t, h.Save(t.Context(), h.Item()))
		read.Text = "by another"
		must(t, gdb.Save(&read).Error)
		it := h.Item()
		it.Text = "by the claim"
		mustBe(t, h.Save(t.Context(), it), lease.ErrLost)
		if text := ask[string](t, gdb, "SELECT text FROM by_bytes"); text != "by another" {
			t.Errorf("the row says %q", text)
		}
	})
}

type twiceNamed struct {
	ID     uint
	Weight int
	lease.Claimable
}

func TestHandlesThatNameAColumnDifferentlyEachUseTheirOwn(t *testing.T) { // C26
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		one := withRow(t, db, twiceNamed{ID: 1, Weight: 1})
		other := db.Open(t, &gorm.Config{NamingStrategy: schema.NamingStrategy{NameReplacer: strings.NewReplacer("Weight", "Mass")}})
		must(t, other.AutoMigrate(&twiceNamed{}))
		for i, gdb := range []*gorm.DB{one, other} {
			h, err := lease.ClaimNext[twiceNamed](t.Context(), gdb, "A", "", time.Minute, nil)
			must(t, err)
			it := h.Item()
			it.Weight = 10 + i
			must(t, h.Save(t.Context(), it))
			must(t, h.Release(t.Context()))
			var got twiceNamed
			must(t, gdb.Take(&got).Error)
			if got.Weight != 10+i || h.Item().Weight != 10+i {
				t.Errorf("by handle %d Item is\n%+v, and the row\n%+v", i+1, h.Item(), got)
			}
		}
		if weight, mass := ask[int](t, one, "SELECT weight FROM twice_nameds"), ask[int](t, one, "SELECT mass FROM twice_nameds"); weight != 10 || mass != 11 {
			t.Errorf("the weight is %d, and the mass %d", weight, mass)
		}
	})
}

func TestScopesThatReadAlikeEachHaveTheirOwnChoice(t *testing.T) {
	withParcels(t, 3, func(t *testing.T, w *world) {
		for id, weighs := range map[uint]string{1: "weight = 1", 2: "weight = 2", 3: "weight = 3"} {
			if got := w.next(t, "A", func(db *gorm.DB) *gorm.DB { return db.Where(weighs) }).Item().ID; got != id {
				t.Errorf("%s: it took %d", weighs, got)
			}
		}
	})
}

func TestClaimNextLooksAgainForAsLongAsOthersAreFaster(t *testing.T) {
	for what, test := range map[string]struct {
		meanwhile func(t *testing.T, other *world) // between a look and the claim, twice
		want      uint
	}{
		"at one row after another": {func(t *testing.T, other *world) { other.next(t, "B") }, 3},
		"at the same row": {func(t *testing.T, other *world) {
			h := other.parcel(t, 1, "B")
			must(t, h.Release(t.Context()))
			exec(t, other.gdb, "UPDATE parcels SET claim_acquired_at = 0")
		}, 1},
	} {
		t.Run(what, func(t *testing.T) {
			db := dbtest.SQLite(t) // which has no rows that are locked, to be passed over
			other := &world{db: db, gdb: migrated(t, db), table: "parcels"}
			parcels(t, other.gdb, 3)
			exec(t, other.gdb, "UPDATE parcels SET claim_acquired_at = id - 1")
			gdb, spy := spied(t, db)
			raced := 0
			spy.fail = func(query string) error {
				if strings.HasPrefix(query, "UPDATE") && raced < 2 {
					raced++
					test.meanwhile(t, other)
				}
				return nil
			}
			h, err := lease.ClaimNext[parcel](t.Context(), gdb, "A", "", time.Minute, nil)
			must(t, err)
			if h.Item().ID != test.want || raced != 2 {
				t.Errorf("after %d races it took %s", raced, asRead(h.Item()))
			}
		})
	}
}

func TestAHookOfAClaimReadsThePrimaryAndBeginsEachStatementAnew(t *testing.T) {
	for backend, open := range map[string]func(testing.TB) *dbtest.Database{"sqlite": dbtest.SQLite, "postgres": dbtest.Postgres} {
		t.Run(backend, func(t *testing.T) {
			primary, replica := open(t), open(t)
			dialector := sqlite.Open(replica.DSN)
			if backend == dbtest.BackendPostgres {
				dialector = postgres.Open(replica.DSN)
			}
			gdb := withHooks(t, primary)
			resolver := dbresolver.Register(dbresolver.Config{Replicas: []gorm.Dialector{dialector}})
			must(t, gdb.Use(resolver))
			t.Cleanup(func() {
				if err := resolver.Call(func(pool gorm.ConnPool) error { return pool.(*sql.DB).Close() }); err != nil {
					t.Error(err)
				}
			})
			exec(t, gdb, "INSERT INTO notes VALUES ('written')")
			ran := false
			ctx := hookedBy(t, func(name string, _ *hooked, tx *gorm.DB) error {
				var none, all int64
				err := errors.Join(tx.Table("notes").Where("1 = 0").Count(&none).Error, tx.Table("notes").Count(&all).Error)
				if none != 0 || all != 1 {
					t.Errorf("%s counts %d and %d notes", name, none, all)
				}
				ran = true
				return err
			})
			_, err := lease.ClaimAs[hooked](ctx, gdb, 1, "A", "", time.Minute, nil)
			if must(t, err); !ran {
				t.Error("AfterFind did not run")
			}
		})
	}
}

func TestAHookOfAClaimMayUseTheOnlyConnection(t *testing.T) { // C34, C35
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withHooks(t, db)
		pool(t, gdb).SetMaxOpenConns(1)
		ctx := hookedBy(t, func(_ string, _ *hooked, tx *gorm.DB) error { return note(tx) })
		h, err := lease.ClaimAs[hooked](ctx, gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		must(t, h.Release(t.Context()))
		_, err = lease.ClaimNext[hooked](ctx, gdb, "A", "", time.Minute, nil)
		must(t, err)
		if n := notes(t, gdb); n != 2 {
			t.Errorf("%d notes were written", n)
		}
	})
}

func TestACharacterIsEscapedInEitherCaseAndByBothOfItsHalves(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		if err := lease.EnsureSchema(gdb); err != nil {
			t.Fatal(err)
		}
		for payload, valid := range map[string]bool{
			`"\ud83d\ude00"`: true, `"\uD83D\uDE00"`: true, `"\udabc\udc00"`: true, `"\uDABC\uDFFF"`: true, `"\uDBFF\udfff"`: true,
			`"\ud83d"`: false, `"\uD83D"`: false, `"\ude00"`: false, `"\uDE00"`: false, `"\uDFFF\uDBFF"`: false, `"\udc00"`: false,
			`"\ud83d\\\ude00"`: false, `"\ud83d\ud83d\ude00\ude00"`: false, `"\\\ude00"`: false, `"\\ude00"`: true,
		} {
			err := lease.Create(t.Context(), gdb, lease.Item{Key: payload, Payload: json.RawMessage(payload)})
			if valid && err != nil || !valid && !errors.Is(err, lease.ErrInvalid) {
				t.Errorf("%s: %v", payload, err)
			}
		}
	})
}

func TestASaveOfARowWithHooksIsLostOnceTheRowBearsTheClaimNoMore(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, housed{ID: 1})
		for _, change := range []string{
			"UPDATE houseds SET claim_epoch = claim_epoch + 1", "UPDATE houseds SET claim_owner = 'B'", "DELETE FROM houseds",
		} {
			must(t, gdb.Exec("UPDATE houseds SET claim_owner = ''").Error)
			h := claimHoused(t, gdb)
			must(t, gdb.Exec(change).Error)
			if err := h.Save(t.Context(), h.Item()); !errors.Is(err, lease.ErrLost) {
				t.Errorf("after %s: %v", change, err)
			}
		}
	})
}

type lapse struct{ until }

func (lapse) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Gt{Column: f.DBName, Value: time.Now()}, clause.Neq{Column: "text", Value: "gone"})
}

type nul string

func (nul) QueryClauses(f *schema.Field) []clause.Interface {
	return where(clause.Neq{Column: f.DBName, Value: "a\x00b"})
}

type nulled struct {
	ID   uint
	Text nul
	lease.Claimable
}

type lapsing struct {
	ID    uint
	Text  string
	Lapse lapse
	lease.Claimable
}

func TestAFieldsConditionThatEndsWithAConstantMayStillBeMoreThanConstants(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		willNotDo[lapsing](t, db.Open(t))
	})
}

func TestAFieldsConditionWithANULIsInvalid(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		willNotDo[nulled](t, db.Open(t))
	})
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

func TestAFieldsConditionMayHaveAnyNumberAndNULL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, levelled{ID: 1, Level: 15})
		must(t, gdb.Create([]levelled{{ID: 2, Level: 16}, {ID: 3, Level: -15}, {ID: 4, Level: -16}}).Error)
		for id, want := range map[uint]error{1: nil, 2: gorm.ErrRecordNotFound, 3: nil, 4: gorm.ErrRecordNotFound} {
			if _, err := lease.ClaimAs[levelled](t.Context(), gdb, id, "A", "", time.Minute, nil); !errors.Is(err, want) {
				t.Errorf("row %d: %v", id, err)
			}
		}
	})
}

func TestAnItemOfGORMsHasAPayloadThatIsNull(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := db.Open(t)
		must(t, lease.EnsureSchema(gdb))
		must(t, gdb.Create(&lease.Item{Key: "k"}).Error)
		it, _, err := lease.Load(t.Context(), gdb, "k")
		if err != nil || string(it.Payload) != "null" {
			t.Errorf("written without one: %q, %v", it.Payload, err)
		}
		var none lease.Item
		if err := gdb.Raw("SELECT 'k' AS key, NULL AS payload").Scan(&none).Error; err != nil || string(none.Payload) != "null" {
			t.Errorf("read where there is none, as an outer join does: %q, %v", none.Payload, err)
		}
	})
}

func TestAnErrorNamesAKeyOfBytesAsText(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		_, err := lease.ClaimAs[lease.Item](t.Context(), db.Open(t), []byte("b\x01"), "A", "", 0, nil)
		if want := `lease: claim "b\x01": `; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v does not begin with %s", err, want)
		}
	})
}

func TestANamedColumnOfAnEmbeddedStructThatIsNilIsSavedAndRemembered(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, housed{ID: 1, Door: &door{"first", 1}})
		h := claimHoused(t, gdb)
		must(t, h.Save(t.Context(), housed{}, "door_name"))
		if n := ask[int](t, gdb, "SELECT count(*) FROM houseds WHERE door_name IS NULL AND door_number = 1"); n != 1 || *h.Item().Door != (door{"", 1}) {
			t.Errorf("%d rows have no name for their door, and Item has %+v", n, h.Item().Door)
		}
	})
}

// A filtering is a plugin that lets updates be of rows alone whose level is low.
type filtering struct{}

func (filtering) Name() string { return "filtering" }

func (filtering) Initialize(db *gorm.DB) error {
	return db.Callback().Update().Before("gorm:update").Register("filtering", func(db *gorm.DB) {
		db.Statement.AddClause(clause.Where{Exprs: []clause.Expression{clause.Expr{SQL: "level < 10"}}})
	})
}

func TestASaveThatAPluginsConditionStopsIsAnErrorAndNoLoss(t *testing.T) {
	for how, use := range map[string]func(*gorm.DB) error{
		"a plugin":   func(db *gorm.DB) error { return db.Use(filtering{}) },
		"a callback": filtering{}.Initialize, // A DEFECT: fails on the code as it is
	} {
		t.Run(how, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				withRow(t, db, levelled{ID: 1, Level: 15})
				gdb := db.Open(t)
				must(t, use(gdb))
				h, err := lease.ClaimAs[levelled](t.Context(), gdb, 1, "A", "", time.Minute, nil)
				must(t, err)
				if err := h.Save(t.Context(), h.Item()); err == nil || errors.Is(err, lease.ErrLost) {
					t.Errorf("Save is %v", err)
				}
				must(t, h.Renew(t.Context()))
			})
		})
	}
}

// A choosy row's hook leaves one column out, or all but one.
type choosy struct {
	ID        uint
	Text      string
	Other     string
	Checked   string `gorm:"<-:update"`
	UpdatedAt time.Time
	lease.Claimable
}

func (c *choosy) BeforeUpdate(tx *gorm.DB) error {
	switch c.Text {
	case "omits":
		tx.Statement.Omit("other")
	case "selects":
		tx.Statement.Select("text")
	}
	return nil
}

func TestASaveWhoseHookLeavesColumnsOutWritesTheRestAndTheTime(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb := withRow(t, db, choosy{ID: 1, UpdatedAt: time.Unix(1, 0)})
		h, err := lease.ClaimAs[choosy](t.Context(), gdb, 1, "A", "", time.Minute, nil)
		must(t, err)
		for text, checked := range map[string]string{"omits": "yes", "selects": ""} {
			must(t, gdb.Exec("UPDATE choosies SET text = '', other = '', checked = '', updated_at = '2000-01-01'").Error)
			must(t, h.Save(t.Context(), choosy{Text: text, Other: "other", Checked: "yes"}))
			var row choosy
			must(t, gdb.Take(&row).Error)
			if row.Text != text || row.Other != "" || row.Checked != checked || time.Since(row.UpdatedAt) > time.Hour {
				t.Errorf("of a hook that %s the row is %+v", text, row)
			}
		}
	})
}
