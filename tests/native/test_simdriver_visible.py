"""Which devices a program gets: by nodes, by CUDA_VISIBLE_DEVICES, in MIG mode."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest
from support import MIB
from support.simdriver import Program, environment

from nvc.testing.sim.spec import SimSpec, cap_minor, gpus_of

Root = Callable[..., str]
Start = Callable[..., Program]


def smi(root: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = os.path.join(root, "usr/bin/nvidia-smi")
    return subprocess.run(
        [program, *arguments], env=environment(root), capture_output=True, text=True, check=False
    )


def listed(root: str) -> list[str]:
    return smi(root, "-L").stdout.splitlines()


def test_a_missing_node_hides_a_gpu(sim_root: Root, client: Start) -> None:
    root = sim_root(gpus=3)
    uuids = [gpu.uuid for gpu in gpus_of(SimSpec(gpus=3))]
    os.unlink(os.path.join(root, "dev/nvidia1"))
    lines = listed(root)
    assert len(lines) == 2 and uuids[0] in lines[0] and uuids[2] in lines[1]
    assert lines[1].startswith("GPU 1:")
    assert client(root).start().used() == 518
    assert client(root).start(device=1).used() == 518
    third = client(root)
    third.do("init")
    assert third.code("primary 2") == 101


def test_a_node_with_other_numbers_is_not_a_gpu(sim_root: Root) -> None:
    root = sim_root(gpus=2)
    path = os.path.join(root, "dev/nvidia0")
    os.unlink(path)
    os.mknod(path, 0o020666, os.makedev(1, 3))
    assert len(listed(root)) == 1


def test_minors_are_not_indices(sim_root: Root) -> None:
    root = sim_root(gpus=2, minors=(1, 0))
    shown = smi(root, "--query-gpu=index,minor", "--format=csv,noheader")
    assert shown.stdout == "0, 1\n1, 0\n"


@pytest.mark.parametrize(
    ("node", "cuda", "nvml"), [("nvidiactl", 100, 9), ("nvidia-uvm", 999, 0), ("nvidia0", 100, 6)]
)
def test_without_a_node_of_the_driver(
    node: str, cuda: int, nvml: int, sim_root: Root, client: Start
) -> None:
    root = sim_root(gpus=1)
    os.unlink(os.path.join(root, "dev", node))
    assert client(root).code("init") == cuda
    assert smi(root, "-L").returncode == nvml


def _orders(root: str, client: Start, wish: str) -> list[int]:
    """Device ordinals by memory used in other processes: which GPUs `wish` means, in its order."""
    one = client(root, CUDA_VISIBLE_DEVICES=wish)
    found: list[int] = []
    if one.code("init") == 0:
        while one.code(f"primary {len(found)}") == 0:
            found.append(one.used() - 518)
    one.end()
    return found


def test_visible_devices(sim_root: Root, client: Start) -> None:
    root = sim_root(gpus=3)
    uuids = [gpu.uuid for gpu in gpus_of(SimSpec(gpus=3))]
    for device in range(3):
        marker = client(root).start(device)
        marker.do(f"alloc a {(device + 1) * 100}m")
    marks = [618, 718, 818]  # a context, and what tells the device
    expected = {
        "0,1,2": marks,
        "2,0": [marks[2], marks[0]],
        f"{uuids[1]},{uuids[0]}": [marks[1], marks[0]],
        uuids[2][:12]: [marks[2]],
        "1,7,0": [marks[1]],
        "1,x,0": [marks[1]],
        "-1,0": [],
        "": [],
        "0,0": [],
        "GPU-": [],
        "0" * 200: [],
    }
    assert {wish: _orders(root, client, wish) for wish in expected} == expected


MIG = ("7x1g.10gb", "")


def test_a_program_gets_one_mig_device(sim_root: Root, client: Start) -> None:
    root = sim_root(gpus=1, mig=("3g.40gb,2x2g.20gb",))
    gpu = gpus_of(SimSpec(gpus=1, mig=("3g.40gb,2x2g.20gb",)))[0]
    one = client(root).start()
    assert one.info()[1] == gpu.mig[0].memory
    assert one.code("primary 1") == 101
    second = client(root, CUDA_VISIBLE_DEVICES=gpu.mig[1].uuid).start()
    assert second.info()[1] == gpu.mig[1].memory
    one.do(f"alloc a {1000 * MIB}")
    assert second.used() == 518  # partitions do not share
    assert second.code(f"alloc b {gpu.mig[1].memory}") == 2
    shown = smi(root, "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    assert int(shown.stdout) == 518 + 1000 + 518


def test_mig_devices_need_their_capabilities(sim_root: Root, client: Start) -> None:
    root = sim_root(gpus=2, mig=MIG)
    gpu = gpus_of(SimSpec(gpus=2, mig=MIG))[0]
    assert len(listed(root)) == 9
    caps = os.path.join(root, "dev/nvidia-caps")
    for minor in (1, 2):  # config and monitor: the right to see all
        os.unlink(os.path.join(caps, f"nvidia-cap{minor}"))
    kept = gpu.mig[3]
    for mig in gpu.mig:
        if mig is not kept:
            os.unlink(os.path.join(caps, f"nvidia-cap{cap_minor(0, mig.gpu_instance)}"))
    lines = listed(root)
    assert len(lines) == 3 and kept.uuid in lines[1]
    access = f"proc/driver/nvidia/capabilities/gpu0/mig/gi{kept.gpu_instance}/ci0/access"
    os.unlink(os.path.join(root, access))
    assert len(listed(root)) == 2
    assert client(root, CUDA_VISIBLE_DEVICES=kept.uuid).code("init") == 100


def test_whole_gpus_come_before_mig_devices(sim_root: Root, client: Start) -> None:
    root = sim_root(gpus=2, mig=MIG)
    whole = client(root).start()
    assert whole.info()[1] == (81559 - 551) * MIB
