package state

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/image-custodian/custodian/sidecar/internal/policy"
)

// Check reads the whole state and returns every fault of it, joined: values
// that do not decode, keys that do not name what they hold, moments that lie in
// the future, uses that name no container. A sound state gives nil.
func (s *Store) Check() (err error) {
	defer recoverDamage(&err)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))

	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	now := s.clock.Now()

	err = forEach(s, bucketUses, func(k []byte, u policy.Use) {
		switch {
		case u.ContainerID == "":
			fault("use %q names no container", k)
		case string(k) != string(key(u.ContainerdNamespace, u.ContainerID)):
			fault("use %q holds container %q", k, u.ContainerID)
		case u.Recorded > now:
			fault("use %q was recorded in the future", k)
		}
	})
	faults = append(faults, err)
	err = forEach(s, bucketImages, func(k []byte, m policy.Memory) {
		switch {
		case parseImageKey(k).ID == "":
			fault("image %q has no ID", k)
		case m.FirstSeen > now, m.Pulled > now, m.LastUse != nil && *m.LastUse > now:
			fault("image %q was seen in the future", k)
		}
	})
	faults = append(faults, err)
	_, err = s.Removals()
	faults = append(faults, err)
	_, err = s.Session()
	faults = append(faults, err)
	_, err = s.Events(s.maxEvents)
	faults = append(faults, err)

	err = forEach(s, bucketPlans, func(k []byte, p Plan) {
		if string(k) != p.ID {
			fault("plan %q holds plan %q", k, p.ID)
		}
	})
	faults = append(faults, err)

	if err := errors.Join(faults...); err != nil {
		return &unusableError{"damaged", err}
	}
	return nil
}
