package dbtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"
)

func TestAProxysDSNLeadsToTheSameDatabase(t *testing.T) {
	db := Postgres(t)
	dsn := db.DSNVia(db.Addr(), "default_transaction_isolation=serializable", "application_name=it's a \\ test", "TimeZone=Asia/Tokyo")
	var got []string
	err := db.OpenDSN(t, dsn, &gorm.Config{}).Raw(
		"SELECT unnest(ARRAY[current_setting('default_transaction_isolation'), current_setting('application_name'), current_setting('TimeZone'), current_database()])").
		Scan(&got).Error
	if err != nil {
		t.Fatal(err)
	}
	var name string
	if err := db.SQL(t).QueryRow("SELECT current_database()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	if want := []string{"serializable", `it's a \ test`, "Asia/Tokyo", name}; !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestSettingsReplaceWhatADSNSays(t *testing.T) {
	for _, dsn := range []string{
		"host=a port=1 user=u password='p+ w' dbname=d sslmode=disable TimeZone=UTC",
		"postgres://u:p%2B%20w@a:1/d?sslmode=disable&TimeZone=UTC",
		"postgresql://u:p+%20w@/?host=a&port=1&database=d&sslmode=disable&TimeZone=UTC",
		"postgres://a:1/d?user=u&password=p+%20w&sslmode=disable&TimeZone=UTC",
	} {
		plain, err := keywords(dsn)
		if err != nil {
			t.Fatal(err)
		}
		changed := withSettings(plain, setting{"host", "127.0.0.1"}, setting{"port", "2"},
			setting{"dbname", "fresh"}, setting{"lock_timeout", "1 s"})
		c, err := pgx.ParseConfig(changed)
		if err != nil {
			t.Fatalf("%s: %v", changed, err)
		}
		got := []string{c.Host, c.Database, c.User, c.Password, c.RuntimeParams["lock_timeout"], c.RuntimeParams["TimeZone"]}
		if want := []string{"127.0.0.1", "fresh", "u", "p+ w", "1 s", "UTC"}; !slices.Equal(got, want) || c.Port != 2 {
			t.Errorf("%s\nbecame %s\n%q port %d, want %q port 2", dsn, changed, got, c.Port, want)
		}
	}
}

func TestAURLMeansWhatPgxTakesItFor(t *testing.T) {
	for _, dsn := range []string{
		"postgres://u:it%27s%20%5C@[::1]:5433/d%20e?sslmode=disable&TimeZone=Asia%2FTokyo&application_name=a+b",
		"postgres://u@a:1,b,c:3/d?sslmode=disable",
		"postgres:///d?host=/tmp&port=5433&user=u&sslmode=disable",
	} {
		want, err := pgx.ParseConfig(dsn)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := keywords(dsn)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.ParseConfig(plain)
		if err != nil {
			t.Fatalf("%s: %v", plain, err)
		}
		say := func(c *pgx.ConnConfig) string {
			s := fmt.Sprintf("%s:%d %s %s %s %v", c.Host, c.Port, c.Database, c.User, c.Password, c.RuntimeParams)
			for _, f := range c.Fallbacks {
				s += fmt.Sprintf(", %s:%d", f.Host, f.Port)
			}
			return s
		}
		if say(got) != say(want) {
			t.Errorf("%s\nbecame %s\n%s, not %s", dsn, plain, say(got), say(want))
		}
	}
	if _, err := keywords("postgres://u:secret@a:no/d"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a bad URL: %v", err)
	}
}
