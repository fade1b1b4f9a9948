package containerd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Pauses between attempts to subscribe.
const (
	minBackoff = 250 * time.Millisecond
	maxBackoff = 15 * time.Second
)

// Watch calls changed for each change of an image or a container record in the
// containerd namespaces looked after, until ctx is done. Events can be lost
// while the connection is: changed is called after each subscription too, so
// that the caller lists again.
func (c *Client) Watch(ctx context.Context, changed func()) {
	var filters []string
	for _, ns := range c.cfg.Namespaces {
		for _, topic := range []string{"/images/", "/containers/"} {
			filters = append(filters, fmt.Sprintf("namespace==%s,topic~=%q", ns, "^"+topic))
		}
	}
	backoff := minBackoff
	for ctx.Err() == nil {
		began := time.Now()
		err := c.watchOnce(ctx, filters, changed)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > maxBackoff {
			backoff = minBackoff
		}
		c.log.Warn("containerd's events ended, subscribing again", "err", err, "in", backoff)
		c.forgetHandlers()
		changed()
		pause := time.NewTimer(backoff/2 + rand.N(backoff))
		select {
		case <-ctx.Done():
			pause.Stop()
		case <-pause.C:
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

func (c *Client) watchOnce(ctx context.Context, filters []string, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Another containerd may answer after a restart.
	if _, err := c.Versions(ctx); err != nil {
		return err
	}
	events, errs := c.client.EventService().Subscribe(ctx, filters...)
	changed()
	for {
		select {
		case <-events:
			changed()
		case err := <-errs:
			return err
		}
	}
}
