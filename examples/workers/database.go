package main

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

// A location is the database, and the tables in it, that the workers share.
type location struct {
	Driver string // "sqlite" or "postgres"
	Source string // may hold a password, so it is never printed
	Prefix string // of every table: this run's own, so that it meets neither the user's tables nor another run's
}

// String is for people.
func (l location) String() string {
	if l.Driver == "postgres" {
		return "PostgreSQL, tables " + l.Prefix + "*"
	}
	return "SQLite, a file in a temporary directory"
}

// checkDSN says whether a data source can be used, without repeating it.
func checkDSN(dsn string) error {
	if dsn == "" {
		return nil
	}
	if _, err := pgconn.ParseConfig(dsn); err != nil {
		return errors.New("-dsn is not a PostgreSQL connection string or URL, or names a file that cannot be read; without -dsn it is SQLite")
	}
	return nil
}

// choose returns the location for the data source of the command line, and what removes it again. It leaves a PostgreSQL database
// as it is; for SQLite it makes a directory.
func choose(dsn string) (where location, remove func() error, err error) {
	prefix := "workers_" + strings.ToLower(rand.Text()[:6]) + "_"
	if dsn != "" {
		return location{Driver: "postgres", Source: dsn, Prefix: prefix}, func() error { return nil }, nil
	}
	dir, err := os.MkdirTemp("", "workers-")
	if err != nil {
		return location{}, nil, err
	}
	file := url.URL{
		Scheme:   "file",
		OmitHost: true, // the directory may be a relative one
		Path:     filepath.ToSlash(filepath.Join(dir, "orders.db")),
		// WAL lets workers read while another writes; the time-out makes writers wait for each other instead of failing.
		RawQuery: fmt.Sprintf("_journal_mode=WAL&_busy_timeout=%d", busyTimeout.Milliseconds()),
	}
	return location{Driver: "sqlite", Source: file.String(), Prefix: prefix}, func() error { return os.RemoveAll(dir) }, nil
}

const busyTimeout = 5 * time.Second

// open connects to the database. The naming strategy gives the tables their prefix.
func (l location) open(ctx context.Context) (*gorm.DB, error) {
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

// create makes the tables. A model that embeds lease.Claimable needs no more than this, and no other table.
func (l location) create(ctx context.Context, db *gorm.DB) error {
	if err := db.WithContext(ctx).AutoMigrate(&Order{}, &Invoice{}); err != nil {
		return fmt.Errorf("create the tables: %w", err)
	}
	return nil
}

// dropAndClose takes the tables back. It has its own context: an interrupted demonstration cleans up, too.
func (l location) dropAndClose(db *gorm.DB) error {
	defer closeDB(db)
	if l.Driver == "sqlite" {
		return nil // the whole file goes
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := db.WithContext(ctx).Migrator().DropTable(&Order{}, &Invoice{}); err != nil {
		return fmt.Errorf("drop the tables %s*: %w", l.Prefix, err)
	}
	return nil
}

// locked reports whether a worker that was just frozen still locks SQLite's file. Then nobody could claim anything: SQLite cannot
// tell a frozen writer from a slow one. PostgreSQL completes the statement of a client that froze.
func (l location) locked(ctx context.Context, db *gorm.DB) (locked bool, err error) {
	if l.Driver != "sqlite" {
		return false, nil
	}
	pool, err := db.DB()
	if err != nil {
		return false, err
	}
	conn, err := pool.Conn(ctx) // the settings and the transaction below are this connection's
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
