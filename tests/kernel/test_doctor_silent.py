"""Commands beside a container that has a file system which never answers: no signal ends who waits for it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from support import CLEAN_ENV, PATIENCE, REPO
from support.device_cgroup import Group
from support.rootfs import LIBS

from nvc import doctor
from nvc.base.errors import InputError
from nvc.discovery.containers.running import resolve
from nvc.doctor import OK, UNKNOWN, examine
from nvc.doctor.catalog import choose
from nvc.doctor.context import Context
from nvc.kernel import LinuxKernel, apart
from nvc.model.request import DriverOptions
from nvc.slices.admin import check, coverage
from nvc.slices.store.status import SliceStatus

SERVER = (sys.executable, os.path.join(REPO, "tests/support/silentfs.py"))
SILENT = f"exec {shlex.join((*SERVER, '/dev'))}"
ORDINARY = "mount -t tmpfs none /dev; touch /dev/nvidiactl; echo ready; exec cat"
LOOK = "from nvc.doctor.host.system import scopes; from nvc.kernel import LinuxKernel; print(scopes(LinuxKernel()))"


@pytest.mark.parametrize(
    ("program", "found"), [(SILENT, False), (ORDINARY, True)], ids=["silent", "ordinary"]
)
def test_a_dev_that_never_answers(program: str, found: bool) -> None:
    """Its container is left out, and nobody waits for it."""
    name = f"nvc-silent-{os.getpid()}.scope"
    pipe = subprocess.PIPE
    words = ("unshare", "--mount", "sh", "-c", program)
    with Group.make(2, name) as group:
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, env=CLEAN_ENV) as container:
            try:
                assert container.stdout is not None and container.stdout.readline() == b"ready\n"
                group.enter(container.pid)
                look = (sys.executable, "-c", LOOK)
                with subprocess.Popen(look, stdout=pipe, text=True, cwd=REPO, env=CLEAN_ENV) as doctor:
                    try:
                        said, _ = doctor.communicate(timeout=PATIENCE)
                    finally:  # who waits for the server ends with it, and not before
                        container.kill()
                assert (name in said) == found
            finally:
                container.kill()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], int]]:
    """Starts one with such a file system over a directory: its process."""
    started: list[subprocess.Popen[bytes]] = []
    for module in (apart, doctor):
        monkeypatch.setattr(module, "PATIENCE", 0.5)

    def start(path: str) -> int:
        words = ("unshare", "--mount", "--propagation=private", *SERVER, path)
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, env=CLEAN_ENV))
        stdout = started[-1].stdout
        assert stdout is not None and stdout.readline() == b"ready\n"
        return started[-1].pid

    yield start
    for one in started:
        with one:
            one.kill()


def test_doctor_of_it(silent: Callable[[str], int], driver: str) -> None:
    with Context(LinuxKernel(), DriverOptions(root=driver, timeout=1.0)) as context:
        context.container = resolve(str(silent("/dev")))
        first, *others = examine(context, choose((), ("container",)))
    assert first.status == OK and {one.status for one in others} == {UNKNOWN}
    assert apart.CAUSE in others[-1].findings[0].text


def test_check_of_it(silent: Callable[[str], int]) -> None:
    """It has its C library from there."""
    pid = silent(LIBS)
    report = check.check_process(LinuxKernel(), pid)
    assert (report.status, report.uncovered[0][1]) == (check.AROUND_IT, apart.CAUSE)
    tenant = SliceStatus.__new__(SliceStatus)
    entry = type("Entry", (), {"libs_dir": LIBS})()
    for field, value in {"name": "one", "entry": entry, "pids": (pid,)}.items():
        object.__setattr__(tenant, field, value)
    assert coverage.survey(LinuxKernel(), (tenant,), ()).files == (
        f"one: files of the container: {apart.CAUSE}",
    )


def test_errors_are_those_of_the_work() -> None:
    def work() -> Iterator[int]:
        yield 1
        raise InputError("step", "path")

    with pytest.raises(InputError, match="step: path"):
        list(apart.apart(work))
    assert list(apart.apart(lambda: [1, 2])) == [1, 2]
