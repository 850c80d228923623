package spec

import (
	"testing"

	"gorm.io/gorm"

	"github.com/sqllease/lease"
)

func TestAReleaseFreesTheItemAtOnceAndMayBeRepeated(t *testing.T) {
	everyClock(t, func(t *testing.T, w *world) {
		h := w.claim(t, "A")
		must(t, h.Save(t.Context(), with(h, 1)))
		before := w.load(t)
		must(t, h.Release(t.Context()))
		after := w.load(t)
		if after.Owner != "" || after.StepID != "" || after.Epoch != before.Epoch || after.Revision < before.Revision || after.Done {
			t.Errorf("the release changed\n%s into\n%s", shows(before), shows(after))
		}
		is(t, after, 1)
		row := w.row(t)
		must(t, h.Release(t.Context()))
		mustBe(t, h.Renew(t.Context()), lease.ErrLost)
		mustBe(t, h.Save(t.Context(), with(h, 2)), lease.ErrLost)
		mustBe(t, w.gdb.Transaction(h.Fence), lease.ErrLost)
		mustBe(t, w.gdb.Transaction(func(tx *gorm.DB) error { return h.SaveIn(tx, with(h, 2)) }), lease.ErrLost)
		w.unchanged(t, "a claim that was released", row)
		w.claim(t, "B")
		row = w.row(t)
		must(t, h.Release(t.Context())) // it was, before
		w.unchanged(t, "a repeated release", row)
	})
}
