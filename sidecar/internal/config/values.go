package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

const day = 24 * time.Hour

// Duration is a time.Duration that is also written in days and weeks: 90s, 15m,
// 31d, 2w. "" and "0" are 0. The types here are structs so that a bare number,
// of which nobody knows the unit, is refused.
type Duration struct{ time.Duration }

// maxDuration is about a hundred years; what adds two moments cannot overflow.
const maxDuration = 36500 * day

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	s := string(text)
	if s == "" || s == "0" {
		d.Duration = 0
		return nil
	}
	v, err := time.ParseDuration(s)
	for suffix, unit := range map[string]time.Duration{"d": day, "w": 7 * day} {
		if n, floatErr := strconv.ParseFloat(strings.TrimSuffix(s, suffix), 64); strings.HasSuffix(s, suffix) && floatErr == nil && math.Abs(n) < 1e5 {
			v, err = time.Duration(n*float64(unit)), nil
		}
	}
	if err != nil {
		return fmt.Errorf("%q is no duration like 90s, 15m, 12h, 31d", s)
	}
	if v > maxDuration || v < -maxDuration {
		return fmt.Errorf("%q is more than a hundred years", s)
	}
	d.Duration = v
	return nil
}

// Size is a number of bytes, written as 512MiB, 20GiB or 5GB. "" and "0" are 0.
type Size struct{ Bytes int64 }

var units = []struct {
	suffix string
	bytes  float64
}{
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"TiB", 1 << 40},
	{"KB", 1e3},
	{"kB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"TB", 1e12},
	{"B", 1},
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(text []byte) error {
	t := string(text)
	if t == "" || t == "0" {
		s.Bytes = 0
		return nil
	}
	for _, u := range units {
		number, ok := strings.CutSuffix(t, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || n < 0 || n*u.bytes > 1<<60 || math.IsNaN(n) {
			break
		}
		s.Bytes = int64(n * u.bytes)
		return nil
	}
	return fmt.Errorf("%q is no size like 512MiB or 20GiB", t)
}

// Share is a part of a whole, written as "10%". "" and "0" are 0.
type Share struct{ Part float64 }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Share) UnmarshalText(text []byte) error {
	t := string(text)
	if t == "" || t == "0" {
		s.Part = 0
		return nil
	}
	number, ok := strings.CutSuffix(t, "%")
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if !ok || err != nil || n < 0 || n > 100 || math.IsNaN(n) {
		return fmt.Errorf("%q is no share between 0%% and 100%%", t)
	}
	s.Part = n / 100
	return nil
}

// Level is a use of the file system: a size, or a share of it. "" is off.
type Level policy.Level

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Level) UnmarshalText(text []byte) error {
	*l = Level{}
	if strings.HasSuffix(string(text), "%") {
		var share Share
		err := share.UnmarshalText(text)
		l.Share = share.Part
		return err
	}
	var size Size
	if err := size.UnmarshalText(text); err != nil {
		return fmt.Errorf("%q is neither a share like 80%% nor a size like 150GiB", text)
	}
	l.Bytes = size.Bytes
	return nil
}
