"""A container in a container that has a slice: nvc runs inside, and hands on what is there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import CLEAN_ENV, REPO, need, run
from support.bundle import Bundle
from support.configure import BASIC, Configure
from support.dialog import Dialog
from support.rootfs import LIBS, as_debian
from support.vgpu import Inside, ensure_shim, entry_of

from nvc.kernel import LinuxKernel
from nvc.slices.store import registry

OUT_OF_MEMORY = 2
#: In the outer container: a rootfs as a mount of a namespace of its own, as a runtime makes one, held until told.
INNER = """mkdir -p /inner && mount --rbind {rootfs} /inner && rm -f /held /go && mkfifo /held /go
cat > /hold <<'END'
mount --rbind /inner /inner
mount -t proc proc /inner/proc
echo $$ > /held
read line < /go
END
unshare --mount --propagation private sh /hold </dev/null >/dev/null 2>&1 &
cat /held"""


@pytest.fixture
def machine(scratch: str) -> Iterator[str]:
    """This machine's file tree without what nvc left in it, for a container that nvc can run in."""
    base = os.path.join(scratch, "machine")
    os.mkdir(base)
    run(need("mount"), "-t", "tmpfs", "none", base)
    try:
        for name in ("upper", "work", "root"):
            os.mkdir(f"{base}/{name}")
        options = f"lowerdir=/,upperdir={base}/upper,workdir={base}/work"
        run(need("mount"), "-t", "overlay", "-o", options, "none", f"{base}/root")
        for left in ("run/nvc", "etc/nvc", "var/lib/nvc"):
            shutil.rmtree(f"{base}/root/{left}", ignore_errors=True)
        yield f"{base}/root"
    finally:
        run(need("umount"), "--lazy", "--recursive", base)


class Nested:
    """A process whose root file system is `rootfs`, in a container with a slice."""

    def __init__(self, outer: Any, rootfs: str, stage: str) -> None:
        self.outer, self.stage = outer, stage
        self.pid = outer.exec(INNER.format(rootfs=rootfs)).stdout.strip()

    def configure(self, *words: str, check: bool = True) -> Any:
        """Call nvc-cli in the outer container."""
        wanted = " ".join((*BASIC, *words))
        script = f"'{self.stage}/bin/nvc-cli' configure --no-cgroups --pid={self.pid} {wanted} /inner"
        return self.outer.exec(script, check=check)

    def tool(self) -> Inside:
        """vgpu_tool in the inner container, which the bundle of the outer one has in /tmp."""
        inside: Inside = object.__new__(Inside)
        command = [*self.outer.bundle.command("runc"), "exec", self.outer.name]
        enter = ["nsenter", f"--mount=/proc/{self.pid}/ns/mnt", "--", "chroot", "/inner", "/tmp/vgpu_tool"]
        Dialog.__init__(inside, [*command, *enter], CLEAN_ENV)
        return inside


@pytest.fixture
def nested(
    stage: str, scratch: str, machine: str, rootfs: Callable[..., str], runc_bundle: Callable[..., Bundle],
    launcher: str, sim_root: Callable[..., str], tool: str,
) -> Iterator[Nested]:  # fmt: skip
    """In a container with 4 GiB of each of two GPUs, one that has nothing yet."""
    ensure_shim(stage, scratch)
    inner = as_debian(rootfs())
    run("cp", tool, f"{inner}/tmp/vgpu_tool")
    configure = Configure(launcher, sim_root(gpus=2))
    bundle = runc_bundle(machine)
    held = [f"CAP_{name}" for name in "SYS_ADMIN SYS_CHROOT SYS_PTRACE MKNOD FOWNER SETPCAP".split()]
    process = bundle.config["process"]
    process["capabilities"] = {
        kind: [*names, *held, "CAP_DAC_READ_SEARCH"] for kind, names in process["capabilities"].items()
    }
    bundle.config["mounts"] += [  # which may be on other file systems than the machine's own
        {"destination": path, "type": "bind", "source": path, "options": ["rbind", "rw"]}
        for path in (inner, REPO, stage)
    ]
    with bundle.created("runc", f"exec {need('sleep')} 600") as outer, contextlib.ExitStack() as stack:
        outer.start()
        configure(outer.pid, machine, (*BASIC, "--vgpu-memory=4g"))
        yield Nested(outer, inner, stage)
        stack.callback(registry.prune, LinuxKernel(), registry.base_directory())


def test_it_shares_the_slice(nested: Nested, tool: str) -> None:
    """What one of the two takes, the other has less; what one may not take, the other may not either."""
    nested.configure()
    mounted = nested.outer.exec(f"cat /proc/{nested.pid}/mounts").stdout
    for name in ("libcuda.so.580.159.04", "nvc/real-libcuda.so.1", "nvc/quota", "nvc/ledger"):
        assert f" /inner{LIBS}/{name} " in mounted
    outside, inside = Inside(nested.outer, tool).start(), nested.tool().start()
    assert inside.ask("total 0") == outside.ask("total 0") == [4 << 30]
    assert inside.code("alloc a 4g") == OUT_OF_MEMORY
    inside.ask("alloc a 2g")
    assert outside.code("alloc a 2g") == OUT_OF_MEMORY
    inside.ask("free a")
    outside.ask("alloc a 2g")
    assert inside.code("alloc a 2g") == OUT_OF_MEMORY
    inside.end()
    outside.end()
    assert entry_of(nested.outer.pid) is not None
    assert nested.outer.exec("find /run/nvc/vgpu -mindepth 1", check=False).stdout == ""


def test_copies_in_the_nested_image_are_covered(nested: Nested) -> None:
    nested.outer.exec(
        f"mkdir -p /inner/usr/lib64; cp {LIBS}/nvc/real-libcuda.so.1 /inner/usr/lib64/libcuda.so.1"
    )
    nested.configure()
    before = nested.outer.exec(f"cat /proc/{nested.pid}/mounts").stdout
    nested.configure()
    assert nested.outer.exec(f"cat /proc/{nested.pid}/mounts").stdout == before, "again from what is kept"
    same = f"cd /proc/{nested.pid}/root/inner; test usr/lib64/libcuda.so.1 -ef {LIBS}/libcuda.so.1"
    assert nested.outer.exec(same, check=False).returncode == 0


def test_there_are_no_slices_of_slices(nested: Nested) -> None:
    done = nested.configure("--vgpu-memory=1g", check=False)
    assert done.returncode == 1 and "this container has a slice itself" in done.stderr
    script = f"'{nested.stage}/bin/nvc-cli' vgpu run --memory 1g -- true"
    assert "this container has a slice itself" in nested.outer.exec(script, check=False).stderr


def test_its_specification_mounts_the_slice(nested: Nested) -> None:
    made = json.loads(nested.outer.exec(f"'{nested.stage}/bin/nvc-cli' cdi generate").stdout)
    mounts = {item["containerPath"]: item["hostPath"] for item in made["containerEdits"]["mounts"]}
    for name in ("libcuda.so.580.159.04", "nvc/real-libcuda.so.1", "nvc/quota", "nvc/ledger"):
        assert mounts[f"{LIBS}/{name}"] == f"{LIBS}/{name}"


def test_a_slice_that_is_broken_is_named(nested: Nested) -> None:
    nested.outer.exec(f"umount {LIBS}/nvc/quota; rm -f {LIBS}/nvc/quota")
    done = nested.configure(check=False)
    assert (
        done.returncode == 1
        and f"{LIBS}/nvc/quota: missing; this container's slice is broken" in done.stderr
    )
