package stage

import (
	"fmt"
	"strings"
	"testing"
)

func TestALocationIsPrintedWithoutItsSource(t *testing.T) {
	where, _, err := choose("example", "postgres://u:secret@h/d")
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%v %+v", where, Settings{Where: where}); strings.Contains(text, "secret") || !strings.Contains(text, "tables example_") {
		t.Errorf("it says %q", text)
	}
}

func TestAWriteOfAnotherLocksSQLitesFileUntilItsEnd(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	where, _, err := choose("example", "")
	if err != nil {
		t.Fatal(err)
	}
	db, err := where.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closeDB(db)
	if err := db.AutoMigrate(&Word{}); err != nil {
		t.Fatal(err)
	}
	tx := db.Begin()
	if err := tx.Create(&Word{}).Error; err != nil {
		t.Fatal(err)
	}
	if locked, err := where.Locked(t.Context(), db); err != nil || !locked {
		t.Errorf("during the write: %v, %v", locked, err)
	}
	if err := tx.Commit().Error; err != nil {
		t.Fatal(err)
	}
	if locked, err := where.Locked(t.Context(), db); err != nil || locked {
		t.Errorf("after the write: %v, %v", locked, err)
	}
}
