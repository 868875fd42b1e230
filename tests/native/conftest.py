"""Fixtures of the native tests: the launcher, and the loader cache merge."""

from __future__ import annotations

import os

import pytest
from support import EXPLORE, REPO, need
from support import ldcache as caches
from support.builds import kept, make
from support.launcher import Installation
from support.simdriver import client, sim_root, simdriver, simdriver_sanitized  # noqa: F401
from support.simrm import simrm, simrm_sanitized  # noqa: F401
from support.vgpucap import beside, capped, work  # noqa: F401
from support.vgpushim import plain_slice, shims, shims_sanitized, tool, tool_sanitized, vgpu  # noqa: F401
from support.virtual import virtual, world  # noqa: F401


@pytest.fixture(scope="session")
def built_launcher() -> str:
    """The launcher's program file, brought up to date."""
    make("build/launcher")
    return os.path.join(REPO, "build/launcher")


@pytest.fixture
def installation(scratch: str, built_launcher: str) -> Installation:
    """A fresh installation whose program reports what reached it."""
    return Installation(os.path.join(scratch, "prefix"), built_launcher, os.path.realpath(need("python3")))


@pytest.fixture(scope="session")
def ldcache_sanitized() -> str:
    """tests/native/ldcache_tool.c as a program that stops at a bad access, a leak or undefined behaviour."""
    flags = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    return kept("ldcache_tool-sanitized", lambda directory: caches.compile_tool(directory, *flags))


@pytest.fixture(scope="session")
def ldcache_fast() -> str:
    """The same program with the C core as it is compiled for use."""
    return kept("ldcache_tool", lambda directory: caches.compile_tool(directory, "-O2"))


@pytest.fixture
def ldcache(request: pytest.FixtureRequest, scratch: str) -> caches.Tool:
    """The loader cache merge, writing into the test's directory; under sanitizers when tests explore."""
    program = request.getfixturevalue("ldcache_sanitized" if EXPLORE else "ldcache_fast")
    return caches.Tool(program, scratch)
