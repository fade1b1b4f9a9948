package node

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"io"
	mathrand "math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// ImageOptions describe a fixture image: a busybox layer that all of them
// share, and Layers small ones above it. The zero value is a runnable image
// unlike any other.
type ImageOptions struct {
	// Layers above the base; 0 means 1, less than 0 means none.
	Layers int
	// LayerSize is the number of incompressible bytes in each of them; 0 means 256.
	LayerSize int
	// Seed makes the same layers again; "" makes new ones each time.
	Seed string
	// Platform as "os/architecture[/variant]"; "" means the machine's own.
	// The programs inside are the machine's own in any case.
	Platform string
	Labels   map[string]string
	Created  time.Time // zero means 2020-01-01
	Command  []string  // nil means a shell that waits to be stopped
}

// waitCommand sleeps for ever and, as PID 1, obeys SIGTERM at once.
func waitCommand() []string {
	return []string{"/bin/sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"}
}

// applets are the names under which the fixture images offer busybox.
func applets() []string {
	return []string{"cat", "dd", "echo", "env", "false", "id", "kill", "ls", "mount", "ps", "sh", "sleep", "test", "touch", "true", "wget"}
}

// BuildImage makes the image that PushImage pushes, for callers that want to
// change it first.
func (n *Node) BuildImage(o ImageOptions) (v1.Image, error) {
	base, err := n.base()
	if err != nil {
		return nil, err
	}
	extra, err := o.layers()
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.AppendLayers(image, append([]v1.Layer{base}, extra...)...)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	platform, err := v1.ParsePlatform(cmp.Or(o.Platform, "linux/"+runtime.GOARCH))
	if err != nil {
		return nil, err
	}
	file.OS, file.Architecture, file.Variant = platform.OS, platform.Architecture, platform.Variant
	file.Created = v1.Time{Time: o.Created}
	if o.Created.IsZero() {
		file.Created = v1.Time{Time: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)}
	}
	file.Config = v1.Config{Labels: o.Labels, Cmd: o.Command, Env: []string{"PATH=/bin"}}
	if o.Command == nil {
		file.Config.Cmd = waitCommand()
	}
	return mutate.ConfigFile(image, file)
}

func (o ImageOptions) layers() ([]v1.Layer, error) {
	count, size, seed := cmp.Or(o.Layers, 1), cmp.Or(o.LayerSize, 256), cmp.Or(o.Seed, rand.Text())
	var layers []v1.Layer
	for i := range max(count, 0) {
		key := sha256.Sum256([]byte(strconv.Itoa(i) + " " + seed))
		content := make([]byte, size)
		mathrand.NewChaCha8(key).Read(content) //nolint:errcheck // never fails, by its contract
		layer, err := tarLayer(gzip.NoCompression, tarFile{"layer-" + strconv.Itoa(i), 0o644, content, ""})
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	return layers, nil
}

// busyboxLayer is the same, byte for byte, on every node of a machine.
func busyboxLayer() (v1.Layer, error) {
	program, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	files := []tarFile{
		{"bin/", 0o755, nil, ""},
		{"bin/busybox", 0o755, program, ""},
		{"etc/", 0o755, nil, ""},
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/bin/sh\n"), ""},
		{"tmp/", 0o1777, nil, ""},
	}
	for _, applet := range applets() {
		files = append(files, tarFile{"bin/" + applet, 0o777, nil, "busybox"})
	}
	return tarLayer(gzip.BestSpeed, files...)
}

// tarFile is a directory when its name ends with a slash, a symbolic link when
// it has a target.
type tarFile struct {
	name    string
	mode    int64
	content []byte
	target  string
}

func tarLayer(level int, files ...tarFile) (v1.Layer, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Linkname: f.target, Typeflag: tar.TypeReg}
		switch {
		case f.target != "":
			header.Typeflag = tar.TypeSymlink
		case strings.HasSuffix(f.name, "/"):
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	data := buffer.Bytes()
	return tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
		tarball.WithCompressionLevel(level), tarball.WithCompressedCaching, tarball.WithMediaType(types.OCILayer))
}
