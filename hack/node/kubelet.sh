#!/bin/sh
# Runs a kubelet so that it changes nothing outside of its directory, although
# some of what it writes has no setting. To be started in a mount namespace of
# its own, which ends with the kubelet.
#
#	kubelet.sh ROOT_DIR PROGRAM ARGUMENT...
set -eu
root=$1
shift
# What is mounted from here on stays here. Only volumes, in the kubelet's root,
# are for containerd to see.
# A network namespace of a pod that is mounted here too would outlive the pod.
while read -r _ _ _ _ point rest; do
	case "$rest" in
	*' - nsfs '*) umount --lazy "$point" ;;
	*) [ "$point" = "$root" ] || mount --make-slave "$point" ;;
	esac || true
done 2>/dev/null </proc/self/mountinfo
# /var/log/containers and /var/lib/kubelet/device-plugins
mount -t tmpfs kubelet /var/log
mount -t tmpfs kubelet /var/lib
# Kernel parameters are set in copies.
mkdir /var/lib/sysctl
for key in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	copy=/var/lib/sysctl/$(basename "$key")
	cat "/proc/sys/$key" >"$copy"
	mount --bind "$copy" "/proc/sys/$key"
done
exec "$@"
