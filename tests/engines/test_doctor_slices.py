"""`nvc-cli doctor`: faults of slices that run, and of those that are left over."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support import run
from support.bundle import Container
from support.doctor import Named, examine, problems
from support.doctorbox import Box
from support.engines import DRIVER, Host
from support.vgpu import Inside

LIBS = f"/usr/lib/{os.uname().machine}-linux-gnu"
LEDGER = f"{LIBS}/nvc/ledger/ledger"


@pytest.fixture(scope="module")
def box(host: Host) -> Iterator[Box]:
    host.sh("rm -rf /var/lib/nvc")
    yield Box(host)


@contextmanager
def sliced(box: Box, memory: str = "10GiB", **variables: str) -> Iterator[Container]:
    """A container with a slice of GPU 0, which runs."""
    asked = {"NVIDIA_VISIBLE_DEVICES": "0", "NVC_VGPU_MEMORY": memory, **variables}
    with box.bundle(**asked).created("runc") as container:
        container.start()
        yield container
    box.host.sh("nvc-cli vgpu rm --gone")


def named(box: Box, check: str, says: str, status: str = "failed") -> Named:
    """The one problem of the host's that `check` names."""
    text = examine(box.host).stdout
    found = [one for one in problems(text) if f"{check}: " in one.line and says in one.line]
    assert len(found) == 1 and found[0].line.startswith(status), text
    return found[0]


def well(box: Box, *checks: str) -> None:
    text = examine(box.host, "", " ".join(checks)).stdout
    assert not problems(text), text


def test_it_was_not_measured(box: Box) -> None:
    with sliced(box) as container:
        said = named(box, "vgpu.calibration", "not calibrated", "warning")
        box.host.sh(said.commands[0])
        well(box, "vgpu")
        assert box.doctor(container.name, check=0).endswith("11 checks: 11 ok\n")


def test_slices_promise_too_much(box: Box) -> None:
    with sliced(box, "60GiB"), sliced(box, "50GiB"):
        said = named(box, "vgpu.memory", "promise 112640 MiB, more than 81559 MiB", "warning")
        box.host.sh("nvc-cli vgpu policy 0 --oversubscribe 150%")
        well(box, "vgpu.memory")
        box.host.sh("nvc-cli vgpu policy 0 --reset")
        box.host.sh(said.commands[0])
        well(box, "vgpu.memory")


def test_a_slice_that_needs_nvcd(box: Box) -> None:
    """Its command starts nvcd, and nothing fails any more: nvcd cannot use the driver's scheduler here."""
    with sliced(box, NVC_VGPU_CORES="50", NVC_VGPU_POLICY="weight"):
        said = named(box, "vgpu.daemon", "nvcd cannot be reached")
        assert said.commands == ("nvcd &",) and examine(box.host).returncode == 1
        waiting = "until nvcd --state >/run/nvcd.state 2>&1; do :; done"
        pid = box.host.sh(f"nvcd </dev/null >/run/nvcd.log 2>&1 & {waiting}; echo $!").stdout.strip()
        text = examine(box.host, "", "vgpu.daemon").stdout
        assert "is not enforced: the driver's scheduler is not used" in text and "1 check: 1 warning" in text
        box.host.sh(f"kill {pid}; while [ -e /proc/{pid}/exe ]; do :; done; rm -r /run/nvc/nvcd")
    well(box, "vgpu.daemon")


def test_slices_that_are_left_over(box: Box) -> None:
    with box.bundle(NVIDIA_VISIBLE_DEVICES="0", NVC_VGPU_MEMORY="1g").created("runc"):
        pass
    said = named(box, "vgpu.leftovers", "slices remain from containers that have ended: 1", "warning")
    (gone,) = json.loads(box.host.sh("nvc-cli vgpu ls --all -o json").stdout)["slices"]
    assert gone["name"] != gone["key"]
    assert f"    seen    {gone['name']} /" in examine(box.host, "", "vgpu.leftovers").stdout
    box.host.sh("\n".join(said.commands))
    well(box, "vgpu.leftovers")


def test_a_quota_is_broken(box: Box) -> None:
    with sliced(box) as container:
        entry = box.host.sh("ls /run/nvc/vgpu").stdout.split()[0]
        box.host.sh(f"echo nothing > /run/nvc/vgpu/{entry}/quota")
        said = named(box, "vgpu.quotas", f"the slice in /run/nvc/vgpu/{entry} is broken")
        assert box.named(container, "container.quota", "its slice is broken")
        box.host.sh("\n".join(said.commands))
    well(box, "vgpu")


def test_a_ledger_was_written_to(box: Box) -> None:
    with sliced(box) as container:
        container.exec(f"echo 9876543210987654321 > {LEDGER}")
        said = named(box, "vgpu.ledgers", "is not known: ledger: ")
        assert said.commands[0].startswith("nvc-cli vgpu check ")
        assert box.named(container, "container.quota", "its use is not known")
    with sliced(box):
        well(box, "vgpu.ledgers")


def test_a_program_gets_around_the_shim(box: Box, tool: str) -> None:
    """By a copy of the driver's library in its image, which its own variable leads to."""
    with sliced(box) as container:
        rootfs = container.bundle.rootfs
        os.makedirs(f"{rootfs}/opt/own")
        box.host.sh(f"cp {DRIVER}{LIBS}/libcuda.so.1 {rootfs}/opt/own")
        within = Inside(container, tool, "LD_LIBRARY_PATH=/opt/own")
        try:
            assert within.code("info") != 0  # it is loaded now, whatever it says
            said = named(box, "vgpu.coverage", "bypasses the shim: /opt/own/libcuda.so.1")
            assert box.named(container, "container.shim", "bypasses the shim: /opt/own/libcuda.so.1")
            shown = run(*box.host.namespace, "/bin/sh", "-c", said.commands[0], check=False)
            assert shown.returncode == 1 and "not covered" in shown.stdout
        finally:
            within.end()
        well(box, "vgpu.coverage")
        shutil.rmtree(f"{rootfs}/opt/own")
        box.doctor(container.name, check=0)


def test_a_loader_that_finds_no_shim(box: Box) -> None:
    bundle = box.bundle(NVIDIA_VISIBLE_DEVICES="0", NVC_VGPU_MEMORY="1g", LD_LIBRARY_PATH="/srv/own")
    os.makedirs(f"{bundle.rootfs}/srv/own")
    with bundle.created("runc") as container:
        # Had it been there before, it would have been covered.
        box.host.sh(f"cp {DRIVER}{LIBS}/libnvidia-ml.so.1 {bundle.rootfs}/srv/own")
        said = box.named(container, "container.shim", "libnvidia-ml.so.1 of slice")
        assert "is not the shim: /srv/own/libnvidia-ml.so.1" in said.line
        shutil.rmtree(f"{bundle.rootfs}/srv/own")
        box.doctor(container.name, check=0)
    box.host.sh("nvc-cli vgpu rm --gone")


def test_a_slice_that_was_not_given(box: Box) -> None:
    """Another toolkit gave the container whole GPUs."""
    with box.bundle(hook=False, NVIDIA_VISIBLE_DEVICES="0", NVC_VGPU_MEMORY="1g").created(
        "runc"
    ) as container:
        words = f"--device=0 --compute --utility {container.bundle.rootfs}"
        box.host.sh(f"nvc-cli --root {DRIVER} configure --pid={container.pid} {words}")
        assert box.named(
            container, "container.shim", "it asks for a slice (NVC_VGPU_MEMORY) and has whole GPUs"
        )
