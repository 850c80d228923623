package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// A timeline prints what happens, as it happens.
type timeline struct {
	w       io.Writer
	start   time.Time
	colours bool
}

func newTimeline(stdout *os.File) *timeline {
	return &timeline{w: stdout, start: time.Now(), colours: isTerminal(stdout) && os.Getenv("NO_COLOR") == ""}
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// The codes of a terminal's colours.
const (
	bold  = "1"
	faint = "2"
	red   = "31"
	green = "32"
)

func (t *timeline) paint(code, s string) string {
	if !t.colours || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// paintName gives every worker a colour of its own.
func (t *timeline) paintName(name, text string) string {
	if name == "" {
		return text
	}
	codes := []string{"36", "33", "35", "34", "32"}
	return t.paint(codes[int(name[0]-'A')%len(codes)], text)
}

// title introduces the whole, and the columns.
func (t *timeline) title(format string, args ...any) {
	fmt.Fprintln(t.w, t.paint(bold, fmt.Sprintf(format, args...)))
	fmt.Fprintln(t.w)
	fmt.Fprintln(t.w, t.paint(faint, " elapsed  worker  epoch  event"))
}

// step introduces what the parent does next.
func (t *timeline) step(text string) {
	fmt.Fprintf(t.w, "%s%s\n", strings.Repeat(" ", 24), t.paint(bold, "-- "+text))
}

// line is one event at the time at. An epoch of 0 and an empty name leave their columns empty.
func (t *timeline) line(at time.Time, name string, epoch int64, format string, args ...any) {
	number := ""
	if epoch > 0 {
		number = fmt.Sprint(epoch)
	}
	fmt.Fprintf(t.w, "%7.2fs  %s  %5s  %s\n",
		at.Sub(t.start).Seconds(), t.paintName(name, fmt.Sprintf("%-6s", name)), number, fmt.Sprintf(format, args...))
}

// plain is a line of the report at the end.
func (t *timeline) plain(format string, args ...any) {
	fmt.Fprintf(t.w, format+"\n", args...)
}

// verdict is the last word.
func (t *timeline) verdict(ok bool) {
	if ok {
		t.plain("\n%s", t.paint(green, "PASS"))
		return
	}
	t.plain("\n%s", t.paint(red, "FAIL"))
}

// seconds is how durations are printed.
func seconds(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }
