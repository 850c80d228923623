package spec

import (
	"bytes"
	"fmt"
	"log"
	"strings"
	"sync"
	"testing"

	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

// A lockedBuffer is what GORM's logger writes to.
type lockedBuffer struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (b *lockedBuffer) Printf(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintf(&b.text, format+"\n", args...)
}

// take returns what was written since the last call.
func (b *lockedBuffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return b.text.String()
}

func TestLeasesLogNothingThroughGORM(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		fresh(t, db)
		var lines bytes.Buffer
		noisy := logger.New(log.New(&lines, "", 0), logger.Config{LogLevel: logger.Info, SlowThreshold: 1})
		gdb := db.Open(t, &gorm.Config{Logger: noisy})
		lines.Reset()
		granted(t, gdb, "A", noon)
		for range 100 {
			refused(t, gdb, "B", noon)
		}
		release(t, gdb, "A", noon)
		_, err := lease.Find(t.Context(), gdb, "nobody's")
		mustBe(t, err, gorm.ErrRecordNotFound)
		if lines.Len() > 0 {
			t.Errorf("logged: %s", lines.String())
		}
		exec(t, gdb, "SELECT 1")
		if lines.Len() == 0 {
			t.Error("the logger records nothing, so this test checks nothing")
		}
	})
}

func TestClaimsLogNothingThroughGORM(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		fresh(t, db)
		var lines lockedBuffer
		gdb := db.Open(t, &gorm.Config{Logger: logger.New(&lines, logger.Config{LogLevel: logger.Info, SlowThreshold: 1})})
		lines.take()
		itemsWork(t, gdb)
		_, _, err := lease.Load(t.Context(), gdb, "nothing")
		mustBe(t, err, gorm.ErrRecordNotFound)
		if logged := lines.take(); logged != "" {
			t.Errorf("logged: %s", logged)
		}
		exec(t, gdb, "SELECT 1")
		if lines.take() == "" {
			t.Error("the logger records nothing, so this test checks nothing")
		}
	})
}
