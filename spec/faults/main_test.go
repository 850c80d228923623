package faults

import (
	"os"
	"testing"

	"github.com/sqllease/lease/internal/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }
