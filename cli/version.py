"""`nvc-cli version` and --version, whose seven lines have the shape of nvidia-container-cli's."""

from __future__ import annotations

import posix

import nvc
from nvc.kernel import ffi, lib


def versions() -> dict[str, str]:
    """Versions, and how the native part was built, by the names that nvidia-container-cli prints."""
    date, revision, compiler, flags = ffi.string(lib.nvc_build()).decode("ascii", "replace").split("\n")
    return {
        "cli-version": nvc.__version__,
        "lib-version": nvc.__version__,
        "build date": date,
        "build revision": revision,
        "build compiler": compiler,
        "build platform": posix.uname().machine,
        "build flags": flags,
    }


def version_text() -> str:
    """One line for each of them."""
    return "".join(f"{name}: {value}\n" for name, value in versions().items())


def version_document() -> dict[str, str]:
    """The version and how it was built, for programs; docs/cli.md documents the keys."""
    keys = "version library buildDate buildRevision buildCompiler buildPlatform buildFlags"
    return dict(zip(keys.split(), versions().values()))
