package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sqllease/lease"
	"github.com/sqllease/lease/internal/torture/history"
)

// A claim identifies one claim of an item.
type claim struct {
	key   string
	epoch int64
}

func (c claim) String() string { return fmt.Sprintf("claim %d of %q", c.epoch, c.key) }

func claimOf(e history.Event) claim { return claim{e.Key, e.Epoch} }

// items checks that nothing is lost of the items.
func (c *checker) items() {
	claimed := map[claim]history.Event{}
	for _, e := range c.Events {
		if e.Kind != history.Claimed {
			continue
		}
		if first, taken := claimed[claimOf(e)]; taken {
			c.report("items", e.At, "%v of %v, at %s, was %v's, at %s", claimOf(e), processOf(e), c.time(e.At), processOf(first), c.time(first.At))
		} else {
			claimed[claimOf(e)] = e
		}
	}
	c.inOrder()
	c.saves(claimed)
	c.ends(claimed)
}

// inOrder checks claims and writes against later claims of the item. Once a
// later claim is known to exist, no earlier claim may be made, and nothing may
// be written through an earlier claim.
//
// The check is exact. A process reports a claim or a write after carrying it
// out. The process sent the statement after its previous report, because a
// worker takes one step after another. (Only the loss of its claim may be
// reported at any time.) So a claim certainly came before the statement if the
// claim was reported before the process's previous report. The order in which
// two processes report claims decides nothing.
func (c *checker) inOrder() {
	told := map[string][]history.Event{} // claims, by key
	last := map[process]history.Event{}
	for _, e := range c.Events {
		before := last[processOf(e)] // with At 0, if there is none
		switch e.Kind {
		case history.Claimed, history.Saved, history.Done:
			latest := e
			for _, other := range told[e.Key] {
				if other.At < before.At && other.Epoch > latest.Epoch {
					latest = other
				}
			}
			if latest.Epoch > e.Epoch {
				c.report("items", e.At, "%v was %s by %v between %s and %s, after %v had been claimed by %v, at %s", claimOf(e), e.Kind, processOf(e),
					c.time(before.At), c.time(e.At), claimOf(latest), processOf(latest), c.time(latest.At))
			}
		}
		switch e.Kind {
		case history.Claimed:
			told[e.Key] = append(told[e.Key], e)
			fallthrough
		case history.Started, history.Saved, history.Unsaved, history.Done, history.Released:
			last[processOf(e)] = e
		}
	}
}

// saves checks the payloads that were committed.
func (c *checker) saves(claimed map[claim]history.Event) {
	committed := map[history.Save]bool{}
	latest := map[string]history.Save{}
	for _, s := range c.Saves {
		by := claim{s.Key, s.Epoch}
		if _, known := claimed[by]; !known && !committed[s] {
			c.report("items", 0, "save %d of %v was committed, but nobody was told of that claim", s.Seq, by)
		}
		committed[s] = true
		before := latest[s.Key]
		if s.Epoch < before.Epoch || s.Epoch == before.Epoch && s.Seq < before.Seq {
			c.report("items", claimed[by].At, "save %d of %v overwrote save %d of claim %d", s.Seq, by, before.Seq, before.Epoch)
			continue
		}
		latest[s.Key] = s
	}
	for _, e := range c.Events {
		s := history.Save{Key: e.Key, Epoch: e.Epoch, Seq: e.Seq}
		switch {
		case e.Kind == history.Saved && !committed[s]:
			c.report("items", e.At, "save %d of %v is missing, but %v was told at %s that it was committed", e.Seq, claimOf(e), processOf(e), c.time(e.At))
		case e.Kind == history.Unsaved && lost(e) && committed[s]:
			c.report("items", e.At, "save %d of %v was committed, but %v was told at %s that the claim was lost", e.Seq, claimOf(e), processOf(e), c.time(e.At))
		}
	}
}

// lost reports whether a save failed because its claim was lost. Then certainly
// nothing was written.
func lost(e history.Event) bool { return strings.Contains(e.Note, lease.ErrLost.Error()) }

// ends compares the final items with the reports about them.
func (c *checker) ends(claimed map[claim]history.Event) {
	items := map[string]history.Item{}
	for _, it := range c.Items {
		items[it.Key] = it
		switch n := len(it.Effects); {
		case n > 1:
			c.report("items", 0, "%q has the effects of %d claims: %v", it.Key, n, it.Effects)
		case n == 0 && it.Done:
			c.report("items", 0, "%q is done, but has no effect", it.Key)
		case n == 1 && it.Done && it.Effects[0] != it.Epoch:
			c.report("items", 0, "%q was ended by claim %d, but its last claim is %d", it.Key, it.Effects[0], it.Epoch)
		}
		if c.Complete && !it.Done {
			c.report("items", 0, "%q is not done; its last claim is %d, its effects are of %v", it.Key, it.Epoch, it.Effects)
		}
		for _, epoch := range it.Effects {
			if _, known := claimed[claim{it.Key, epoch}]; !known {
				c.report("items", 0, "%q has an effect of claim %d, but nobody was told of that claim", it.Key, epoch)
			}
		}
	}
	for _, e := range c.Events {
		if e.Kind != history.Claimed && e.Kind != history.Done {
			continue
		}
		it, exists := items[e.Key]
		switch {
		case !exists && c.Complete:
			c.report("items", e.At, "%q is gone, after %v was told at %s that it was %s", e.Key, processOf(e), c.time(e.At), e.Kind)
		case !exists:
		case e.Epoch > it.Epoch:
			c.report("items", e.At, "%q ended with claim %d, but %v was told at %s that %v was %s", e.Key, it.Epoch, processOf(e), c.time(e.At), claimOf(e), e.Kind)
		case e.Kind == history.Done && !slices.Contains(it.Effects, e.Epoch):
			c.report("items", e.At, "%v has no effect, but %v was told at %s that it was committed", claimOf(e), processOf(e), c.time(e.At))
		}
	}
}
