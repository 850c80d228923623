package dbtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// adminTimeout bounds a statement that dbtest itself runs on a server.
const adminTimeout = time.Minute

// shared is the server that Postgres creates its databases in.
var shared struct {
	once   sync.Once
	dsn    string
	origin string // for the summary
	err    error
	stop   func() error // nil if there is nothing to take down
}

// errNoPostgres means that none of the sources has a server.
var errNoPostgres = errors.New(howToGetPostgres)

// Postgres returns a fresh database in the test binary's shared server, dropped
// when t ends. Without a server it skips t, or fails it if
// LEASE_REQUIRE_POSTGRES=1.
func Postgres(t testing.TB) *Database {
	t.Helper()
	requireMain(t)
	shared.once.Do(startShared)
	if errors.Is(shared.err, errNoPostgres) {
		missing(t, howToGetPostgres)
	}
	if shared.err != nil {
		t.Fatalf("dbtest: %v", shared.err)
	}
	d, name, err := createDatabase(shared.dsn)
	if err != nil {
		t.Fatalf("dbtest: create a database (%s): %v", shared.origin, err)
	}
	t.Cleanup(func() {
		if err := execOn(shared.dsn, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("dbtest: drop database %s: %v", name, err)
		}
	})
	return d
}

// startShared tries the sources of a server in order.
func startShared() {
	if dsn := os.Getenv("LEASE_TEST_POSTGRES"); dsn != "" {
		shared.origin = "from LEASE_TEST_POSTGRES"
		var err error
		if shared.dsn, err = keywords(dsn); err == nil {
			_, err = pgx.ParseConfig(shared.dsn)
		}
		if err != nil {
			shared.err = fmt.Errorf("LEASE_TEST_POSTGRES: %w", err)
		}
		return
	}
	if bin, ok := findBinaries(); ok {
		c, err := newCluster(bin, "shared", []setting{{"fsync", "off"}}, nil)
		if err == nil {
			err = c.start()
		}
		if err != nil {
			shared.err = err
			return
		}
		shared.dsn, shared.origin = c.dsn(), "from "+bin
		shared.stop = c.remove
		return
	}
	if dsn, down, err := composeUp("docker"); !errors.Is(err, errNoDocker) {
		shared.dsn, shared.origin = dsn, "from docker compose"
		shared.stop, shared.err = down, err
		return
	}
	shared.err = errNoPostgres
}

// origin says where the shared server came from, or that there was none.
func origin() string {
	if shared.origin == "" {
		return "private servers only"
	}
	return shared.origin
}

// takeDown ends the shared server and removes every directory of this test
// binary.
func takeDown() error {
	var err error
	if shared.stop != nil {
		err = shared.stop()
	}
	return errors.Join(err, removeRoot())
}

// createDatabase creates a database on the server behind dsn.
func createDatabase(dsn string) (*Database, string, error) {
	// Only letters and digits, so that it needs no quotes.
	name := "lease_test_" + strings.ToLower(rand.Text()[:16])
	// template0 admits no sessions, so no session can be in the way.
	if err := execOn(dsn, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		return nil, "", err
	}
	handedOut.Add(1)
	return &Database{Backend: BackendPostgres, DSN: withSettings(dsn, setting{"dbname", name})}, name, nil
}

// execOn runs statements on a connection of their own.
func execOn(dsn, statements string) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.PgConn().Exec(ctx, statements).ReadAll()
	return err
}
