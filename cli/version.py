"""The seven lines of --version, in the shape of nvidia-container-cli's."""

from __future__ import annotations

import posix

import nvc
from nvc.kernel import ffi, lib


def version_text() -> str:
    """Versions, and how the native part was built."""
    return (
        f"cli-version: {nvc.__version__}\n"
        f"lib-version: {nvc.__version__}\n"
        f"build date: {_told(lib.nvc_build_date())}\n"
        f"build revision: {_told(lib.nvc_build_revision())}\n"
        f"build compiler: {_told(lib.nvc_build_compiler())}\n"
        f"build platform: {posix.uname().machine}\n"
        f"build flags: {_told(lib.nvc_build_flags())}\n"
    )


def _told(text: ffi.CData) -> str:
    told: bytes = ffi.string(text)
    return told.decode("ascii", "replace")
