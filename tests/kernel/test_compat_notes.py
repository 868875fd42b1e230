"""Notes of forward compatibility, odd ones too."""

from __future__ import annotations

import os
import shutil
import struct
from typing import Any

import pytest
from support import need, run
from support.rootfs import multiarch

from nvc.discovery.driver.compat import compat_libraries
from nvc.kernel import LinuxKernel

DRIVER = "580.159.04"
LIBCUDA = f"/usr/lib/{multiarch()}/libcuda.so.{DRIVER}"
COMPAT = "/usr/local/cuda/compat"
NEWER = f"{COMPAT}/libcuda.so.590.10.01"
OWNER = b"NVIDIA Corporation\0"


def found(scratch: str, driver: str, note: str) -> list[str]:
    """The paths that are taken of an image whose libcuda has this note."""
    os.makedirs(scratch + COMPAT)
    shutil.copy(driver + LIBCUDA, scratch + NEWER)
    content = note.encode()
    with open(f"{scratch}/note", "wb") as out:
        out.write(struct.pack("<III", len(OWNER), len(content), 1) + OWNER + bytes(-len(OWNER) % 4))
        out.write(content + bytes(-len(content) % 4))
    run(need("objcopy"), "--add-section", f".note.cuda.fwd_compatibility={scratch}/note", scratch + NEWER)
    rootfs = os.open(scratch, os.O_PATH | os.O_DIRECTORY)
    paths = [one.path for one in compat_libraries(LinuxKernel(), rootfs, DRIVER, COMPAT, "13.0")]
    os.close(rootfs)
    return paths


@pytest.mark.parametrize(
    ("note", "taken"),
    [
        ('{"Driver": [535, 580]}', True),
        ('{"Driver": ["580"], "CUDA Version": "13.1"}', True),
        ('{"Driver": ["580"], "CUDA Version": 13.1}', True),
        ('{"Driver": ["580"], "CUDA Version": null}', True),
        ('{"Driver": ["580"], "CUDA Version": "13.0"}', False),
        ('{"Driver": ["580"], "CUDA Version": 13.0}', False),
        ('{"Driver": ["580"], "CUDA Version": []}', False),
        ('{"Driver": ["580"], "CUDA Version": "13.\\u0031"}', False),
        ('{"Driver": ["580"], "CUDA Version": "ü"}', False),
        ('{"Driv\\u0065r": ["580"]}', False),
        ('{"Driver": [5.8e2]}', False),
        ('{"Driver": [580.0]}', True),
        ('{"Driver": [-580]}', False),
        ('{"Driver": [580], "x": 1000000000000000000000}', False),
        ('{"Driver": [580]} x', False),
        ("", False),
    ],
)
def test_what_a_note_allows(scratch: str, sim_root: Any, note: str, taken: bool) -> None:
    assert found(scratch, sim_root(), note) == [NEWER] * taken
