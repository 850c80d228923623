package lease

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// A handle is the part of a caller's *gorm.DB that this package uses: the
// primary's connection pool, the dialect and the tables.
//
// A *gorm.DB may carry much else: conditions, a model, a sticky error, hooks, a
// logger, a cache of prepared statements, the default transaction. The package
// leaves all of this behind: fixed SQL on the bare pool is one round trip, and
// means one thing.
type handle struct {
	pool       gorm.ConnPool
	dialect    *dialect
	prefix     string // of the tables
	statements *statements
	timeout    time.Duration // of each attempt of a statement, 0 leaves the limit to the context
	inTx       bool          // pool is the caller's transaction
	mend       string        // what to do about a missing table, for an error
}

// open checks db and finds its parts. It sends no SQL. argument is the caller's
// name for db.
func open(argument string, db *gorm.DB) (*handle, error) {
	switch {
	case db == nil || db.Config == nil || db.Statement == nil || db.Statement.ConnPool == nil:
		return nil, invalid(argument, "is nil, or not opened")
	case db.DryRun:
		return nil, invalid(argument, "is a DryRun session, which carries nothing out")
	}
	d, err := dialectOf(argument, db.Name())
	if err != nil {
		return nil, err
	}
	prefix := prefixOf(db)
	if err := checkPrefix(prefix); err != nil {
		return nil, err
	}
	pool, inTx := primary(d, db, nil)
	s := d.statements(prefix + leasesTable)
	return &handle{pool: pool, dialect: d, prefix: prefix, statements: s, timeout: byHand, inTx: inTx, mend: s.mend}, nil
}

// primary returns the pool to which GORM would send a write of model, or the
// transaction, if db is a transaction.
func primary(d *dialect, db *gorm.DB, model any) (pool gorm.ConnPool, inTx bool) {
	pool = db.Statement.ConnPool
	if _, inTx = pool.(gorm.TxCommitter); inTx {
		pool, _ = d.live(bare(pool))
		return pool, true
	}
	if db.Plugins["gorm:db_resolver"] != nil {
		// The resolver plugin chooses a pool when a statement runs, and sends
		// SELECTs to replicas. A dry run of a write shows the choice.
		dry := db.Session(&gorm.Session{NewDB: true, DryRun: true, Logger: logger.Discard, Context: context.Background()})
		pool = dry.Set("gorm:db_resolver:write", struct{}{}).Model(model).Exec("SELECT 1").Statement.ConnPool
	}
	return bare(pool), false
}

// bare takes caches of prepared statements off a pool. Such a cache gains
// nothing here, and can deadlock with a small pool.
func bare(pool gorm.ConnPool) gorm.ConnPool {
	switch p := pool.(type) {
	case *gorm.PreparedStmtDB:
		return bare(p.ConnPool)
	case *gorm.PreparedStmtTX:
		return bare(p.Tx)
	}
	return pool
}

// Tables returns a handle on db's own pool. With this handle the package uses
// other tables of its own: prefix + "leases" and prefix + "lease_items". Models
// of your own are not affected. The prefix "app_" avoids a table named leases
// that belongs to someone else. The prefix "infra." is a schema of Postgres,
// which must exist. The last call wins, and an empty prefix restores the
// default. Sessions and transactions begun from the result keep its tables.
//
// Tables sends no SQL, and changes nothing about db itself. A prefix that
// cannot be part of a table's name is [ErrInvalid] wherever the result is used.
func Tables(db *gorm.DB, prefix string) *gorm.DB {
	if db == nil || db.Config == nil {
		return db
	}
	s := db.Session(&gorm.Session{})
	// GORM keeps a Config's plugins through every kind of session, even if the
	// session drops a statement's settings.
	s.Plugins = maps.Clone(s.Plugins)
	if s.Plugins == nil {
		s.Plugins = map[string]gorm.Plugin{}
	}
	s.Plugins[tablesPlugin("").Name()] = tablesPlugin(prefix)
	return s
}

// A tablesPlugin carries the prefix of Tables in a gorm.Config.
type tablesPlugin string

func (tablesPlugin) Name() string              { return "lease:tables" }
func (tablesPlugin) Initialize(*gorm.DB) error { return nil }

func prefixOf(db *gorm.DB) string {
	p, _ := db.Plugins[tablesPlugin("").Name()].(tablesPlugin)
	return string(p)
}

// A prefix is plain, because it goes into SQL unchanged. A prefix is short,
// because Postgres cuts off a table name after 63 bytes.
var plainPrefix = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*\.)?[A-Za-z0-9_]{0,50}$`)

func checkPrefix(prefix string) error {
	if prefix != "" && !plainPrefix.MatchString(prefix) || len(prefix) > maxName {
		return invalid("prefix", "%q of Tables must be letters, digits and _, at most 50, after at most a schema and a dot", prefix)
	}
	return nil
}

// exec runs a statement and returns how many rows the statement touched.
func (h *handle) exec(ctx context.Context, query string, args ...any) (rows int64, err error) {
	err = h.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) error {
		result, err := pool.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		rows, err = result.RowsAffected()
		return err
	})
	return rows, err
}

// query runs a SELECT and returns its rows.
func query[T any](ctx context.Context, h *handle, scan func(*sql.Rows) (T, error), query string, args ...any) (found []T, err error) {
	err = h.attempt(ctx, func(ctx context.Context, pool gorm.ConnPool) error {
		found = nil
		rows, err := pool.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			row, err := scan(rows)
			if err != nil {
				return err
			}
			found = append(found, row)
		}
		return rows.Err()
	})
	return found, err
}

// A statement is sent on a pool, or in a transaction.
type statement func(ctx context.Context, pool gorm.ConnPool) error

// attempt runs a statement. It retries as long as only contention stops the
// statement, and ctx lives: such a statement wrote nothing. In a caller's
// transaction attempt runs the statement once, because a failure there spoils
// the statements before.
func (h *handle) attempt(ctx context.Context, s statement) error {
	run := s
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := h.once(ctx, run)
		switch {
		case err == nil:
			return nil
		case h.dialect.noTable(err) && h.mend != "":
			return fmt.Errorf("%s: %w", h.mend, err)
		case h.inTx:
			return err
		case h.dialect.readOnly(err):
			h.discardConnection(ctx)
			return err
		case !h.dialect.contention(err):
			return h.starved(err)
		}
		if serialization(err) {
			run = h.readCommitted(s)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w, while: %w", context.Cause(ctx), err)
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

func (h *handle) once(ctx context.Context, s statement) error {
	if deadline, ok := ctx.Deadline(); h.timeout > 0 && (!ok || time.Until(deadline) > h.timeout) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.timeout)
		defer cancel()
	}
	return s(ctx, h.pool)
}

// starved adds to a timeout error that all connections of the pool are in use,
// if they are.
func (h *handle) starved(err error) error {
	db, ok := h.pool.(*sql.DB)
	if !ok || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if s := db.Stats(); s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections {
		return fmt.Errorf("%w, and all %d connections of the pool are in use", err, s.InUse)
	}
	return err
}

// serialization matches serialization_failure.
var serialization = states("40001")

// readCommitted runs a statement at the level READ COMMITTED, where its own
// guard is enough. At a higher level, serializable neighbours could make the
// statement fail forever. A client that freezes before the commit must not keep
// the row locked.
func (h *handle) readCommitted(s statement) statement {
	return func(ctx context.Context, pool gorm.ConnPool) error {
		beginner, ok := pool.(gorm.TxBeginner)
		if !ok {
			return s(ctx, pool)
		}
		tx, err := beginner.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(ctx, h.dialect.short); err != nil {
			return err
		}
		if err := s(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	}
}

// discardConnection closes the pool's idle connection that was used last. After
// a fail-over this connection leads to a read-only server, and a pool would
// keep the connection forever.
func (h *handle) discardConnection(ctx context.Context) {
	db, ok := h.pool.(*sql.DB)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if conn, err := db.Conn(ctx); err == nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
}

// checkMemory refuses a pool in which every connection opens an empty database
// of its own: SQLite in memory, with several connections and no shared cache.
func (h *handle) checkMemory(ctx context.Context) error {
	pool, ok := h.pool.(*sql.DB)
	if !ok || h.dialect.memory == "" || pool.Stats().MaxOpenConnections == 1 {
		return nil
	}
	files, err := query(ctx, h, func(rows *sql.Rows) (file string, err error) { return file, rows.Scan(&file) }, h.dialect.memory)
	if err != nil || len(files) != 1 || files[0] != "" {
		return err
	}
	// The other connection must see the table that the first connection makes.
	one, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer one.Close()
	other, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer other.Close()
	probe := "lease_probe_" + strconv.FormatUint(rand.Uint64(), 36)
	if _, err := one.ExecContext(ctx, "CREATE TABLE "+probe+" (x)"); err != nil {
		return ignore(err, h.dialect.contention) // contention means that somebody else sees this database too
	}
	defer one.ExecContext(context.WithoutCancel(ctx), "DROP TABLE "+probe)
	err = other.QueryRowContext(ctx, "SELECT 1 FROM "+probe).Scan(new(int))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case h.dialect.noTable(err):
		return invalid("db", "keeps each connection's data in a memory of its own: use a file, cache=shared, or SetMaxOpenConns(1)")
	}
	return ignore(err, h.dialect.contention)
}

// ignore drops an error that matches.
func ignore(err error, matches func(error) bool) error {
	if err != nil && matches(err) {
		return nil
	}
	return err
}

// states matches errors by SQLSTATE, if a driver's errors have the method
// SQLState.
func states(codes ...string) func(error) bool {
	return func(err error) bool {
		var coded interface{ SQLState() string }
		return errors.As(err, &coded) && slices.Contains(codes, coded.SQLState())
	}
}

// says matches errors by their text, for drivers whose errors share no
// interface.
func says(texts ...string) func(error) bool {
	return func(err error) bool {
		return err != nil && slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(err.Error(), text) })
	}
}
