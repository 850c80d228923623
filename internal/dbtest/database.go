package dbtest

import (
	"database/sql"
	"net"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver "pgx"
	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// The values of Database.Backend.
const (
	BackendSQLite   = "sqlite"
	BackendPostgres = "postgres"
)

// Database is one fresh database. It lives as long as the test it was made for.
type Database struct {
	Backend string // BackendSQLite or BackendPostgres
	DSN     string // for gorm's driver of that backend, or for database/sql
}

// Open returns a new handle with a pool of its own, closed when t ends. Its
// logger is silent unless opts set one. It fails t if the database cannot be
// reached; pass &gorm.Config{DisableAutomaticPing: true} to open regardless.
func (d *Database) Open(t testing.TB, opts ...gorm.Option) *gorm.DB {
	t.Helper()
	return d.OpenDSN(t, d.DSN, opts...)
}

// OpenDSN is Open with another DSN of the same backend, such as one made by
// DSNVia.
func (d *Database) OpenDSN(t testing.TB, dsn string, opts ...gorm.Option) *gorm.DB {
	t.Helper()
	dialector := sqlite.Open(dsn)
	if d.Backend == BackendPostgres {
		dialector = postgres.Open(dsn)
	}
	gdb, err := gorm.Open(dialector, append(opts[:len(opts):len(opts)], silence{})...)
	if err != nil {
		t.Fatalf("dbtest: open %s: %v", d.Backend, err)
	}
	pool, err := gdb.DB()
	if err != nil {
		t.Fatalf("dbtest: open %s: %v", d.Backend, err)
	}
	t.Cleanup(func() { pool.Close() })
	return gdb
}

// SQL returns a database/sql pool without gorm, closed when t ends. It connects
// at the first use.
func (d *Database) SQL(t testing.TB) *sql.DB {
	t.Helper()
	driver := "sqlite3"
	if d.Backend == BackendPostgres {
		driver = "pgx"
	}
	pool, err := sql.Open(driver, d.DSN)
	if err != nil {
		t.Fatalf("dbtest: open %s: %v", d.Backend, err)
	}
	t.Cleanup(func() { pool.Close() })
	return pool
}

// Addr returns host:port of the Postgres server, and "" for SQLite.
func (d *Database) Addr() string {
	if d.Backend != BackendPostgres {
		return ""
	}
	config, err := pgx.ParseConfig(d.DSN)
	if err != nil {
		panic("dbtest: " + err.Error()) // the DSN was used before it got here
	}
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}

// DSNVia returns the DSN of the same Postgres database behind another
// host:port, such as a proxy's, with extra parameters of the form "name=value",
// such as "default_transaction_isolation=serializable". An empty addr keeps the
// server's own. It panics on SQLite and on a malformed argument.
func (d *Database) DSNVia(addr string, params ...string) string {
	if d.Backend != BackendPostgres {
		panic("dbtest: DSNVia needs a Postgres database")
	}
	settings, err := hostAndPort(addr)
	if err != nil {
		panic("dbtest: DSNVia: " + err.Error())
	}
	for _, param := range params {
		setting, err := splitSetting(param)
		if err != nil {
			panic("dbtest: DSNVia: " + err.Error())
		}
		settings = append(settings, setting)
	}
	return withSettings(d.DSN, settings...)
}

// silence is a gorm.Option that sets a silent logger where no other is set.
type silence struct{}

func (silence) Apply(c *gorm.Config) error {
	if c.Logger == nil {
		c.Logger = logger.Discard
	}
	return nil
}

func (silence) AfterInitialize(*gorm.DB) error { return nil }
