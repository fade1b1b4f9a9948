package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// encode makes JSON of a message: its field names as they stand in the proto, in
// that order, all of them. Numbers are numbers, also those of 64 bits, which
// protojson would make strings; a list is never null; a time is RFC 3339 in UTC;
// a duration is seconds; a message or time that is not set is null. What a terminal might obey is
// escaped.
func encode(m proto.Message) ([]byte, error) {
	e := &encoder{}
	e.message(m.ProtoReflect())
	if e.err != nil {
		return nil, fmt.Errorf("json: %w", e.err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, e.Bytes(), "", "  "); err != nil {
		return nil, fmt.Errorf("json: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// encoder collects compact JSON and the first error.
type encoder struct {
	bytes.Buffer
	err error
}

func (e *encoder) message(m protoreflect.Message) {
	if stamp, ok := m.Interface().(*timestamppb.Timestamp); ok {
		e.time(stamp)
		return
	}
	if span, ok := m.Interface().(*durationpb.Duration); ok {
		e.WriteString(strconv.FormatFloat(span.AsDuration().Seconds(), 'f', -1, 64))
		return
	}
	e.WriteByte('{')
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if i > 0 {
			e.WriteByte(',')
		}
		field := fields.Get(i)
		e.string(string(field.Name()))
		e.WriteByte(':')
		e.field(m, field)
	}
	e.WriteByte('}')
}

func (e *encoder) field(m protoreflect.Message, field protoreflect.FieldDescriptor) {
	switch {
	case field.IsMap():
		e.table(field, m.Get(field).Map())
	case field.IsList():
		e.WriteByte('[')
		list := m.Get(field).List()
		for i := range list.Len() {
			if i > 0 {
				e.WriteByte(',')
			}
			e.value(field, list.Get(i))
		}
		e.WriteByte(']')
	case field.HasPresence() && !m.Has(field):
		e.WriteString("null")
	default:
		e.value(field, m.Get(field))
	}
}

// table writes a map with text as keys, in their order.
func (e *encoder) table(field protoreflect.FieldDescriptor, m protoreflect.Map) {
	if field.MapKey().Kind() != protoreflect.StringKind {
		e.fail(field)
		return
	}
	var keys []string
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k.String())
		return true
	})
	slices.Sort(keys)
	e.WriteByte('{')
	for i, k := range keys {
		if i > 0 {
			e.WriteByte(',')
		}
		e.string(k)
		e.WriteByte(':')
		e.value(field.MapValue(), m.Get(protoreflect.ValueOfString(k).MapKey()))
	}
	e.WriteByte('}')
}

func (e *encoder) value(field protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch field.Kind() {
	case protoreflect.MessageKind:
		e.message(v.Message())
	case protoreflect.StringKind:
		e.string(v.String())
	case protoreflect.BoolKind:
		e.WriteString(strconv.FormatBool(v.Bool()))
	case protoreflect.EnumKind:
		if known := field.Enum().Values().ByNumber(v.Enum()); known != nil {
			e.string(string(known.Name()))
			return
		}
		e.WriteString(strconv.Itoa(int(v.Enum())))
	case protoreflect.BytesKind:
		e.string(base64.StdEncoding.EncodeToString(v.Bytes()))
	case protoreflect.Uint32Kind, protoreflect.Uint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind:
		e.WriteString(strconv.FormatUint(v.Uint(), 10))
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		if f := v.Float(); !math.IsNaN(f) && !math.IsInf(f, 0) {
			e.WriteString(strconv.FormatFloat(f, 'g', -1, 64))
			return
		}
		e.WriteString("null")
	case protoreflect.GroupKind:
		e.fail(field)
	default:
		e.WriteString(strconv.FormatInt(v.Int(), 10))
	}
}

// fail is for what control.proto does not have today.
func (e *encoder) fail(field protoreflect.FieldDescriptor) {
	e.WriteString("null")
	if e.err == nil {
		e.err = fmt.Errorf("field %s: a kind that has no JSON yet", field.FullName())
	}
}

func (e *encoder) time(stamp *timestamppb.Timestamp) {
	if !stamp.IsValid() {
		e.WriteString("null")
		return
	}
	e.string(stamp.AsTime().Format(time.RFC3339Nano))
}

func (e *encoder) string(s string) {
	e.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			e.WriteByte('\\')
			e.WriteRune(r)
		case printable(r):
			e.WriteRune(r)
		case r == '\n':
			e.WriteString(`\n`)
		case r == '\t':
			e.WriteString(`\t`)
		case r <= math.MaxUint16:
			fmt.Fprintf(e, `\u%04x`, r)
		default: // two halves, as JSON has it
			r -= 0x10000
			fmt.Fprintf(e, `\u%04x\u%04x`, 0xd800+(r>>10), 0xdc00+(r&0x3ff))
		}
	}
	e.WriteByte('"')
}

// printable reports whether a terminal shows r and does nothing else.
func printable(r rune) bool { return r != utf8.RuneError && strconv.IsPrint(r) }
