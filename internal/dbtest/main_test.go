package dbtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func TestTheSummarySaysHowManyRanAndHowToGetMore(t *testing.T) {
	for _, c := range []struct {
		handedOut, skipped int64
		want               string
	}{
		{0, 0, "dbtest: no test asked for Postgres"},
		{3, 0, "dbtest: 3 Postgres databases handed out (from here)"},
		{3, 2, "dbtest: 3 Postgres databases handed out (from here), 2 tests skipped"},
		{0, 2, "dbtest: 2 Postgres tests skipped: " + howToGetPostgres},
	} {
		if got := summary(c.handedOut, c.skipped, "from here"); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// ending is a testing.TB that notes how it was ended.
type ending struct {
	testing.TB
	said string
}

func (e *ending) Helper() {}
func (e *ending) Skipf(f string, a ...any) {
	e.said = "skip: " + fmt.Sprintf(f, a...)
	runtime.Goexit()
}
func (e *ending) Fatalf(f string, a ...any) {
	e.said = "fail: " + fmt.Sprintf(f, a...)
	runtime.Goexit()
}

func TestWithoutPostgresATestIsSkippedUnlessItIsRequired(t *testing.T) {
	for value, want := range map[string]string{
		"":  "skip: dbtest: get one",
		"0": "skip: dbtest: get one",
		"1": "fail: dbtest: LEASE_REQUIRE_POSTGRES=1, but get one",
	} {
		t.Setenv("LEASE_REQUIRE_POSTGRES", value)
		before := skipped.Load()
		e, done := &ending{}, make(chan struct{})
		go func() {
			defer close(done)
			missing(e, "get one")
			e.said = "went on"
		}()
		<-done
		skipped.Store(before)
		if e.said != want {
			t.Errorf("LEASE_REQUIRE_POSTGRES=%q: %q, want %q", value, e.said, want)
		}
	}
}

func TestAServerOfOnesOwnIsUsedAndLeftAsItWas(t *testing.T) {
	db := Postgres(t)
	dsn := "postgres://postgres@" + db.Addr() + "/postgres?sslmode=disable"
	if os.Getenv("LEASE_TEST_POSTGRES") != "" {
		t.Skip("the server may need a password")
	}
	before := databases(t, db)
	for test, databases := range map[string]string{"TestEachBackendGetsAFreshDatabase": "2", "TestAProxysDSNLeadsToTheSameDatabase": "1"} {
		out, err := rerun(test, "LEASE_TEST_POSTGRES="+dsn).CombinedOutput()
		if err != nil || !strings.Contains(string(out), databases+" Postgres databases handed out (from LEASE_TEST_POSTGRES)") {
			t.Fatalf("%s: %v\n%s", test, err, out)
		}
	}
	if after := databases(t, db); !slices.Equal(before, after) {
		t.Fatalf("databases before %q, after %q", before, after)
	}
}

func TestAServerOfOnesOwnThatIsDownFailsTheTest(t *testing.T) {
	out, err := rerun("TestEachBackendGetsAFreshDatabase", "LEASE_TEST_POSTGRES=host=127.0.0.1 port=1 connect_timeout=5").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "(from LEASE_TEST_POSTGRES)") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// rerun runs one test of this binary in a process of its own.
func rerun(test string, env ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

func databases(t *testing.T, db *Database) (names []string) {
	t.Helper()
	if err := db.Open(t).Raw("SELECT datname FROM pg_database ORDER BY datname").Scan(&names).Error; err != nil {
		t.Fatal(err)
	}
	return names
}

func TestComposeIsAskedForAServerOfItsOwn(t *testing.T) {
	db := Postgres(t)
	dir := t.TempDir()
	docker := script(t, dir, `echo "$@" >> `+dir+`/calls
case "$*" in *" port "*) echo `+db.Addr()+`;; esac`)
	dsn, down, err := composeUp(docker)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("LEASE_TEST_POSTGRES") == "" {
		if err := execOn(dsn, "SELECT 1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := down(); err != nil {
		t.Fatal(err)
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	file, err := composeFile()
	if err != nil {
		t.Fatal(err)
	}
	compose := fmt.Sprintf("compose -f %s -p lease-test-%d ", file, os.Getpid())
	want := "info\n" + compose + "up -d --wait\n" + compose + "port postgres 5432\n" + compose + "down -v\n"
	if string(calls) != want {
		t.Fatalf("docker was called with\n%swant\n%s", calls, want)
	}
}

func TestADockerThatDoesNotAnswerIsNone(t *testing.T) {
	for _, docker := range []string{filepath.Join(t.TempDir(), "none"), script(t, t.TempDir(), "exit 1")} {
		if _, _, err := composeUp(docker); err != errNoDocker {
			t.Errorf("%s: %v", docker, err)
		}
	}
}

func TestAComposeThatFailsSaysWhy(t *testing.T) {
	docker := script(t, t.TempDir(), `case "$*" in *" up "*) echo no such image >&2; exit 1;; esac`)
	_, down, err := composeUp(docker)
	if err == nil || !strings.Contains(err.Error(), "no such image") || down == nil {
		t.Fatalf("got %v", err)
	}
}

// script makes a command out of lines of sh.
func script(t *testing.T, dir, lines string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs sh")
	}
	name := filepath.Join(dir, "docker")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+lines+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}
