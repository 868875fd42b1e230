"""Descriptions and examples of the commands, for `--help` only."""

from __future__ import annotations

DESCRIPTIONS = {
    "": "Give containers access to NVIDIA GPUs, share GPUs, and find problems.",
    "info": "Report the driver and its GPUs.",
    "list": """List the files that a container needs, one path a line, relative to the driver root.

Without options, list everything. Options select what to list.""",
    "configure": """Give the container in ROOTFS access to GPUs.

With --pid, enter the namespaces of that process: the init process of a container that has been created but not
started. With --host, there is no container: mount in ROOTFS on this host, until --undo.

Without --device, inject the driver's files and control nodes, but no GPU. A failure leaves the container
unchanged.""",
}

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "nvc-cli info --format table",
        "nvc-cli runtime configure --engine docker",
        "nvc-cli vgpu run --memory 10GiB --cores 25 -- python3 train.py",
        "nvc-cli vgpu top",
        "nvc-cli doctor",
    ),
    "info": (
        "nvc-cli info --format table",
        "nvc-cli info --csv",
        "nvc-cli --root /run/nvidia/driver info --format json",
    ),
    "list": (
        "nvc-cli list",
        "nvc-cli list --device 0:1",
        "nvc-cli list --libraries --compat32 --format table",
    ),
    "configure": (
        "nvc-cli configure --dry-run --device all --compute --utility /run/c/rootfs",
        "nvc-cli configure --pid 4242 --device 1:0 --utility /run/c/rootfs",
        "nvc-cli configure --pid 4242 --require 'cuda>=12.4' /run/c/rootfs",
    ),
}
