package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"sigs.k8s.io/yaml"
)

// output is how an answer is shown.
type output string

const (
	outputTable output = "table"
	outputWide  output = "wide"
	outputJSON  output = "json"
	outputYAML  output = "yaml"
)

// String, Set and Type implement pflag.Value.
func (o *output) String() string { return string(*o) }

// Set takes one of the four ways.
func (o *output) Set(s string) error {
	switch output(s) {
	case outputTable, outputWide, outputJSON, outputYAML:
		*o = output(s)
		return nil
	}
	return fmt.Errorf("%q is none of table, wide, json, yaml", s)
}

// Type is what the help calls the value.
func (o *output) Type() string { return "FORMAT" }

// show writes a message as data, or leaves it to table.
func (o output) show(w io.Writer, m proto.Message, table func(w io.Writer, wide bool) error) error {
	if o == outputTable || o == outputWide {
		return table(w, o == outputWide)
	}
	data, err := encode(m)
	if err == nil && o == outputYAML {
		data, err = yaml.JSONToYAML(data)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", o, err)
	}
	_, err = w.Write(data)
	return err
}

// encode renders a message with the field names of the proto. Fields without a
// value are there as [], 0, false or ""; times that are not known are left out.
// Unlike protojson, 64-bit numbers are numbers: no byte count needs more than
// the 53 bits that every reader has.
func encode(m proto.Message) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return nil, err
	}
	if err := numbers(tree, m.ProtoReflect().Descriptor()); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(tree, "", "  ")
	return append(data, '\n'), err
}

// numbers turns the strings that protojson makes of 64-bit numbers back.
func numbers(tree map[string]any, d protoreflect.MessageDescriptor) error {
	for i := range d.Fields().Len() {
		field := d.Fields().Get(i)
		name := string(field.Name())
		switch v := tree[name].(type) {
		case string:
			if field.Kind() == protoreflect.Uint64Kind || field.Kind() == protoreflect.Int64Kind {
				tree[name] = json.Number(v)
				if _, err := strconv.ParseInt(v, 10, 64); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		case map[string]any:
			if err := numbers(v, field.Message()); err != nil {
				return err
			}
		case []any:
			for _, item := range v {
				if sub, ok := item.(map[string]any); ok {
					if err := numbers(sub, field.Message()); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// table prints rows under a header, in columns. Control characters of a name,
// which anybody may choose, do not reach the terminal.
func table(w io.Writer, header []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			row[i] = harmless(cell)
		}
		if _, err := fmt.Fprintln(t, strings.TrimRight(strings.Join(row, "\t"), "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}

func harmless(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// size in binary units, as du -h has them.
func size(bytes uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	value, unit := float64(bytes), 0
	for value >= 1024 && unit < len(units)-1 {
		value /= 1024
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", bytes)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}

// span is a duration in its one largest unit that keeps it above 1, as kubectl
// has it.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	switch d = d.Abs(); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 2*day:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d/day))
}

// shortID is an image ID as crictl prints it.
func shortID(id string) string {
	return fmt.Sprintf("%.13s", strings.TrimPrefix(id, "sha256:"))
}

// shortName shortens a digest within a name.
func shortName(name string) string {
	before, digest, found := strings.Cut(name, "sha256:")
	if !found || len(digest) <= 12 {
		return name
	}
	return before + "sha256:" + digest[:12] + "…"
}
