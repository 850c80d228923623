package spec

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// SQLite ends a whole transaction by itself when some statements fail. Postgres
// refuses what follows a statement that failed. These tests hold both to that.

// endings is, for each database, every way in which a statement ends its
// transaction. The caller overlooks the error.
var endings = map[string]map[string]func(tx *gorm.DB){
	dbtest.BackendSQLite: {
		"an INSERT is interrupted":          interrupted(`INSERT INTO notes ` + slow),
		"INSERT OR ROLLBACK":                sends(`INSERT OR ROLLBACK INTO taken VALUES (1)`),
		"UPDATE OR ROLLBACK":                sends(`UPDATE OR ROLLBACK taken SET id = 1`),
		"a column says ON CONFLICT":         sends(`INSERT INTO strict VALUES (1)`),
		"a trigger says RAISE(ROLLBACK)":    sends(`DELETE FROM taken`),
		"the disk is full":                  sends(`PRAGMA max_page_count = 1`, `INSERT INTO notes VALUES (zeroblob(1000000))`, `PRAGMA max_page_count = 1000000`),
		"a ROLLBACK that went by the pool":  sends(`ROLLBACK`),
		"RETURNING, whose rows nobody read": func(tx *gorm.DB) { returning(tx) },
	},
	dbtest.BackendPostgres: {
		"a statement is interrupted": sends(`SET LOCAL statement_timeout = 1`, `SELECT pg_sleep(60)`),
		"a key is taken":             sends(`INSERT INTO taken VALUES (1)`),
	},
}

// sends sends statements, and overlooks their errors.
func sends(statements ...string) func(tx *gorm.DB) {
	return func(tx *gorm.DB) {
		for _, s := range statements {
			_ = tx.Exec(s)
		}
	}
}

// slow takes SQLite seconds, and finds nothing.
const slow = `WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 10000000) SELECT 'never' FROM c WHERE n < 0`

// interrupted sends a statement under a context of its own, which ends before the
// statement does, but leaves a busy machine time to begin the statement. An
// interrupt that reaches SQLite before the statement has no effect. The statement
// then runs to its end, and is sent again.
func interrupted(statement string) func(tx *gorm.DB) {
	return func(tx *gorm.DB) {
		for err := error(nil); err == nil; {
			ctx, cancel := context.WithTimeout(tx.Statement.Context, 120*time.Millisecond)
			err = tx.Session(&gorm.Session{NewDB: true, Context: ctx}).Exec(statement).Error
			cancel()
		}
	}
}

// returning meets the error of its statement only while the rows are read.
func returning(tx *gorm.DB) {
	rows, err := tx.Raw("INSERT OR ROLLBACK INTO taken VALUES (2), (1) RETURNING id").Rows()
	if err == nil {
		rows.Next()
		rows.Close()
	}
}

type noted struct{ Text string }

func (noted) TableName() string { return "notes" }

// laters is what a transaction may go on with.
var laters = map[string]func(tx *gorm.DB) error{
	"Exec":     write,
	"Create":   func(tx *gorm.DB) error { return tx.Create(&noted{"created"}).Error },
	"a SELECT": func(tx *gorm.DB) error { return tx.Raw("SELECT count(*) FROM notes").Scan(new(int)).Error },
	"Row":      asksForARow,
	"RETURNING": func(tx *gorm.DB) error {
		return tx.Raw("INSERT INTO notes VALUES ('r') RETURNING text").Scan(new(string)).Error
	},
	"gorm.G":        func(tx *gorm.DB) error { return gorm.G[noted](tx).Create(context.Background(), &noted{"generic"}) },
	"a transaction": func(tx *gorm.DB) error { return tx.Transaction(write) },
	"a savepoint":   func(tx *gorm.DB) error { tx.SavePoint("later"); return write(tx) }, // SQLite's dialector drops its error
	"PrepareStmt":   func(tx *gorm.DB) error { return write(tx.Session(&gorm.Session{PrepareStmt: true})) },
	"PrepareStmt, in a transaction": func(tx *gorm.DB) error {
		return tx.Session(&gorm.Session{PrepareStmt: true}).Transaction(write)
	},
	"WithContext": func(tx *gorm.DB) error { return write(tx.WithContext(context.Background())) },
	"NewDB":       func(tx *gorm.DB) error { return write(tx.Session(&gorm.Session{NewDB: true})) },
	"the pool": func(tx *gorm.DB) error {
		_, err := tx.Statement.ConnPool.ExecContext(context.Background(), "INSERT INTO notes VALUES ('bare')")
		return err
	},
	"a statement that it prepares": func(tx *gorm.DB) error {
		s, err := tx.Statement.ConnPool.PrepareContext(context.Background(), "INSERT INTO notes VALUES ('prepared')")
		if err == nil {
			defer s.Close()
			_, err = s.ExecContext(context.Background())
		}
		return err
	},
	"Fence":       func(tx *gorm.DB) error { return lease.Fence(tx) },
	"Transaction": func(tx *gorm.DB) error { return lease.Transaction(tx.Statement.Context, tx, write) },
	"lease.Create": func(tx *gorm.DB) error {
		return lease.Create(context.Background(), tx, lease.Item{Key: "another"})
	},
	"TryAcquire": func(tx *gorm.DB) error {
		_, err := lease.TryAcquire(context.Background(), tx, "another", "A", time.Minute, databasesClock)
		return err
	},
	"Release":      func(tx *gorm.DB) error { return lease.Release(context.Background(), tx, "job", "A", databasesClock) },
	"EnsureSchema": func(tx *gorm.DB) error { return lease.EnsureSchema(lease.Tables(tx, "more_")) },
}

func asksForARow(tx *gorm.DB) error {
	if tx.PrepareStmt { // GORM's Row panics if the statement cannot be prepared
		return tx.Raw("SELECT count(*) FROM notes").Scan(new(int)).Error
	}
	return tx.Raw("SELECT count(*) FROM notes").Row().Scan(new(int))
}

// A scene is a database on which the endings work.
type scene struct {
	*testing.T
	gdb *gorm.DB
	ctx context.Context // with a term in force
	end func(tx *gorm.DB)
}

// everyEnding runs spec for every ending, on every database, with SQLite's two
// kinds of journal, and with and without prepared statements.
func everyEnding(t *testing.T, spec func(s *scene)) {
	for journal, database := range map[string]func(t *testing.T) *dbtest.Database{
		"sqlite with a WAL":              func(t *testing.T) *dbtest.Database { return journaled(t, "WAL") },
		"sqlite with a rollback journal": func(t *testing.T) *dbtest.Database { return journaled(t, "DELETE") },
		"postgres":                       func(t *testing.T) *dbtest.Database { return dbtest.Postgres(t) },
	} {
		t.Run(journal, func(t *testing.T) {
			db := database(t)
			for how, end := range endings[db.Backend] {
				t.Run(how, func(t *testing.T) {
					for name, prepare := range plainAndPrepared {
						t.Run(name, func(t *testing.T) { spec(newScene(t, database(t), prepare, end)) })
					}
				})
			}
		})
	}
}

func journaled(t *testing.T, mode string) *dbtest.Database {
	db := dbtest.SQLite(t)
	db.DSN = strings.Replace(db.DSN, "WAL", mode, 1) + "&_synchronous=OFF" // there is much to commit
	return db
}

var plainAndPrepared = map[string]bool{"plain": false, "PrepareStmt": true}

func newScene(t *testing.T, db *dbtest.Database, prepare bool, end func(tx *gorm.DB)) *scene {
	t.Helper()
	withNotes(t, db)
	gdb := db.Open(t, &gorm.Config{PrepareStmt: prepare})
	pool(t, gdb).SetMaxOpenConns(1) // a transaction that stays open would be noticed
	exec(t, gdb, "CREATE TABLE taken (id integer PRIMARY KEY)")
	exec(t, gdb, "INSERT INTO taken VALUES (1), (3)")
	if db.Backend == dbtest.BackendSQLite {
		exec(t, gdb, "CREATE TABLE strict (id integer PRIMARY KEY ON CONFLICT ROLLBACK)")
		exec(t, gdb, "INSERT INTO strict VALUES (1)")
		exec(t, gdb, "CREATE TRIGGER kept BEFORE DELETE ON taken BEGIN SELECT RAISE(ROLLBACK, 'kept'); END")
	}
	return &scene{T: t, gdb: gdb, ctx: lease.WithTerm(t.Context(), hold(t, gdb, "A")), end: end}
}

// ended checks the error of a transaction that a statement ended, and that it left nothing.
func (s *scene) ended(what string, err error) {
	s.Helper()
	if err == nil || errors.Is(err, lease.ErrLost) || errors.Is(err, lease.ErrInvalid) {
		s.Errorf("%s: the error is %v", what, err)
	}
	if s.gdb.Name() == dbtest.BackendSQLite && err != nil && !strings.Contains(err.Error(), "SQLite ended the transaction") {
		s.Errorf("%s: the error does not say what happened: %v", what, err)
	}
	s.left(what, 0)
}

func (s *scene) left(what string, want int) {
	s.Helper()
	if n := notes(s.T, s.gdb); n != want {
		s.Errorf("%s: %d notes were committed", what, n)
	}
	if n := ask[int](s.T, s.gdb, "SELECT count(*) FROM lease_items WHERE key = 'another'") + ask[int](s.T, s.gdb, "SELECT count(*) FROM leases WHERE name = 'another'"); n > 0 {
		s.Errorf("%s: what the package wrote was committed", what)
	}
	exec(s.T, s.gdb, "DELETE FROM notes")
}

// fails checks that something fails, and not as a loss would.
func (s *scene) fails(what string, err error) {
	s.Helper()
	if err == nil || errors.Is(err, lease.ErrLost) || errors.Is(err, lease.ErrInvalid) {
		s.Errorf("%s: the error is %v", what, err)
	}
}

func TestNothingFollowsAStatementThatEndedAFencedTransaction(t *testing.T) {
	everyEnding(t, func(s *scene) {
		err := lease.Transaction(s.ctx, s.gdb, func(tx *gorm.DB) error {
			must(s.T, write(tx))
			s.end(tx)
			return nil
		})
		s.ended("the commit", err)
		if s.gdb.Name() == dbtest.BackendSQLite && !strings.HasPrefix(err.Error(), `lease: transaction "job": SQLite ended`) {
			s.Errorf("the error does not say whose transaction it was: %v", err)
		}
		for what, later := range laters {
			s.ended(what, lease.Transaction(s.ctx, s.gdb, func(tx *gorm.DB) error {
				must(s.T, write(tx))
				s.end(tx)
				s.fails(what, later(tx))
				s.fails("Exec after "+what, write(tx))
				return nil
			}))
		}
		must(s.T, lease.Transaction(s.ctx, s.gdb, write))
		s.left("a transaction afterwards", 1)
	})
}

func TestNothingFollowsAStatementThatEndedTheCallersTransactionAfterItsFence(t *testing.T) {
	everyEnding(t, func(s *scene) {
		for what, later := range laters {
			s.ended(what, s.gdb.WithContext(s.ctx).Transaction(func(tx *gorm.DB) error {
				must(s.T, write(tx))
				must(s.T, lease.Fence(tx))
				must(s.T, lease.Fence(tx))
				s.end(tx)
				s.fails(what, later(tx))
				s.fails("Exec after "+what, write(tx))
				return nil
			}))
		}
	})
}

func TestAFenceRefusesATransactionThatAStatementHasEnded(t *testing.T) {
	everyEnding(t, func(s *scene) {
		for what, later := range laters {
			s.ended(what, s.gdb.WithContext(s.ctx).Transaction(func(tx *gorm.DB) error {
				early := tx.WithContext(s.ctx)
				must(s.T, write(tx))
				s.end(tx)
				s.fails("the fence before "+what, lease.Fence(tx))
				s.fails(what, later(tx))
				s.fails("a handle from before the fence", write(early))
				return nil
			}))
		}
	})
}

func TestTransactionInATransactionThatAStatementEndedFails(t *testing.T) {
	everyEnding(t, func(s *scene) {
		nothing := func(*gorm.DB) error { return nil }
		for what, steps := range map[string]struct{ before, inside, after func(tx *gorm.DB) error }{
			"before": {before: func(tx *gorm.DB) error { s.end(tx); return nil }, inside: write, after: write},
			"inside": {before: nothing, inside: func(tx *gorm.DB) error { s.end(tx); return nil }, after: write},
			"inside, and it says so": {
				before: nothing, inside: func(tx *gorm.DB) error { s.end(tx); return errors.New("it failed") }, after: write,
			},
			"after": {before: nothing, inside: write, after: func(tx *gorm.DB) error { s.end(tx); return write(tx) }},
		} {
			err := s.gdb.Transaction(func(tx *gorm.DB) error {
				must(s.T, write(tx))
				must(s.T, steps.before(tx))
				err := lease.Transaction(s.ctx, tx, steps.inside)
				if onPostgres := s.gdb.Name() == dbtest.BackendPostgres; (err == nil) != (what == "after") && !onPostgres {
					s.Errorf("%s: Transaction returns %v", what, err)
				}
				if what != "inside, and it says so" || s.gdb.Name() != dbtest.BackendPostgres { // which rolls back to the savepoint, and goes on
					s.fails("Exec, after it ended "+what, steps.after(tx))
				} else {
					return errors.New("SQLite ended the transaction")
				}
				return nil
			})
			s.ended(what, err)
		}
	})
}

func TestAnItemIsNotDoneWithoutItsEffect(t *testing.T) {
	everyEnding(t, func(s *scene) {
		must(s.T, lease.Create(s.ctx, s.gdb, lease.Item{Key: "item", Payload: payload(0)}))
		h, err := lease.Claim(s.ctx, s.gdb, "item", "A", "", time.Minute, nil)
		must(s.T, err)
		done := with(h, 1)
		done.Done = true
		save := func(tx *gorm.DB) error { return h.SaveIn(tx, done) }
		unsaved := func(what string) {
			s.Helper()
			it, _, err := lease.Load(s.ctx, s.gdb, "item")
			if err != nil || it.Done {
				s.Errorf("%s: the item is %+v, %v", what, it, err)
			}
		}
		end := func(tx *gorm.DB) error { s.end(tx); return nil }
		for what, steps := range map[string][]func(tx *gorm.DB) error{
			"the effect, and it is ended before SaveIn":  {write, end, save},
			"the effect, and it is ended after SaveIn":   {write, save, end, write},
			"the effect, a fence, and it is ended":       {write, h.Fence, end, save},
			"it is ended, and the effect follows SaveIn": {end, save, write},
		} {
			s.ended(what, s.gdb.Transaction(func(tx *gorm.DB) error {
				var last error
				for _, step := range steps {
					last = step(tx)
				}
				s.fails("the last of "+what, last)
				return nil
			}))
			unsaved(what)
		}
		must(s.T, h.Run(s.ctx, func(ctx context.Context) error {
			s.ended("in Run's work", lease.Transaction(ctx, s.gdb, func(tx *gorm.DB) error {
				_, _ = write(tx), end(tx)
				s.fails("SaveIn", save(tx))
				return nil
			}))
			unsaved("in Run's work")
			return lease.Transaction(ctx, s.gdb, func(tx *gorm.DB) error { return errors.Join(write(tx), save(tx)) })
		}))
		s.left("one that nothing ended", 1)
		if it, _, err := lease.Load(s.ctx, s.gdb, "item"); err != nil || !it.Done {
			s.Errorf("after it the item is %+v, %v", it, err)
		}
	})
}

func TestASaveFailsIfAHooksStatementEndedItsTransaction(t *testing.T) {
	everyEnding(t, func(s *scene) {
		must(s.T, s.gdb.AutoMigrate(&hooked{}))
		must(s.T, s.gdb.Create(&hooked{ID: 1, Name: "One"}).Error)
		h := claimHooked(s.T, s.gdb, "A")
		it := h.Item()
		it.Name = "Two"
		for _, ending := range []string{"BeforeSave", "BeforeUpdate", "AfterUpdate", "AfterSave"} {
			ctx := hookedBy(s.T, func(name string, _ *hooked, tx *gorm.DB) error {
				clean := tx.Session(&gorm.Session{NewDB: true})
				if name == ending {
					must(s.T, write(clean))
					s.end(clean)
				}
				return nil
			})
			for what, save := range map[string]func() error{
				"Save": func() error { return h.Save(ctx, it) },
				"SaveIn": func() error {
					return s.gdb.Transaction(func(tx *gorm.DB) error {
						_ = h.SaveIn(tx.WithContext(ctx), it)
						return lease.Fence(tx.WithContext(s.ctx))
					})
				},
			} {
				s.fails(what+", ended in "+ending, save())
				s.left(what+", ended in "+ending, 0)
				if name := ask[string](s.T, s.gdb, "SELECT name FROM hookeds"); name != "One" {
					s.Errorf("%s, ended in %s: the name is %q", what, ending, name)
				}
			}
		}
		must(s.T, h.Save(s.ctx, it))
	})
}

// What stays as it was

func TestAStatementThatFailsAloneEndsNoTransactionOnSQLite(t *testing.T) {
	for name, prepare := range plainAndPrepared {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, dbtest.SQLite(t), prepare, nil)
			must(t, lease.Transaction(s.ctx, s.gdb, func(tx *gorm.DB) error {
				must(t, write(tx))
				sends("INSERT INTO taken VALUES (1)", "no SQL")(tx)
				interrupted(slow)(tx)
				if err := tx.Transaction(func(tx *gorm.DB) error { return errors.Join(write(tx), errors.New("it failed")) }); err == nil {
					t.Error("the nested one succeeded")
				}
				return write(tx)
			}))
			s.left("it", 2)
		})
	}
}

func TestAFencedTransactionsHandleIsAsGoodAsAnyOther(t *testing.T) {
	for name, prepare := range plainAndPrepared {
		t.Run(name, func(t *testing.T) {
			dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
				s := newScene(t, db, prepare, nil)
				for what, later := range laters {
					must(t, lease.Transaction(s.ctx, s.gdb, func(tx *gorm.DB) error {
						if err := later(tx); err != nil {
							t.Errorf("%s: %v", what, err)
						}
						return write(tx)
					}))
					exec(t, s.gdb, "DELETE FROM notes")
					exec(t, s.gdb, "DELETE FROM lease_items")
					exec(t, s.gdb, "DELETE FROM leases WHERE name = 'another'")
					exec(t, s.gdb, "DROP TABLE IF EXISTS more_leases")
					exec(t, s.gdb, "DROP TABLE IF EXISTS more_lease_items")
					exec(t, s.gdb, "UPDATE leases SET holder = 'A', expires_at = renewed_at + 60000000")
				}
				must(t, lease.Transaction(s.ctx, s.gdb, func(tx *gorm.DB) error {
					if own, err := tx.DB(); own != pool(t, s.gdb) || err != nil {
						t.Errorf("DB is %v, %v", own, err)
					}
					rows, err := tx.Raw("SELECT id FROM taken ORDER BY id").Rows()
					must(t, err)
					defer rows.Close()
					n := 0
					for ; rows.Next(); n++ {
						if db.Backend == dbtest.BackendSQLite { // one connection of Postgres does one thing at a time
							must(t, write(tx))
						}
					}
					if n != 2 || rows.Err() != nil {
						t.Errorf("%d rows were read while it wrote, %v", n, rows.Err())
					}
					return nil
				}))
			})
		})
	}
}

func TestAFenceKeepsWhatTheLastStatementSays(t *testing.T) {
	s := newScene(t, dbtest.SQLite(t), false, nil)
	must(t, lease.Transaction(s.ctx, s.gdb, func(tx *gorm.DB) error {
		exec(t, tx, "INSERT INTO taken VALUES (7), (8)")
		if n, id := ask[int](t, tx, "SELECT changes()"), ask[int](t, tx, "SELECT last_insert_rowid()"); n != 2 || id != 8 {
			t.Errorf("%d rows changed, the last is %d", n, id)
		}
		return nil
	}))
}

func TestHoweverOftenATransactionIsFencedItAsksOnceForEachStatement(t *testing.T) {
	db := dbtest.SQLite(t)
	withNotes(t, db)
	gdb, spy := spied(t, db)
	ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
	for what, opened := range map[string]*gorm.DB{"": gdb, "with PrepareStmt": gdb.Session(&gorm.Session{PrepareStmt: true})} {
		must(t, lease.Transaction(ctx, opened, func(tx *gorm.DB) error {
			for range 3 {
				must(t, lease.Fence(tx))
			}
			must(t, lease.Transaction(ctx, tx, func(tx *gorm.DB) error {
				must(t, write(tx)) // which prepares it, if need be
				spy.sent()
				return write(tx)
			}))
			asked := 0
			for _, statement := range spy.sent() {
				if statement == "BEGIN" {
					asked++
				}
			}
			if asked != 2 { // for the statement, and when the nested one has ended
				t.Errorf("%s: it asked %d times", what, asked)
			}
			return nil
		}))
	}
}

func TestATransactionThatWasBegunJustNowIsNotAskedBeforeItsFence(t *testing.T) {
	db := dbtest.SQLite(t)
	withNotes(t, db)
	gdb, spy := spied(t, db)
	ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
	spy.sent()
	must(t, lease.Transaction(ctx, gdb, write))
	var verbs []string
	for _, statement := range spy.sent() {
		verb, _, _ := strings.Cut(statement, " ")
		verbs = append(verbs, verb)
	}
	if got := strings.Join(verbs, " "); got != "BEGIN UPDATE BEGIN INSERT BEGIN" { // and COMMIT, which the spy does not see
		t.Errorf("it sent %s", got)
	}
}

func TestATransactionOnPostgresIsNotAsked(t *testing.T) {
	db := dbtest.Postgres(t)
	withNotes(t, db)
	gdb, spy := spied(t, db)
	ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
	spy.sent()
	must(t, lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
		if _, ok := tx.Statement.ConnPool.(gorm.GetDBConnector); ok {
			t.Errorf("the pool is a %T", tx.Statement.ConnPool)
		}
		return write(tx)
	}))
	if sent := spy.sent(); len(sent) != 3 { // BEGIN, the fence, the INSERT
		t.Errorf("it sent %q", sent)
	}
}

func TestAFencedTransactionThatAPanicOrGoexitLeavesIsRolledBack(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		everyWay := map[string]func(){"a panic": func() { panic("on fire") }, "Goexit": runtime.Goexit}
		for name, ends := range endings[db.Backend] {
			for way, leave := range everyWay {
				for _, ended := range []bool{false, true} {
					s := newScene(t, dbOf(t, db.Backend), false, ends)
					var left sync.WaitGroup
					left.Go(func() {
						defer func() { _ = recover() }()
						_ = lease.Transaction(s.ctx, s.gdb, func(tx *gorm.DB) error {
							_ = write(tx)
							if ended {
								s.end(tx)
							}
							leave()
							return nil
						})
					})
					left.Wait()
					s.left(way+" after "+name, 0)
					must(t, lease.Transaction(s.ctx, s.gdb, write))
				}
			}
		}
	})
}

func dbOf(t *testing.T, backend string) *dbtest.Database {
	if backend == dbtest.BackendPostgres {
		return dbtest.Postgres(t)
	}
	return dbtest.SQLite(t)
}

func TestAStatementIsNotSentIfTheTransactionCannotBeAsked(t *testing.T) {
	db := dbtest.SQLite(t)
	withNotes(t, db)
	gdb, spy := spied(t, db)
	ctx := lease.WithTerm(t.Context(), hold(t, gdb, "A"))
	failure := errors.New("out of order")
	for what, later := range laters {
		exec(t, gdb, "DELETE FROM notes")
		must(t, lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
			must(t, write(tx))
			spy.fail = func(query string) error {
				if query == "BEGIN" {
					return failure
				}
				return nil
			}
			if err := later(tx); err == nil {
				t.Errorf("%s: it was sent", what)
			}
			spy.fail = nil
			return write(tx) // which asks again
		}))
		if n := notes(t, gdb); n != 2 {
			t.Errorf("%s: %d notes were committed, not 2", what, n)
		}
	}
	err := lease.Transaction(ctx, gdb, func(tx *gorm.DB) error {
		must(t, write(tx))
		spy.fail = func(string) error { return failure }
		return nil
	})
	spy.fail = nil
	mustBe(t, err, failure)
	if n := notes(t, gdb); n != 2 {
		t.Errorf("%d notes were committed without an answer", n-2)
	}
}

func TestAStatementUnderAContextThatHasEndedSaysSoAndEndsNoTransaction(t *testing.T) {
	s := newScene(t, dbtest.SQLite(t), false, nil)
	must(t, lease.Transaction(s.ctx, s.gdb, func(tx *gorm.DB) error {
		must(t, write(tx))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		mustBe(t, write(tx.WithContext(ctx)), context.Canceled)
		return write(tx)
	}))
	s.left("it", 2)
	ctx, cancel := context.WithCancel(s.ctx)
	err := lease.Transaction(ctx, s.gdb, func(tx *gorm.DB) error {
		must(t, write(tx))
		cancel()
		return write(tx)
	})
	if err == nil || strings.Contains(err.Error(), "SQLite ended") {
		t.Errorf("after the end of its own context: %v", err)
	}
	s.left("one whose context ended", 0)
}

func TestAGoroutineBesideTheOneThatFindsTheEndWritesNothingEither(t *testing.T) {
	s := newScene(t, dbtest.SQLite(t), false, endings[dbtest.BackendSQLite]["INSERT OR ROLLBACK"])
	for range 20 {
		s.ended("side by side", lease.Transaction(s.ctx, s.gdb, func(tx *gorm.DB) error {
			must(t, write(tx))
			s.end(tx)
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() { s.fails("Exec", write(tx)) })
			}
			all.Wait()
			return nil
		}))
	}
}

// The transactions of a plainPool are no gorm.Tx: GORM cannot prepare statements in them.
type plainPool struct{ *sql.DB }

func (p plainPool) BeginTx(ctx context.Context, opts *sql.TxOptions) (gorm.ConnPool, error) {
	tx, err := p.DB.BeginTx(ctx, opts)
	return &plainTx{tx, tx}, err
}

type plainTx struct {
	gorm.ConnPool
	gorm.TxCommitter
}

func TestATransactionOfAnyKindOfPoolIsWatched(t *testing.T) {
	db := dbtest.SQLite(t)
	s := newScene(t, db, false, endings[dbtest.BackendSQLite]["INSERT OR ROLLBACK"])
	plain := through(t, db, plainPool{pool(t, s.gdb)})
	s.ended("it", lease.Transaction(s.ctx, plain, func(tx *gorm.DB) error {
		must(t, write(tx))
		s.end(tx)
		s.fails("Exec", write(tx))
		return nil
	}))
	must(t, lease.Transaction(s.ctx, plain, write))
	s.left("one that nothing ended", 1)
}
