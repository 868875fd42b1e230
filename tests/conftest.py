"""Fixtures for every test. What a test needs and the machine lacks is a failure, never a skip."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from support import EXPLORE, REPO, STAGE, examples, parallel, run
from support.begun import Begun, begin_shared, end_shared, shared
from support.bound import Bound
from support.builds import make
from support.bundle import Bundle
from support.processes import children
from support.rootfs import make_rootfs

# As in nvc/kubernetes: children of a test that uses gRPC have no threads.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
#: Where nvc keeps state.
OWN = ("/run/nvc", "/var/lib/nvc")
CLONE_NEWNS = 0x20000  # unshare(2)
MNT_DETACH = 2  # umount2(2)
#: The files of tests that wait for one long computation: where a run ends with one, the other processors idle.
LONG = ("tests/unit/test_lint.py",)
#: Files of this folder have one cluster, but for those that have none.
CLUSTER, WITHOUT = "tests/kubernetes/", ("test_kubelet_", "test_doctor_", "test_nri.")
#: These parse all sources, once if one process has them.
PARSED = tuple(f"tests/unit/test_{name}.py" for name in ("docstrings", "error_codes", "house", "house_state"))
POISON = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void bite(void) { close(open("%s", O_WRONLY | O_CREAT, 0600)); }
unsigned int la_version(unsigned int v) { bite(); return v; }
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parallel.add_option(parser)


def _together(file: str) -> bool:
    return file in PARSED or file.startswith(CLUSTER) and not file.removeprefix(CLUSTER).startswith(WITHOUT)


def pytest_configure(config: pytest.Config) -> None:
    """Bound every test, spread them over processes, and set Hypothesis up.

    Property tests try the same few examples every time, with NVC_EXPLORE many new ones. None fails for being slow.
    """
    config.pluginmanager.register(Bound())
    parallel.register(config, LONG, _together)
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import configuration, settings

        configuration.set_hypothesis_home_dir(os.path.join(REPO, "build/hypothesis"))
        settings.register_profile(
            "nvc", max_examples=examples(100), deadline=None, derandomize=not EXPLORE, database=None
        )
        settings.load_profile("nvc")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is collected stays: the garbage collector need not search it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _call(name: str, *arguments: object) -> None:
    """A system call by its C function; OSError where it fails."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _own_mounts() -> bool:
    """Whether tests have mounts of their own: not without root, nor for an installation that somebody else made."""
    return os.geteuid() == 0 and "NVC_STAGE" not in os.environ


@pytest.fixture(scope="session", autouse=True)
def _own_directories() -> Iterator[None]:
    """Mounts of these tests alone, and temporary files in memory: tests make hundreds of thousands of them."""
    begin_shared()
    if not _own_mounts():
        yield
        end_shared()
        return
    _call("unshare", CLONE_NEWNS)
    run("mount", "--make-rprivate", "/")
    for path in OWN:
        os.makedirs(path, mode=0o700, exist_ok=True)
    memory = tempfile.mkdtemp(prefix="nvc-")  # a short name: paths of sockets have at most 107 characters
    run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", memory)
    tempfile.tempdir = memory
    yield
    end_shared()
    run("umount", "--lazy", memory)
    os.rmdir(memory)


def _lay(path: str) -> object:
    """Mount an empty directory at the path, and return what `_seen` says of it."""
    _call("mount", b"tmpfs", path.encode(), b"tmpfs", ctypes.c_ulong(0), b"mode=700")
    return _seen(path)


def _seen(path: str) -> object:
    """What differs once anything was mounted at the path, or made, removed or changed in the directory."""
    stat = os.stat(path)
    return stat.st_dev, stat.st_ino, stat.st_mode, stat.st_ctime_ns, os.listdir(path)


@pytest.fixture(scope="session")
def _laid(_own_directories: None) -> dict[str, object]:
    """What `_seen` says of the directories of OWN that nobody has touched; none without root."""
    return {path: _lay(path) for path in OWN} if _own_mounts() else {}


@pytest.fixture(autouse=True)
def _own_run(_laid: dict[str, object]) -> Iterator[None]:
    """A /run/nvc and a /var/lib/nvc of this test alone.

    Files and processes that it leaves go with it: a failure stays one test's. Most tests touch neither directory
    and leave both to the next test, because each mount waits for every processor.
    """
    before = children() if _laid else set()
    yield
    for pid in children() - before if _laid else ():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for path, untouched in _laid.items():
        if _seen(path) != untouched:
            _call("umount2", path.encode(), MNT_DETACH)
            _laid[path] = _lay(path)


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str, object], None]:
    """`measured("name, unit", value)` has a figure printed when all tests have run."""
    return record_property


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests recorded, those of failed tests too."""
    reports = [report for every in terminalreporter.stats.values() for report in every]
    lines = [
        f"{report.nodeid}: {name}: {value}"
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
    ]
    if lines:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(sorted(lines)))


@pytest.fixture(scope="session")
def stage() -> str:
    """The staged tree (an installation whose Python code is this checkout), brought up to date."""
    if "NVC_STAGE" not in os.environ:  # then it is an installation that somebody else made
        make("stage")
    return STAGE


@pytest.fixture(scope="session")
def launcher(stage: str) -> str:
    """The staged nvc-cli."""
    return os.path.join(stage, "bin/nvc-cli")


@pytest.fixture(scope="session")
def begun(stage: str) -> Begun:
    """The staged nvc-cli, without its start at each call."""
    return shared(stage)


@pytest.fixture(scope="session")
def _rootfs_template() -> Iterator[Callable[[bool, bool], str]]:
    made: dict[tuple[bool, bool], str] = {}
    base = tempfile.mkdtemp(prefix="nvc-rootfs-")

    def template(glibc: bool, cache: bool) -> str:
        if (glibc, cache) not in made:
            made[glibc, cache] = make_rootfs(os.path.join(base, str(len(made))), glibc, cache)
        return made[glibc, cache]

    yield template
    shutil.rmtree(base)


@pytest.fixture
def scratch() -> Iterator[str]:
    """An empty directory, removed after the test, that every user can traverse; pytest's own cannot be."""
    directory = tempfile.mkdtemp(prefix="test-")
    os.chmod(directory, 0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def disk() -> Iterator[str]:
    """An empty directory on a disk: file systems in memory remember nothing of names that are not there."""
    directory = tempfile.mkdtemp(prefix="nvc-test-", dir="/var/tmp")
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def rootfs(scratch: str, _rootfs_template: Callable[[bool, bool], str]) -> Callable[..., str]:
    """Factory: `rootfs(glibc=True, cache=True)` returns the path of a fresh root file system."""
    count = 0

    def make(glibc: bool = True, cache: bool = True) -> str:
        nonlocal count
        count += 1
        target = os.path.join(scratch, f"rootfs{count}")
        shutil.copytree(_rootfs_template(glibc, cache), target, symlinks=True)
        return target

    return make


@pytest.fixture
def sim_root(scratch: str, stage: str) -> Callable[..., str]:
    """Factory: `sim_root(gpus=2, model="h100", ...)` (fields of SimSpec) returns a simulated driver's root."""
    count = 0

    def make(**wanted: Any) -> str:
        from nvc.testing.sim import SimSpec, create

        nonlocal count
        count += 1
        root = os.path.join(scratch, f"driver{count}")
        # GPUs of this test alone: what an operator lays down for a device holds on the whole host.
        create(root, SimSpec(**{"seed": scratch, **wanted}))
        return root

    return make


@pytest.fixture
def driver(sim_root: Callable[..., str], request: pytest.FixtureRequest) -> str:
    """The root of a simulated driver: of two GPUs, or as the mark `driver` says in fields of SimSpec.

    Parameters of a test that are for `driver` are such fields too.
    """
    mark = request.node.get_closest_marker("driver")
    return sim_root(**{"gpus": 2, **(mark.kwargs if mark else {}), **getattr(request, "param", {})})


@pytest.fixture
def runc_bundle(scratch: str, rootfs: Callable[..., str]) -> Callable[..., Bundle]:
    """Factory: `runc_bundle(path_of_rootfs=None)` returns a `support.bundle.Bundle`."""
    count = 0

    def make(path: str | None = None) -> Bundle:
        nonlocal count
        count += 1
        return Bundle(os.path.join(scratch, f"bundle{count}"), path or rootfs())

    return make


@pytest.fixture
def poison(scratch: str) -> Callable[[str], tuple[str, str]]:
    """Factory: `poison(name)` returns (shared library, file that exists once the library was loaded)."""

    def make(name: str = "poison.so") -> tuple[str, str]:
        mark = os.path.join(scratch, f"bitten-{name}")
        directory = os.path.join(scratch, "poison")
        os.makedirs(directory, exist_ok=True)
        source = os.path.join(directory, f"{name}.c")
        with open(source, "w", encoding="utf-8") as out:
            out.write(POISON % mark)
        library = os.path.join(directory, name)
        run("gcc", "-shared", "-fPIC", "-nostartfiles", f"-Wl,-soname,{name}", "-o", library, source)
        return library, mark

    return make
