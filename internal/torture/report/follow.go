package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/sqllease/lease/internal/torture/history"
)

// Follow adds the events recorded in dir since the last call. An unfinished
// line is left for the next call.
func (p *Progress) Follow(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return err
	}
	p.reading.Lock()
	defer p.reading.Unlock()
	if p.read == nil {
		p.read = map[string]int64{}
	}
	for _, name := range files {
		if err := p.follow(name); err != nil {
			return err
		}
	}
	return nil
}

func (p *Progress) follow(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(p.read[name], io.SeekStart); err != nil {
		return err
	}
	news, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	news = news[:bytes.LastIndexByte(news, '\n')+1]
	p.read[name] += int64(len(news))
	for line := range bytes.Lines(news) {
		var e history.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		p.Add(e)
	}
	return nil
}
