package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sqllease/lease/internal/torture/history"
)

const head = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]s" width="%[1]d" height="%[2]s" role="img" aria-labelledby="t d" font-family="ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13">
<title id="t">%[3]s</title>
<desc id="d">%[4]s</desc>
<style>
.ink { fill: #1f2328 } .dim { fill: #59636e } .grid { stroke: #e4e8ec } .edge { stroke: #d1d9e0 } .on { fill: #ffffff }
.fault { fill: #ffd8a8; stroke: #bc6c00; stroke-width: .7 } .point { fill: #9a3b00 } .out { fill: #fb8f44; fill-opacity: .13 }
.down { fill: #d8dde3 } .refused { stroke: #1f2328; stroke-width: 1.4; fill: none } .bad { fill: #cf222e } .badline { stroke: #cf222e; stroke-width: 2 }
</style>
<defs>
<pattern id="overrun" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="5" height="5" fill="#ffffff"/><rect width="2.5" height="5" fill="#1f2328"/></pattern>
<pattern id="frozen" width="5" height="5" patternUnits="userSpaceOnUse"><rect width="5" height="5" fill="#ffffff" fill-opacity=".42"/><rect width="1.2" height="5" fill="#0a3069" fill-opacity=".55"/></pattern>
</defs>
<rect width="100%%" height="100%%" fill="#ffffff"/>
`

// The colours of the replicas. None is red, the colour of violations, or
// orange, the colour of faults.
var colours = []string{"#0969da", "#1a7f37", "#8250df", "#0f7b8a", "#bf3989", "#6e5c2c"}

// A picture is the state of Picture while it draws.
type picture struct {
	*story
	window
	out        canvas
	run        history.Run
	options    Options
	lanes      []*lane
	violations *lane
	axis       float64 // its top
}

// Picture writes an SVG timeline of a run: when each replica led and worked,
// and the faults that struck it.
func Picture(w io.Writer, r history.Run, o Options) error {
	s := tell(r.Events, r.TTL)
	p := &picture{story: s, window: s.window(o), run: r, options: o}
	p.layOut()
	p.draw()
	_, err := fmt.Fprintf(w, head, pictureWidth, px(p.axis+92), escape(p.title()), escape(p.describe()))
	if err == nil {
		_, err = w.Write(p.out.Bytes())
	}
	if err == nil {
		_, err = io.WriteString(w, "</svg>\n")
	}
	return err
}

func (p *picture) title() string {
	words := headline(p.story, p.run, p.options)
	return fmt.Sprintf("%s: %s, %s, %s", strings.ToUpper(words[:1])+words[1:],
		plural(len(p.terms), "term"), plural(len(p.faults), "fault"), plural(len(p.options.Violations), "violation"))
}

func (p *picture) subtitle() string {
	shown := fmt.Sprintf("Shown: %s s to %s s", p.seconds(p.from), p.seconds(p.to))
	switch {
	case p.chosen:
		return shown + ", the most eventful minute. "
	case !p.whole:
		return shown + ". "
	}
	return ""
}

func (p *picture) describe() string {
	return p.subtitle() + "One lane per replica. A bar is the time for which it trusted that it led, with the number of the term; below it is its work. " +
		"Faults are marked where they struck, those of the database in a lane of their own. The time is in seconds since the start."
}

// x returns the place of an instant. An instant outside the window is at the
// window's edge.
func (p *picture) x(at int64) float64 {
	at = min(max(at, p.from), p.to)
	return plotLeft + float64(at-p.from)/float64(p.to-p.from)*(plotRight-plotLeft)
}

func (p *picture) seconds(at int64) string { return trimmed(time.Duration(at-p.start).Seconds(), 2) }

func (p *picture) tip(what string, from, to int64) string {
	return fmt.Sprintf("%s, %s s to %s s", what, p.seconds(from), p.seconds(to))
}

// layOut makes the lanes, and puts them one below another.
func (p *picture) layOut() {
	db, others := &lane{name: database, most: mostRows}, &lane{name: "others", most: mostRows}
	byName := map[string]*lane{database: db}
	p.lanes = []*lane{db}
	for _, name := range p.replicas {
		byName[name] = &lane{name: name, replica: name, rows: 1, most: mostRows}
		p.lanes = append(p.lanes, byName[name])
	}
	for _, f := range p.faults {
		if f.to < p.from || f.from >= p.to || f.from == f.to && f.from < p.from {
			continue
		}
		l, m := byName[f.proc], mark{fault: f, from: p.x(f.from), to: p.x(f.to), label: shorten(f.name, 40)}
		if l == nil {
			l, m.label = others, m.label+" "+shorten(f.proc, 40)
		}
		l.marks = append(l.marks, m)
	}
	if len(others.marks) > 0 {
		p.lanes = append(p.lanes, others)
	}
	p.violations = &lane{top: 58, most: mostRows}
	for _, v := range p.options.Violations {
		if p.from <= v.At && v.At <= p.to {
			x := p.x(v.At)
			p.violations.marks = append(p.violations.marks, mark{fault: fault{name: v.Text}, from: x, to: x, label: shorten(v.Rule+": "+v.Text, 70)})
		}
	}
	p.violations.place()
	top := p.violations.top
	if len(p.violations.marks) > 0 {
		top = p.violations.barTop() + lanePad
	}
	for _, l := range p.lanes {
		l.place()
		if l.replica == "" {
			l.rows = max(l.rows, 1)
		}
		l.top = top
		top = l.bottom()
	}
	p.axis = top
}

func (p *picture) draw() {
	title := `class="ink" font-size="16" font-weight="600"`
	if len(p.options.Violations) > 0 {
		title = `class="bad" font-size="16" font-weight="600"`
	}
	p.out.text(title, 14, 26, p.title())
	p.out.text(`class="dim" font-size="12"`, 14, 46, p.subtitle()+
		"A lane is coloured while its replica leads, in the term of that number. No two may ever be at once.")
	p.drawAxis()
	for _, b := range p.blocked() {
		if b.overlaps(p.from, p.to) {
			p.out.rect(`class="out"`, p.x(b.from), p.lanes[0].top, p.x(b.to)-p.x(b.from), p.axis-p.lanes[0].top, "")
		}
	}
	for i, l := range p.lanes {
		p.out.path(`class="edge"`, fmt.Sprintf("M0 %sH%d", px(l.top), pictureWidth), "")
		baseline, colour := (l.top+l.bottom())/2+4, "#1f2328"
		if l.replica != "" {
			baseline = l.barTop() + trustHeight/2 + 5
			colour = colours[(i-1)%len(colours)]
			p.drawReplica(l, colour)
		}
		p.out.text(fmt.Sprintf(`fill="%s" font-weight="600"`, colour), 14, baseline, shorten(l.name, 9))
		p.drawMarks(l)
	}
	p.drawViolations()
	p.drawLegend()
}

// drawAxis draws the ticks, at most fifteen.
func (p *picture) drawAxis() {
	steps := []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second,
		10 * time.Second, 15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute}
	step := int64(time.Hour)
	for _, s := range slices.Backward(steps) {
		if (p.to-p.from)/int64(s) <= 15 {
			step = int64(s)
		}
	}
	for step < (p.to-p.from)/15 {
		step *= 2
	}
	p.out.path(`class="edge"`, fmt.Sprintf("M0 %sH%d", px(p.axis), pictureWidth), "")
	for at := p.start + (p.from-p.start+step-1)/step*step; at <= p.to; at += step {
		p.out.path(`class="grid"`, fmt.Sprintf("M%s %sV%s", px(p.x(at)), px(p.lanes[0].top), px(p.axis+5)), "")
		p.out.text(`class="dim" text-anchor="middle"`, p.x(at), p.axis+19, p.seconds(at)+" s")
	}
}

// drawReplica draws the part of a replica's lane below the faults.
func (p *picture) drawReplica(l *lane, colour string) {
	top, work := l.barTop(), l.barTop()+trustHeight+3
	high := work + workHeight - top
	for _, d := range p.downs {
		if d.proc == l.replica && d.overlaps(p.from, p.to) {
			p.out.rect(`class="down"`, p.x(d.from), top, p.x(d.to)-p.x(d.from), high, p.tip("process down", d.from, d.to))
		}
	}
	for _, t := range p.terms {
		if t.proc == l.replica && p.sees(t) {
			p.drawTerm(t, top, work, colour)
		}
	}
	for _, f := range p.freezes {
		if f.proc == l.replica && f.overlaps(p.from, p.to) {
			p.out.rect(`fill="url(#frozen)"`, p.x(f.from), top, p.x(f.to)-p.x(f.from), high, p.tip("process frozen", f.from, f.to))
		}
	}
	p.drawRefused(l.replica, top+trustHeight-6)
	for _, t := range p.terms {
		if t.proc == l.replica && p.sees(t) {
			p.drawEpoch(t, top+trustHeight/2+5)
		}
	}
}

// blocked returns the times in which some fault, or several, may have kept
// everyone from the lease.
func (s *story) blocked() []span {
	var all []span
	for _, f := range s.faults {
		switch last := len(all) - 1; {
		case !f.blocks:
		case last >= 0 && f.from <= all[last].to:
			all[last].to = max(all[last].to, f.to)
		default:
			all = append(all, f.span)
		}
	}
	return all
}

func (p *picture) sees(t *term) bool {
	return t.begin < p.to && max(t.trusted(), t.work.to, t.until) >= p.from
}

// drawTerm draws the trust, the rest of the trust after the end of the process,
// the time for which others still wait for the row, and the work.
func (p *picture) drawTerm(t *term, top, work float64, colour string) {
	what := fmt.Sprintf("%s leads in term %d", t.proc, t.epoch)
	alive := p.alive(t)
	bar := func(attributes string, from, to int64, y, height float64, what string) {
		if to > p.from && from < p.to && to > from {
			p.out.rect(attributes, p.x(from), y, max(p.x(to)-p.x(from), 0.5), height, p.tip(what, from, to))
		}
	}
	bar(fmt.Sprintf(`fill="%s"`, colour), t.begin, alive, top, trustHeight, what)
	bar(fmt.Sprintf(`fill="%s" fill-opacity=".45"`, colour), alive, t.trusted(), top, trustHeight, what+", but is gone")
	if t.end >= t.until {
		bar(fmt.Sprintf(`fill="%s" fill-opacity=".6"`, colour), t.trusted(), t.until+int64(p.ttl/3), top+trustHeight/2-1.5, 3, what+": not any more, but the row has not expired")
	}
	if t.working {
		bar(fmt.Sprintf(`fill="%s" fill-opacity=".55"`, colour), t.work.from, min(t.work.to, t.trusted()), work, workHeight, fmt.Sprintf("work of term %d", t.epoch))
	}
	if p.x(t.trusted()+int64(t.overrun()))-p.x(t.trusted()) >= 1.5 {
		bar(`fill="url(#overrun)" stroke="#1f2328" stroke-width=".6"`, max(t.trusted(), t.work.from), t.work.to, work, workHeight, fmt.Sprintf("work of term %d outlives it", t.epoch))
	}
}

// drawEpoch writes the number of a term, if there is room. The number goes
// where the process was well, or at least alive.
func (p *picture) drawEpoch(t *term, y float64) {
	alive := p.alive(t)
	well := alive
	for _, f := range p.freezes {
		if f.proc == t.proc && f.overlaps(t.begin, alive) {
			well = min(well, max(f.from, t.begin))
		}
	}
	label := fmt.Sprint(t.epoch)
	for _, to := range []int64{well, alive} {
		if from, to := p.x(t.begin), p.x(to); to-from >= width(label, 13)+4 {
			p.out.text(`class="on" text-anchor="middle" font-weight="600"`, (from+to)/2, y, label)
			return
		}
	}
}

// alive returns the end of a leader's trust, or of its process if the process
// ended earlier.
func (p *picture) alive(t *term) int64 {
	if exit, ok := p.exit(t); ok {
		return min(t.trusted(), exit.At)
	}
	return t.trusted()
}

// drawRefused draws a cross for each refused write, unless the cross would
// touch the cross before.
func (p *picture) drawRefused(replica string, y float64) {
	last := math.Inf(-1)
	for _, e := range p.refused {
		if x := p.x(e.At); e.Proc == replica && p.from <= e.At && e.At < p.to && x >= last+8 {
			p.out.path(`class="refused"`, cross(x, y), p.seconds(e.At)+fmt.Sprintf(" s: a write of term %d is refused", e.Epoch))
			last = x
		}
	}
}

func cross(x, y float64) string {
	return fmt.Sprintf("M%s %sl6 6m0-6l-6 6", px(x-3), px(y-3))
}

func (p *picture) drawMarks(l *lane) {
	for _, m := range l.marks {
		y := l.top + lanePad + float64(m.row*rowHeight)
		tip := p.tip(m.name+" of "+m.proc, m.span.from, m.span.to)
		switch {
		case m.row < 0: // no room: a thin line
			p.out.rect(`class="fault"`, m.from, l.top+lanePad/2-1, max(m.to-m.from, 2), 2, tip)
		case m.from == m.to:
			p.out.path(`class="point"`, fmt.Sprintf("M%s %sh%dl-%s %dz", px(m.from-markSize/2.0), px(y+2), markSize, px(markSize/2.0), markSize+1), tip)
		default:
			p.out.rect(`class="fault" rx="2"`, m.from, y, max(m.to-m.from, 1), rowHeight-3, tip)
		}
		if m.label != "" && m.row >= 0 {
			p.out.text(fmt.Sprintf(`class="ink" font-size="%s"`, px(small)), m.labelAt, y+11, m.label)
		}
	}
}

func (p *picture) drawViolations() {
	for _, m := range p.violations.marks {
		y := p.violations.top + lanePad + float64(max(0, m.row)*rowHeight)
		p.out.path(`class="badline"`, fmt.Sprintf("M%s %sV%s", px(m.from), px(y), px(p.axis)), m.name)
		if m.label != "" && m.row >= 0 {
			p.out.text(fmt.Sprintf(`class="bad" font-weight="600" font-size="%s"`, px(small)), m.labelAt, y+11, m.label)
		}
	}
}

// drawLegend explains the signs of the picture, in rows.
func (p *picture) drawLegend() {
	x, y := 14.0, p.axis+48
	colour := colours[0]
	samples := []struct {
		text string
		draw func()
	}{
		{"leads", func() {
			p.out.rect(fmt.Sprintf(`fill="%s"`, colour), x, y-11, 26, 14, "")
			p.out.text(`class="on" text-anchor="middle" font-size="11" font-weight="600"`, x+13, y, "7")
		}},
		{"gone, trust not yet run out", func() { p.out.rect(fmt.Sprintf(`fill="%s" fill-opacity=".45"`, colour), x, y-11, 26, 14, "") }},
		{"leads no more, the row has yet to expire", func() { p.out.rect(fmt.Sprintf(`fill="%s" fill-opacity=".6"`, colour), x, y-6, 26, 3, "") }},
		{"works", func() { p.out.rect(fmt.Sprintf(`fill="%s" fill-opacity=".55"`, colour), x, y-8, 26, workHeight, "") }},
		{"work outlives its term", func() {
			p.out.rect(`fill="url(#overrun)" stroke="#1f2328" stroke-width=".6"`, x, y-8, 26, workHeight, "")
		}},
		{"its write is refused", func() { p.out.path(`class="refused"`, cross(x+13, y-4), "") }},
		{"process frozen", func() {
			p.out.rect(`class="down"`, x, y-11, 26, 14, "")
			p.out.rect(`fill="url(#frozen)"`, x, y-11, 26, 14, "")
		}},
		{"process down", func() { p.out.rect(`class="down"`, x, y-11, 26, 14, "") }},
		{"fault", func() {
			p.out.rect(`class="fault" rx="2"`, x, y-11, 16, 14, "")
			p.out.path(`class="point"`, fmt.Sprintf("M%s %sh8l-4 9z", px(x+18), px(y-9)), "")
		}},
		{"may keep everyone from the lease", func() { p.out.rect(`class="out" stroke="#fb8f44" stroke-opacity=".4"`, x, y-11, 26, 14, "") }},
	}
	for _, s := range samples {
		wide := 32 + width(s.text, 12)*0.94 + 18
		if x+wide > pictureWidth {
			x, y = 14, y+24
		}
		s.draw()
		p.out.text(`class="dim" font-size="12"`, x+32, y, s.text)
		x += wide
	}
}
