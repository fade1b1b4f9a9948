package main

import (
	"errors"
	"fmt"
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
func (d *duration) String() string {
	if *d == 0 {
		return "" // not given
	}
	return time.Duration(*d).String()
}

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
