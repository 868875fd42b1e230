"""The text and the document of a plan."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.facts import LIBS, PLAN, UUID_0, UUID_1

from nvc.base.errors import InternalError
from nvc.base.value import Value
from nvc.plan import ops
from nvc.plan.describe import describe, document
from nvc.plan.ops import BindDevice, Ledger, LoaderEntry, Plan, Tmpfs

TEXT = f"""\
driver   580.159.04  root /run/driver
gpu      {UUID_0}
gpu      {UUID_1}
slice    {UUID_0}  10 GiB of 81559 MiB
slice    {UUID_1}  all of 81559 MiB
slice    left out, since their memory cannot be counted:
           libnvidia-opencl.so.580.159.04
tmpfs    /proc/driver/nvidia                       nosuid,nodev,noexec,mode=0555
           gpus/0000:3b:00.0/
           params  21 bytes
           raw  1 bytes
proc     /proc/driver/nvidia/gpus/0000:3b:00.0            ro,nosuid,nodev,noexec
proc     /proc/driver/nvidia/sim/state                    nosuid,nodev,noexec
bind     /usr/bin/nvidia-smi                              ro,nosuid,nodev
bind     /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04  ro,nosuid,nodev
           from /usr/lib64/libcuda.so.580.159.04
bind     /lib/firmware/gsp.bin                            ro,nosuid,nodev,noexec
bind     /usr/lib/x86_64-linux-gnu/libcuda.so.550.1       ro,nosuid,nodev
           from /opt/nvc/lib/nvc/vgpu/1/libcuda.so
bind     /usr/lib/x86_64-linux-gnu/nvc/real-libcuda.so.1  ro,nosuid,nodev
           from /usr/local/cuda/compat/libcuda.so.590.1
bind     /usr/lib/x86_64-linux-gnu/nvc/quota              ro,nosuid,nodev,noexec
           from /run/nvc/vgpu/1-2-3-4/quota
ledger   /usr/lib/x86_64-linux-gnu/nvc/ledger      nosuid,nodev,noexec,size=8192
socket   /run/nvidia-persistenced/socket                  ro,nosuid,nodev,noexec
device   /dev/nvidia0                               c 195:0     ro,nosuid,noexec
devices  /dev/nvidia-caps                                 ro,nosuid,noexec
allow    c 195:0 rw
link     /usr/lib/x86_64-linux-gnu/libcuda.so.1 -> libcuda.so.580.159.04
link     /usr/lib/x86_64-linux-gnu/libcuda.so -> libcuda.so.1
ldcache  /etc/ld.so.cache                                 1 entry
           libcuda.so.1 (x86_64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1
warning  the image has musl
"""


def every_operation() -> set[type]:
    """The members of the Op union, which only type checkers see, by what the module defines."""
    parts = (Plan, LoaderEntry, Value)
    defined = {item for item in vars(ops).values() if isinstance(item, type) and issubclass(item, Value)}
    return {item for item in defined if item.__module__ == ops.__name__} - set(parts)


def test_this_plan_has_every_operation() -> None:
    assert {type(op) for op in PLAN.ops} == every_operation()


def test_text() -> None:
    assert describe(PLAN) == TEXT
    assert max(map(len, TEXT.splitlines())) <= 80


def test_names_cannot_forge_lines() -> None:
    path = "/dev/\x1b[2Jx\nallow    c 1:1 rw\udcff"
    lines = describe(PLAN.replace(ops=(BindDevice(path, path, 1, 1),), devices=(), slice=None)).splitlines()
    assert len(lines) == 4
    assert all(line.isprintable() for line in lines)


def test_document() -> None:
    made = json.loads(json.dumps(document(PLAN)))
    assert list(made) == ["schemaVersion", "driver", "devices", "slice", "operations", "warnings"]
    roots = {"root": "/run/driver", "systemRoot": "/", "deviceRoot": "/run/driver"}
    assert (made["schemaVersion"], made["driver"]) == (1, {"version": "580.159.04", **roots})
    assert made["devices"] == [UUID_0, UUID_1]
    by_name = {operation["operation"]: operation for operation in reversed(made["operations"])}
    assert by_name.keys() == {
        "allowDevice", "bindDevice", "bindDeviceDirectory", "bindFile", "bindHostFile", "bindInside", "bindProc",
        "bindSocket", "ledger", "symlink", "tmpfs", "updateLoaderCache",
    }  # fmt: skip
    assert by_name["bindFile"] == {
        "operation": "bindFile",
        **dict.fromkeys(("source", "target"), "/usr/bin/nvidia-smi"),
        "options": ["ro", "nosuid", "nodev"],
        "identity": {"device": 1, "inode": 2, "size": 3, "mtimeNs": 4},
    }
    assert by_name["bindDevice"]["major"] == 195
    files = [{"name": "params", "text": "ModifyDeviceFiles: 0\n"}, {"name": "raw", "base64": "/w=="}]
    assert by_name["tmpfs"]["files"] == files
    assert by_name["symlink"]["fallback"] == f"{LIBS}/libcuda.so.580.159.04"
    entry = {"soname": "libcuda.so.1", "path": f"{LIBS}/libcuda.so.1", "architecture": "x86_64"}
    assert by_name["updateLoaderCache"]["entries"] == [entry]


def test_an_unknown_operation_is_our_bug() -> None:
    plan = PLAN.replace(ops=(PLAN,))
    for show in (describe, document):
        with pytest.raises(InternalError):
            show(plan)


@given(st.binary(max_size=40))
def test_files_of_a_tmpfs_survive_json(content: bytes) -> None:
    import base64

    made = json.loads(json.dumps(document(PLAN.replace(ops=(Tmpfs("/t", (), (("f", content),)),)))))
    (file,) = made["operations"][0]["files"]
    assert (file["text"].encode() if "text" in file else base64.b64decode(file["base64"])) == content


def test_a_label_is_shown() -> None:
    plan = PLAN.replace(ops=(Ledger("/l", b"", 1, "u:r:t:s0:c1,c2"),))
    assert 'context="u:r:t:s0:c1,c2"' in describe(plan)
    assert document(plan)["operations"][0]["label"] == "u:r:t:s0:c1,c2"
