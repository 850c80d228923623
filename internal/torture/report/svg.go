package report

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"unicode/utf8"
)

// A canvas collects the elements of an SVG, all of them in pixels.
type canvas struct{ bytes.Buffer }

func px(x float64) string { return trimmed(x, 1) }

// escape makes text safe in an element and in an attribute, and legal in XML.
func escape(text string) string {
	var out bytes.Buffer
	_ = xml.EscapeText(&out, []byte(text)) // a Buffer takes everything
	return out.String()
}

// rect draws a rectangle. The tip, if any, is shown to those who point at the
// rectangle. The attributes are raw.
func (c *canvas) rect(attributes string, x, y, width, height float64, tip string) {
	fmt.Fprintf(c, `<rect %s x="%s" y="%s" width="%s" height="%s"`, attributes, px(x), px(y), px(width), px(height))
	c.finish("rect", tip)
}

func (c *canvas) path(attributes, d, tip string) {
	fmt.Fprintf(c, `<path %s d="%s"`, attributes, d)
	c.finish("path", tip)
}

func (c *canvas) finish(element, tip string) {
	if tip == "" {
		c.WriteString("/>\n")
		return
	}
	fmt.Fprintf(c, "><title>%s</title></%s>\n", escape(tip), element)
}

func (c *canvas) text(attributes string, x, y float64, text string) {
	fmt.Fprintf(c, `<text %s x="%s" y="%s">%s</text>`+"\n", attributes, px(x), px(y), escape(text))
}

// width estimates the width of text of a size, on the safe side for whatever
// font the system has.
func width(text string, size float64) float64 {
	return float64(utf8.RuneCountInString(text)) * size * 0.57
}

// shorten cuts text to at most the given number of characters.
func shorten(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}
