package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/examples/internal/stage"
	"gorm.io/gorm"
)

// A Tick is one write of a leader.
type Tick struct {
	// One more than the highest committed position. The primary key refuses two
	// writers at the same position, so the positions follow the order of the
	// commits. An auto-increment would follow the order of the inserts.
	Position  int64 `gorm:"primaryKey;autoIncrement:false"`
	Replica   string
	Epoch     int64
	Sequence  int64 // rises within the term
	WrittenAt int64 // microseconds since 1970, by the wall clock that all replicas share here
}

// appendTick writes t after all other ticks, in the transaction tx.
func appendTick(tx *gorm.DB, t Tick) error {
	if err := tx.Model(&Tick{}).Select("COALESCE(MAX(position), 0) + 1").Scan(&t.Position).Error; err != nil {
		return err
	}
	t.WrittenAt = time.Now().UnixMicro()
	return tx.Create(&t).Error
}

// allTicks reads the ticks in the order of their commits.
func allTicks(ctx context.Context, db *gorm.DB) ([]Tick, error) {
	var ticks []Tick
	err := db.WithContext(ctx).Order("position").Find(&ticks).Error
	return ticks, err
}

// open connects to the database. lease.Tables gives the prefix to the package's
// own tables, and the naming strategy to the table of ticks.
func open(ctx context.Context, where stage.Location) (*gorm.DB, error) {
	db, err := where.Open(ctx)
	if err != nil {
		return nil, err
	}
	return lease.Tables(db, where.Prefix), nil
}

// create makes the tables.
func create(ctx context.Context, db *gorm.DB) error {
	if err := lease.EnsureSchema(db.WithContext(ctx)); err != nil {
		return err
	}
	if err := db.WithContext(ctx).AutoMigrate(&Tick{}); err != nil {
		return fmt.Errorf("create the table of ticks: %w", err)
	}
	return nil
}

// tables lists the tables that create makes.
func tables(prefix string) []any {
	return []any{&Tick{}, prefix + "leases", prefix + "lease_items"}
}
