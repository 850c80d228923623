package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/faultproxy"
	"github.com/sqllease/lease/internal/torture/history"
)

// A database is the database that all processes share.
type database struct {
	backend string
	dsn     string           // the conductor's, past all proxies
	db      *gorm.DB         // the conductor's
	server  *dbtest.Server   // the conductor's own Postgres, or nil
	where   *dbtest.Database // nil for SQLite and with -dsn
	clock   bool             // the server's clock can be stepped
}

// openBackend makes an empty database.
func openBackend(ctx context.Context, t testing.TB, o options, dir string) *database {
	d := &database{backend: o.backend, dsn: o.dsn}
	switch {
	case o.backend == "sqlite":
		d.dsn = filepath.Join(dir, "torture.db") + "?_journal_mode=WAL&_busy_timeout=1000&_synchronous=NORMAL"
	case o.dsn == "":
		options := []dbtest.Option{dbtest.WithSetting("wal_level", "logical"), dbtest.WithSetting("max_wal_size", "4GB")}
		if d.clock = dbtest.HasFakeClock(); d.clock {
			options = append(options, dbtest.WithFakeClock())
		}
		d.server = dbtest.NewServer(t, options...)
		d.where = d.server.Database(t)
		d.dsn = d.where.DSN
	}
	var err error
	if d.db, err = openDatabase(d.backend, d.dsn); err != nil {
		t.Fatalf("open the database: %v", err)
	}
	t.Cleanup(func() {
		if pool, err := d.db.DB(); err == nil {
			pool.Close()
		}
	})
	if o.dsn != "" {
		d.borrow(ctx, t)
	}
	if err := d.create(ctx); err != nil {
		t.Fatalf("prepare the database: %v", err)
	}
	return d
}

// borrow checks that somebody else's database has none of this program's
// tables. At the end, borrow removes the program's tables and its replication
// slot.
func (d *database) borrow(ctx context.Context, t testing.TB) {
	tables := []string{"leases", "lease_items", "torture_writes", "torture_effects", "torture_trips"}
	for _, table := range tables {
		if d.db.WithContext(ctx).Migrator().HasTable(table) {
			t.Fatalf("the database of -dsn has a table %s already: give it one without", table)
		}
	}
	t.Cleanup(func() {
		err := d.db.Exec("SELECT pg_drop_replication_slot('torture') FROM pg_replication_slots WHERE slot_name = 'torture'").Error
		for _, table := range tables {
			err = errors.Join(err, d.db.Exec("DROP TABLE IF EXISTS "+table).Error)
		}
		if err != nil {
			t.Errorf("clean up the database of -dsn: %v", err)
		}
	})
}

func (d *database) create(ctx context.Context) error {
	db := d.db.WithContext(ctx)
	if err := lease.EnsureSchema(db); err != nil {
		return err
	}
	script := []string{
		"CREATE TABLE torture_writes (id INTEGER PRIMARY KEY AUTOINCREMENT, epoch BIGINT, proc TEXT, seq BIGINT, part BIGINT, began BIGINT, expires BIGINT)",
		"CREATE TABLE torture_leases (id INTEGER PRIMARY KEY AUTOINCREMENT, epoch BIGINT, holder TEXT, renewed BIGINT, expires BIGINT)",
		// A fence writes the row unchanged. Such writes are not recorded.
		`CREATE TRIGGER torture_lease AFTER UPDATE ON leases
WHEN new.name = '` + theLease + `' AND (new.epoch, new.holder, new.renewed_at, new.expires_at) <> (old.epoch, old.holder, old.renewed_at, old.expires_at)
BEGIN INSERT INTO torture_leases (epoch, holder, renewed, expires) VALUES (new.epoch, new.holder, new.renewed_at, new.expires_at); END`,
		"CREATE TABLE torture_effects (item TEXT, epoch BIGINT)",
		"CREATE TABLE torture_saves (id INTEGER PRIMARY KEY AUTOINCREMENT, item TEXT, payload TEXT)",
		"CREATE TRIGGER torture_save AFTER UPDATE OF payload ON lease_items BEGIN INSERT INTO torture_saves (item, payload) VALUES (new.key, new.payload); END",
	}
	if d.backend == "postgres" {
		script = []string{
			"CREATE TABLE torture_writes (epoch BIGINT, proc TEXT, seq BIGINT, part BIGINT, began BIGINT, expires BIGINT)",
			"CREATE TABLE torture_effects (item TEXT, epoch BIGINT)",
			"SELECT pg_create_logical_replication_slot('torture', 'test_decoding')",
		}
	}
	script = append(script, "CREATE TABLE torture_trips (id INTEGER PRIMARY KEY)", "INSERT INTO torture_trips (id) VALUES (1)")
	for _, statement := range script {
		if err := db.Exec(statement).Error; err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// via returns the DSN of a child, through the child's proxy if there is a
// proxy.
func (d *database) via(p *faultproxy.Proxy) string {
	if p == nil {
		return d.dsn
	}
	return d.where.DSNVia(p.Addr())
}

// direct returns the DSN of a child past its proxy, over TCP where there is a
// choice.
func (d *database) direct() string {
	if !proxied(d) {
		return d.dsn
	}
	return d.where.DSNVia(d.where.Addr())
}

// leader returns the holder of the lease, or "".
func (d *database) leader(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	s, err := lease.Find(ctx, d.db, theLease)
	if err != nil || !s.Held {
		return ""
	}
	return s.Holder
}

// renewal waits for the next renewal, for up to two seconds, and reports
// whether the renewal came.
func (d *database) renewal(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	before, err := lease.Find(ctx, d.db, theLease)
	for ; err == nil; pause(ctx, 2*time.Millisecond) {
		var now lease.Status
		now, err = lease.Find(ctx, d.db, theLease)
		if err == nil && now.RenewedAt != before.RenewedAt {
			return now.Epoch == before.Epoch
		}
	}
	return false
}

// lock keeps everyone from the lease while wait runs: by a row lock of another
// session, or by SQLite's file lock. In the end lock rolls back, or commits the
// row unchanged.
func (d *database) lock(ctx context.Context, commit bool, wait func()) error {
	statement := "UPDATE leases SET epoch = epoch WHERE name = ?" // takes either lock
	err := d.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec(statement, theLease).Error; err != nil {
			return err
		}
		wait()
		if commit {
			return nil
		}
		return errRollBack
	})
	if errors.Is(err, errRollBack) {
		return nil
	}
	return err
}

var errRollBack = errors.New("roll back")

// produce adds items until wanted items are not done. It counts the added items
// in made.
func (d *database) produce(ctx context.Context, wanted int, made *int) error {
	open, err := d.undone(ctx)
	for ; err == nil && open < wanted; open++ {
		err = lease.Create(ctx, d.db, lease.Item{Key: fmt.Sprintf("item-%05d", *made)})
		// A duplicate is an item whose reply was lost.
		if err == nil || errors.Is(err, gorm.ErrDuplicatedKey) {
			*made++
			err = nil
		}
	}
	return err
}

func (d *database) undone(ctx context.Context) (int, error) {
	var n int64
	err := d.db.WithContext(ctx).Model(&lease.Item{}).Where("NOT claim_done").Count(&n).Error
	return int(n), err
}

// collect reads the committed data.
func (d *database) collect(ctx context.Context, r *history.Run) error {
	db := d.db.WithContext(ctx)
	var items []lease.Item
	if err := db.Order("key").Find(&items).Error; err != nil {
		return err
	}
	effects := map[string][]int64{}
	rows, err := db.Raw("SELECT item, epoch FROM torture_effects").Rows()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var key string
		var epoch int64
		if err := rows.Scan(&key, &epoch); err != nil {
			return err
		}
		effects[key] = append(effects[key], epoch)
	}
	for _, it := range items {
		r.Items = append(r.Items, history.Item{Key: it.Key, Done: it.Done, Epoch: it.Epoch, Effects: effects[it.Key]})
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if d.backend == "sqlite" {
		return collectSQLite(db, r)
	}
	return collectPostgres(db, r)
}

// collectSQLite reads the writes in the order of the commits. SQLite has one
// writer at a time, and numbers the rows.
func collectSQLite(db *gorm.DB, r *history.Run) error {
	if err := db.Raw("SELECT epoch, proc, seq, part, began, expires FROM torture_writes ORDER BY id").Scan(&r.Writes).Error; err != nil {
		return err
	}
	if err := db.Raw("SELECT epoch, holder, renewed, expires FROM torture_leases ORDER BY id").Scan(&r.Versions).Error; err != nil {
		return err
	}
	rows, err := db.Raw("SELECT item, json_extract(payload, '$.epoch'), json_extract(payload, '$.seq') FROM torture_saves WHERE payload <> 'null' ORDER BY id").Rows()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var s history.Save
		if err := rows.Scan(&s.Key, &s.Epoch, &s.Seq); err != nil {
			return err
		}
		r.Saves = append(r.Saves, s)
	}
	return rows.Err()
}

// The form of a row in the output of the plug-in test_decoding.
var (
	decodedWrite = regexp.MustCompile(`^table public\.torture_writes: INSERT: epoch\[bigint\]:(\d+) proc\[text\]:'(\w+)' seq\[bigint\]:(\d+) part\[bigint\]:(\d+) ` +
		`began\[bigint\]:(\d+) expires\[bigint\]:(\d+)$`)
	decodedLease = regexp.MustCompile(`^table public\.leases: UPDATE: name\[character varying\]:'` + theLease + `' holder\[character varying\]:'(\w*)' ` +
		`epoch\[bigint\]:(\d+) expires_at\[bigint\]:(\d+) acquired_at\[bigint\]:\d+ renewed_at\[bigint\]:(\d+)$`)
	decodedSave = regexp.MustCompile(`^table public\.lease_items: UPDATE: key\[character varying\]:'([\w-]+)' payload\[jsonb\]:'\{"seq": (\d+), "epoch": (\d+)\}'`)
)

// collectPostgres reads the writes in the order of the commits, from the
// write-ahead log.
func collectPostgres(db *gorm.DB, r *history.Run) error {
	rows, err := db.Raw(`SELECT data FROM pg_logical_slot_get_changes('torture', NULL, NULL)
WHERE data LIKE 'table public.torture_writes: INSERT%' OR data LIKE 'table public.lease_items: UPDATE%'
OR data LIKE 'table public.leases: UPDATE: name[character varying]:''` + theLease + `''%'`).Rows()
	if err != nil {
		return err
	}
	defer rows.Close()
	number := func(s string) int64 {
		n, _ := strconv.ParseInt(s, 10, 64) // never fails for \d+
		return n
	}
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return err
		}
		if m := decodedWrite.FindStringSubmatch(line); m != nil {
			r.Writes = append(r.Writes, history.Write{Epoch: number(m[1]), Proc: m[2], Seq: number(m[3]), Part: int(number(m[4])),
				Began: number(m[5]), Expires: number(m[6])})
		} else if m := decodedLease.FindStringSubmatch(line); m != nil {
			r.Versions = append(r.Versions, history.Version{Holder: m[1], Epoch: number(m[2]), Expires: number(m[3]), Renewed: number(m[4])})
		} else if m := decodedSave.FindStringSubmatch(line); m != nil {
			r.Saves = append(r.Saves, history.Save{Key: m[1], Epoch: number(m[3]), Seq: number(m[2])})
		} else if !strings.Contains(line, "payload[jsonb]:'null'") {
			return fmt.Errorf("cannot read %q", line)
		}
	}
	return rows.Err()
}
