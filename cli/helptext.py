"""Descriptions and examples of the commands, for `--help` only."""

from __future__ import annotations

DESCRIPTIONS = {
    "": "Give NVIDIA GPUs to containers, share GPUs, and find what is wrong.",
    "info": "Report the driver and its GPUs.",
    "list": """List the files that a container needs, one path a line, relative to the driver root.

Without options everything is listed; options select what to list.""",
    "configure": """Give the container in ROOTFS access to GPUs.

With --pid the namespaces of that process are entered: the init process of a container that has been created
and not yet started. With --host there is no container: the mounts are made in ROOTFS as seen from here,
and stay until --undo takes them back.

Without --device the driver's files and its control nodes are injected, but no GPU. An error leaves nothing
behind in the container.""",
}

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "nvc-cli info",
        "nvc-cli list --device all --libraries",
        "nvc-cli configure --pid 4242 --device 0 --compute --utility /run/c/rootfs",
        "nvc-cli --root /run/nvidia/driver info --format table",
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
