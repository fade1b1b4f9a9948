package main

import (
	"strings"
	"unicode/utf8"
)

// columns is a table for people: cells are cleaned, columns as wide as their
// longest cell, and lines end without spaces.
type columns struct{ rows [][]string }

func (c *columns) add(cells ...string) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = clean(cell)
	}
	c.rows = append(c.rows, row)
}

// String aligns the columns, two spaces apart.
func (c *columns) String() string {
	var widths []int
	for _, row := range c.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range c.rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}
