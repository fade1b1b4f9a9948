package main

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// byteSize is a size above none, as in the configuration: 10GiB 512MiB 1.5TiB
// 5GB, or plain bytes.
type byteSize uint64

var sizeUnits = map[string]float64{
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"KB": 1e3, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "B": 1,
}

var (
	plainBytes = regexp.MustCompile(`^\d{1,19}$`)
	sizeText   = regexp.MustCompile(`^(\d{1,19}(?:\.\d{1,9})?) ?([KkMGT]?i?B)$`)
	shareText  = regexp.MustCompile(`^(\d{1,2}(?:\.\d{1,9})?) ?%$`)
)

// maxSize is more than any disk has.
const maxSize = 1 << 60

// String, Set and Type make it a flag.
func (b *byteSize) String() string {
	if *b == 0 {
		return "" // not given
	}
	return size(uint64(*b))
}

// Set takes a size.
func (b *byteSize) Set(value string) error {
	n, err := parseSize(value)
	*b = byteSize(n)
	return err
}

// Type names the value in the help.
func (b *byteSize) Type() string { return "size" }

func parseSize(value string) (uint64, error) {
	number, unit := value, 1.0
	if parts := sizeText.FindStringSubmatch(value); parts != nil {
		number, unit = parts[1], sizeUnits[parts[2]]
	} else if !plainBytes.MatchString(value) {
		unit = 0
	}
	n, err := strconv.ParseFloat(number, 64)
	n = math.Round(n * unit)
	if err != nil || unit == 0 {
		return 0, errors.New("want a size like 10GiB, 512MiB or 1.5TiB, or bytes")
	}
	if n < 1 || n > maxSize {
		return 0, errors.New("want a size above none, and no more than a disk has")
	}
	return uint64(n), nil
}

// level is how full a file system is: a share of it (75%) or a size (150GiB).
type level struct {
	bytes byteSize
	share float64
}

// String, Set and Type make it a flag.
func (l *level) String() string {
	if l.share > 0 {
		return fmt.Sprintf("%.6g%%", 100*l.share)
	}
	return l.bytes.String()
}

// Set takes a share or a size.
func (l *level) Set(value string) error {
	*l = level{}
	if !strings.HasSuffix(value, "%") {
		if l.bytes.Set(value) != nil {
			return errors.New("want a share of the disk like 70%, or a size like 150GiB")
		}
		return nil
	}
	parts := shareText.FindStringSubmatch(value)
	if parts == nil {
		return errors.New("want a share between 0% and 100%")
	}
	percent, err := strconv.ParseFloat(parts[1], 64)
	if err != nil || percent <= 0 {
		return errors.New("want a share between 0% and 100%")
	}
	l.share = percent / 100
	return nil
}

// Type names the value in the help.
func (l *level) Type() string { return "level" }
