package dbtest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/sqllease/lease/internal/dbtest"
	"github.com/sqllease/lease/internal/faultproxy"
)

func TestAStatementBehindAHungProxyNeverReachesTheServer(t *testing.T) {
	db := dbtest.Postgres(t)
	direct := db.Open(t)
	if err := direct.Exec("CREATE TABLE arrivals (id integer)").Error; err != nil {
		t.Fatal(err)
	}
	proxy := faultproxy.New(t, db.Addr())
	through := db.OpenDSN(t, db.DSNVia(proxy.Addr()))
	proxy.Hang()
	held := proxy.Held()

	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- through.WithContext(ctx).Exec("INSERT INTO arrivals VALUES (1)").Error }()
	if err := proxy.WaitHeld(t.Context(), held+1); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatalf("the statement ended with %v", err)
	}
	proxy.Heal()

	if err := through.Exec("INSERT INTO arrivals VALUES (2)").Error; err != nil {
		t.Fatal(err)
	}
	var ids []int
	if err := direct.Raw("SELECT id FROM arrivals").Scan(&ids).Error; err != nil {
		t.Fatal(err)
	}
	if len(ids) != 1 || ids[0] != 2 {
		t.Fatalf("these arrived: %v", ids)
	}
}
