package main

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// choose refuses a word that is not one of those that a flag takes.
func choose(value string, of []string) (string, error) {
	if !slices.Contains(of, value) {
		return "", fmt.Errorf("want one of %s", strings.Join(of, ", "))
	}
	return value, nil
}

// format is how an answer is printed.
type format string

const (
	tableFormat format = "table"
	wideFormat  format = "wide"
	jsonFormat  format = "json"
	yamlFormat  format = "yaml"
)

var formats = []string{string(tableFormat), string(wideFormat), string(jsonFormat), string(yamlFormat)}

// String, Set and Type make it a flag.
func (f *format) String() string { return string(*f) }

// Set takes one of formats.
func (f *format) Set(value string) error {
	chosen, err := choose(value, formats)
	*f = format(chosen)
	return err
}

// Type names the value in the help.
func (f *format) Type() string { return "format" }

// filters are repeated key=value; the sidecar knows the keys.
type filters []string

// String, Set and Type make it a flag.
func (f *filters) String() string { return strings.Join(*f, " ") }

// Set adds one filter.
func (f *filters) Set(value string) error {
	if key, _, found := strings.Cut(value, "="); !found || key == "" {
		return errors.New("want key=value")
	}
	*f = append(*f, value)
	return nil
}

// Type names the value in the help.
func (f *filters) Type() string { return "key=value" }

// duration is a positive time that also takes days and weeks: 90s 15m 12h 31d 2w 1d12h.
type duration time.Duration

var daysAndRest = regexp.MustCompile(`^(?:(\d{1,4})w)?(?:(\d{1,5})d)?(.*)$`)

// String, Set and Type make it a flag.
func (d *duration) String() string { return time.Duration(*d).String() }

// Set takes a time longer than none.
func (d *duration) Set(value string) error {
	parts := daysAndRest.FindStringSubmatch(value)
	var total time.Duration
	for i, unit := range []time.Duration{7 * 24 * time.Hour, 24 * time.Hour} {
		if n, err := strconv.Atoi(parts[i+1]); err == nil {
			total += time.Duration(n) * unit
		}
	}
	if rest := parts[3]; rest != "" {
		more, err := time.ParseDuration(rest)
		if err != nil || more < 0 {
			return errors.New("want a time like 90s, 15m, 12h or 31d")
		}
		total += more
	}
	if total <= 0 {
		return errors.New("want a time longer than none, like 90s, 15m, 12h or 31d")
	}
	*d = duration(total)
	return nil
}

// Type names the value in the help.
func (d *duration) Type() string { return "duration" }

// amount is a positive size: 512MiB, 20GiB, 5GB or plain bytes.
type amount uint64

var sizeWords = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]i?)?B?$`)

// String, Set and Type make it a flag.
func (b *amount) String() string { return strconv.FormatUint(uint64(*b), 10) }

// Set takes a size above none.
func (b *amount) Set(value string) error {
	parts := sizeWords.FindStringSubmatch(value)
	if parts == nil {
		return errors.New("want a size like 512MiB or 20GiB")
	}
	n, err := strconv.ParseFloat(parts[1], 64)
	base := 1000.0
	if strings.HasSuffix(parts[2], "i") {
		base = 1024
	}
	if parts[2] != "" {
		for range strings.Index("KMGT", strings.ToUpper(parts[2][:1])) + 1 {
			n *= base
		}
	}
	if err != nil || n < 1 || n > 1<<60 {
		return errors.New("want a size above none and below an exbibyte")
	}
	*b = amount(n)
	return nil
}

// Type names the value in the help.
func (b *amount) Type() string { return "size" }

// level is a use of the file system: a share of it, or a size.
type level struct {
	share float64
	bytes uint64
}

// String, Set and Type make it a flag.
func (l *level) String() string {
	switch {
	case l.share > 0:
		return strconv.FormatFloat(100*l.share, 'g', -1, 64) + "%"
	case l.bytes > 0:
		return strconv.FormatUint(l.bytes, 10)
	}
	return ""
}

// Set takes 70% or a size.
func (l *level) Set(value string) error {
	if number, ok := strings.CutSuffix(value, "%"); ok {
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil || n <= 0 || n >= 100 || math.IsNaN(n) {
			return errors.New("want a share above 0% and below 100%")
		}
		*l = level{share: n / 100}
		return nil
	}
	var b amount
	if err := b.Set(value); err != nil {
		return errors.New("want a share like 70% or a size like 150GiB")
	}
	*l = level{bytes: uint64(b)}
	return nil
}

// Type names the value in the help.
func (l *level) Type() string { return "level" }
