package lease

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestAStandbySeesWhoLeadsAndWritesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.start("A")
		b := c.start("B")
		c.pass(time.Hour)
		if holder, ok := b.Leader(); !ok || holder != "A" {
			t.Errorf("Leader is %q, %v", holder, ok)
		}
		polls := b.store.count("poll")
		if writes := b.store.count("") - polls; writes != 0 {
			t.Errorf("a standby wrote %d times", writes)
		}
		if least, most := int(time.Hour/(T/3)), int(time.Hour/(T/4))+1; polls < least || polls > most {
			t.Errorf("it polled %d times in an hour, not %d to %d times", polls, least, most)
		}
	})
}

func TestFiftyStandbysCostFiftyGoroutines(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.start("A")
		before := runtime.NumGoroutine()
		for range 50 {
			c.start("B")
		}
		c.pass(T / 10)
		if n := runtime.NumGoroutine() - before; n > 55 {
			t.Errorf("%d goroutines", n)
		}
	})
}

func TestManyStandbysSpreadTheirPolls(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.start("A")
		at := map[time.Time]int{}
		for range 50 {
			c.start("B")
		}
		c.pass(10 * T)
		for _, p := range c.replicas[1:] {
			for _, sent := range p.store.sentAt()[1:] {
				at[sent.Truncate(T/100)]++
			}
		}
		for when, n := range at {
			if n > 15 { // 50 electors poll every 29 hundredths of a TTL or so: 1.7 on average
				t.Errorf("%d polls within a hundredth of a TTL, at %v", n, when)
			}
		}
	})
}

func TestStandbysDoNotAllPollAtTheExpiry(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.start("A")
		for i := range 30 {
			c.start(fmt.Sprint(i))
		}
		c.pass(T)
		a.store.cut()
		expiry := c.table.read().ExpiresAt
		c.pass(2 * T)
		at := map[time.Time]int{}
		for _, p := range c.replicas[1:] {
			for _, sent := range p.store.times {
				if d := sent.Sub(expiry); d >= 0 && d < T/32 {
					at[sent.Truncate(T/1000)]++
				}
			}
		}
		for when, n := range at {
			if n > 10 {
				t.Errorf("%d polls %v after the expiry", n, when.Sub(expiry))
			}
		}
	})
}

func TestAStandbyThatIsStoppedReportsNoTrouble(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.start("A")
		b := c.add("B")
		b.store.cut()
		c.run(b, untilCancelled)
		b.stop(nil) // while its first poll is on its way
		<-b.done
		if log := b.log.String(); strings.Contains(log, "trouble") {
			t.Errorf("the log is\n%s", log)
		}
	})
}

func TestRunGoesOnThroughALongOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.inject(func(string) fault { return fault{fail: errors.New("connection refused")} })
		c.run(a, untilCancelled)
		c.pass(5 * T)
		if err := a.Health(); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("Health is %v", err)
		}
		if polls := a.store.count("poll"); polls < 15 || polls > 30 {
			t.Errorf("it tried %d times in 5 TTL", polls)
		}
		if lines := strings.Count(a.log.String(), "\n"); lines < 4 || lines > 6 {
			t.Errorf("%d log lines in 5 TTL:\n%s", lines, a.log)
		}
		a.store.heal()
		c.pass(T/3 + tick)
		c.leads(a)
		if err := a.Health(); err != nil {
			t.Errorf("Health is %v", err)
		}
	})
}

func TestABackOffBeginsAnewAfterAnAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.table.write(Record{Name: "job", Holder: "A", Epoch: 1, RenewedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour)})
		b := c.add("B")
		polls := 0
		b.store.inject(func(string) fault {
			if polls++; polls == 6 {
				return fault{}
			}
			return fault{fail: errRefused}
		})
		c.run(b, untilCancelled)
		c.pass(3 * T)
		if sent := b.store.sentAt(); sent[5].Sub(sent[4]) < T/4 || sent[7].Sub(sent[6]) > T/24 {
			t.Errorf("a pause of %v before the answer, and of %v after the next failure", sent[5].Sub(sent[4]), sent[7].Sub(sent[6]))
		}
	})
}

func TestStatementsThatHungDoNotOutliveTheirTimeouts(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		a := c.add("A")
		a.store.cut()
		c.run(a, untilCancelled)
		c.pass(5 * T)
		a.store.heal()
		c.passUntil(T*3/4, "A leads", a.IsLeader)
	})
}
