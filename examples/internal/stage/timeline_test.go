package stage

import (
	"strings"
	"testing"
	"time"
)

func TestTheColumnsOfATimelineAreAsWideAsItsActor(t *testing.T) {
	for actor, want := range map[string]string{
		"worker": "Two\nlines\n\n elapsed  worker  epoch  event\n" +
			strings.Repeat(" ", 24) + "-- next\n   1.50s  A           7  works\n   1.50s                 -\n",
		"replica": "Two\nlines\n\n elapsed  replica  epoch  event\n" +
			strings.Repeat(" ", 25) + "-- next\n   1.50s  A            7  works\n   1.50s                  -\n",
	} {
		var b strings.Builder
		out := &Timeline{w: &b, start: time.Now(), actor: actor}
		out.Title("Two\n%s", "lines")
		out.Step("next")
		at := out.start.Add(1500 * time.Millisecond)
		out.Line(at, "A", 7, "%ss", "work")
		out.Line(at, "", 0, "-")
		if b.String() != want {
			t.Errorf("it prints\n%swant\n%s", b.String(), want)
		}
	}
}

func TestColoursAreForTerminals(t *testing.T) {
	for _, out := range []*Timeline{{}, {colours: true}} {
		for _, painted := range []string{out.Red("x"), out.Faint("x"), out.PaintName("B", "x")} {
			if (painted != "x") != out.colours {
				t.Errorf("with colours %v it is %q", out.colours, painted)
			}
		}
		if out.Red("") != "" || out.PaintName("", "x") != "x" {
			t.Error("nothing is painted")
		}
	}
}
