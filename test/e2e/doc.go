// Package e2e drives the built programs from outside, on a private real node.
// What containerd and the CRI answer is the judge; nothing of the product is
// linked in. The tests need root and the build tag e2e.
package e2e
