package report

import (
	"cmp"
	"slices"
)

// The measures of a picture, in pixels.
const (
	pictureWidth = 1040
	plotLeft     = 92
	plotRight    = pictureWidth - 24
	rowHeight    = 17 // of a row of faults
	lanePad      = 7
	trustHeight  = 24
	workHeight   = 9
	mostRows     = 4
	small        = 11.0 // size of the labels of faults
)

// A lane is a strip of the picture: rows of faults and, for a replica, its
// trust and its work below them.
type lane struct {
	name    string // as written in the picture
	replica string // "" if the lane has only faults
	top     float64
	rows    int
	most    int // most rows, up to mostRows
	marks   []mark
}

// A mark is a fault, or a violation, with its place among the other marks of
// its lane.
type mark struct {
	fault
	from, to float64 // of the bar. Equal without a duration
	label    string  // "" if there is no room
	labelAt  float64
	inside   bool // the label is in the bar
	row      int  // -1 if there is no room
}

func (l *lane) barTop() float64 { return l.top + lanePad + float64(l.rows*rowHeight) }

func (l *lane) bottom() float64 {
	if l.replica == "" {
		return l.barTop() + lanePad - 3
	}
	return l.barTop() + trustHeight + 3 + workHeight + lanePad
}

// place gives each mark a row in which it covers nothing, with its label if
// possible.
func (l *lane) place() {
	slices.SortStableFunc(l.marks, func(a, b mark) int { return cmp.Compare(a.from, b.from) })
	var taken [mostRows]float64 // the end of the taken space, by row
	for i := range l.marks {
		m := &l.marks[i]
		m.row = -1
		if !m.fits(taken[:l.most]) {
			m.label = ""
			m.fits(taken[:l.most])
		}
		l.rows = max(l.rows, m.row+1)
	}
}

const (
	markSize = 9 // of a mark without a duration
	markGap  = 4
)

// fits puts the mark into the first row that is free from the mark's beginning.
// It reports whether there is such a row.
func (m *mark) fits(taken []float64) bool {
	from, to := m.from, m.to
	if m.from == m.to {
		from, to = m.from-markSize/2, m.from+markSize/2
	}
	if m.label != "" {
		wide := width(m.label, small)
		switch {
		case to-from >= wide+2*markGap:
			m.labelAt, m.inside = from+markGap, true
		case to+2+wide <= plotRight:
			m.labelAt, to = to+3, to+3+wide
		default:
			m.labelAt = from - 3 - wide
			from = m.labelAt
		}
	}
	for row := range taken {
		if taken[row] == 0 || from >= taken[row]+markGap {
			m.row, taken[row] = row, to
			return true
		}
	}
	return false
}
