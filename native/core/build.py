"""Builds nvc/_syscalls, the cffi API-mode module over the C files of this folder and the folders in it.

Each header is both the C interface and, stripped of its preprocessor lines, the cffi one:
plain declarations and `#define NAME <integer>` only.
"""

import datetime
import glob
import os
import re
import subprocess

from cffi import FFI

HERE = os.path.dirname(os.path.abspath(__file__))
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wshadow", "-fvisibility=hidden", "-D_GNU_SOURCE"]


def declarations(header: str) -> str:
    """The declarations of `header` as cffi's parser wants them."""
    kept = []
    with open(header, encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("#") or re.match(r"#define \w+ (0x[0-9a-fA-F]+|\d+)\s*(/\*.*)?$", line):
                kept.append(line)
    return "".join(kept)


def build_facts() -> "list[tuple[str, str]]":
    """What --version says of the build; SOURCE_DATE_EPOCH and NVC_BUILD_REVISION make it reproducible."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    utc = datetime.timezone.utc
    date = datetime.datetime.fromtimestamp(int(epoch), utc) if epoch else datetime.datetime.now(utc)
    revision = os.environ.get("NVC_BUILD_REVISION")
    if not revision:
        git = ["git", "-C", HERE, "rev-parse", "--short=12", "HEAD"]
        try:
            revision = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            revision = "unknown"
    facts = {"DATE": date.isoformat(timespec="minutes"), "REVISION": revision, "FLAGS": " ".join(FLAGS)}
    return [(f"NVC_BUILD_{name}", f'"{value}"') for name, value in facts.items()]


FOLDERS = [HERE, *(path.rstrip(os.sep) for path in sorted(glob.glob(os.path.join(HERE, "*", ""))))]
PUBLIC = sorted(path for folder in FOLDERS for path in glob.glob(os.path.join(folder, "*.h")))
PUBLIC = [path for path in PUBLIC if not os.path.basename(path).startswith("_")]  # _*.h: internal to C
SOURCES = sorted(path for folder in FOLDERS for path in glob.glob(os.path.join(folder, "*.c")))

ffi = FFI()
for path in PUBLIC:
    ffi.cdef(declarations(path))
ffi.set_source(
    "nvc._syscalls",
    "".join(f'#include "{os.path.basename(path)}"\n' for path in PUBLIC),
    sources=[os.path.relpath(path) for path in SOURCES],
    include_dirs=[os.path.relpath(folder) for folder in FOLDERS],
    define_macros=build_facts(),
    extra_compile_args=FLAGS,
    py_limited_api=True,
)
