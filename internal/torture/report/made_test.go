package report

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sqllease/lease/internal/torture/history"
)

const (
	ms     = int64(time.Millisecond)
	second = int64(time.Second)
	origin = 5000 * second // the machine has been up for a while
)

// A maker makes up a history. at sets the maker's clock.
type maker struct {
	run  history.Run
	now  int64
	seqs int64
	life map[string]int
}

func newMaker(ttl time.Duration, replicas int) *maker {
	m := &maker{run: history.Run{Seed: 4711, TTL: ttl, Complete: true}, now: origin, life: map[string]int{}}
	for i := range replicas {
		m.started(fmt.Sprintf("r%d", i+1))
	}
	return m
}

// at sets the clock, in milliseconds since the start.
func (m *maker) at(t int64) *maker {
	m.now = origin + t*ms
	return m
}

func (m *maker) add(e history.Event) *maker {
	e.At = m.now
	if e.Proc == "" {
		e.Proc = "conductor"
	}
	if e.Life == 0 {
		e.Life = max(1, m.life[e.Proc])
	}
	m.run.Events = append(m.run.Events, e)
	return m
}

func (m *maker) started(proc string) *maker {
	m.life[proc]++
	return m.add(history.Event{Proc: proc, Kind: history.Started})
}

func (m *maker) exited(proc, how string) *maker {
	return m.add(history.Event{Proc: proc, Kind: history.Exited, Note: how})
}

func (m *maker) of(proc string, kind history.Kind, epoch int64) *maker {
	return m.add(history.Event{Proc: proc, Kind: kind, Epoch: epoch})
}

// trusts records a Begin or an Extend. Its statement was sent just now.
func (m *maker) trusts(proc string, kind history.Kind, epoch int64) *maker {
	return m.add(history.Event{Proc: proc, Kind: kind, Epoch: epoch, Until: m.now + int64(m.run.TTL-m.run.TTL/3)})
}

// leads adds a term from its beginning to its last renewal.
func (m *maker) leads(proc string, epoch, from, renewed int64) *maker {
	m.at(from).trusts(proc, history.Begin, epoch).of(proc, history.WorkBegin, epoch)
	for t := from; t < renewed; {
		t = min(t+m.run.TTL.Milliseconds()/3, renewed)
		m.at(t).trusts(proc, history.Extend, epoch)
		m.run.Writes = append(m.run.Writes, history.Write{Epoch: epoch, Proc: proc, Seq: t})
	}
	return m
}

// ends adds the end of a term, and the end of its work some time later.
func (m *maker) ends(proc string, epoch, at, overrun int64, cause string) *maker {
	m.at(at).of(proc, history.End, epoch)
	return m.at(at + overrun).add(history.Event{Proc: proc, Kind: history.WorkEnd, Epoch: epoch, Note: cause})
}

// fault adds a fault between two instants. If from equals to, the fault has no
// end.
func (m *maker) fault(name, target string, from, to int64, blocks bool) *maker {
	m.seqs++
	m.at(from).add(history.Event{Kind: history.Fault, Seq: m.seqs, Name: name, Target: target, Blocks: blocks})
	if to > from {
		m.at(to).add(history.Event{Kind: history.FaultEnd, Seq: m.seqs, Name: name, Target: target})
	}
	return m
}

// aScene has an example of everything: a leader is killed, frozen, resigns, is
// cut off, loses the database, and is stopped.
func aScene() *maker {
	m := newMaker(2*time.Second, 3)
	m.leads("r1", 1, 200, 3200)
	m.fault("kill", "r1", 3500, 3500, false).at(3510).exited("r1", "killed")
	m.leads("r2", 2, 5300, 9000)
	m.at(7500).started("r1")
	m.fault("freeze", "r2", 9300, 14000, false).ends("r2", 2, 14010, 30, "lease lost")
	m.at(14020).of("r2", history.Refused, 2)
	m.leads("r3", 3, 11100, 16000).ends("r3", 3, 16200, 10, "lease resigned")
	m.fault("resign", "r3", 16190, 16190, false)
	m.leads("r1", 4, 16500, 20000)
	m.fault("overrun", "r1", 19000, 23400, false)
	m.fault("hang", "r1", 20100, 24000, false).ends("r1", 4, 21334, 2000, "lease lost")
	for t := int64(21400); t < 23300; t += 90 {
		m.at(t).of("r1", history.Refused, 4)
	}
	m.leads("r2", 5, 22100, 25800)
	m.fault("clock", "r3", 23000, 29000, false)
	m.fault("db-stop", "database", 26000, 29500, true).ends("r2", 5, 27134, 20, "lease lost")
	m.leads("r3", 6, 29900, 34000)
	m.fault("delay-replies", "r2", 32000, 35000, false)
	m.fault("stop", "r3", 34200, 34200, false).ends("r3", 6, 34250, 0, "terminated signal received").at(34300).exited("r3", "exit status 0")
	m.leads("r1", 7, 34800, 39500)
	m.at(37000).started("r3")
	m.fault("kill", "w2", 36000, 36000, false)
	m.at(36100).of("w1", history.Claimed, 1).of("w1", history.Saved, 1).of("w1", history.Done, 1)
	m.add(history.Event{Proc: "w1", Kind: history.Released, Note: "done"})
	m.at(38000).of("w2", history.Claimed, 1).add(history.Event{Proc: "w2", Kind: history.Lost})
	m.at(39000).of("w1", history.Claimed, 2).add(history.Event{Proc: "w1", Kind: history.Released, Note: "handed on"})
	m.run.Items = []history.Item{{Key: "a", Done: true, Epoch: 1, Effects: []int64{1}}, {Key: "b", Epoch: 2}}
	m.at(40000).of("r1", history.Written, 7)
	return m
}

// aLongRun makes a random run. One term follows another. A fault ends each
// term, and other faults do not matter.
func aLongRun(length time.Duration, replicas int, ttl time.Duration, seed uint64) *maker {
	m := newMaker(ttl, replicas)
	random := rand.New(rand.NewPCG(seed, 0))
	T, pick := ttl.Milliseconds(), func(names ...string) string { return names[random.IntN(len(names))] }
	busy := map[string]int64{} // until when, by replica
	leader, now := "", int64(100)
	for epoch := int64(1); now < length.Milliseconds(); epoch++ {
		candidates := []string{}
		for i := range replicas {
			if name := fmt.Sprintf("r%d", i+1); busy[name] < now && name != leader {
				candidates = append(candidates, name)
			}
		}
		if len(candidates) == 0 {
			now += T / 10
			epoch--
			continue
		}
		leader = pick(candidates...)
		for i := range replicas { // something happens to a standby
			if name := fmt.Sprintf("r%d", i+1); name != leader && busy[name] < now && random.IntN(3) == 0 {
				busy[name] = now + 2*T
				m.fault(pick("hang", "delay-replies", "drop-replies", "clock", "freeze"), name, now+T/5, busy[name], false)
			}
		}
		if random.IntN(4) == 0 {
			m.fault(pick("kill", "freeze"), fmt.Sprintf("w%d", 1+random.IntN(3)), now, now+T/2, false)
		}
		renewed := now + random.Int64N(3*T)
		m.leads(leader, epoch, now, renewed)
		deadline, hit := renewed+T*2/3, renewed+T/10
		now = renewed + T + random.Int64N(T/30)
		switch random.IntN(8) {
		case 0, 1:
			m.fault("kill", leader, hit, hit, false).at(hit).exited(leader, "killed")
			busy[leader] = now + T/2
			m.at(busy[leader]).started(leader)
		case 2, 3:
			busy[leader] = now + T
			m.fault("freeze", leader, hit, busy[leader], false).ends(leader, epoch, busy[leader], 5, "lease lost").of(leader, history.Refused, epoch)
		case 4:
			busy[leader] = now + T
			m.fault(pick("hang", "drop-replies"), leader, hit, busy[leader], false)
			overrun := random.Int64N(T)
			for t := int64(0); t < overrun; t += 20 {
				m.at(deadline+t).of(leader, history.Refused, epoch)
			}
			m.ends(leader, epoch, deadline, overrun, "lease lost")
		case 5:
			m.fault("resign", leader, hit, hit, false).ends(leader, epoch, hit+1, 0, "lease resigned")
			now = hit + random.Int64N(T/3)
		case 6:
			m.fault("stop", leader, hit, hit, false).ends(leader, epoch, hit+5, 0, "terminated signal received").at(hit+10).exited(leader, "exit status 0")
			now = hit + random.Int64N(T/3)
			busy[leader] = now + T
			m.at(busy[leader]).started(leader)
		case 7:
			now += T
			m.fault(pick("db-stop", "db-crash", "db-freeze", "lock", "db-clock"), "database", hit, now, true).ends(leader, epoch, deadline, 2, "lease lost")
		}
	}
	return m
}
