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

// A dialect is everything that differs between databases. Its texts use the
// placeholders of record.go.
type dialect struct {
	name      string
	parameter string // comes before a parameter's number
	clock     string // ?1 or, if ?1 is NULL, the time now, in microseconds since the Unix epoch
	now, from string // one reading of {clock} for a whole statement, and the clause for the reading
	locked    string // like from, for a take, which locks its row first, against fences and other takes
	later     string // the function that returns the later of two times
	durable   string // another column of a SELECT, which makes the statement's commit wait for the disk
	// A text whose evaluation bounds, by the ttl in the row, how long the
	// transaction outlasts a client that is gone. "" where nothing does.
	brief string
	fence string // touches one row and holds off a take until the transaction ends, or touches none
	// Fails in a transaction, and begins a transaction elsewhere. "" if no
	// transaction ends by itself.
	begin string
	// Selects from the catalogue the name, kind and uniqueness of each column
	// of a table, and whether every INSERT must give the column.
	columns string
	// Selects the file behind the database, empty for a database in memory. ""
	// if there is no such thing.
	memory string

	lockedItem string // like locked, for a claim
	skipLocked bool   // a SELECT can lock the first row that nobody else has locked

	kinds map[string]kind // of columns
	quote string          // around names, in DDL
	index string          // begins the DDL of an index
	short string          // ends a transaction soon after its client freezes, "" where nothing does
	alone []string        // makes a transaction the only migration, and impatient for locks

	noTable, contention, readOnly, already func(error) bool

	begun func(error) bool // matches the error of begin in a transaction
}

var dialects = []*dialect{
	{
		name:      "postgres",
		parameter: "$",
		// now() stands still in a transaction.
		clock:  `COALESCE(CAST(?1 AS BIGINT), (extract(epoch from clock_timestamp())*1000000)::bigint)`,
		now:    `lease_c.now`,
		from:   "\nFROM (SELECT {clock} AS now{durable}) AS lease_c",
		locked: lockedSQL,
		later:  `GREATEST`,
		durable: `, set_config('synchronous_commit', CASE current_setting('synchronous_commit')
	WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS durable`,
		// Three settings end the transaction of a client that is gone. A
		// stricter session keeps its limits. Outside Linux the server does not
		// accept the last two.
		// - A client freezes between two statements: after the ttl.
		// - A client dies while a statement runs: after a third of the ttl, on
		//   Postgres 14 or later.
		// - A client freezes, or is cut off, while the server sends it rows:
		//   after the ttl, on Postgres 12 or later, over TCP. A Unix socket has
		//   no such limit: there current_setting is 0, and set_config does
		//   nothing.
		//
		// Postgres shows tcp_user_timeout as plain milliseconds, and the others
		// with a unit. To parse a unit, as an interval, takes longer than all
		// the rest. NULLIF avoids the parsing for 0, which is no limit.
		brief: `set_config('idle_in_transaction_session_timeout', LEAST(
	GREATEST(({expires} - {renewed}) / 1000, 1), 2147483647,
	(extract(epoch from NULLIF(current_setting('idle_in_transaction_session_timeout'), '0')::interval) * 1000)::bigint)::text, true) ||
CASE WHEN version() LIKE '%linux%' AND current_setting('client_connection_check_interval', true) IS NOT NULL THEN
	set_config('client_connection_check_interval', LEAST(
		GREATEST(({expires} - {renewed}) / 3000, 1), 2147483647,
		(extract(epoch from NULLIF(current_setting('client_connection_check_interval', true), '0')::interval) * 1000)::bigint)::text, true) ELSE '' END ||
CASE WHEN version() LIKE '%linux%' AND current_setting('tcp_user_timeout', true) IS NOT NULL THEN
	set_config('tcp_user_timeout', LEAST(
		GREATEST(({expires} - {renewed}) / 1000, 1), 2147483647,
		NULLIF(current_setting('tcp_user_timeout', true), '0')::bigint)::text, true) ELSE '' END`,
		// KEY SHARE lets renewals pass, and blocks a take, because a take locks
		// FOR UPDATE.
		fence: `SELECT {brief} FROM {table} WHERE {key} = ?2 AND {holder} = ?3 AND {epoch} = ?4 AND {expires} > {clock} FOR KEY SHARE`,

		lockedItem: lockedItemSQL,
		skipLocked: true,

		kinds: map[string]kind{
			"name": {"varchar(100)", "text"}, "holder": {"varchar(200)", "text"}, "key": {"varchar(255)", "text"},
			"number": {"bigint", "number"}, "time": {"bigint", "number"}, "flag": {"boolean", "flag"}, "json": {"jsonb", "json"},
		},
		quote: `"`,
		index: `CREATE INDEX {index} ON {space}{bare}`,
		short: `SET LOCAL idle_in_transaction_session_timeout = '1s'`,
		alone: []string{`SET LOCAL lock_timeout = '500ms'`, `SELECT pg_advisory_xact_lock(7811616831022158965)`},
		columns: `SELECT a.attname,
	CASE format_type(a.atttypid, NULL) WHEN 'bigint' THEN 'number' WHEN 'text' THEN 'text' WHEN 'character varying' THEN 'text'
		WHEN 'boolean' THEN 'flag' WHEN 'jsonb' THEN 'json' ELSE format_type(a.atttypid, NULL) END,
	EXISTS (SELECT 1 FROM pg_index AS i
		WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum),
	a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
FROM pg_attribute AS a WHERE a.attrelid = to_regclass('{table}') AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT '', 'queue', false, false FROM pg_index WHERE indrelid = to_regclass('{table}') AND indpred IS NOT NULL`,
		noTable:    states("42P01", "3F000", "42703"), // undefined_table, invalid_schema_name, undefined_column
		contention: states("40001", "40P01", "55P03"), // serialization_failure, deadlock_detected, lock_not_available
		readOnly:   states("25006"),                   // read_only_sql_transaction
		already:    states("42P07", "42701", "23505"), // duplicate_table, _column, unique_violation in the catalogue
	},
	{
		name:      "sqlite",
		parameter: "?",
		// SQLite has only milliseconds. SQLite parses every statement anew, so
		// this text is short.
		clock: `IFNULL(?1, CAST((julianday('now')-2440587.5)*86400000+0.5 AS INTEGER)*1000)`,
		now:   `{clock}`, // stands still during a statement
		later: `max`,
		// Any write takes SQLite's only write lock. A SELECT would fence
		// nothing.
		fence: `UPDATE {table} SET {epoch} = {epoch} WHERE {key} = ?2 AND {holder} = ?3 AND {epoch} = ?4 AND {expires} > {clock}`,
		begin: `BEGIN`,
		kinds: map[string]kind{
			"name": {"text", "text"}, "holder": {"text", "text"}, "key": {"text", "text"},
			"number": {"integer", "number"}, "time": {"bigint", "number"}, "flag": {"numeric", "flag"}, "json": {"text", "text"},
		},
		quote: "`",
		index: `CREATE INDEX {space}{index} ON {bare}`,
		columns: `SELECT name,
	CASE WHEN type LIKE 'bigint' OR type LIKE 'integer' THEN 'number' WHEN type LIKE 'text' OR type LIKE 'varchar%' THEN 'text'
		WHEN type LIKE 'numeric' OR type LIKE 'boolean' THEN 'flag' ELSE type END,
	pk = 1 AND NOT EXISTS (SELECT 1 FROM pragma_table_info({argument}) WHERE pk > 1),
	"notnull" = 1 AND dflt_value IS NULL
FROM pragma_table_info({argument})
UNION ALL SELECT '', 'queue', false, false FROM pragma_index_list({argument}) WHERE partial`,
		memory:     `SELECT file FROM pragma_database_list WHERE name = 'main'`,
		noTable:    says("no such table", "unknown database", "no such column", "has no column named"),
		contention: says("database is locked", "database table is locked", "database schema is locked"),
		readOnly:   says("attempt to write a readonly database"),
		already:    says("already exists", "duplicate column name"),
		begun:      says("cannot start a transaction within a transaction"),
	},
}

func dialectOf(argument, name string) (*dialect, error) {
	i := slices.IndexFunc(dialects, func(d *dialect) bool { return d.name == name })
	if i < 0 {
		var known []string
		for _, d := range dialects {
			known = append(known, d.name)
		}
		return nil, invalid(argument, "is for %q; this package knows %s", name, strings.Join(known, ", "))
	}
	return dialects[i], nil
}

// A kind is a column's type in a database: the type's name in DDL, and its name
// in the catalogue query.
type kind struct{ sql, catalogue string }

// An ownTable is a table of this package. EnsureSchema makes it, or compares it
// with the existing table.
type ownTable struct {
	name    string
	columns []ownColumn // the first is the primary key
	queue   string      // the SQL of the table's index, if it has an index
}

type ownColumn struct {
	name, kind string
	nullable   bool
	fallback   string // the default of the column, "" for none
	later      bool   // a table of an older version may lack the column
}

var ownTables = []ownTable{
	{name: leasesTable, columns: []ownColumn{
		{name: "name", kind: "name"},
		{name: "holder", kind: "holder", fallback: "('')"},
		{name: "epoch", kind: "number", fallback: "(0)", later: true},
		{name: "expires_at", kind: "time", fallback: "(0)"},
		{name: "acquired_at", kind: "time", fallback: "(0)", later: true},
		{name: "renewed_at", kind: "time", fallback: "(0)", later: true},
	}},
	{name: itemsTable, queue: "(COALESCE(claim_acquired_at,0)) WHERE NOT claim_done", columns: []ownColumn{
		{name: "key", kind: "key"},
		{name: "payload", kind: "json"},
		{name: "claim_owner", kind: "holder", fallback: "''"},
		{name: "claim_step_id", kind: "holder", fallback: "''"},
		{name: "claim_epoch", kind: "number", fallback: "0"},
		{name: "claim_revision", kind: "number", fallback: "0"},
		{name: "claim_attempts", kind: "number", fallback: "0"},
		{name: "claim_acquired_at", kind: "time", nullable: true},
		{name: "claim_renewed_at", kind: "time", nullable: true},
		{name: "claim_expires_at", kind: "time", nullable: true},
		{name: "claim_done", kind: "flag", fallback: "false"},
		{name: "created_at", kind: "time", nullable: true},
		{name: "updated_at", kind: "time", nullable: true},
	}},
}

// create returns the DDL of a table.
func (t ownTable) create(d *dialect, prefix string) []string {
	var lines []string
	for _, c := range t.columns {
		lines = append(lines, "\t"+c.definition(d)+",\n")
	}
	key := d.quote + t.columns[0].name + d.quote
	ddl := []string{"CREATE TABLE " + t.quoted(d, prefix) + " (\n" + strings.Join(lines, "") + "\tPRIMARY KEY (" + key + ")\n);\n"}
	if t.queue != "" {
		ddl = append(ddl, t.createQueue(d, prefix))
	}
	return ddl
}

// createQueue returns the DDL of a table's index. The name is at most 63 bytes,
// because Postgres would cut off a longer name.
func (t ownTable) createQueue(d *dialect, prefix string) string {
	name := "idx_" + strings.ReplaceAll(prefix+t.name, ".", "_") + "_claim_queue"
	space, bare, qualified := strings.Cut(t.quoted(d, prefix), ".")
	if qualified {
		space += "."
	} else {
		space, bare = "", space
	}
	named := strings.NewReplacer("{space}", space, "{index}", d.quote+name[:min(len(name), 63)]+d.quote, "{bare}", bare)
	return named.Replace(d.index) + " " + t.queue + ";\n"
}

func (t ownTable) quoted(d *dialect, prefix string) string {
	return d.quote + strings.Replace(prefix+t.name, ".", d.quote+"."+d.quote, 1) + d.quote
}

func (c ownColumn) definition(d *dialect) string {
	definition := d.quote + c.name + d.quote + " " + d.kinds[c.kind].sql
	if !c.nullable {
		definition += " NOT NULL"
	}
	if c.fallback != "" {
		definition += " DEFAULT " + c.fallback
	}
	return definition
}

// DDL returns the statements that [EnsureSchema] runs on an empty database, for
// other migration tools. They make the tables leases and lease_items. With
// [Tables], put the prefix before both tables, and into the name of the index.
// The dialect is "postgres" or "sqlite". Any other dialect is [ErrInvalid].
func DDL(dialect string) (string, error) {
	d, err := dialectOf("dialect", dialect)
	if err != nil {
		return "", wrap("ddl", err)
	}
	var ddl []string
	for _, t := range ownTables {
		ddl = append(ddl, t.create(d, "")...)
	}
	return strings.Join(ddl, ""), nil
}

// ensureFor is how long EnsureSchema tries, while others hold or create a
// table.
const ensureFor = time.Minute

// EnsureSchema makes sure that db has this package's tables, leases and
// lease_items, as this version needs them. It creates a missing table, adds
// what a table of an older version lacks, and takes nothing away. Any number of
// processes may call EnsureSchema at once, on every start. For models of your
// own that embed [Claimable], use GORM's AutoMigrate.
//
// If nothing is missing, EnsureSchema runs no DDL, waits for no lock, and needs
// no right to create. If something is missing and db may not create it, the
// error quotes the DDL for somebody with the right. If a table of the same name
// belongs to someone else, the table stays unchanged, and the error names
// [Tables], the way out.
//
// EnsureSchema blocks until it is done or db's context ends, for a minute at
// most. On Postgres, DDL waits for locks only half a second at a time, because
// every statement that queues behind it, such as a renewal, waits as well. On
// Postgres the server ends the transaction after a second if its client freezes
// or is cut off. In a caller's transaction both limits are left to the caller's
// settings.
//
// The error is [ErrInvalid] for an unusable handle. Any other error is
// described above, or is the database's.
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
	h.mend = ""
	err = h.ensure(ctx, db)
	if h.dialect.noTable(err) {
		err = fmt.Errorf("there is no such schema to put the tables in, and EnsureSchema creates none: %w", err)
	}
	return wrap("ensure schema", err)
}

// ensure adds the missing DDL, and looks again, until nothing is missing.
func (h *handle) ensure(ctx context.Context, db *gorm.DB) error {
	for {
		missing, err := h.missing(ctx)
		if err != nil || len(missing) == 0 {
			return err
		}
		err = h.migrate(ctx, db)
		switch {
		case err == nil:
			continue // look again: the result of missing has the last word
		case h.dialect.noTable(err):
			return err
		case h.inTx:
			return fmt.Errorf("%w; the schema lacks:\n%s", err, strings.Join(missing, ""))
		case !h.dialect.already(err) && !h.dialect.contention(err) && !cutOff(err):
			return fmt.Errorf("%w; somebody who may has to run:\n%s", err, strings.Join(missing, ""))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w, while: %w", context.Cause(ctx), err)
		case <-time.After(100*time.Millisecond + rand.N(200*time.Millisecond)):
		}
	}
}

// missing returns the DDL that the schema lacks.
func (h *handle) missing(ctx context.Context) (ddl []string, err error) {
	for _, t := range ownTables {
		lacks, err := h.inspect(ctx, t)
		if err != nil {
			return nil, err
		}
		ddl = append(ddl, lacks...)
	}
	return ddl, nil
}

// A column is a column of an existing table, as described by the catalogue.
type column struct {
	name     string
	kind     string // "number", "text", "flag", "json", or any other type, and "queue" for a partial index
	unique   bool   // the column is unique by itself
	required bool   // every INSERT must give the column
}

// inspect returns the DDL that a table lacks, or all DDL if there is no table.
// It asks the catalogue for the table that the statements will see, through the
// search path for example. inspect takes no lock and needs no right.
func (h *handle) inspect(ctx context.Context, t ownTable) (lacks []string, err error) {
	d, quoted := h.dialect, t.quoted(h.dialect, h.prefix)
	columns, err := query(ctx, h, func(rows *sql.Rows) (c column, err error) {
		return c, rows.Scan(&c.name, &c.kind, &c.unique, &c.required)
	}, d.text(d.columns, [][2]string{{"{table}", quote(h.prefix + t.name)}, {"{argument}", argument(h.prefix + t.name)}}))
	if err != nil {
		return nil, err
	}
	if len(columns) == 0 {
		return t.create(d, h.prefix), nil
	}
	has := map[string]column{}
	for _, c := range columns {
		has[c.name] = c
	}
	stranger := func(why string) ([]string, error) {
		return nil, fmt.Errorf("the table %s belongs to something else (%s) and stays as it is; Tables(db, prefix) gives this package other tables",
			quoted, why)
	}
	for i, own := range t.columns {
		c, ok := has[own.name]
		delete(has, own.name)
		switch {
		case !ok && own.later:
			lacks = append(lacks, "ALTER TABLE "+quoted+" ADD COLUMN "+own.definition(d)+";\n")
		case !ok:
			return stranger("it has no column " + own.name)
		case i == 0 && !c.unique:
			return stranger("its " + own.name + " is not unique")
		case c.kind != d.kinds[own.kind].catalogue:
			return stranger("its " + own.name + " is of type " + c.kind)
		}
	}
	if _, ok := has[""]; !ok && t.queue != "" {
		lacks = append(lacks, t.createQueue(d, h.prefix))
	}
	for _, other := range has {
		if other.required {
			return stranger("it requires a " + other.name)
		}
	}
	return lacks, nil
}

// argument returns a table's name as the argument of a pragma.
func argument(table string) string {
	if space, bare, qualified := strings.Cut(table, "."); qualified {
		return "'" + bare + "', '" + space + "'"
	}
	return "'" + table + "'"
}

// migrate adds everything missing, in a single transaction, one process at a
// time.
func (h *handle) migrate(ctx context.Context, db *gorm.DB) error {
	if h.inTx {
		return h.add(ctx)
	}
	s := db.Session(&gorm.Session{NewDB: true, Context: ctx, Logger: logger.Discard})
	s.Error, s.Statement.ConnPool = nil, h.pool
	return s.Transaction(func(tx *gorm.DB) error {
		in := *h
		in.pool, in.inTx = tx.Statement.ConnPool, true
		// The DDL's locks hold up every leader. They must not outlive a client
		// that is cut off, so the limit comes first. No other limit is needed:
		// no statement here waits long, or returns much.
		for _, statement := range append([]string{h.dialect.short}, h.dialect.alone...) {
			if statement == "" {
				continue
			}
			if _, err := in.exec(ctx, statement); err != nil {
				return err
			}
		}
		return in.add(ctx)
	})
}

// add runs the DDL that is still missing, because somebody may have been
// faster.
func (h *handle) add(ctx context.Context) error {
	missing, err := h.missing(ctx)
	if err != nil {
		return err
	}
	for _, ddl := range missing {
		if _, err := h.exec(ctx, ddl); err != nil {
			return err
		}
	}
	return nil
}
