package spec

import (
	osexec "os/exec"
	"strings"
	"testing"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/dbtest"
)

type (
	byTwo struct {
		A int `gorm:"primaryKey"`
		B int `gorm:"primaryKey"`
		lease.Claimable
	}
	byNone struct {
		Name string
		lease.Claimable
	}
	byPointer struct {
		ID uint
		*lease.Claimable
	}
	shadowing struct {
		ID    uint
		Owner string `gorm:"column:claim_owner"`
		lease.Claimable
	}
	shadowingDone struct {
		ID       uint
		Finished int `gorm:"column:claim_done"`
		lease.Claimable
	}
	renaming struct {
		ID              uint
		lease.Claimable `gorm:"embedded;embeddedPrefix:my_"`
	}
	ignoring struct {
		ID              uint
		lease.Claimable `gorm:"-"`
	}
)

func TestAModelThatWillNotDoIsInvalidBeforeAnySQL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb, spy := spied(t, db)
		willNotDo[byTwo](t, gdb)
		willNotDo[byNone](t, gdb)
		willNotDo[byPointer](t, gdb)
		willNotDo[shadowing](t, gdb)
		willNotDo[shadowingDone](t, gdb)
		willNotDo[renaming](t, gdb)
		willNotDo[ignoring](t, gdb)
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
	})
}

type PointedBase struct {
	ID uint
	lease.Claimable
}

type ClaimAlone struct{ lease.Claimable }

type (
	onPointedBase struct {
		*PointedBase
		Text string
	}
	onPointedClaim struct {
		ID uint
		*ClaimAlone
	}
	bySerialized struct {
		ID   int64 `gorm:"primaryKey;autoIncrement:false;serializer:json;type:text"`
		Text string
		lease.Claimable
	}
)

func TestClaimableBehindAPointerOrASerializedKeyIsInvalidBeforeAnySQL(t *testing.T) {
	dbtest.Run(t, func(t *testing.T, db *dbtest.Database) {
		gdb, spy := spied(t, db)
		willNotDo[onPointedBase](t, gdb)
		willNotDo[onPointedClaim](t, gdb)
		willNotDo[bySerialized](t, gdb)
		if sent := spy.sent(); len(sent) > 0 {
			t.Errorf("SQL was sent: %q", sent)
		}
	})
}

func TestAModelThatDoesNotEmbedTheClaimDoesNotCompile(t *testing.T) {
	out, err := osexec.Command("go", "build", "-o", t.TempDir(), "./testdata/unclaimable").CombinedOutput()
	if err == nil {
		t.Fatal("it compiles")
	}
	for _, call := range []string{"main.go:17:", "main.go:18:"} {
		if !strings.Contains(string(out), call) {
			t.Errorf("%s does not fail: %s", call, out)
		}
	}
	if n := strings.Count(string(out), "main.go:"); n != 2 || !strings.Contains(string(out), "missing method claimable") {
		t.Errorf("it fails for another reason: %s", out)
	}
}
