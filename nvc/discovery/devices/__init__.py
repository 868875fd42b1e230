"""GPUs, MIG devices, device nodes and sockets, as the kernel's side of the driver shows them."""
