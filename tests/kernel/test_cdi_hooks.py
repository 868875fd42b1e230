"""nvc-cdi-hook as a createContainer hook of real containers, among them hostile ones."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from support import CLEAN_ENV, run
from support.bundle import Bundle
from support.cdi import add_hook, mount
from support.plans import snapshot
from support.rootfs import multiarch

LIBS = f"/usr/lib/{multiarch()}"
VERSION = "580.159.04"
MACHINE = {"x86_64": "x86-64", "aarch64": "AArch64"}[os.uname().machine]


def add_libraries(bundle: Bundle, driver: str, *stems: str, folder: str = LIBS) -> None:
    """Mount libraries of a simulated driver one by one, as a specification does."""
    for stem in stems:
        name = f"{stem}.so.{VERSION}"
        mount(bundle, f"{driver}{LIBS}/{name}", f"{folder}/{name}")


def cached(rootfs: str, soname: str) -> list[str]:
    """What this machine's ldconfig reads for a SONAME in an image's loader cache, in order."""
    listed = run("/sbin/ldconfig", "-p", "-C", f"{rootfs}/etc/ld.so.cache").stdout.splitlines()
    return [
        line.split(" => ")[1] for line in listed if line.strip().startswith(f"{soname} (libc6,{MACHINE}")
    ]


def refused(bundle: Bundle, script: str = "true", runtime: str = "runc") -> str:
    """The error of a container that must not start."""
    done = bundle.run(runtime, script, check=False)
    assert done.returncode != 0, done.stdout
    return str(done.stderr)


@pytest.mark.parametrize(("runtime", "readonly"), [("runc", True), ("crun", False)])
def test_links_and_loader_cache(
    runc_bundle: Any, sim_root: Any, stage: str, runtime: str, readonly: bool
) -> None:
    bundle = runc_bundle()
    bundle.config["root"]["readonly"] = readonly
    add_libraries(bundle, sim_root(), "libcuda", "libnvidia-ml")
    link = f"libcuda.so.1::{LIBS}/libcuda.so"
    add_hook(bundle, stage, "create-symlinks", "--link", link, "update-ldcache", "--folder", LIBS)
    done = bundle.run(
        runtime, f"cd {LIBS}; for link in libcuda.so libcuda.so.1 libnvidia-ml.so.1; do readlink $link; done"
    )
    assert done.stdout.split() == ["libcuda.so.1", f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}"]
    assert cached(bundle.rootfs, "libcuda.so.1") == [f"{LIBS}/libcuda.so.1"]
    assert cached(bundle.rootfs, "libcuda.so") == [f"{LIBS}/libcuda.so"]
    assert cached(bundle.rootfs, "libc.so.6"), "the image's own entries stay"
    before = snapshot(bundle.rootfs)
    bundle.run(runtime, "true")
    assert snapshot(bundle.rootfs) == before, "a second start changes nothing"


def test_one_process_or_several_give_the_same(
    runc_bundle: Any, rootfs: Any, sim_root: Any, stage: str
) -> None:
    driver = sim_root()
    steps = [
        ["create-symlinks", f"--link=libcuda.so.1::{LIBS}/libcuda.so"],
        ["enable-cuda-compat", f"--host-driver-version={VERSION}"],
        ["update-ldcache", f"--folder={LIBS}"],
        ["disable-device-node-modification"],
    ]
    found = []
    earlier = [["hook", "--quiet", *step] for step in (*steps, ["create-soname-symlinks", f"--folder={LIBS}"])]
    for program, calls in (
        ("nvidia-cdi-hook", [[word for step in steps for word in step]]),
        ("nvidia-cdi-hook", steps),
        ("nvidia-ctk", earlier),
    ):
        bundle = runc_bundle(rootfs())
        add_libraries(bundle, driver, "libcuda", "libnvidia-ml")
        for words in calls:
            add_hook(bundle, stage, *words, program=program)
        bundle.run("runc", "true")
        found.append(snapshot(bundle.rootfs))
    assert found[0] == found[1] == found[2]


def test_only_what_was_mounted_is_added(runc_bundle: Any, sim_root: Any, stage: str) -> None:
    """The image's own libraries were ldconfig's business; one beside ours does not come in."""
    bundle = runc_bundle()
    driver = sim_root()
    run("cp", f"{driver}{LIBS}/libnvidia-ml.so.{VERSION}", f"{bundle.rootfs}{LIBS}/libown.so.1")
    add_libraries(bundle, driver, "libcuda")
    add_hook(bundle, stage, "update-ldcache", "--folder", LIBS, "--folder", "/no/such/folder")
    bundle.run("runc", "true")
    assert cached(bundle.rootfs, "libcuda.so.1") and not cached(bundle.rootfs, "libnvidia-ml.so.1")
    assert not os.path.lexists(f"{bundle.rootfs}{LIBS}/libnvidia-ml.so.1")


def test_a_mounted_folder_is_read_whole_and_left_alone(runc_bundle: Any, sim_root: Any, stage: str) -> None:
    """No link is made in what is the host's, though the applier could write there."""
    bundle = runc_bundle()
    driver = sim_root()
    os.unlink(f"{driver}{LIBS}/libnvidia-ml.so.1")
    before = snapshot(f"{driver}{LIBS}")
    mount(bundle, f"{driver}{LIBS}", "/opt/driver")
    link = "--link=libcuda.so.1::/opt/driver/new.so"
    add_hook(bundle, stage, "create-symlinks", link, "update-ldcache", "--folder=/opt/driver")
    bundle.run("runc", "true")
    assert cached(bundle.rootfs, "libcuda.so.1") == ["/opt/driver/libcuda.so.1"]
    assert cached(bundle.rootfs, "libnvidia-ml.so.1") == [f"/opt/driver/libnvidia-ml.so.{VERSION}"]
    assert snapshot(f"{driver}{LIBS}") == before


def test_a_driver_baked_into_the_image(runc_bundle: Any, sim_root: Any, stage: str) -> None:
    """An old link is turned to our file; an old file stays, and the loader is told of ours past it."""
    bundle = runc_bundle()
    libs = f"{bundle.rootfs}{LIBS}"
    os.symlink("libcuda.so.470.1", f"{libs}/libcuda.so.1")
    with open(f"{libs}/libnvidia-ml.so.1", "w", encoding="ascii") as out:
        out.write("an old library\n")
    add_libraries(bundle, sim_root(), "libcuda", "libnvidia-ml")
    links = [f"--link=libnvidia-ml.so.1::{LIBS}/libnvidia-ml.so", f"--link=x::{LIBS}/libnvidia-ml.so.1"]
    add_hook(bundle, stage, "create-symlinks", *links, "update-ldcache", f"--folder={LIBS}")
    done = bundle.run("runc", f"readlink {LIBS}/libcuda.so.1; cat {LIBS}/libnvidia-ml.so.1")
    assert done.stdout.splitlines() == [f"libcuda.so.{VERSION}", "an old library"]
    assert cached(bundle.rootfs, "libcuda.so.1") == [f"{LIBS}/libcuda.so.1"]
    assert cached(bundle.rootfs, "libnvidia-ml.so.1") == [f"{LIBS}/libnvidia-ml.so.{VERSION}"]


@pytest.mark.parametrize("program", ["nvc-cdi-hook", "nvidia-cdi-hook"])
def test_a_hook_of_the_future_is_no_failure(runc_bundle: Any, stage: str, program: str) -> None:
    bundle = runc_bundle()
    add_hook(bundle, stage, "from-the-future", "--flag", "value", program=program)
    before = snapshot(bundle.rootfs)
    assert bundle.run("runc", "echo started").stdout == "started\n"
    assert snapshot(bundle.rootfs) == before
    said = run(f"{stage}/bin/nvc-cdi-hook", "from-the-future", "--flag", "value").stderr
    assert said == "nvc-cdi-hook: warning: hook from-the-future is not known and left out\n"


def test_links_of_the_image_stay_in_the_image(runc_bundle: Any, scratch: str, stage: str) -> None:
    """Links to a directory, absolute or upwards, lead to places in the rootfs (CVE-2024-0134)."""
    host = f"{scratch}/host"
    os.mkdir(host)
    bundle = runc_bundle()
    os.makedirs(bundle.rootfs + host)
    depth = "/.." * (host.count("/") + bundle.rootfs.count("/"))
    os.symlink(host, f"{bundle.rootfs}/absolute")
    os.symlink(f"{depth[1:]}{host}", f"{bundle.rootfs}/upwards")
    add_hook(bundle, stage, "create-symlinks", "--link=evil::/absolute/a", "--link=evil::/upwards/b",
             f"--link=evil::{depth}{host}/c", f"--link={host}::/own")  # fmt: skip
    bundle.run("runc", "true")
    assert os.listdir(host) == []
    assert sorted(os.listdir(bundle.rootfs + host)) == ["a", "b", "c"]
    assert os.readlink(f"{bundle.rootfs}/own") == host


def test_an_image_cannot_run_code_in_the_hook(
    runc_bundle: Any, sim_root: Any, stage: str, scratch: str
) -> None:
    """LD_PRELOAD and Python's variables of the image, and its directory as the current one (CVE-2025-23266)."""
    bundle = runc_bundle()
    witness = f"{scratch}/witness"
    library = "void evil(void); __attribute__((constructor)) void evil(void)"
    source = f'#include <fcntl.h>\n{library} {{ open("{witness}", O_CREAT | O_WRONLY, 0600); }}\n'
    with open(f"{scratch}/evil.c", "w", encoding="ascii") as out:
        out.write(source)
    run("gcc", "-shared", "-fPIC", "-o", f"{bundle.rootfs}/evil.so", f"{scratch}/evil.c")
    with open(f"{bundle.rootfs}/nvc.py", "w", encoding="ascii") as out:
        out.write(f"open({witness!r}, 'w')\n")
    for name in ("os", "sitecustomize", "struct"):
        run("cp", f"{bundle.rootfs}/nvc.py", f"{bundle.rootfs}/{name}.py")
    bundle.config["process"]["env"] += [
        "LD_PRELOAD=/proc/self/cwd/evil.so", "PYTHONPATH=/proc/self/cwd", "PYTHONSTARTUP=/proc/self/cwd/nvc.py",
        "PYTHONHOME=/proc/self/cwd", "LD_LIBRARY_PATH=.", "NVC_DEBUG_FILE=" + witness,
    ]  # fmt: skip
    add_libraries(bundle, sim_root(), "libcuda")
    add_hook(bundle, stage, "update-ldcache", f"--folder={LIBS}")
    del bundle.config["hooks"]["createContainer"][0]["env"]  # even where the specification's was lost
    bundle.run("runc", "true", check=False)
    assert cached(bundle.rootfs, "libcuda.so.1"), "the hook has run"
    assert not os.path.exists(witness)


def test_odd_files_in_the_folder(runc_bundle: Any, scratch: str, stage: str) -> None:
    """What was mounted may be anything: only libraries count, and nothing blocks."""
    bundle = runc_bundle()
    folder = f"{scratch}/odd"
    os.mkdir(folder)
    for name, content in (
        ("libshort.so.1", b"\x7fELF"),
        ("libtext.so", b"GROUP ( x )"),
        ("libempty.so", b""),
    ):
        with open(f"{folder}/{name}", "wb") as out:
            out.write(content)
    os.mkfifo(f"{folder}/libfifo.so")
    os.symlink("libloop.so", f"{folder}/libloop.so")
    os.mkdir(f"{folder}/libdirectory.so")
    mount(bundle, folder, "/opt/odd")
    mount(bundle, f"{folder}/libshort.so.1", f"{LIBS}/libshort.so.1")
    before = snapshot(f"{bundle.rootfs}/etc")
    add_hook(bundle, stage, "update-ldcache", "--folder=/opt/odd", f"--folder={LIBS}")
    assert bundle.run("runc", "echo started").stdout == "started\n"
    assert snapshot(f"{bundle.rootfs}/etc") == before


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["create-symlinks", "--link=a"], "create-symlinks: --link=a: want TARGET::LINK"),
        (["simulate-proc", "--driver-root=/"], "is not a simulated driver"),
    ],
)
def test_a_wrong_call_stops_the_container(
    runc_bundle: Any, stage: str, words: list[str], cause: str
) -> None:
    bundle = runc_bundle()
    add_hook(bundle, stage, *words)
    before = snapshot(bundle.rootfs)
    error = refused(bundle)
    assert cause in error and "nvc-cdi-hook: input error" in error
    assert snapshot(bundle.rootfs) == before


def test_only_in_the_namespace_of_the_container(runc_bundle: Any, stage: str) -> None:
    """As a createRuntime hook it would work on the host's view: refused before anything is done."""
    bundle = runc_bundle()
    add_hook(bundle, stage, "create-symlinks", "--link=a::/b", kind="createRuntime")
    before = snapshot(bundle.rootfs)
    assert "this is not its mount namespace" in refused(bundle)
    assert snapshot(bundle.rootfs) == before


def test_only_on_a_root_file_system(rootfs: Any, stage: str, scratch: str) -> None:
    path = rootfs()
    with open(f"{scratch}/config.json", "w", encoding="ascii") as out:
        json.dump({"ociVersion": "1.0.2", "process": {}, "root": {"path": path}}, out)
    before = snapshot(path)
    words = (os.path.join(stage, "bin/nvc-cdi-hook"), "create-symlinks", "--link=a::/b")
    done = run("unshare", "--mount", *words, check=False, stdin=None, input=json.dumps({"bundle": scratch}))
    assert done.returncode == 1 and "is not a mount of this namespace" in done.stderr
    assert done.stderr.count("\n") == 1 and snapshot(path) == before


def test_what_it_does_is_told_by_an_option_alone(rootfs: Any, stage: str, scratch: str) -> None:
    """The variable of NVIDIA's hooks may be the image's."""
    path = rootfs()
    config = {"ociVersion": "1.0.2", "process": {"args": ["true"]}, "root": {"path": path}}
    for name, document in (("config.json", config), ("state.json", {"bundle": scratch})):
        with open(f"{scratch}/{name}", "w", encoding="ascii") as out:
            json.dump(document, out)
    hook = os.path.join(stage, "bin/nvc-cdi-hook")
    script = f"mount --bind {path} {path} && exec '{hook}' create-symlinks --container-spec {scratch}/state.json"
    for variables, option, told in (
        ({}, "", False),
        ({"NVIDIA_CTK_DEBUG": "true"}, "", False),
        ({"NVIDIA_CTK_DEBUG": "false"}, "--debug", True),
    ):
        words = ("unshare", "--mount", "/bin/sh", "-c", f"{script} --link a::/b {option}")
        assert bool(run(*words, env={**CLEAN_ENV, **variables}).stderr) is told, (variables, option)
