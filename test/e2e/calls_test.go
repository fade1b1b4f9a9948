//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"

	"github.com/image-custodian/custodian/hack/node"
)

// A look asks containerd as often on a full node as on an empty one, and once
// more for each lease of somebody else that it has not seen yet.
func TestALookIsAConstantNumberOfCalls(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	w := newIdleWorld(t, node.Options{ContainerdConfig: fmt.Sprintf("[metrics]\naddress = %q\n", address)},
		node.CustodianOptions{Bin: bin, Config: "[clean]\nunused_for = \"1h\"\n"})
	w.must(w.custodian.Start(w.ctx))
	// look is what one look costs when all is known. A pass of the sidecar's own
	// may come between, or have come just before, so that nothing is asked: of
	// several the least that asked counts.
	look := func() int {
		least := 1 << 30
		for range 4 {
			time.Sleep(1100 * time.Millisecond) // an answer may be a second old
			before := w.calls(address)
			w.uses()
			if n := w.calls(address) - before; n > 0 {
				least = min(least, n)
			}
		}
		return least
	}
	_, _, err = w.Run(w.ctx, node.PodOptions{}, node.ContainerOptions{Image: w.pushOnly("first:1")})
	w.must(err)
	few := look()
	for i := range 8 {
		w.push("more" + strconv.Itoa(i) + ":1")
		_, _, err := w.Run(w.ctx, node.PodOptions{}, node.ContainerOptions{Image: w.pushOnly("used" + strconv.Itoa(i) + ":1")})
		w.must(err)
	}
	many := look()
	if many > few {
		t.Errorf("a look with 1 container: %d calls, with 9 containers and 16 more images: %d", few, many)
	}
	for i := range 5 {
		_, err := w.client.LeasesService().Create(w.ctx, leases.WithID("build-"+strconv.Itoa(i)))
		w.must(err)
	}
	if leased := look(); leased > few {
		t.Errorf("with 5 leases that are known: %d calls, want %d", leased, few)
	}
	t.Logf("%d calls a look", few)
}

func (w *world) pushOnly(name string) string {
	w.t.Helper()
	ref, err := w.PushImage(w.ctx, name, node.ImageOptions{Layers: 2})
	w.must(err)
	return ref
}

// calls are the gRPC calls that containerd has begun to handle.
func (w *world) calls(address string) (total int) {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.ctx, http.MethodGet, "http://"+address+"/v1/metrics", nil)
	w.must(err)
	response, err := http.DefaultClient.Do(request)
	w.must(err)
	defer func() { w.must(response.Body.Close()) }()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "grpc_server_started_total{") {
			n, err := strconv.ParseFloat(lines.Text()[strings.LastIndexByte(lines.Text(), ' ')+1:], 64)
			w.must(err)
			total += int(n)
		}
	}
	return total
}
