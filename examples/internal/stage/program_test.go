package stage

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gorm.io/gorm"
)

// A Word is what the programs of the tests have a table of.
type Word struct{ ID uint }

// example makes a program that plays as told. Its children tell and end as child does.
func example(play func(context.Context, Run) error) Program {
	return Program{
		Name: "example", Actor: "actor", TTL: 2 * time.Second, MinTTL: 300 * time.Millisecond,
		Open:   func(ctx context.Context, where Location) (*gorm.DB, error) { return where.Open(ctx) },
		Create: func(ctx context.Context, db *gorm.DB) error { return db.WithContext(ctx).AutoMigrate(&Word{}) },
		Tables: func(string) []any { return []any{&Word{}} },
		Child:  child,
		Play:   play,
	}
}

// TestMain makes a child of this program, as Main would.
func TestMain(m *testing.M) {
	if p := example(nil); os.Getenv(p.env()) != "" {
		p.Main()
	}
	os.Exit(m.Run())
}

// child tells its name and its process, and waits until it is asked to stop. By a TTL of 7 s it fails instead.
func child(ctx context.Context, db *gorm.DB, s Settings) error {
	if err := db.WithContext(ctx).Create(&Word{}).Error; err != nil {
		return err
	}
	Tell(line{Text: s.Name, PID: os.Getpid()})
	if s.TTL == 7*time.Second {
		return errors.New("it fails")
	}
	<-ctx.Done()
	Tell(line{Text: "bye"})
	return nil
}

type line struct {
	Text string
	PID  int
}

// perform runs a program in an empty directory for temporary files, and checks that it leaves nothing there.
func perform(t *testing.T, p Program, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	out, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var complaints strings.Builder
	status = p.main(args, out, &complaints)
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("these files are left: %v, %v", files, err)
	}
	printed, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return status, string(printed), complaints.String()
}

func TestBadArgumentsAreRefusedWithoutRepeatingTheDataSource(t *testing.T) {
	p := example(nil)
	for _, args := range []string{"-ttl=0s", "-ttl=-1s", "-ttl=299ms", "-ttl=x", "-nonsense", "stray",
		"-dsn=lease.db", "-dsn=postgres://u:secret@h:port/d"} {
		status, stdout, stderr := perform(t, p, args)
		if status != 2 || stdout != "" || stderr == "" {
			t.Errorf("%s: the exit status is %d, stdout says %q, and stderr %q", args, status, stdout, stderr)
		}
		if strings.Contains(stderr, "secret") {
			t.Errorf("%s: stderr says %q", args, stderr)
		}
	}
	o, err := p.parse([]string{"-ttl", "300ms", "-dsn", "host=localhost dbname=test"}, io.Discard)
	if err != nil || o.ttl != p.MinTTL || o.dsn == "" {
		t.Errorf("good arguments: %v, %v", o, err)
	}
}

func TestHelpNamesTheFlagsOfAllProgramsAndThoseOfThisOne(t *testing.T) {
	p := example(nil)
	p.Flags = func(flags *flag.FlagSet) { flags.Bool("loud", false, "") }
	status, _, stderr := perform(t, p, "-help")
	for _, name := range []string{"-ttl", "-dsn", "-loud"} {
		if status != 0 || !strings.Contains(stderr, name) {
			t.Errorf("the exit status is %d, and the help about %s is %q", status, name, stderr)
		}
	}
}

func TestTheExitStatusTellsWhetherThePlayHeld(t *testing.T) {
	held := example(func(ctx context.Context, run Run) error { return run.DB.WithContext(ctx).Create(&Word{}).Error })
	if status, _, stderr := perform(t, held); status != 0 || stderr != "" {
		t.Errorf("the exit status is %d, and stderr says %q", status, stderr)
	}
	broken := example(func(context.Context, Run) error { return errors.New("it broke") })
	if status, stdout, stderr := perform(t, broken); status != 1 || stdout != "\nFAIL\n" || stderr != "example: it broke\n" {
		t.Errorf("the exit status is %d, stdout says %q, and stderr %q", status, stdout, stderr)
	}
}

func TestScenesEndWithTheFirstThatFails(t *testing.T) {
	var played string
	scene := func(name string, err error) Scene {
		return Scene{Title: name, Play: func(context.Context) error { played += name; return err }}
	}
	p := example(func(ctx context.Context, run Run) error {
		return run.Scenes(ctx, []Scene{scene("a", nil), scene("b", errors.New("it broke")), scene("c", nil)})
	})
	status, stdout, _ := perform(t, p)
	if status != 1 || played != "ab" || !strings.Contains(stdout, "-- b\n") || strings.Contains(stdout, "-- c") {
		t.Errorf("the exit status is %d, %q were played, and stdout says %q", status, played, stdout)
	}
}
