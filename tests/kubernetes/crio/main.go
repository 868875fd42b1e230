// Puts the image of an OCI archive into the store of CRI-O: crio-load ARCHIVE NAME
package main

import (
	"context"
	"fmt"
	"os"

	"go.podman.io/image/v5/copy"
	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/transports/alltransports"
	"go.podman.io/storage/pkg/reexec"
)

func load(archive, name string) error {
	source, err := alltransports.ParseImageName("oci-archive:" + archive)
	if err != nil {
		return err
	}
	target, err := alltransports.ParseImageName("containers-storage:" + name)
	if err != nil {
		return err
	}
	accept := &signature.Policy{Default: signature.PolicyRequirements{signature.NewPRInsecureAcceptAnything()}}
	policy, err := signature.NewPolicyContext(accept)
	if err != nil {
		return err
	}
	_, err = copy.Image(context.Background(), policy, target, source, nil)
	return err
}

func main() {
	if reexec.Init() {
		return // a child that unpacks a layer
	}
	if err := load(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "crio-load:", err)
		os.Exit(1)
	}
}
