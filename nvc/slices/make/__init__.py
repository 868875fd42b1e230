"""How a container or a program gets a slice: the shim, MIG or MPS isolation, measured overheads, and `vgpu run`."""
