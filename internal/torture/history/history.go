// Package history is the record of a torture run: a file of JSON lines per
// process. A process writes a line before it takes a step, or after it has
// heard an outcome. All times are by CLOCK_MONOTONIC, which orders the
// processes of a machine.
package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// A Kind is the kind of an Event.
type Kind string

// The kinds.
const (
	// Of the conductor, about a process. Proc and Life are the process's own.
	// Note is how the process ended: "killed", or its exit status.
	Started Kind = "started"
	Exited  Kind = "exited"

	// Of a replica: its trust in a term, by the package's hook. Until is the
	// deadline. Wall is the machine's wall clock at At.
	Begin  Kind = "begin"
	Extend Kind = "extend"
	End    Kind = "end"

	// Of a replica: its work, a lane of its own. Note is the cause for the end
	// of the work's context.
	WorkBegin Kind = "work-begin"
	WorkEnd   Kind = "work-end"

	// Of a replica: a fenced transaction that writes the rows of (Epoch, Proc,
	// Seq) is about to begin, and its outcome. Refused and Undone were
	// certainly not committed. Failed may have been.
	Writing Kind = "writing"
	Written Kind = "written"
	Refused Kind = "refused" // ErrLost
	Undone  Kind = "undone"  // rolled back, because a statement failed
	Failed  Kind = "failed"

	// Of a worker, about the item Key and its claim Epoch. Saved and Done mean
	// a statement that succeeded. Unsaved means a save that failed.
	Claimed  Kind = "claimed"
	Saved    Kind = "saved"    // Seq is in the payload
	Done     Kind = "done"     // with the item's only effect
	Unsaved  Kind = "unsaved"  // Note is the error. May have been committed unless Lost
	Released Kind = "released" // Note says how: "done", "handed on", "failed"
	Lost     Kind = "lost"

	// Of a client by hand, about the lease Key: an operation begins, and
	// returns. Both have the same Seq, unique in the process's life.
	Call   Kind = "call"
	Return Kind = "return"

	// Of the conductor: a fault begins on Target, and ends. Both have the same
	// Seq, unique in the run.
	Fault    Kind = "fault"
	FaultEnd Kind = "fault-end"

	// Of the conductor: a step of the database's clock between At and Until.
	// Since then the database's clock is the machine's plus Offset.
	Stepped Kind = "stepped"
)

// An Op is an operation by hand, and its outcome.
type Op struct {
	Name   string `json:"name"` // "acquire", "release", "find"
	Holder string `json:"holder,omitempty"`
	Now    int64  `json:"now,omitempty"` // the time that the caller passes, in microseconds since the Unix epoch
	TTL    int64  `json:"ttl,omitempty"` // in microseconds

	// In a Return. After an Error, the operation may or may not have been
	// carried out.
	Got     bool   `json:"got,omitempty"`     // of acquire
	Error   string `json:"error,omitempty"`   // "" for none
	Missing bool   `json:"missing,omitempty"` // of find: nobody ever held the lease
	Epoch   int64  `json:"epoch,omitempty"`   // of find, like Holder and Expires
	Expires int64  `json:"expires,omitempty"` // in microseconds since the Unix epoch
}

// An Event is a line of the record.
type Event struct {
	At   int64  `json:"at"`   // CLOCK_MONOTONIC, in nanoseconds
	Proc string `json:"proc"` // "r1" is a replica, "w1" a worker, "c1" a client by hand
	Life int    `json:"life"` // counts the processes of that name
	Kind Kind   `json:"kind"`

	Epoch int64  `json:"epoch,omitempty"`
	Until int64  `json:"until,omitempty"` // CLOCK_MONOTONIC, in nanoseconds
	Wall  int64  `json:"wall,omitempty"`  // in microseconds since the Unix epoch
	Key   string `json:"key,omitempty"`
	Seq   int64  `json:"seq,omitempty"`
	Op    *Op    `json:"op,omitempty"`

	Name   string `json:"name,omitempty"`   // of a fault, as in the flag -faults
	Target string `json:"target,omitempty"` // of a fault: a Proc, or "database"
	Blocks bool   `json:"blocks,omitempty"` // the fault keeps everyone from the lease
	Offset int64  `json:"offset,omitempty"` // of the database's clock, in microseconds
	Note   string `json:"note,omitempty"`
}

// Time returns e's time as a duration since start. start is an At.
func (e Event) Time(start int64) time.Duration { return time.Duration(e.At - start) }

func (e Event) String() string {
	line, err := json.Marshal(e)
	if err != nil {
		return err.Error()
	}
	return string(line)
}

// A Recorder writes one process's events.
type Recorder struct {
	file *os.File
	proc string
	life int
}

// NewRecorder creates the file of a process in dir.
func NewRecorder(dir, proc string, life int) (*Recorder, error) {
	name := filepath.Join(dir, fmt.Sprintf("%s.%d.jsonl", proc, life))
	file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	return &Recorder{file: file, proc: proc, life: life}, nil
}

// Record writes an event with the time, and returns after write(2). The event
// survives if the process is killed afterwards. Record fills in Proc, Life and
// At if the caller leaves them open. It is safe for concurrent use. It panics
// if the file cannot be written, because a run without its record proves
// nothing.
func (r *Recorder) Record(e Event) {
	if e.Proc == "" {
		e.Proc, e.Life = r.proc, r.life
	}
	if e.At == 0 {
		e.At = Now()
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = r.file.Write(append(line, '\n')) // a single write, and O_APPEND keeps it whole
	}
	if err != nil {
		panic(err)
	}
}

// Read returns every event in dir, by time. An unfinished line of a killed
// process is left out.
func Read(dir string) ([]Event, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var all []Event
	for _, name := range files {
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		whole := content[:bytes.LastIndexByte(content, '\n')+1]
		lines := bufio.NewScanner(bytes.NewReader(whole))
		lines.Buffer(nil, 1<<20)
		for n := 1; lines.Scan(); n++ {
			var e Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", name, n, err)
			}
			all = append(all, e)
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	slices.SortStableFunc(all, func(a, b Event) int { return int(min(max(a.At-b.At, -1), 1)) })
	return all, nil
}

// A Write is a committed row that a fenced transaction of a replica wrote.
type Write struct {
	Epoch int64
	Proc  string
	Seq   int64
	Part  int // 1 or 2: each transaction writes two rows

	// In microseconds since the Unix epoch, by the clock that decides.
	Began   int64 // of the transaction, at the earliest
	Expires int64 // of the term, by the lease's row as the statement saw it, or 0 if the term was gone
}

// A Version is a committed state of the lease's row.
type Version struct {
	Epoch            int64
	Holder           string
	Renewed, Expires int64 // in microseconds since the Unix epoch, by the clock that decides
}

// A Save is a committed payload of an item, with its claim and its number
// within the claim.
type Save struct {
	Key   string
	Epoch int64
	Seq   int64
}

// An Item is the final state of an item.
type Item struct {
	Key     string
	Done    bool
	Epoch   int64   // of its last claim
	Effects []int64 // the epoch of each effect that was committed
}

// A Run is everything that the checker needs.
type Run struct {
	Seed     int64
	TTL      time.Duration
	Events   []Event   // by time
	Writes   []Write   // in the order of their commits
	Versions []Version // in the order of their commits
	Saves    []Save    // in the order of their commits
	Items    []Item
	Complete bool // the items were drained to the end
	OneClock bool // the database's clock is the machine's, except for the steps in the events
}
