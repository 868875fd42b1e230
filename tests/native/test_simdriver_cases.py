"""The cases of tests/native/simdriver_test.c: one process each, on the normal build and on the sanitized one."""

from __future__ import annotations

import os
import re
import tempfile

import pytest
from support import run
from support.builds import kept
from support.simdriver import SANITIZE, SOURCES, compile_program, environment, library_directory
from support.virtual import World

from nvc.testing.sim import SimSpec, create

FILES = [f"simdriver_{part}.c" for part in "test device copies streams modules graphs".split()]


def names() -> list[str]:
    """The names of the cases, from the sources: they are collected before anything is built."""
    found: list[str] = []
    for file in FILES:
        with open(os.path.join(SOURCES, file), encoding="utf-8") as text:
            found += re.findall(r'^    \{"(\w+)", \1\},$', text.read(), re.MULTILINE)
    return found


@pytest.fixture(scope="session")
def cases(simdriver: str) -> str:
    return kept("simdriver_test", lambda path: compile_program(path, simdriver, FILES, "-O1", "-g"))


@pytest.fixture(scope="session")
def sanitized_cases(simdriver_sanitized: str) -> str:
    def build(directory: str) -> str:
        return compile_program(directory, simdriver_sanitized, FILES, "-O1", "-g", *SANITIZE)

    return kept("simdriver_test-sanitized", build)


def test_every_case_is_collected(cases: str, simdriver: str) -> None:
    listed = run(cases, env={"LD_LIBRARY_PATH": simdriver_links(cases, simdriver)}).stdout.split()
    assert listed == names() and len(listed) > 15


def simdriver_links(program: str, driver: str) -> str:
    """A directory in which the build's libcuda has the name that programs look for."""
    directory = os.path.join(os.path.dirname(program), "lib")
    os.makedirs(directory, exist_ok=True)
    link = os.path.join(directory, "libcuda.so.1")
    if not os.path.islink(link):
        os.symlink(os.path.join(driver, "libcuda.so"), link)
    return directory


@pytest.mark.parametrize("name", names())
def test_case(name: str, cases: str, sim_root, world: World) -> None:  # type: ignore[no-untyped-def]
    """In virtual time: some say how long what they do takes, or look at work that has not ended yet."""
    with tempfile.TemporaryFile() as said:
        process = world.start([cases, name], environment(sim_root()), stderr=said)
        status = world.finish(process)
        said.seek(0)
        assert status == 0, said.read().decode()


@pytest.mark.nightly
@pytest.mark.parametrize("name", names())
def test_case_sanitized(
    name: str, sanitized_cases: str, simdriver_sanitized: str, scratch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaks are not looked for: what a driver keeps lives as long as the process."""
    monkeypatch.setenv("NVC_SIMDRIVER", simdriver_sanitized)
    root = os.path.join(scratch, "sim")
    create(root, SimSpec(gpus=2))
    assert os.path.exists(os.path.join(library_directory(root), "libcuda.so.1"))
    run(sanitized_cases, name, env=environment(root, ASAN_OPTIONS="detect_leaks=0"))
