"""Podman's output, as tests read it, on a machine that is busy: with the distribution's conmon."""

from __future__ import annotations

import os

from support import REPO, need, run
from support.engines import DIRECT, PODMAN, Host


def test_the_output_of_a_container_that_ends_soon(host: Host) -> None:
    """It is there, however late conmon is."""
    source = os.path.join(REPO, "tests/data/conmon_late.c")
    run(need("gcc"), "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", f"{host.directory}/late.so", source, "-ldl")
    conmon = host.sh("command -v conmon").stdout.strip()
    host.write("/run/conmon", f'#!/bin/sh\nLD_PRELOAD={host.directory}/late.so exec {conmon} "$@"\n', 0o755)
    limits = "--ulimit nofile=1024:1024 --ulimit nproc=1024:1024"
    options = f"--rm {DIRECT} --network host --runtime runc {limits} --rootfs /run/rootfs"
    said = host.sh(f"podman --conmon /run/conmon {PODMAN} run {options} sh -c 'echo out; echo error >&2'")
    assert (said.stdout, said.stderr) == ("out\n", "error\n")
