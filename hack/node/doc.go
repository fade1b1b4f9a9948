// Package node runs a private, real container node: containerd with its CRI
// service, runc, a bridge network and a registry with fixture images. Tests,
// benchmarks, the demo and people at a shell (`make node`) use the same one.
//
// Start gives a node in a fraction of a second, Stop takes it away again and
// reports everything that had to be cleaned up by force: a test that leaves
// a container, a mount or a process behind fails there.
//
// Everything of a node lives under one directory:
//
//	DIR/bin/               the programs, as links into the program cache
//	DIR/containerd.toml    generated configuration
//	DIR/containerd.log     what containerd printed, over all its restarts
//	DIR/containerd.sock    CRI and containerd API (.ttrpc beside it)
//	DIR/root/ DIR/state/   containerd's root and state, network namespaces too
//	DIR/s/                 sockets of the shims
//	DIR/runc/              state of runc
//	DIR/nri/               nri.sock, plugins/, conf.d/
//	DIR/certs.d/           how CRI reaches the node's own registry
//	DIR/cni/               net.d/, ipam/
//	DIR/logs/              container logs, one directory per pod
//	DIR/kubelet*, DIR/pods/  of StartKubelet: root, configuration, log; static pods
//
// Outside of it there are, each carrying the node's unique name: one cgroup
// (in every hierarchy), one bridge, and one owner record in
// /run/image-custodian-nodes. The programs are built once per version and
// Go release, into the user's cache directory, so outside of any clone.
// (`ctr run` makes one more cgroup, named after the containerd namespace, that
// it never removes; with --cgroup one can say where.)
//
// # What a SIGKILL leaves
//
// containerd and a kubelet die with the process that started the node
// (Pdeathsig), and with the kubelet the mount namespace that is its own. Shims,
// containers, their mounts, the bridge, the cgroups and DIR stay. The owner
// record is locked while its owner lives, so anybody can tell a dead node
// from a live one: Sweep removes the dead ones, and Start calls it.
package node
