package containerd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// handlers are the runtime handlers of the CRI's configuration.
type handlers struct {
	fallback string // the default handler
	types    map[string]string
}

// of completes what is known of a container's runtime: no handler means the
// default one.
func (h *handlers) of(handler, runtimeType string) (string, string) {
	handler = cmp.Or(handler, h.fallback)
	return handler, canonicalRuntime(cmp.Or(runtimeType, h.types[handler]))
}

// runtimeHandlers asks the CRI for its configuration once, and again after
// containerd was restarted.
func (c *Client) runtimeHandlers(ctx context.Context) (*handlers, error) {
	c.mu.Lock()
	h := c.handlers
	c.mu.Unlock()
	if h != nil {
		return h, nil
	}
	status, err := c.runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return nil, fmt.Errorf("runtime handlers: %w", err)
	}
	var config struct {
		Containerd struct {
			DefaultRuntimeName string `json:"defaultRuntimeName"`
			Runtimes           map[string]struct {
				Type string `json:"runtimeType"`
			} `json:"runtimes"`
		} `json:"containerd"`
	}
	if err := json.Unmarshal([]byte(status.GetInfo()["config"]), &config); err != nil {
		return nil, fmt.Errorf("runtime handlers: configuration of the CRI: %w", err)
	}
	h = &handlers{fallback: config.Containerd.DefaultRuntimeName, types: map[string]string{}}
	for name, r := range config.Containerd.Runtimes {
		h.types[name] = r.Type
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handlers = h
	return h, nil
}

// forgetHandlers makes the next look ask for the handlers again.
func (c *Client) forgetHandlers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handlers = nil
}

// legacyRunc are the names under which runc has been known.
var legacyRunc = map[string]bool{
	"io.containerd.runtime.v1.linux": true,
	"io.containerd.runc.v1":          true,
	"runc":                           true,
}

func canonicalRuntime(name string) string {
	if legacyRunc[name] {
		return "io.containerd.runc.v2"
	}
	return name
}

// Resolve completes a use from what the last look knows: its image ID, if only
// names are known, its platform and its runtime. What is not known stays empty;
// the next look finds it.
func (c *Client) Resolve(ctx context.Context, u policy.Use) policy.Use {
	if h, err := c.runtimeHandlers(ctx); err == nil {
		u.RuntimeHandler, u.RuntimeType = h.of(u.RuntimeHandler, u.RuntimeType)
	} else {
		c.log.Debug("runtime handlers are not known yet", "err", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range []string{u.RecordName, u.UserName} {
		if u.ImageID == "" && name != "" {
			u.ImageID = c.names[policy.Key{ContainerdNamespace: u.ContainerdNamespace, ID: name}]
		}
	}
	u.Platform = c.platforms[policy.Key{ContainerdNamespace: u.ContainerdNamespace, ID: u.ImageID}]
	return u
}
