"""Memory that slices reserve: all together never more than a device has. GPUs have 81,559 MiB."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import GIB
from support.bundle import RUNTIMES
from support.configure import BASIC, Configure
from support.fileleases import Lease
from support.hook import ask
from support.programs import Programs
from support.vgpu import cli, entry_of, limits_of

pytestmark = pytest.mark.usefixtures("shim")
REQUEST, LIMIT = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"


def reserved(pid: int) -> list[int]:
    return [device.reserved for device in entry_of(pid).devices]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_container_keeps_what_it_requests(hook: Any, runc_bundle: Any, runtime: str) -> None:
    first, second, third = (runc_bundle() for _ in range(3))
    made = hook()
    for bundle, request in ((first, "51200"), (second, "30360"), (third, "")):
        ask(bundle, NVIDIA_VISIBLE_DEVICES="all", **{LIMIT: "61440", REQUEST: request})
        made.add(bundle)
    with first.created(runtime) as container:
        assert reserved(container.pid) == [50 * GIB] * 2 and limits_of(container.pid) == [60 * GIB] * 2
        done = second.run(runtime, "echo started", check=False)
        assert done.returncode != 0 and "started" not in done.stdout
        if runtime == "runc":  # crun does not pass on what hooks print
            assert "30360 MiB cannot be reserved: 30359 MiB of" in done.stderr
            assert f"the rest is reserved by {container.name[:12]}" in done.stderr
        with third.created(runtime) as other:  # asks for nothing that must be there
            assert reserved(other.pid) == [0, 0]
    with second.created(runtime) as container:  # the first one is gone
        assert reserved(container.pid) == [30360 << 20] * 2


def test_a_request_alone_is_bounded_as_a_limit(hook: Any, bundle: Any) -> None:
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", **{REQUEST: "2049"})
    made = hook()
    made.add_settings('vgpu-memory-max = "2GiB"')
    made.add(bundle)
    done = bundle.run("runc", "echo started", check=False)
    assert f"{REQUEST}: 2049: the operator grants 2GiB" in done.stderr and "started" not in done.stdout


def test_programs_by_name(programs: Programs) -> None:
    programs.start("--device=0", "--memory=60g", "--memory-request=50g", "--name=train")
    programs.start("--device=0", "--memory=20g", "--memory-request=20g", "--name=serve")
    text = programs.refused("--device=0,1", "--memory=10g", "--memory-request=10g")
    assert "10 GiB cannot be reserved: 9879 MiB of 81559 MiB is free" in text
    assert "reserved by" in text and "train 50 GiB" in text and "serve 20 GiB" in text
    programs.start("--device=1", "--memory=70g", "--memory-request=70g")
    programs.kill(1)
    programs.start("--device=0", "--memory=10g", "--memory-request=10g")


def test_a_lease_on_a_quota_hides_no_reservation_and_refuses_nobody(programs: Programs) -> None:
    """What is reserved stands in a file that no tenant can open."""
    holder = programs.start("--device=0", "--memory=60g", "--memory-request=50g", "--name=train")
    with Lease(entry_of(holder).quota) as lease:
        assert not lease.refused
        programs.start("--device=0", "--memory=20g", "--memory-request=20g")
        text = programs.refused("--device=0", "--memory=10g", "--memory-request=10g")
        assert "10 GiB cannot be reserved: 9879 MiB of 81559 MiB is free" in text and "train 50 GiB" in text


def test_it_is_shown(programs: Programs, launcher: str) -> None:
    pid = programs.start("--device=0", "--memory=60g", "--memory-request=50g", "--name=train")
    assert "\n           50 GiB reserved\n" in cli(launcher, "show", "train").stdout
    found = json.loads(cli(launcher, "show", str(pid), "--format=json").stdout)
    assert [device["reserved"] for device in found["devices"]] == [50 * GIB, 0]
    for words in (("ls",), ("top", "--once")):
        lines = cli(launcher, *words).stdout.splitlines()
        at = [line for line in lines if "RESERVED" in line]
        assert at and any("50.0G" in line for line in lines), lines


def test_less_memory_reserves_less(programs: Programs, launcher: str) -> None:
    pid = programs.start("--device=0", "--memory=60g", "--memory-request=50g", "--name=train")
    told = cli(launcher, "set", "train", "--memory=20g").stderr
    assert "reserves 20 GiB now, 50 GiB before" in told
    assert reserved(pid)[0] == 20 * GIB
    cli(launcher, "set", "train", "--memory=60g")
    assert reserved(pid)[0] == 20 * GIB  # another slice may have the rest by now
    programs.start("--device=0", "--memory=50g", "--memory-request=50g")


def test_configure_again(container: Any, launcher: str, driver: str) -> None:
    configure, made = Configure(launcher, driver), container("--vgpu-memory=1g")
    for size in (70, 40, 75):  # its own reservation is not in its way
        words = (*BASIC, "--vgpu-memory=76g", f"--vgpu-memory-request={size}g")
        configure(made.pid, made.bundle.rootfs, words)
        assert set(reserved(made.pid)) == {size * GIB}
    planned = configure(made.pid, made.bundle.rootfs, (*words, "--dry-run")).stdout
    assert "75 GiB reserved" in " ".join(planned.split())
    configure(made.pid, made.bundle.rootfs, (*BASIC, "--vgpu-memory=76g"))
    assert set(reserved(made.pid)) == {0}


def test_a_slice_that_cannot_be_read_denies_reservations(programs: Programs) -> None:
    pid = programs.start("--device=0", "--memory=60g", "--memory-request=50g")
    about = f"{entry_of(pid).directory}/about"
    with open(about, "rb") as file:
        text = file.read()
    with open(about, "wb") as file:
        file.write(text[:-5])
    try:
        assert "is not known" in programs.refused("--device=0", "--memory=1g", "--memory-request=1g")
        programs.start("--device=0", "--memory=1g")
    finally:
        with open(about, "wb") as file:
            file.write(text)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--memory=1g", "--memory-request=2g"), "--memory-request: 2g: more than the limit of "),
        (("--memory-request=1g",), "--memory-request: only with --memory"),
        (("--memory=1g", "--memory-request="), "--memory-request: empty"),
    ],
)
def test_requests_that_are_refused(programs: Programs, words: tuple[str, ...], cause: str) -> None:
    assert cause in programs.refused(*words)
