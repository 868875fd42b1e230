"""Tests on a real driver, and the report that they leave: what was measured where, in Markdown.

The bundle's `gpu-tests` runs them. A test is marked `gpu` and calls `measured(name, value)` for each figure.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
from collections.abc import Callable, Iterator

import pytest
from support import CLEAN_ENV, STAGE, run
from support.adversary_table import Cells, Note, pivot, shard
from support.gpucap import Sliced
from support.realslice import RealSlice
from support.resident import begin, end
from support.vgpucap import compile_work, end_workers
from support.vgpushim import compile_tool

FIGURES = pytest.StashKey[list[tuple[str, str, str]]]()
HAD = pytest.StashKey[Cells]()
OUTCOMES = pytest.StashKey[list[tuple[str, str, float, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a real NVIDIA driver and GPU")
    config.stash[FIGURES] = []
    config.stash[OUTCOMES] = []
    config.stash[HAD] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the programs that try to have more and that -k has left, those of this shard."""
    index, count = shard()
    tried = [item for item in items if "test_adversary" in item.name]
    left = [item for at, item in enumerate(tried) if at % count != index]
    config.hook.pytest_deselected(items=left)
    gone = set(left)
    items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    outcome: pytest.TestReport = yield
    if outcome.when == "call" or outcome.failed:
        crash = getattr(outcome.longrepr, "reprcrash", None) if outcome.failed else None
        cause = crash.message.splitlines()[:1] if crash else []
        item.config.stash[OUTCOMES].append((item.name, outcome.outcome, outcome.duration, "".join(cause)))
        write_report(item.config)  # a run that is cut short has what it found
    return outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    write_report(session.config)


def write_report(config: pytest.Config) -> None:
    """To NVC_REPORT, as far as it goes."""
    path = os.environ.get("NVC_REPORT")
    if path:
        with open(f"{path}.new", "w", encoding="utf-8") as out:
            out.write(report(config))
        os.replace(f"{path}.new", path)


def report(config: pytest.Config) -> str:
    """The whole report."""
    lines = ["# nvc on a real driver", "", "| what | value |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in host()]
    lines += ["", "| test | outcome | seconds | cause |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {name} | {outcome} | {seconds:.2f} | {cause.replace('|', '/')} |"
        for name, outcome, seconds, cause in config.stash[OUTCOMES]
    ]
    figures = config.stash[FIGURES]
    if figures:
        lines += ["", "| measured | value | in |", "| --- | --- | --- |"]
        lines += [f"| {name} | {value} | {test} |" for name, value, test in figures]
    lines += pivot(config.stash[HAD])
    return "\n".join(lines) + "\n"


@functools.cache
def host() -> list[tuple[str, str]]:
    """What the figures depend on."""
    smi = shutil.which("nvidia-smi", path=CLEAN_ENV["PATH"])
    query = (
        run(smi, "--query-gpu=name,driver_version", "--format=csv,noheader", check=False) if smi else None
    )
    cgroup = "v2" if os.path.exists("/sys/fs/cgroup/cgroup.controllers") else "v1 or hybrid"
    return [
        ("GPUs", "; ".join(query.stdout.strip().splitlines()) if query else "no nvidia-smi"),
        ("kernel", platform.release()),
        ("Python", platform.python_version()),
        ("glibc", " ".join(platform.libc_ver())),
        ("cgroup", cgroup),
        ("nvc", run(os.path.join(STAGE, "bin/nvc-cli"), "--version").stdout.splitlines()[0]),
    ]


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """`measured("name, unit", value)` puts a figure into the report."""

    def note(name: str, value: object) -> None:
        request.config.stash[FIGURES].append((name, str(value), request.node.name))
        write_report(request.config)

    return note


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """`note(program, column, value)` puts what a program had into a table of the report."""

    def put(program: str, column: str, value: str) -> None:
        request.config.stash[HAD].setdefault(program, {})[column] = value

    return put


@pytest.fixture(scope="session")
def nvc() -> Callable[..., str]:
    """`nvc("info", ...)` runs the installed nvc-cli and returns its output."""

    def call(*arguments: str) -> str:
        return run(os.path.join(STAGE, "bin/nvc-cli"), *arguments, env=CLEAN_ENV).stdout

    return call


@pytest.fixture(scope="module")
def slice_(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSlice]:
    """10 GiB of the first GPU, of which only the shim's library directory knows."""
    directory = str(tmp_path_factory.mktemp("slice"))
    made = RealSlice(directory, os.path.join(STAGE, "lib/nvc/vgpu/current"), compile_tool(directory, "-O2"))
    # What the driver takes with its first client stays out of the figures.
    keeper = made.process().do("init")
    yield made
    keeper.end()


@pytest.fixture(scope="session")
def sliced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sliced]:
    """A slice of the GPU whose cap a test sets, and programs that keep the GPU busy."""
    directory = str(tmp_path_factory.mktemp("capped"))
    Sliced.known = {}
    made = Sliced(directory, os.path.join(STAGE, "lib/nvc/vgpu/current"), compile_work(directory, "-O2"))
    yield made
    end_workers([made])


@pytest.fixture(scope="module")
def nvcd() -> Iterator[object]:
    """An nvcd that keeps time by the driver."""
    process = begin()
    yield process
    end(process)
