// Package cluster holds the versions of the binaries that `./x cluster` builds; nothing here is compiled into ours.

//go:build tools

package cluster

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
)
