package stage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
	"gorm.io/gorm/schema"
)

// A Location is the database, and the tables in it, that the processes share.
type Location struct {
	Driver string // "sqlite" or "postgres"
	Source string // may hold a password, so it is never printed
	// Of every table. Each run has its own prefix, so its tables are neither
	// the user's nor another run's.
	Prefix string
}

// String describes the location to people.
func (l Location) String() string {
	if l.Driver == "postgres" {
		return "PostgreSQL, tables " + l.Prefix + "*"
	}
	return "SQLite, a file in a temporary directory"
}

// checkDSN checks a data source. Its error does not repeat the data source.
func checkDSN(dsn string) error {
	if dsn == "" {
		return nil
	}
	if _, err := pgconn.ParseConfig(dsn); err != nil {
		return errors.New("-dsn is not a PostgreSQL connection string or URL, or names a file that cannot be read; without -dsn it is SQLite")
	}
	return nil
}

// choose returns the location for the data source of the command line, and a
// function that removes the location. A PostgreSQL database stays as it is. For
// SQLite, choose makes a directory. The names begin with the program's name.
func choose(program, dsn string) (where Location, remove func() error, err error) {
	prefix := program + "_" + strings.ToLower(rand.Text()[:6]) + "_"
	if dsn != "" {
		return Location{Driver: "postgres", Source: dsn, Prefix: prefix}, func() error { return nil }, nil
	}
	dir, err := os.MkdirTemp("", program+"-")
	if err != nil {
		return Location{}, nil, err
	}
	file := url.URL{
		Scheme:   "file",
		OmitHost: true, // the directory may be relative
		Path:     filepath.ToSlash(filepath.Join(dir, "lease.db")),
		// WAL lets processes read while another process writes. The time-out
		// makes writers wait for each other instead of failing.
		RawQuery: fmt.Sprintf("_journal_mode=WAL&_busy_timeout=%d", busyTimeout.Milliseconds()),
	}
	return Location{Driver: "sqlite", Source: file.String(), Prefix: prefix}, func() error { return os.RemoveAll(dir) }, nil
}

const busyTimeout = 5 * time.Second

// Open connects to the database. The naming strategy adds the prefix to the
// models' tables.
func (l Location) Open(ctx context.Context) (*gorm.DB, error) {
	dialector := sqlite.Open(l.Source)
	if l.Driver == "postgres" {
		dialector = postgres.Open(l.Source)
	}
	db, err := gorm.Open(dialector, &gorm.Config{
		Logger:               logger.Discard, // errors are returned
		NamingStrategy:       schema.NamingStrategy{TablePrefix: l.Prefix},
		DisableAutomaticPing: true,
	})
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	pool, err := db.DB()
	if err == nil {
		err = pool.PingContext(ctx)
	}
	if err != nil {
		closeDB(db)
		return nil, fmt.Errorf("reach the database: %w", err)
	}
	return db, nil
}

// dropAndClose drops the tables. It uses a context of its own, because an
// interrupted demonstration cleans up too.
func (l Location) dropAndClose(db *gorm.DB, tables []any) error {
	defer closeDB(db)
	if l.Driver == "sqlite" {
		return nil // the whole file is removed
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := db.WithContext(ctx).Migrator().DropTable(tables...); err != nil {
		return fmt.Errorf("drop the tables %s*: %w", l.Prefix, err)
	}
	return nil
}

// Locked reports whether a process that was just frozen still locks SQLite's
// file. Then nobody else can write, because SQLite cannot tell a frozen writer
// from a slow one. On SQLite, Locked blocks for up to 250 ms. PostgreSQL locks
// only rows, so Locked returns false at once.
func (l Location) Locked(ctx context.Context, db *gorm.DB) (locked bool, err error) {
	if l.Driver != "sqlite" {
		return false, nil
	}
	pool, err := db.DB()
	if err != nil {
		return false, err
	}
	conn, err := pool.Conn(ctx) // owns the settings and the transaction below
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "PRAGMA busy_timeout = 250"); err != nil {
		return false, err
	}
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		if ctx.Err() != nil {
			return false, err
		}
		locked = true
	} else if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
		return false, err
	}
	_, err = conn.ExecContext(ctx, fmt.Sprintf("PRAGMA busy_timeout = %d", busyTimeout.Milliseconds()))
	return locked, err
}

func closeDB(db *gorm.DB) {
	if pool, err := db.DB(); err == nil {
		_ = pool.Close()
	}
}
