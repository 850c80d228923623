package stage

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// A Timeline prints events as they happen.
type Timeline struct {
	w       io.Writer
	start   time.Time
	actor   string // the heading of the names' column, and its width
	colours bool
}

// NewTimeline makes a Timeline that begins now. It uses colours on a terminal,
// unless NO_COLOR is set. actor is the word for the actors, whose names must
// not be longer than actor.
func NewTimeline(stdout *os.File, actor string) *Timeline {
	return &Timeline{w: stdout, start: time.Now(), actor: actor, colours: isTerminal(stdout) && os.Getenv("NO_COLOR") == ""}
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// Faint paints s as unimportant.
func (t *Timeline) Faint(s string) string { return t.paint("2", s) }

// Red paints s as important.
func (t *Timeline) Red(s string) string { return t.paint("31", s) }

func (t *Timeline) bold(s string) string  { return t.paint("1", s) }
func (t *Timeline) green(s string) string { return t.paint("32", s) }

// paint uses a terminal's colour code.
func (t *Timeline) paint(code, s string) string {
	if !t.colours || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// PaintName paints text in the colour of the named actor: A, B and so on, or
// none.
func (t *Timeline) PaintName(name, text string) string {
	if name == "" {
		return text
	}
	codes := []string{"36", "33", "35", "34", "32"}
	return t.paint(codes[int(name[0]-'A')%len(codes)], text)
}

// Title prints the title, and the headings of the columns.
func (t *Timeline) Title(format string, args ...any) {
	fmt.Fprintln(t.w, t.bold(fmt.Sprintf(format, args...)))
	fmt.Fprintln(t.w)
	fmt.Fprintln(t.w, t.Faint(" elapsed  "+t.actor+"  epoch  event"))
}

// Step prints what the parent does next.
func (t *Timeline) Step(text string) {
	fmt.Fprintf(t.w, "%s%s\n", strings.Repeat(" ", len(t.actor)+18), t.bold("-- "+text))
}

// Line prints an event at the time at. With epoch 0 or an empty name, the
// column stays empty.
func (t *Timeline) Line(at time.Time, name string, epoch int64, format string, args ...any) {
	number := ""
	if epoch > 0 {
		number = fmt.Sprint(epoch)
	}
	fmt.Fprintf(t.w, "%7.2fs  %s  %5s  %s\n",
		at.Sub(t.start).Seconds(), t.PaintName(name, fmt.Sprintf("%-*s", len(t.actor), name)), number, fmt.Sprintf(format, args...))
}

// Plain prints a line of the report at the end.
func (t *Timeline) Plain(format string, args ...any) {
	fmt.Fprintf(t.w, format+"\n", args...)
}

// Verdict prints the result.
func (t *Timeline) Verdict(ok bool) {
	if ok {
		t.Plain("\n%s", t.green("PASS"))
		return
	}
	t.Plain("\n%s", t.Red("FAIL"))
}

// Seconds formats a duration for printing.
func Seconds(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }
