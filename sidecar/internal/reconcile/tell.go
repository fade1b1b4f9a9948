package reconcile

import "github.com/image-custodian/custodian/sidecar/internal/state"

// Session is the plugin's present or last session.
func (r *Reconciler) Session() state.Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session
}

// Events returns the newest events, the newest first, at most limit.
func (r *Reconciler) Events(limit int) ([]state.Event, error) { return r.store.Events(limit) }
