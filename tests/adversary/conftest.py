"""Fixtures of the programs that try to have more than their slice."""

from __future__ import annotations

import pytest
from support import adversary_time
from support.beside import driver, tenants  # noqa: F401
from support.simdriver import sim_root, simdriver  # noqa: F401
from support.vgpucap import capped, work  # noqa: F401
from support.vgpushim import plain_slice, shims, shims_sanitized, tool, tool_sanitized, vgpu  # noqa: F401
from support.virtual import virtual, world  # noqa: F401


@pytest.fixture(scope="session")
def take_time() -> str:
    """tests/adversary/take_time*.c as a program."""
    return adversary_time.take_time()
