package dbtest

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"
)

func TestAProxysDSNLeadsToTheSameDatabase(t *testing.T) {
	db := Postgres(t)
	dsn := db.DSNVia(db.Addr(), "default_transaction_isolation=serializable", "application_name=it's a \\ test")
	var got []string
	err := db.OpenDSN(t, dsn, &gorm.Config{}).Raw(
		"SELECT unnest(ARRAY[current_setting('default_transaction_isolation'), current_setting('application_name'), current_database()])").
		Scan(&got).Error
	if err != nil {
		t.Fatal(err)
	}
	var name string
	if err := db.SQL(t).QueryRow("SELECT current_database()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	if want := []string{"serializable", `it's a \ test`, name}; !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestSettingsReplaceWhatADSNSays(t *testing.T) {
	for _, dsn := range []string{
		"host=a port=1 user=u password='p w' dbname=d sslmode=disable TimeZone=UTC",
		"postgres://u:p%20w@a:1/d?sslmode=disable&TimeZone=UTC",
		"postgresql://u:p%20w@/?host=a&port=1&database=d&sslmode=disable&TimeZone=UTC",
	} {
		changed, err := withSettings(dsn, setting{"host", "127.0.0.1"}, setting{"port", "2"},
			setting{"dbname", "fresh"}, setting{"lock_timeout", "1 s"})
		if err != nil {
			t.Fatal(err)
		}
		c, err := pgx.ParseConfig(changed)
		if err != nil {
			t.Fatalf("%s: %v", changed, err)
		}
		got := []string{c.Host, c.Database, c.User, c.Password, c.RuntimeParams["lock_timeout"], c.RuntimeParams["TimeZone"]}
		if want := []string{"127.0.0.1", "fresh", "u", "p w", "1 s", "UTC"}; !slices.Equal(got, want) || c.Port != 2 {
			t.Errorf("%s\nbecame %s\n%q port %d, want %q port 2", dsn, changed, got, c.Port, want)
		}
	}
}
