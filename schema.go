package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// A dialect is all that differs between databases. Its texts use what record.go's do.
type dialect struct {
	name      string
	parameter string // what comes before a parameter's number
	clock     string // the time now, in microseconds since the Unix epoch
	now, from string // one reading of {clock} for a whole statement, and what that needs
	locked    string // the same for a take, which locks its row first, against fences and other takes
	durable   string // one more column of a SELECT, which makes the statement's commit wait for the disk
	fence     string // touches one row, and holds a take off until the transaction ends; or touches none
	ddl       string // what the migrator runs on an empty database
	columns   string // the name, type and uniqueness of each column of a table, and whether it must be given, from the catalogue
	memory    string // the file behind the database, empty for one in memory; "" where there is no such thing

	alone []string // makes a transaction the only one that migrates, and impatient for locks
	brief string   // makes a transaction end soon if its client freezes in it

	noTable, contention, readOnly, already func(error) bool
}

var dialects = []*dialect{
	{
		name:      "postgres",
		parameter: "$",
		clock:     `(extract(epoch from clock_timestamp())*1000000)::bigint`, // now() stands still in a transaction
		now:       `c.now`,
		from:      "\nFROM (SELECT {clock} AS now{durable}) AS c",
		locked:    lockedSQL,
		durable: `, set_config('synchronous_commit', CASE current_setting('synchronous_commit')
	WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS durable`,
		// KEY SHARE lets renewals pass, and not a take, which locks FOR UPDATE. A client that freezes in this transaction is cut off after
		// the lease's ttl; one that dies while a statement runs, in a third of it (Postgres 14 or later, on
		// Linux; elsewhere the setting is refused). A stricter session stays so.
		fence: `SELECT set_config('idle_in_transaction_session_timeout', LEAST(
	GREATEST((expires_at - renewed_at) / 1000, 1), 2147483647,
	NULLIF(extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000, 0)::bigint)::text, true),
CASE WHEN version() LIKE '%linux%' AND current_setting('client_connection_check_interval', true) IS NOT NULL THEN
	set_config('client_connection_check_interval', LEAST(
		GREATEST((expires_at - renewed_at) / 3000, 1), 2147483647,
		NULLIF(extract(epoch from current_setting('client_connection_check_interval', true)::interval) * 1000, 0)::bigint)::text, true) END
FROM {table} WHERE name = ?2 AND holder = ?3 AND epoch = ?4 AND expires_at > {clock} FOR KEY SHARE`,
		ddl: `CREATE TABLE "leases" (
	"name" varchar(100) NOT NULL,
	"holder" varchar(200) NOT NULL DEFAULT (''),
	"epoch" bigint NOT NULL DEFAULT (0),
	"expires_at" bigint NOT NULL DEFAULT (0),
	"acquired_at" bigint NOT NULL DEFAULT (0),
	"renewed_at" bigint NOT NULL DEFAULT (0),
	PRIMARY KEY ("name")
);
`,
		brief: `SET LOCAL idle_in_transaction_session_timeout = '2s'`,
		alone: []string{`SET LOCAL lock_timeout = '500ms'`, `SELECT pg_advisory_xact_lock(7811616831022158965)`},
		columns: `SELECT a.attname,
	CASE format_type(a.atttypid, NULL) WHEN 'bigint' THEN 'number' WHEN 'text' THEN 'text' WHEN 'character varying' THEN 'text'
		ELSE format_type(a.atttypid, NULL) END,
	EXISTS (SELECT 1 FROM pg_index AS i
		WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum),
	a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
FROM pg_attribute AS a WHERE a.attrelid = to_regclass('{table}') AND a.attnum > 0 AND NOT a.attisdropped`,
		noTable:    states("42P01", "3F000", "42703"), // undefined_table, invalid_schema_name, undefined_column
		contention: states("40001", "40P01", "55P03"), // serialization_failure, deadlock_detected, lock_not_available
		readOnly:   states("25006"),                   // read_only_sql_transaction
		already:    states("42P07", "42701", "23505"), // duplicate_table, duplicate_column, unique_violation in the catalogue
	},
	{
		name:      "sqlite",
		parameter: "?",
		clock:     `(CAST(ROUND((julianday('now')-2440587.5)*86400000) AS INTEGER)*1000)`, // milliseconds is what it has
		now:       `{clock}`,                                                              // which stands still during a statement
		// Any write takes SQLite's one write lock; a SELECT would fence nothing.
		fence: `UPDATE {table} SET epoch = epoch WHERE name = ?2 AND holder = ?3 AND epoch = ?4 AND expires_at > {clock}`,
		ddl: strings.ReplaceAll(`CREATE TABLE "leases" (
	"name" text NOT NULL,
	"holder" text NOT NULL DEFAULT (''),
	"epoch" integer NOT NULL DEFAULT (0),
	"expires_at" bigint NOT NULL DEFAULT (0),
	"acquired_at" bigint NOT NULL DEFAULT (0),
	"renewed_at" bigint NOT NULL DEFAULT (0),
	PRIMARY KEY ("name")
);
`, `"`, "`"),
		columns: `SELECT name,
	CASE WHEN type LIKE 'bigint' OR type LIKE 'integer' THEN 'number' WHEN type LIKE 'text' OR type LIKE 'varchar%' THEN 'text' ELSE type END,
	pk = 1 AND NOT EXISTS (SELECT 1 FROM pragma_table_info({argument}) WHERE pk > 1),
	"notnull" = 1 AND dflt_value IS NULL
FROM pragma_table_info({argument})`,
		memory:     `SELECT file FROM pragma_database_list WHERE name = 'main'`,
		noTable:    says("no such table", "unknown database", "no such column", "has no column named"),
		contention: says("database is locked", "database table is locked", "database schema is locked"),
		readOnly:   says("attempt to write a readonly database"),
		already:    says("already exists", "duplicate column name"),
	},
}

func dialectOf(argument, name string) (*dialect, error) {
	i := slices.IndexFunc(dialects, func(d *dialect) bool { return d.name == name })
	if i < 0 {
		var known []string
		for _, d := range dialects {
			known = append(known, d.name)
		}
		return nil, invalid(argument, "is a %q database; this package knows %s", name, strings.Join(known, ", "))
	}
	return dialects[i], nil
}

// DDL returns what [EnsureSchema] runs on an empty database, without [Tables], for other migration tools. The dialect is "postgres" or
// "sqlite"; any other is [ErrInvalid].
func DDL(dialect string) (string, error) {
	d, err := dialectOf("dialect", dialect)
	if err != nil {
		return "", wrap("ddl", err)
	}
	return d.ddl, nil
}

// How long EnsureSchema tries, while others hold the table or create it too.
const ensureFor = time.Minute

// EnsureSchema makes sure that db has this package's table, as this version needs it: it creates the table, or adds what a table
// of an older version lacks, and takes nothing away. Any number of processes may call it at once, on every start.
//
// Where nothing is missing it runs no DDL, waits for no lock, and needs no right to create. Where something is missing but may not
// be created, the error quotes the DDL to be run by somebody who may. A table of that name that belongs to someone else stays as
// it is, and the error names [Tables], the way out.
//
// It blocks until it is done or db's context ends, for a minute at most. DDL waits for locks only half a second at a time, since
// whatever queues behind it (a renewal, say) waits as well. In a caller's transaction that is left to its own lock_timeout.
//
// The error is [ErrInvalid] for an unusable handle, else it says what the database said.
func EnsureSchema(db *gorm.DB) error {
	h, err := open("db", db)
	if err != nil {
		return wrap("ensure schema", err)
	}
	ctx := db.Statement.Context
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, ensureFor, errors.New("gave up after "+ensureFor.String()))
	defer cancel()
	if err := h.checkMemory(ctx); err != nil {
		return wrap("ensure schema", err)
	}
	return wrap("ensure schema", h.ensure(ctx, db))
}

// ensure changes what is missing, and looks again, until nothing is.
func (h *handle) ensure(ctx context.Context, db *gorm.DB) error {
	for {
		missing, err := h.inspect(ctx)
		if err != nil || len(missing) == 0 {
			return err
		}
		err = h.migrate(ctx, db, missing)
		switch {
		case err == nil:
			continue // inspect has the last word
		case h.inTx:
			return fmt.Errorf("%w; it lacks:\n%s", err, h.wanted(missing))
		case !h.dialect.already(err) && !h.dialect.contention(err):
			return fmt.Errorf("%w; somebody who may has to run:\n%s", err, h.wanted(missing))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w, while: %w", context.Cause(ctx), err)
		case <-time.After(100*time.Millisecond + rand.N(200*time.Millisecond)):
		}
	}
}

// A column is one of a table that exists, as the catalogue describes it.
type column struct {
	name     string
	kind     string // "number", "text", or any other type
	unique   bool   // by itself
	required bool   // by every INSERT
}

// recordFields is Record, as inspect compares it with a table. The original ones were in every version.
var recordFields = []struct {
	name, column, kind string
	original           bool
}{
	{"Name", "name", "text", true},
	{"Holder", "holder", "text", true},
	{"Epoch", "epoch", "number", false},
	{"ExpiresAt", "expires_at", "number", true},
	{"AcquiredAt", "acquired_at", "number", false},
	{"RenewedAt", "renewed_at", "number", false},
}

// inspect returns the fields of Record that the table lacks, all of them if there is no table. It asks the catalogue for the table that
// the statements will see (through the search path, say), takes no lock and needs no right.
func (h *handle) inspect(ctx context.Context) (missing []string, err error) {
	columns, err := query(ctx, h, func(rows *sql.Rows) (c column, err error) {
		return c, rows.Scan(&c.name, &c.kind, &c.unique, &c.required)
	}, h.statements.columns)
	if err != nil {
		return nil, err
	}
	has := map[string]column{}
	for _, c := range columns {
		has[c.name] = c
	}
	for _, f := range recordFields {
		c, ok := has[f.column]
		delete(has, f.column)
		switch {
		case !ok && len(columns) > 0 && f.original:
			return nil, h.stranger("it has no column " + f.column)
		case !ok:
			missing = append(missing, f.name)
		case f.column == "name" && !c.unique:
			return nil, h.stranger("its name is not unique")
		case c.kind != f.kind:
			return nil, h.stranger("its " + f.column + " is of type " + c.kind)
		}
	}
	for _, other := range has {
		if other.required {
			return nil, h.stranger("it requires a " + other.name)
		}
	}
	return missing, nil
}

func (h *handle) stranger(why string) error {
	return fmt.Errorf("the table %s belongs to something else (%s) and stays as it is; Tables(db, prefix) gives this package other tables",
		h.statements.table, why)
}

// migrate adds what is missing through GORM's migrator, in one transaction, one process at a time.
func (h *handle) migrate(ctx context.Context, db *gorm.DB, missing []string) error {
	s := db.Session(&gorm.Session{NewDB: true, Context: ctx, Logger: logger.Discard})
	s.Error, s.Statement.ConnPool = nil, h.pool
	if h.inTx {
		return h.add(s, missing)
	}
	return s.Transaction(func(tx *gorm.DB) error {
		for _, statement := range h.dialect.alone {
			if err := tx.Exec(statement).Error; err != nil {
				return err
			}
		}
		in := *h
		in.pool, in.inTx = tx.Statement.ConnPool, true
		missing, err := in.inspect(ctx) // somebody may have been faster
		if err != nil || len(missing) == 0 {
			return err
		}
		return h.add(tx, missing)
	})
}

// add makes the table, or some columns of it.
func (h *handle) add(tx *gorm.DB, missing []string) error {
	m := tx.Table(h.statements.name).Migrator()
	if len(missing) == len(recordFields) {
		return m.CreateTable(&Record{})
	}
	for _, field := range missing {
		if err := m.AddColumn(&Record{}, field); err != nil {
			return err
		}
	}
	return nil
}

// wanted is the DDL that migrate would run, out of the dialect's own.
func (h *handle) wanted(missing []string) string {
	create, lines := h.dialect.ddl, strings.Split(h.dialect.ddl, "\n")
	if len(missing) == len(recordFields) {
		return strings.Replace(create, lines[0], "CREATE TABLE "+h.statements.table+" (", 1)
	}
	var b strings.Builder
	for i, f := range recordFields {
		if slices.Contains(missing, f.name) {
			fmt.Fprintf(&b, "ALTER TABLE %s ADD COLUMN %s;\n", h.statements.table, strings.Trim(lines[i+1], "\t,"))
		}
	}
	return b.String()
}
