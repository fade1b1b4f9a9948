package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Fault is one thing that is wrong with a file.
type Fault struct {
	File string
	Line int // 0 = of the file as a whole
	Text string
}

// Error tells it as compilers do.
func (f Fault) Error() string {
	if f.Line == 0 {
		return f.File + ": " + f.Text
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Text)
}

// Faults are all that is wrong, by file and line.
type Faults []Fault

func (f Faults) Error() string {
	texts := make([]string, len(f))
	for i, fault := range f {
		texts[i] = fault.Error()
	}
	return strings.Join(texts, "\n")
}

// err is nil if there are none.
func (f Faults) err() error {
	if len(f) == 0 {
		return nil
	}
	slices.SortStableFunc(f, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return f
}

// document is a file of which is known where each key stands.
type document struct {
	file   string
	faults Faults
	// lines are by key, tables and array tables included: "clean.mode",
	// "rule.1.images".
	lines map[string]int
	exprs []expression
	// starts are the offsets at which the lines begin, from line 1 on, and at
	// last the end of the file.
	starts []int
}

// expression is a key with its value, as lines of the file from first up to
// before next.
type expression struct{ first, next int }

// maxFaults bounds what is told of one file.
const maxFaults = 50

// decode reads a file into a value that fresh makes, and tells everything that
// is wrong with it: after a fault it goes on without the key that has it.
func decode[T any](file string, data []byte, fresh func() T) (T, *document) {
	doc := &document{file: file}
	doc.locate(data)
	data = slices.Clone(data)
	try := func(data []byte) (value T, err error) {
		value = fresh()
		err = toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields().Decode(&value)
		return value, err
	}
	for len(doc.faults) < maxFaults {
		value, err := try(data)
		if err == nil {
			return value, doc
		}
		if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok {
			for _, e := range strict.Errors {
				line, _ := e.Position()
				if len(doc.faults) == maxFaults {
					break
				}
				doc.faults = append(doc.faults, Fault{file, line, fmt.Sprintf("unknown key %q", strings.Join(e.Key(), "."))})
			}
			return value, doc
		}
		line := 0
		if e, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, _ = e.Position()
		} else {
			line = doc.search(data, func(data []byte) bool {
				_, other := try(data)
				return other != nil && other.Error() == err.Error()
			})
		}
		doc.faults = append(doc.faults, Fault{file, line, doc.text(err, line)})
		if !doc.blank(data, line) {
			break
		}
	}
	return fresh(), doc
}

// search finds a key that alone makes a fault which tells no line.
func (d *document) search(data []byte, fails func([]byte) bool) int {
	if len(d.exprs) > 200 {
		return 0 // no configuration of a person: not worth the time
	}
	for i, e := range d.exprs {
		alone := slices.Clone(data)
		for j, other := range d.exprs {
			if j != i {
				d.blank(alone, other.first)
			}
		}
		if fails(alone) {
			return e.first
		}
	}
	return 0
}

// text is a decoding error without the names of our own types.
func (d *document) text(err error, line int) string {
	text := strings.TrimPrefix(err.Error(), "toml: ")
	rest, ok := strings.CutPrefix(text, "cannot decode TOML ")
	if !ok {
		return text
	}
	kind, _, _ := strings.Cut(rest, " ")
	key := ""
	for k, at := range d.lines {
		if at == line && len(k) > len(key) {
			key = k
		}
	}
	return fmt.Sprintf("%s: a TOML %s does not fit here", key, kind)
}

// locate notes where each key stands. What is no TOML is told by the decoder.
func (d *document) locate(data []byte) {
	d.lines, d.starts = map[string]int{}, []int{0, 0}
	for i, c := range data {
		if c == '\n' {
			d.starts = append(d.starts, i+1)
		}
	}
	d.starts = append(d.starts, len(data))
	var p unstable.Parser
	p.Reset(data)
	table := ""
	arrays := map[string]int{}
	for p.NextExpression() {
		e := p.Expression()
		if e.Kind == unstable.Comment {
			continue
		}
		key, offset := keyOf(e)
		line := sort.SearchInts(d.starts[1:], offset+1)
		switch e.Kind {
		case unstable.ArrayTable:
			table = key + "." + strconv.Itoa(arrays[key])
			arrays[key]++
			key = table
		case unstable.Table:
			table = key
		default:
			d.endLast(line)
			d.exprs = append(d.exprs, expression{first: line})
			if table != "" {
				key = table + "." + key
			}
			d.lines[key] = line
			continue
		}
		d.endLast(line)
		d.lines[key] = line
	}
	d.endLast(len(d.starts) - 1)
}

func (d *document) endLast(line int) {
	if n := len(d.exprs); n > 0 && d.exprs[n-1].next == 0 {
		d.exprs[n-1].next = line
	}
}

// keyOf is the key of an expression, and where it begins.
func keyOf(e *unstable.Node) (key string, offset int) {
	var parts []string
	for it := e.Key(); it.Next(); {
		part := it.Node()
		parts = append(parts, string(part.Data))
		if len(parts) == 1 {
			offset = int(part.Raw.Offset)
		}
	}
	return strings.Join(parts, "."), offset
}

// blank makes spaces of the key that stands at a line; false = there is none.
func (d *document) blank(data []byte, line int) bool {
	i := slices.IndexFunc(d.exprs, func(e expression) bool { return e.first <= line && line < e.next })
	if i < 0 {
		return false
	}
	changed := false
	for j := d.starts[d.exprs[i].first]; j < d.starts[min(d.exprs[i].next, len(d.starts)-1)]; j++ {
		if data[j] != ' ' && data[j] != '\n' {
			data[j], changed = ' ', true
		}
	}
	return changed
}

// fault notes what is wrong with the value of a key.
func (d *document) fault(key, format string, args ...any) {
	if len(d.faults) >= maxFaults {
		return // enough to begin with
	}
	line := d.lines[key]
	for k := key; line == 0 && k != ""; line = d.lines[k] {
		k = k[:max(0, strings.LastIndexByte(k, '.'))]
	}
	d.faults = append(d.faults, Fault{d.file, line, fmt.Sprintf(format, args...)})
}
