"""Fixtures of the programs that try to have more than their slice."""

from __future__ import annotations

from support.simdriver import sim_root, simdriver  # noqa: F401
from support.vgpushim import plain_slice, shims, shims_sanitized, tool, tool_sanitized, vgpu  # noqa: F401
