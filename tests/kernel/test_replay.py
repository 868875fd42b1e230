"""Starts that the launcher does again without an interpreter: they give what Python gives.

Where anything is not as it was, they are Python's.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from support import REPO, run
from support.bundle import Bundle
from support.configure import BASIC
from support.nightly import few
from support.plans import mounts, snapshot
from support.replay import NO_PYTHON, PARAMS, WORDS, Starts
from support.rootfs import LIBS

from nvc.discovery.driver.compat import DIRECTORY as COMPAT
from nvc.kernel import LinuxKernel
from nvc.request.config import Config
from nvc.request.environment import (
    CGPU_DEVICES,
    CUDA_VERSION,
    SLICES,
    VARIABLES,
    VISIBLE,
    is_known,
    request_from,
)
from nvc.request.oci import Container

VERSION = "580.159.04"


@pytest.fixture
def done(starts: Starts) -> Any:
    """What the first start gave."""
    return starts.start(starts.whole)


def records() -> list[str]:
    return glob.glob("/run/nvc/replay-*")


def test_it_gives_the_same_without_an_interpreter(starts: Starts, done: Any) -> None:
    assert len(records()) == 1
    assert starts.start(starts.alone) == done
    os.unlink(records()[0])
    starts.refused()
    assert starts.start(starts.whole) == done


def test_twice_in_one_container(starts: Starts, done: Any) -> None:
    bundle = starts.image()
    with bundle.created("runc") as container:
        starts.alone(container.pid, bundle.rootfs, WORDS)
        before = mounts(container.pid), snapshot(bundle.rootfs)
        starts.alone(container.pid, bundle.rootfs, WORDS)
        assert (mounts(container.pid), snapshot(bundle.rootfs)) == before


def _replace(path: str, content: str) -> None:
    with open(path, "w", encoding="ascii") as out:
        out.write(content)


CHANGES: dict[str, Callable[[str], Any]] = {
    "a library more": lambda root: _replace(f"{root}{LIBS}/libnew.so.1", ""),
    "another library": lambda root: os.utime(f"{root}{LIBS}/libcuda.so.{VERSION}", ns=(1, 1)),
    "the loader cache": lambda root: os.utime(f"{root}/etc/ld.so.cache", ns=(1, 1)),
    "a file of proc": lambda root: _replace(f"{root}{PARAMS}", "ModifyDeviceFiles: 1\nNew: 1\n"),
    "a file of proc more": lambda root: _replace(f"{root}/proc/driver/nvidia/registry", "x\n"),
    "the devices": lambda root: _replace(f"{root}/proc/devices", "Character devices:\n196 nvidia\n"),
    "a GPU more": lambda root: os.mkdir(f"{root}/proc/driver/nvidia/gpus/0000:99:00.0"),
    "a node less": lambda root: os.unlink(f"{root}/dev/nvidia-uvm-tools"),
    "a service less": lambda root: os.unlink(f"{root}/run/nvidia-persistenced/socket"),
    "a version": lambda root: _replace(f"{root}/sys/module/nvidia/version", "580.159.05\n"),
}


#: Of a driver with MPS: others could decide who answers there.
OPENED: dict[str, Callable[[str], Any]] = {
    "another owner": lambda root: os.chown(f"{root}/tmp/nvidia-mps", 65534, 0),
    "a mode": lambda root: os.chmod(f"{root}/tmp/nvidia-mps", 0o777),
    "a mode above it": lambda root: os.chmod(f"{root}/tmp", 0o777),
    "an owner above it": lambda root: os.chown(f"{root}/tmp", 65534, 0),
}


@pytest.mark.driver(gpus=2, mps=True)
def test_an_mps_directory_that_is_not_roots_alone_any_more(starts: Starts) -> None:
    modes = {path: os.stat(path).st_mode for path in (f"{starts.driver}/tmp", f"{starts.driver}/tmp/nvidia-mps")}
    done = starts.start(starts.whole)
    assert any("/tmp/nvidia-mps ro," in line for line in done[0])
    assert starts.start(starts.alone) == done
    for change, open_it in OPENED.items():
        open_it(starts.driver)
        starts.refused()
        assert not any("nvidia-mps" in line for line in starts.start(starts.whole)[0]), change
        for path, mode in modes.items():
            os.chown(path, 0, 0)
            os.chmod(path, mode)
        assert starts.start(starts.whole) == done, change


@pytest.mark.parametrize("change", few(CHANGES, 3))
def test_a_host_that_has_changed(starts: Starts, done: Any, change: str) -> None:
    CHANGES[change](starts.driver)
    starts.refused()
    assert records() == []  # so that Python writes another one


def test_what_python_finds_then_is_done_again(starts: Starts, done: Any) -> None:
    CHANGES["a service less"](starts.driver)
    after = starts.start(starts.whole)
    assert after != done and starts.start(starts.alone) == after


@pytest.mark.parametrize("device", ["nvidia0", "nvidia-uvm"])
def test_a_node_that_is_another_device(starts: Starts, done: Any, device: str) -> None:
    """It has the number that discovery saw, or nothing is mounted."""
    path = f"{starts.driver}/dev/{device}"
    os.unlink(path)
    os.mknod(path, 0o020666, os.makedev(1, 3))
    starts.refused()


def test_other_words_and_variables_that_mean_something(starts: Starts, done: Any) -> None:
    with starts.refusing() as refused:
        for words in (
            (*WORDS, "--utility"), ("--device=0", *WORDS[1:]), ("--device=0,all", *WORDS[1:]), BASIC,
            (*WORDS, "--pid=1"),
        ):  # fmt: skip
            refused(words)
        for name in ("NVC_TRACE", "NVC_DEBUG_FILE", "CUDA_MPS_PIPE_DIRECTORY"):
            refused(env={"PATH": "/usr/bin:/bin", name: "/tmp/x"})
    assert len(records()) == 1 and starts.start(starts.alone) == done


def test_a_process_in_two_words(starts: Starts, done: Any) -> None:
    bundle = starts.image()
    with bundle.created("runc") as container:
        words = ("configure", "--pid", str(container.pid), *WORDS, bundle.rootfs)
        assert run(*starts.whole.command, *words).stderr == ""
        assert NO_PYTHON in run(*starts.alone.command, *words, check=False).stderr


def test_each_kind_of_image_has_a_record(
    starts: Starts, done: Any, runc_bundle: Callable[..., Bundle], rootfs: Callable[..., str]
) -> None:
    starts.refused(bundle=runc_bundle(rootfs()))
    other = starts.start(starts.whole, bundle=runc_bundle(rootfs()))
    assert len(records()) == 2
    assert starts.start(starts.alone, bundle=runc_bundle(rootfs())) == other
    assert starts.start(starts.alone) == done


def _with_compat(starts: Starts, version: str) -> Bundle:
    """An image that brings libcuda of this version along."""
    bundle = starts.image()
    os.makedirs(f"{bundle.rootfs}{COMPAT}")
    library = f"{starts.driver}{LIBS}/libcuda.so.{VERSION}"
    shutil.copy(library, f"{bundle.rootfs}{COMPAT}/libcuda.so.{version}")
    return bundle


def test_an_image_with_libraries_that_are_too_old(starts: Starts) -> None:
    """It has a record of its own, which does not hold for one whose libraries the loader is to take."""
    found = starts.start(starts.whole, bundle=_with_compat(starts, "570.1.1"))
    assert starts.start(starts.alone, bundle=_with_compat(starts, "570.1.1")) == found
    starts.refused(bundle=_with_compat(starts, "999.1.1"))
    starts.refused()
    assert len(records()) == 1


def test_an_image_whose_libraries_are_taken(starts: Starts) -> None:
    cache = "etc/ld.so.cache"
    found = starts.start(starts.whole, bundle=_with_compat(starts, "999.1.1"))
    assert COMPAT.encode() in found[1][cache][-1] and records() == []
    starts.refused(bundle=_with_compat(starts, "999.1.1"))


def _flip(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(-100, os.SEEK_END)
        byte = file.read(1)
        file.seek(-100, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))


DAMAGES: dict[str, Callable[[str], Any]] = {
    "a bit": _flip,
    "its end is missing": lambda path: os.truncate(path, os.stat(path).st_size - 8),
    "it is empty": lambda path: os.truncate(path, 0),
    "others may read it": lambda path: os.chmod(path, 0o644),
    "another's": lambda path: os.chown(path, 1, 1),
    "a link": lambda path: _link(path),
    "others may write beside it": lambda path: os.chmod("/run/nvc", 0o777),
    "another version's": lambda path: _patch(path, b"nvc-replay 2 ", b"nvc-replay 1 "),
}


def _link(path: str) -> None:
    os.rename(path, f"{path}.real")
    os.symlink(f"{path}.real", path)


def _patch(path: str, old: bytes, new: bytes) -> None:
    with open(path, "rb") as file:
        content = file.read()
    assert old in content
    with open(path, "wb") as file:
        file.write(content.replace(old, new))


def test_a_record_that_is_not_believed(starts: Starts, done: Any) -> None:
    [path] = records()
    with open(path, "rb") as file:
        content = file.read()
    with starts.refusing() as refused:
        for damage in DAMAGES.values():
            damage(path)
            refused()
            for left in glob.glob(f"{path}*"):
                os.unlink(left)
            os.chmod("/run/nvc", 0o700)
            with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(content)
    assert starts.start(starts.alone) == done, "it is believed where nothing is wrong"


def test_a_failure_is_pythons_to_tell(starts: Starts, done: Any) -> None:
    """The image has a directory where a file goes. What was done until then is undone, whoever did it."""
    said = []
    for _ in range(2):
        bundle = starts.image()
        os.makedirs(f"{bundle.rootfs}/usr/bin/nvidia-smi")
        with bundle.created("runc") as container:
            before = mounts(container.pid), snapshot(bundle.rootfs)
            said.append(starts.whole.refusal(container.pid, bundle.rootfs, WORDS))
            assert (mounts(container.pid), snapshot(bundle.rootfs)) == before
        for path in records():
            os.unlink(path)
    assert said[0] == said[1] and "nvidia-smi" in said[0]
    assert os.listdir("/run/nvc/containers") == []


def test_process_and_root_must_belong_together(starts: Starts, done: Any) -> None:
    one, other = starts.image(), starts.image()
    with one.created("runc") as container:
        pid = container.pid
        assert "is not its root directory" in starts.whole.refusal(pid, other.rootfs, WORDS)
        for number in (pid, os.getpid()):
            assert NO_PYTHON in starts.alone.refusal(number, other.rootfs, WORDS)
    assert NO_PYTHON in starts.alone.refusal(pid, one.rootfs, WORDS)


def test_a_container_that_a_killed_run_has_left(starts: Starts, done: Any) -> None:
    """Its journal is undone first, which is Python's."""
    bundle = starts.image()
    with bundle.created("runc") as container:
        root = os.open(f"/proc/{container.pid}/root", os.O_PATH)
        st = os.fstat(root)
        key = f"{st.st_dev:x}-{st.st_ino:x}-{LinuxKernel().birth_time(root):x}"
        os.close(root)
        with open(f"/run/nvc/containers/{key}", "wb") as journal:
            journal.write(b"F/nothing\0\0")
        assert NO_PYTHON in starts.alone.refusal(container.pid, bundle.rootfs, WORDS)


@pytest.fixture
def hooked(starts: Starts) -> Starts:
    """With what a hook has done once."""
    starts.settle("no-cgroups = true")
    assert starts.hooked("whole").stdout == "2\n"
    return starts


def test_a_hook_needs_no_interpreter(hooked: Starts) -> None:
    assert hooked.hooked("alone").stdout == "2\n"
    more = ["HOME=/", 'NAME=x=\n"\\', "NVIDIA_VISIBLE_DEVICES=all"]
    assert hooked.hooked("alone", env=more, annotations={"a": "b"}).stdout == "2\n"


MOUNT = {
    "destination": "/var/run/nvidia-container-devices/0",
    "source": "/dev/null",
    "type": "bind",
    "options": ["bind"],
}
OTHERS: dict[str, dict[str, Any]] = {
    "one GPU": {"env": ["NVIDIA_VISIBLE_DEVICES=0"]},
    "a requirement": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=99"]},
    "a slice": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "NVC_VGPU_MEMORY=1g"]},
    "twice": {"env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=all"]},
    "a malformed bundle": {"env": ["NVIDIA_VISIBLE_DEVICES=all"], "annotations": {"a": None}},
}


def test_a_container_that_asks_for_something_else(hooked: Starts) -> None:
    """Also by a mount; and one where settings have changed."""
    mounts = [*hooked.image().config["mounts"], MOUNT]
    for name, other in {**OTHERS, "a mount": {"mounts": mounts}}.items():
        said = hooked.hooked("alone", check=False, **other).stderr
        assert NO_PYTHON in said or "annotations" in said, name
    os.utime(hooked.config)
    assert NO_PYTHON in hooked.hooked("alone", check=False).stderr


class _Read(dict[str, str]):
    """Variables that note which of them were asked for."""

    names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        return super().__getitem__(name)


@pytest.mark.parametrize("legacy", [False, True])
def test_the_launcher_knows_every_variable_by_which_whole_devices_are_asked_for(legacy: bool) -> None:
    variables = _Read({"NVIDIA_VISIBLE_DEVICES": "all", **({"CUDA_VERSION": "12.1"} if legacy else {})})
    assert request_from(Container("/x", variables), Config()) is not None
    assert len(variables.names) > 5 and all(map(is_known, variables.names))


def test_the_launcher_copies_what_python_reads() -> None:
    with open(f"{REPO}/native/launcher/cdi/variables.h", encoding="ascii") as source:
        copied = dict(re.findall(r'{"(\w+=?)", [A-Z]+_([A-Z]+)}', source.read()))
    rows = {row.name.removesuffix("*") if row.name.endswith("*") else f"{row.name}=" for row in VARIABLES}
    slices = {*SLICES, CGPU_DEVICES}
    assert copied.keys() == rows | slices
    assert {name for name, asks in copied.items() if asks in ("SLICE", "BOTH")} == slices
    asking = {VISIBLE, CUDA_VERSION, CGPU_DEVICES}
    assert {name.rstrip("=") for name, asks in copied.items() if asks in ("GPUS", "BOTH")} == asking


def test_what_nobody_reads_is_not_kept_and_makes_no_other_record(starts: Starts) -> None:
    """A key of a tenant's stood in the record's clear text after the container had ended."""
    starts.settle("no-cgroups = true")
    asked = ["NVIDIA_VISIBLE_DEVICES=all"]
    for count in range(3):
        more = [f"NVIDIA_API_KEY=secret{count}", f"CUDA_CACHE_PATH=/{count}"]
        assert starts.hooked("whole", env=[*asked, *more]).stdout == "2\n"
    (record,) = records()
    with open(record, "rb") as file:
        assert b"secret" not in file.read()
    assert starts.hooked("alone", env=[*asked, "NVIDIA_API_KEY=other", "NVC_X=1"]).stdout == "2\n"
    assert NO_PYTHON in starts.hooked("alone", env=[*asked, "NVIDIA_DISABLE_REQUIRE=1"], check=False).stderr
