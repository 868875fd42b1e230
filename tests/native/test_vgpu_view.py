"""What a tenant sees of its slice, by CUDA and by NVML: the same numbers, and its own processes only."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from support import GIB, MIB, run
from support.simdriver import library_directory
from support.vgpushim import CONTEXT, Slice

NO_INSTANCE = 0xFFFFFFFF
INSUFFICIENT = 7

#: Prints what NVML says of device `argv[1]`; lists are asked for with room for `argv[2]` entries.
PROGRAM = r"""
import ctypes, json, sys
lib = ctypes.CDLL("libnvidia-ml.so.1")
def fields(*names): return [(n, ctypes.c_uint if n in ("version", "pid", "gi", "ci", "mode", "count") else
                             ctypes.c_ulonglong) for n in names]
class V1(ctypes.Structure): _fields_ = fields("total", "free", "used")
class V2(ctypes.Structure): _fields_ = fields("version", "total", "reserved", "free", "used")
class P1(ctypes.Structure): _fields_ = fields("pid", "bytes")
class P2(ctypes.Structure): _fields_ = fields("pid", "bytes", "gi", "ci")
class PD(ctypes.Structure): _fields_ = fields("pid", "bytes", "gi", "ci", "protected")
class List(ctypes.Structure):
    _fields_ = fields("version", "mode", "count") + [("entries", ctypes.POINTER(PD))]
assert lib.nvmlInit_v2() == 0
device, room = ctypes.c_void_p(), int(sys.argv[2])
uuid = sys.argv[1].encode()
assert lib.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(device)) == 0
def shown(s): return {n: getattr(s, n) for n, *_ in s._fields_ if n != "version"}
out = {}
one = V1(); assert lib.nvmlDeviceGetMemoryInfo(device, ctypes.byref(one)) == 0; out["v1"] = shown(one)
two = V2(version=2 << 24 | ctypes.sizeof(V2))
assert lib.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(two)) == 0; out["v2"] = shown(two)
for kind in ("Compute", "Graphics", "MPSCompute"):
    for end, record in (("", P1), ("_v2", P2), ("_v3", P2)):
        count, list_ = ctypes.c_uint(room), (record * max(room, 1))()
        name = f"nvmlDeviceGet{kind}RunningProcesses{end}"
        code = getattr(lib, name)(device, ctypes.byref(count), list_ if room else None)
        out[kind + end] = [code, count.value, [shown(e) for e in list_[:min(room, count.value)]]]
out["null"] = [lib.nvmlDeviceGetMemoryInfo(device, None), lib.nvmlDeviceGetMemoryInfo_v2(device, None),
               lib.nvmlDeviceGetComputeRunningProcesses_v3(device, None, None)]
print(json.dumps(out))
"""


def nvml(made: Slice, device: int = 0, room: int = 16) -> dict[str, Any]:
    program = ["/usr/bin/python3", "-I", "-c", PROGRAM, made.uuids[device], str(room)]
    return json.loads(run(*program, env=made.environment()).stdout)


@pytest.fixture
def made(plain_slice: Callable[..., Slice]) -> Slice:
    return plain_slice()


def test_one_number_everywhere(made: Slice) -> None:
    process = made.start().do("alloc a 300m", "async b 10m", "alloc c 1k")
    free, total = process.info()
    used = CONTEXT + 334 * MIB
    assert (free, total) == (2 * GIB - used, 2 * GIB)
    assert int(process.ask("total 0")[0]) == total
    seen = nvml(made)
    assert seen["v1"] == {"total": total, "free": free, "used": used}
    assert seen["v2"] == {"total": total, "free": free, "used": used, "reserved": 0}
    assert nvml(made, 1)["v1"] == {"total": total, "free": total, "used": 0}
    assert seen["null"] == [2, 2, 2]


def test_processes_of_the_container(made: Slice) -> None:
    one, two, idle = made.start().do("alloc a 100m"), made.start(1), made.process().do("init")
    seen = nvml(made)
    for end in ("", "_v2", "_v3"):
        code, count, entries = seen[f"Compute{end}"]
        assert (code, count) == (0, 1)
        more = {"gi": NO_INSTANCE, "ci": NO_INSTANCE} if end else {}
        assert entries == [{"pid": one.pid, "bytes": CONTEXT + 100 * MIB, **more}]
        assert seen[f"Graphics{end}"] == seen[f"MPSCompute{end}"] == [0, 0, []]
    assert [entry["pid"] for entry in nvml(made, 1)["Compute_v3"][2]] == [two.pid]
    one.kill()
    assert nvml(made)["Compute_v3"] == [0, 0, []]
    assert idle.process.poll() is None


@pytest.mark.parametrize("room", [0, 1])
def test_lists_that_are_too_small(made: Slice, room: int) -> None:
    made.limit(8 * GIB)
    pids = {made.start().pid for _ in range(3)}
    code, count, entries = nvml(made, 0, room)["Compute_v3"]
    assert (code, count, len(entries)) == (INSUFFICIENT, 3, room)
    assert {entry["pid"] for entry in entries} <= pids


def test_free_never_wraps(made: Slice) -> None:
    process = made.start().do("alloc a 1g")
    made.limit(GIB, GIB)
    assert nvml(made)["v1"] == {"total": GIB, "free": 0, "used": GIB}
    assert process.info() == (0, GIB)


def test_a_neighbour_on_the_same_card(made: Slice, sim_root: Callable[..., str]) -> None:
    """Free is no more than the card has left; another container's processes are not shown."""
    made.limit(80 * GIB)
    neighbour = made.process(LD_LIBRARY_PATH=library_directory(made.root)).start().do("alloc a 60g")
    process = made.start()
    free, total = process.info()
    real = (81559 - 551) * MIB
    assert total == min(real, 80 * GIB)
    assert free == real - 60 * GIB - 2 * CONTEXT
    assert neighbour.info() == (free, real)
    assert [entry["pid"] for entry in nvml(made)["Compute_v3"][2]] == [process.pid]


def test_devices_that_are_not_sliced_look_native(made: Slice) -> None:
    made.limit(2 * GIB, (1 << 64) - 1)
    assert nvml(made, 1)["v1"]["total"] == 81559 * MIB
    made.limit(2 * GIB)
    assert nvml(made, 1)["v1"]["total"] == 81559 * MIB


@pytest.mark.parametrize(
    ("visible", "order"),
    [("1,0", (1, 0)), ("0,1", (0, 1)), ("1", (1,)), ("{1}", (1,)), ("{1},{0}", (1, 0)), ("{1:.12}", (1,))],
)
def test_limits_follow_the_device(made: Slice, visible: str, order: tuple[int, ...]) -> None:
    made.limit(2 * GIB, 3 * GIB)
    process = made.process(CUDA_VISIBLE_DEVICES=visible.format(*made.uuids)).do("init")
    for ordinal, device in enumerate(order):
        assert int(process.ask(f"total {ordinal}")[0]) == (2 + device) * GIB
        process.do(f"primary {ordinal}", "alloc a 64m")
        assert process.info()[1] == (2 + device) * GIB
        assert made.agree(device) == CONTEXT + 64 * MIB


def test_mig_devices(plain_slice: Callable[..., Slice]) -> None:
    made = plain_slice(gpus=1, mig=("3g.40gb,3g.40gb",))
    made.limit(3 * GIB, 4 * GIB)
    for device, uuid in enumerate(made.uuids):
        process = made.process(CUDA_VISIBLE_DEVICES=uuid).start().do("alloc a 64m")
        assert process.info()[1] == (3 + device) * GIB
        seen = nvml(made, device)
        assert seen["v1"]["total"] == (3 + device) * GIB
        assert [entry["pid"] for entry in seen["Compute_v3"][2]] == [process.pid]
        assert seen["Compute_v3"][2][0]["gi"] != NO_INSTANCE


def test_nvidia_smi(made: Slice) -> None:
    process = made.start().do("alloc a 482m")
    smi = os.path.join(made.root, "usr/bin/nvidia-smi")
    columns = "--query-gpu=memory.total,memory.used,memory.free"
    lines = run(smi, columns, "--format=csv,noheader,nounits", env=made.environment()).stdout.splitlines()
    assert lines == ["2048, 1000, 1048", "2048, 0, 2048"]
    apps = run(
        smi, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits", env=made.environment()
    )
    assert apps.stdout.splitlines() == [f"{process.pid}, 1000"]
    table = run(smi, env=made.environment()).stdout
    assert re.search(r"1000MiB */ *2048MiB", table) and str(process.pid) in table


def test_silence(made: Slice) -> None:
    """Nothing is printed, whatever happens, and the log stays empty when all is well."""
    process = made.start().do("alloc a 64m")
    assert process.code("alloc b 8g") == 2
    nvml(made)
    assert made.said() == []
