"""nvc-cdi-hook in real starts: if the launcher's applier fails, Python starts over and nothing is there twice."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support import REPO
from support.builds import kept
from support.cdi import mount
from support.covered import uncover
from support.faults import Call, build_tool, read_calls
from support.plans import snapshot
from support.rootfs import multiarch

LIBS = f"/usr/lib/{multiarch()}"
VERSION = "580.159.04"
STEPS = (
    "create-symlinks", f"--link=libcuda.so.1::{LIBS}/libcuda.so", "--link=../x::/new/directory/link",
    "enable-cuda-compat", f"--host-driver-version={VERSION}", "update-ldcache", f"--folder={LIBS}",
    "update-application-profile",
)  # fmt: skip
#: Runs the hook with a fault, which must happen; exits as the hook does.
TRACED = """#!/bin/sh
said=$('{tool}' {words} '{hook}' "$@") || exit 99
said=${{said##*end }}
exit ${{said%% *}}
"""
SEEN = "cut -d' ' -f5,6 /proc/self/mountinfo"
#: Starts the runtime where nvc has no place for the record of what it does.
NO_RUN = tuple("unshare --mount --propagation=slave /bin/sh -c".split()) + (
    f'{uncover(REPO)}mount -t tmpfs none /run && uncover && mount -o remount,ro /run && exec "$@"',
    "sh",
)


class Start:
    """A container whose hook met a fault, or none: what it has then, and which system calls were made."""

    def __init__(self, bundle: Any, tool: str, stage: str, driver: str, fault: str = "") -> None:
        log, program = f"{bundle.directory}/calls", f"{bundle.directory}/hook"
        words = f"-f {fault}" if fault else f"-l {log}"
        with open(program, "w", encoding="utf-8") as out:
            out.write(TRACED.format(tool=tool, words=words, hook=f"{stage}/bin/nvc-cdi-hook"))
        os.chmod(program, 0o755)
        for stem in ("libcuda", "libnvidia-ml"):
            mount(bundle, f"{driver}{LIBS}/{stem}.so.{VERSION}", f"{LIBS}/{stem}.so.{VERSION}")
        node = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}
        bundle.config["linux"]["devices"] = [node]
        bundle.hook("createContainer", program, [program, *STEPS])
        self.mounts = bundle.run("runc", SEEN).stdout.splitlines()
        self.files = snapshot(bundle.rootfs)
        self.calls = [] if fault else list(read_calls(log))

    def of_applier(self, name: str) -> Call:
        """The last call of a name that the launcher's applier made."""
        return [call for call in self.calls if call.process == "0.1" and call.name == name][-1]


@pytest.fixture(scope="module")
def tool() -> str:
    return kept("faults", build_tool)


@pytest.mark.parametrize(
    ("name", "before"),
    [("move_mount", ()), ("unlinkat", ()), ("symlinkat", NO_RUN)],
)
def test_what_python_does_again_is_done_once(
    runc_bundle: Any, rootfs: Any, sim_root: Any, stage: str, tool: str, name: str, before: tuple[str, ...]
) -> None:
    driver = sim_root()

    def start(fault: str = "") -> Start:
        bundle = runc_bundle(rootfs())
        bundle.before = before
        return Start(bundle, tool, stage, driver, fault)

    usual = start()
    assert not any(call.name == "execve" for call in usual.calls), "an interpreter was started"
    call = usual.of_applier(name)
    for action in ("kill", "first"):
        fault = f"{call.process}:{call.number}:{action}"
        found = start(fault)
        assert (found.mounts, found.files) == (usual.mounts, usual.files), fault
