package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ownersDir holds one record per node. A record is locked for as long as its
// node's owner lives, which no reused PID can fake.
const ownersDir = "/run/image-custodian-nodes"

// ownerRecord is a node's record, locked by this process.
type ownerRecord struct {
	file *os.File
	path string
}

type ownerData struct {
	Dir string `json:"dir"`
	PID int    `json:"pid"` // for people
}

func recordOwner(name, dir string) (*ownerRecord, error) {
	if err := os.MkdirAll(ownersDir, 0o755); err != nil {
		return nil, err
	}
	data, err := json.Marshal(ownerData{Dir: dir, PID: os.Getpid()})
	if err != nil {
		return nil, err
	}
	// Written and locked under a name that Sweep overlooks.
	hidden := filepath.Join(ownersDir, "."+name)
	file, err := lockFile(context.Background(), hidden, func() {})
	if err != nil {
		return nil, err
	}
	r := &ownerRecord{file: file, path: filepath.Join(ownersDir, name)}
	if _, err := file.Write(data); err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(hidden))
	}
	if err := os.Rename(hidden, r.path); err != nil {
		return nil, errors.Join(err, file.Close(), os.Remove(hidden))
	}
	return r, nil
}

// remove ends the record; to be called when nothing of the node is left.
func (r *ownerRecord) remove() error {
	err := os.Remove(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, r.file.Close())
}

// Sweep removes what nodes with a dead owner left on this machine, and
// returns their names. Nodes whose owner lives, in whatever process, are not
// touched.
func Sweep(ctx context.Context) (swept []string, err error) {
	entries, err := os.ReadDir(ownersDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		ok, err := sweepOne(ctx, e.Name())
		if err != nil {
			errs = append(errs, fmt.Errorf("sweep node %s: %w", e.Name(), err))
		}
		if ok {
			swept = append(swept, e.Name())
		}
	}
	return swept, errors.Join(errs...)
}

// sweepOne reports false when the node has a living owner or another sweeper.
func sweepOne(ctx context.Context, name string) (bool, error) {
	path := filepath.Join(ownersDir, name)
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if free, err := tryLock(file); err != nil || !free {
		return false, errors.Join(err, file.Close())
	}
	record := &ownerRecord{file: file, path: path}
	var data ownerData
	if err := json.NewDecoder(file).Decode(&data); err != nil {
		return false, errors.Join(fmt.Errorf("owner record: %w", err), file.Close())
	}
	n := newNode(name, data.Dir)
	n.owner = record
	if _, err := n.clean(ctx, 0); err != nil {
		return false, errors.Join(err, file.Close()) // the record stays for the next sweep
	}
	return true, n.remove()
}
