package check

import (
	"fmt"

	"github.com/sqllease/lease/internal/torture/history"
)

// fenced checks the writes that replicas committed in fenced transactions, in the order of the commits.
func (c *checker) fenced() {
	told := map[history.Write]history.Event{} // the last that was
	for _, e := range c.Events {
		switch e.Kind {
		case history.Writing, history.Written, history.Refused, history.Failed:
			told[history.Write{Epoch: e.Epoch, Proc: e.Proc, Seq: e.Seq}] = e
		}
	}
	committed := map[history.Write]bool{}
	var highest history.Write // of the highest epoch so far
	for _, w := range c.Writes {
		e, known := told[w]
		switch {
		case !known:
			c.report("fenced", 0, "%s was committed, but %s never tried to", written(w), w.Proc)
		case e.Kind == history.Refused:
			c.report("fenced", e.At, "%s was committed, but %v was told at %s that it was refused", written(w), processOf(e), c.time(e.At))
		case committed[w]:
			c.report("fenced", e.At, "%s was committed twice", written(w))
		}
		committed[w] = true
		if w.Epoch < highest.Epoch {
			c.report("fenced", e.At, "%s was committed after %s", written(w), written(highest))
		} else {
			highest = w
		}
	}
	for _, e := range c.Events {
		if w := (history.Write{Epoch: e.Epoch, Proc: e.Proc, Seq: e.Seq}); e.Kind == history.Written && !committed[w] {
			c.report("fenced", e.At, "%s is missing, but %v was told at %s that it was committed", written(w), processOf(e), c.time(e.At))
		}
	}
}

func written(w history.Write) string {
	return fmt.Sprintf("write %d of %s in term %d", w.Seq, w.Proc, w.Epoch)
}
