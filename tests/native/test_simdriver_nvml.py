"""The simulated NVML and nvidia-smi, as programs see them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest
from support import MIB, need, run
from support.simdriver import Program, environment
from support.virtual import World

from nvc.testing.sim.spec import SimSpec, gpus_of

Root = Callable[..., str]
Start = Callable[..., Program]


def smi(root: str, *arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    program = os.path.join(root, "usr/bin/nvidia-smi")
    return run(*prefix, program, *arguments, env=environment(root), check=False)


def query(root: str, fields: str, *more: str) -> list[str]:
    done = smi(root, f"--query-gpu={fields}", "--format=csv,noheader,nounits", *more)
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def test_queries(sim_root: Root) -> None:
    root = sim_root()
    gpus = gpus_of(SimSpec(gpus=2))
    assert query(root, "index,uuid,pci.bus_id,compute_cap") == [
        f"0, {gpus[0].uuid}, 00000000:1B:00.0, 9.0",
        f"1, {gpus[1].uuid}, 00000000:43:00.0, 9.0",
    ]
    assert query(root, "memory.total,memory.reserved,memory.used,memory.free", "-i", "1") == [
        "81559, 551, 0, 81008"
    ]
    assert query(root, "name", "-i", gpus[0].uuid) == ["NVIDIA H100 80GB HBM3 (simulated)"]
    headed = smi(root, "--query-gpu=memory.total,power.draw", "--format=csv", "-i", "0").stdout
    assert headed == "memory.total [MiB], power.draw [W]\n81559 MiB, 70.00 W\n"


@pytest.mark.parametrize("option", ["-f", "--filename"])
def test_output_into_a_file(option: str, sim_root: Root, scratch: str) -> None:
    """jailmaker tries the driver by `nvidia-smi -f /dev/null`."""
    root = sim_root(gpus=1)
    assert (smi(root, option, "/dev/null").stdout, smi(root, option, "/nowhere/x").returncode) == ("", 2)
    assert smi(root, "-L", option, f"{scratch}/log").stdout == ""
    with open(f"{scratch}/log", encoding="utf-8") as log:
        assert log.read() == smi(root, "-L").stdout


def test_without_its_library(sim_root: Root) -> None:
    root = sim_root()
    done = run(os.path.join(root, "usr/bin/nvidia-smi"), check=False)
    assert done.returncode == 12 and "couldn't find libnvidia-ml.so" in done.stderr


def test_processes_and_their_memory(sim_root: Root, client: Start) -> None:
    root = sim_root()
    one, other = client(root).start(), client(root).start(device=1)
    one.do(f"alloc a {1000 * MIB}")
    apps = smi(
        root, "--query-compute-apps=pid,used_memory,gpu_bus_id", "--format=csv,noheader,nounits"
    ).stdout
    assert sorted(apps.splitlines()) == sorted(
        [f"{one.pid}, 1518, 00000000:1B:00.0", f"{other.pid}, 518, 00000000:43:00.0"]
    )
    one.kill()
    assert query(root, "memory.used") == ["0", "518"]


def test_managed_memory_is_the_devices_not_the_processs(sim_root: Root, client: Start) -> None:
    root = sim_root()
    one = client(root).start()
    one.do("managed a 100m", "write a 1")
    assert query(root, "memory.used", "-i", "0") == ["618"]
    apps = smi(root, "--query-compute-apps=used_memory", "--format=csv,noheader,nounits").stdout
    assert apps == "518\n"


def test_no_processes_from_inside_a_pid_namespace(sim_root: Root, client: Start) -> None:
    root = sim_root()
    client(root).start()
    inside = smi(
        root,
        "--query-compute-apps=pid",
        "--format=csv,noheader",
        prefix=(need("unshare"), "--pid", "--fork", "--mount-proc"),
    )
    assert (inside.returncode, inside.stdout) == (0, "")


def test_a_process_in_a_pid_namespace_has_its_pid_of_the_host(sim_root: Root, client: Start) -> None:
    """What it calls itself is 2 or so; the kernel knows who holds its lock."""
    root = sim_root()
    program = client(root).process.args[0]  # type: ignore[index]
    inside = subprocess.Popen(
        [need("unshare"), "--pid", "--fork", "--mount-proc", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(root),
        text=True,
    )
    with inside:
        assert inside.stdin is not None and inside.stdout is not None
        inside.stdin.write("init\nprimary 0\n")
        inside.stdin.flush()
        assert [inside.stdout.readline().strip() for _ in range(2)] == ["0", "0"]
        apps = smi(root, "--query-compute-apps=pid", "--format=csv,noheader").stdout.split()
        with open(f"/proc/{inside.pid}/task/{inside.pid}/children", encoding="ascii") as children:
            assert apps == children.read().split()
        inside.stdin.close()


def utilization(world: World, root: str, gpu: int) -> int:
    """What nvidia-smi says of it in virtual time."""
    words = (f"{root}/usr/bin/nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
    return int(world.output([*words, "-i", str(gpu)], environment(root)))


def test_utilization_follows_kernels(sim_root: Root, world: World, client: Start) -> None:
    root = sim_root()
    one = client(root, time=world).start()
    assert utilization(world, root, 0) == 0
    one.do("time sim_spin_1ms 1100")
    one.do("spin sim_spin_10ms 900")  # and on: it is asked while they run
    assert utilization(world, root, 0) >= 80
    assert utilization(world, root, 1) == 0


def test_utilization_of_each_process(sim_root: Root, world: World, client: Start) -> None:
    root = sim_root()
    one, other = (client(root, time=world).start() for _ in range(2))
    one.do("time sim_spin_1ms 2100")
    one.do("spin sim_spin_10ms 900")
    script = """
import ctypes
nvml = ctypes.CDLL("libnvidia-ml.so.1")
class Sample(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("time", ctypes.c_ulonglong), ("sm", ctypes.c_uint * 4)]
assert nvml.nvmlInit_v2() == 0
device, count, samples = ctypes.c_void_p(), ctypes.c_uint(0), (Sample * 4)()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
query = nvml.nvmlDeviceGetProcessUtilization
query.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ulonglong]
assert query(device, None, ctypes.byref(count), 0) == 7 and count.value == 2
count.value = 4
assert query(device, samples, ctypes.byref(count), 0) == 0
for sample in samples[:2]:
    print(sample.pid, sample.sm[0])
count.value = 4
assert query(device, samples, ctypes.byref(count), 1 << 62) == 6
"""
    lines = world.output([need("python3"), "-c", script], environment(root)).splitlines()
    busy = {int(pid): int(percent) for pid, percent in map(str.split, lines)}
    assert busy[one.pid] >= 80 and busy[other.pid] == 0
