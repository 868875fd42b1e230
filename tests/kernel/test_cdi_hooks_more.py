"""Hooks of specifications beyond links and libraries: compat libraries, modes, /proc, user namespaces, cost."""

from __future__ import annotations

import json
import os
import stat
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from support import need, run
from support.bundle import Bundle
from support.cdi import add_hook, mount
from support.processes import in_child
from support.rootfs import multiarch

from nvc.base.files import closing
from nvc.frontends.cdi.hooks.arguments import parse_arguments
from nvc.frontends.cdi.hooks.steps import Steps
from nvc.kernel import ffi, lib
from nvc.kernel import steps as planned

LIBS = f"/usr/lib/{multiarch()}"
VERSION = "580.159.04"
COMPAT = "/usr/local/cuda/compat"
MACHINE = {"x86_64": "x86-64", "aarch64": "AArch64"}[os.uname().machine]


def first(rootfs: str, soname: str = "libcuda.so.1") -> str:
    """What the loader takes for a SONAME."""
    listed = run("/sbin/ldconfig", "-p", "-C", f"{rootfs}/etc/ld.so.cache").stdout.splitlines()
    found = [line for line in listed if line.strip().startswith(f"{soname} (libc6,{MACHINE}")]
    return found[0].split(" => ")[1]


def add_compat(rootfs: str, driver: str, version: str, note: Any = None, directory: str = COMPAT) -> None:
    """Give an image a forward-compatibility libcuda of `version` that says in `note` what it is for."""
    os.makedirs(rootfs + directory, exist_ok=True)
    path = f"{rootfs}{directory}/libcuda.so.{version}"
    run("cp", f"{driver}{LIBS}/libcuda.so.{VERSION}", path)
    if note is None:
        return
    payload = note if isinstance(note, bytes) else json.dumps(note).encode()
    owner = b"NVIDIA Corporation\0"
    content = struct.pack("<III", len(owner), len(payload), 1) + owner + bytes(-len(owner) % 4) + payload
    with open(f"{path}.note", "wb") as out:
        out.write(content + bytes(-len(content) % 4))
    run(need("objcopy"), "--add-section", f".note.cuda.fwd_compatibility={path}.note", path)
    os.unlink(f"{path}.note")


def cuda_bundle(runc_bundle: Any, driver: str) -> Bundle:
    bundle: Bundle = runc_bundle()
    mount(bundle, f"{driver}{LIBS}/libcuda.so.{VERSION}", f"{LIBS}/libcuda.so.{VERSION}")
    return bundle


@pytest.mark.parametrize(
    ("version", "note", "used"),
    [
        ("590.10.01", None, True),
        ("580.200.01", None, False),
        ("470.10.01", None, False),
        ("580.200.01", {"Format": 1, "Driver": [580]}, True),
        ("580.1.01", {"Format": 1, "Driver": [580]}, False),
        ("590.10.01", b"[" * 20000, False),
    ],
)
def test_compat_libraries_are_for_this_driver(
    scratch: str, sim_root: Any, version: str, note: Any, used: bool
) -> None:
    add_compat(scratch, sim_root(), version, note)
    rootfs = os.open(scratch, os.O_PATH | os.O_DIRECTORY)
    steps = Steps(rootfs, False)
    steps.add(parse_arguments(["enable-cuda-compat", f"--host-driver-version={VERSION}"]).steps[0])
    paths = [entry.path for entry in steps.finish(frozenset()).entries]
    os.close(rootfs)
    assert paths == [f"{COMPAT}/libcuda.so.{version}"] * used


@pytest.mark.parametrize(
    ("version", "used", "separate"), [("590.10.01", True, False), ("470.10.01", False, True)]
)
def test_compat_libraries_come_first(
    runc_bundle: Any, sim_root: Any, stage: str, version: str, used: bool, separate: bool
) -> None:
    driver = sim_root()
    bundle = cuda_bundle(runc_bundle, driver)
    add_compat(bundle.rootfs, driver, version)
    steps = [
        ["enable-cuda-compat", f"--host-driver-version={VERSION}"],
        ["update-ldcache", f"--folder={LIBS}"],
    ]
    for words in steps if separate else [[word for step in steps for word in step]]:
        add_hook(bundle, stage, *words)
    for _ in range(2):  # a container is started again with the same files
        bundle.run("runc", "true")
        wanted = f"{COMPAT}/libcuda.so.{version}" if used else f"{LIBS}/libcuda.so.1"
        assert first(bundle.rootfs) == wanted


def test_compat_in_another_place_and_for_a_newer_cuda(runc_bundle: Any, sim_root: Any, stage: str) -> None:
    driver = sim_root()
    bundle = cuda_bundle(runc_bundle, driver)
    note = {"Driver": [580], "CUDA Version": "13.1"}
    add_compat(bundle.rootfs, driver, "590.1.1", note, "/opt/cuda/compat")
    words = ["enable-cuda-compat", f"--host-driver-version={VERSION}"]
    root = "--cuda-compat-container-root=/opt/cuda/compat"
    for extra, wanted in (
        ([], f"{LIBS}/libcuda.so.1"),
        ([root, "--host-cuda-version=13.1"], f"{LIBS}/libcuda.so.1"),
        ([root, "--host-cuda-version=13.0"], "/opt/cuda/compat/libcuda.so.590.1.1"),
    ):
        bundle.config["hooks"] = {}
        add_hook(bundle, stage, *words, *extra, "update-ldcache", f"--folder={LIBS}")
        bundle.run("runc", "true")
        assert first(bundle.rootfs) == wanted


def test_hostile_compat_directories(runc_bundle: Any, sim_root: Any, scratch: str, stage: str) -> None:
    """Links out of the image, fifos and broken files are no libraries; nothing blocks, nothing is mounted."""
    driver = sim_root()
    bundle = cuda_bundle(runc_bundle, driver)
    compat = bundle.rootfs + COMPAT
    os.makedirs(compat)
    os.mkfifo(f"{compat}/libcuda.so.991.1")
    os.symlink(f"{driver}{LIBS}/libcuda.so.{VERSION}", f"{compat}/libcuda.so.992.1")
    with open(f"{compat}/libcuda.so.990.1", "wb") as out:
        out.write(b"\x7fELF" + b"\xff" * 1000)
    words = ["enable-cuda-compat", f"--host-driver-version={VERSION}", "update-ldcache", f"--folder={LIBS}"]
    add_hook(bundle, stage, *words)
    bundle.run("runc", "true")
    assert first(bundle.rootfs) == f"{LIBS}/libcuda.so.1"


def test_chmod(runc_bundle: Any, stage: str) -> None:
    bundle = runc_bundle()
    os.mkdir(f"{bundle.rootfs}/opt")
    os.symlink("opt", f"{bundle.rootfs}/link")
    add_hook(bundle, stage, "chmod", "--mode", "711", "--path", "/link", "--path=/dev/shm", "--path=/none")
    bundle.run("runc", "true")
    assert stat.S_IMODE(os.stat(f"{bundle.rootfs}/opt").st_mode) == 0o711
    assert not os.path.exists(f"{bundle.rootfs}/none")


def test_chmod_reaches_dev_but_not_the_host(runc_bundle: Any, scratch: str, stage: str) -> None:
    """A link of the image leads to a writable volume: refused, and what was changed before is changed back."""
    bundle = runc_bundle()
    os.mkdir(f"{scratch}/volume", 0o700)
    bundle.config["mounts"].append(
        {"source": f"{scratch}/volume", "destination": "/data", "type": "bind", "options": ["rbind", "rw"]}
    )
    os.mkdir(f"{bundle.rootfs}/own", 0o700)
    os.symlink("data", f"{bundle.rootfs}/link")
    add_hook(bundle, stage, "chmod", "--mode=777", "--path=/dev/null", "--path=/own", "--path=/link")
    done = bundle.run("runc", "true", check=False)
    assert done.returncode != 0 and "is a file of the host" in done.stderr
    assert stat.S_IMODE(os.stat(f"{scratch}/volume").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(f"{bundle.rootfs}/own").st_mode) == 0o700
    bundle.config["hooks"] = {}
    add_hook(bundle, stage, "chmod", "--mode=600", "--path=/dev/null")
    assert bundle.run("runc", "stat -c %a /dev/null").stdout == "600\n"


def test_a_link_in_the_place_of_dev_makes_no_volume_its_own(runc_bundle: Any, scratch: str, stage: str) -> None:
    bundle = runc_bundle()
    for name in ("pts", "dri"):
        os.makedirs(f"{scratch}/volume/{name}", 0o700)
    bundle.config["mounts"].append(
        {"source": f"{scratch}/volume", "destination": "/data", "type": "bind", "options": ["rbind", "rw"]}
    )
    os.rename(f"{bundle.rootfs}/dev", f"{bundle.rootfs}/was")
    os.symlink("data", f"{bundle.rootfs}/dev")
    add_hook(bundle, stage, "chmod", "--mode=755", "--path=/dev/dri")
    done = bundle.run("runc", "true", check=False)
    assert done.returncode != 0 and "is a file of the host" in done.stderr
    assert stat.S_IMODE(os.stat(f"{scratch}/volume/dri").st_mode) == 0o700


#: A host whose kernel has the driver, and a container that sees it in its /proc. runc mounts nothing there, so
#: the namespace is made by hand.
DRIVER = """
mount -t tmpfs none /proc/driver && cp -r {driver}/proc/driver/nvidia /proc/driver/ &&
mkdir -p /proc/driver/nvidia/capabilities/mig && mount --bind {rootfs} {rootfs} &&
mount -t tmpfs none {rootfs}/proc && cp -r /proc/driver {rootfs}/proc/ && {hook} < {scratch}/state.json &&
cd {rootfs}/proc/driver/nvidia && grep Modify params && ls && cat version && echo x > version
"""


@pytest.mark.parametrize("modifies", ["1", "0"])
def test_device_nodes_are_not_modified(
    rootfs: Any, sim_root: Any, scratch: str, stage: str, modifies: str
) -> None:
    """`params` says no; everything else of the driver's directory is still there, and read-only."""
    driver, path = sim_root(), rootfs()
    params = f"{driver}/proc/driver/nvidia/params"
    with open(params, encoding="ascii") as file:
        text = file.read()
    assert "ModifyDeviceFiles: 1" in text
    os.chmod(params, 0o644)
    with open(params, "w", encoding="ascii") as file:
        file.write(text.replace("ModifyDeviceFiles: 1", f"ModifyDeviceFiles: {modifies}"))
    for name, document in (
        ("state.json", {"bundle": scratch}),
        ("config.json", {"ociVersion": "1.0.2", "process": {}, "root": {"path": path}}),
    ):
        with open(f"{scratch}/{name}", "w", encoding="ascii") as out:
            json.dump(document, out)
    hook = f"'{stage}/bin/nvc-cdi-hook' disable-device-node-modification"
    script = DRIVER.format(driver=driver, rootfs=path, hook=hook, scratch=scratch)
    done = run("unshare", "--mount", "/bin/sh", "-c", script, check=False)
    lines = done.stdout.splitlines()
    assert lines[0] == "ModifyDeviceFiles: 0", done
    assert {"capabilities", "gpus", "params", "registry", "sim", "version"} <= set(lines)
    assert lines[-1].startswith(("NVRM version", "GCC version"))
    assert ("Read-only file system" in done.stderr) is (modifies == "1"), done


def test_a_simulated_driver_appears_with_the_given_entries_only(
    runc_bundle: Any, sim_root: Any, stage: str
) -> None:
    """Twice, as for two devices asked for one by one."""
    driver = sim_root(gpus=3)
    gpus = sorted(os.listdir(f"{driver}/proc/driver/nvidia/gpus"))
    bundle = runc_bundle()
    for gpu in gpus[:2]:
        entry = f"--entry=/proc/driver/nvidia/gpus/{gpu}"
        add_hook(bundle, stage, "simulate-proc", f"--driver-root={driver}", entry)
    lines = bundle.run(
        "runc", "cd /proc/driver/nvidia; ls gpus; grep Modify params; ls sim"
    ).stdout.splitlines()
    assert lines == [*gpus[:2], "ModifyDeviceFiles: 0", "description", "rm", "state"]


@pytest.mark.parametrize("runtime", ["runc", "crun"])
def test_in_a_user_namespace(runc_bundle: Any, sim_root: Any, stage: str, runtime: str) -> None:
    driver = sim_root(gpus=1)
    bundle = runc_bundle()
    for base, directories, files in os.walk(bundle.rootfs):
        for name in (".", *directories, *files):
            os.lchown(os.path.join(base, name), 100000, 100000)
    bundle.user_namespace()
    for stem in ("libcuda", "libnvidia-ml"):
        name = f"{stem}.so.{VERSION}"
        mount(bundle, f"{driver}{LIBS}/{name}", f"{LIBS}/{name}")
    (gpu,) = os.listdir(f"{driver}/proc/driver/nvidia/gpus")
    entry = f"--entry=/proc/driver/nvidia/gpus/{gpu}"
    link = f"--link=libcuda.so.1::{LIBS}/libcuda.so"
    add_hook(bundle, stage, "simulate-proc", f"--driver-root={driver}", entry)
    add_hook(bundle, stage, "create-symlinks", link, "update-ldcache", f"--folder={LIBS}")
    done = bundle.run(
        runtime, f"ls /proc/driver/nvidia/gpus; readlink {LIBS}/libcuda.so; stat -c %u /etc/ld.so.cache"
    )
    assert done.stdout.split() == [gpu, "libcuda.so.1", "0"]
    assert first(bundle.rootfs) == f"{LIBS}/libcuda.so.1"


@pytest.mark.parametrize(("folder", "says"), [("/loop", "too many levels"), ("/file", "not a directory")])
def test_a_folder_that_cannot_be_opened_is_told(scratch: str, folder: str, says: str) -> None:
    """Its libraries are not found by the loader; one that is not there has none."""
    os.symlink("loop", f"{scratch}/loop")
    with open(f"{scratch}/file", "w", encoding="ascii"):
        pass
    with closing(os.open(scratch, os.O_PATH | os.O_DIRECTORY)) as rootfs:
        steps = Steps(rootfs, False)
        steps.add(parse_arguments(["update-ldcache", f"--folder={folder}", "--folder=/missing"]).steps[0])
        found = steps.finish(frozenset())
    (warning,) = found.warnings
    assert warning.startswith(f"{folder}: {says}") and "the loader cache gets none of its libraries" in warning


def test_no_memory_to_plan_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error: what is freed after it was never there."""
    short = SimpleNamespace(nvc_steps_new=lambda *_: ffi.NULL, nvc_steps_free=lib.nvc_steps_free)
    monkeypatch.setattr(planned, "lib", short)
    assert in_child(lambda: str(Steps(-1, False))) == "MemoryError: "


def test_many_thousand_libraries_take_little_time(bundle: Bundle, stage: str, scratch: str) -> None:
    """The volumes of an image may have them. A thousand get into the loader cache, and only these are compared."""
    library = b"\x7fELF\x02\x01\x01" + bytes(11) + b"\x3e" + bytes(45)  # of x86_64, without segments
    with open(f"{scratch}/library", "wb") as out:
        out.write(library)
    folders = [f"/many{number}" for number in range(4)]
    for folder in folders:
        os.mkdir(scratch + folder)
        for number in range(16384):
            os.link(f"{scratch}/library", f"{scratch}{folder}/lib{folder[1:]}-{number}.so")
        mount(bundle, scratch + folder, folder)
    words = ["update-ldcache", *(f"--folder={folder}" for folder in folders)]
    limited = 'ulimit -t 3; exec "$0" "$@"'  # seconds of processor time
    hook = os.path.join(stage, "bin/nvc-cdi-hook")
    bundle.hook("createContainer", "/bin/sh", ["sh", "-c", limited, hook, *words], env=["PATH=/usr/bin:/bin"])
    bundle.run("runc", "true")
    with open(f"{bundle.rootfs}/etc/ld.so.cache", "rb") as file:
        cache = file.read()
    assert cache.count(b"/many0/libmany0-") == 1000 and b"/many1/" not in cache
