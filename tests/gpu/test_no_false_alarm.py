"""Honest programs beside each other under nvcd, which denies what is wrong: nothing is found of them.

For NVC_FALSE_ALARM_MINUTES (60), which begin when all have begun: PyTorch trains; replays a CUDA graph, as in
inference; does a little every two seconds, as in a notebook; and, where there is a second GPU, sums over both with
NCCL, in one slice of two GPUs. The graph is on the second GPU then, so that NCCL has a neighbour on both.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import pytest
from support import STAGE, gpus
from support.honest import Honest, options, side_by_side
from support.nvcd import Place, ask
from support.realslice import plain_environment, program

pytestmark = pytest.mark.gpu
MINUTES = float(os.environ.get("NVC_FALSE_ALARM_MINUTES", "60"))
HEAD = """
import select, sys, time, torch
def go(step):
    step(); torch.cuda.synchronize()
    print("ready", flush=True)
    steps = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        step(); steps += 1
    torch.cuda.synchronize()
    print(steps, "steps", flush=True)
"""
TENANTS = {
    "training": """
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
done = 0
def step():
    global done
    loss = model(torch.randn(256, 2048, device="cuda")).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    done += 1
    if done % 50 == 0: loss.item()
go(step)
""",
    "graphs": """
weights = [torch.randn(2048, 2048, device="cuda") for _ in range(24)]
given = torch.randn(16, 2048, device="cuda")
def infer():
    out = given
    for one in weights: out = torch.relu(out @ one) * 0.01
    return out
side = torch.cuda.Stream()
with torch.cuda.stream(side): infer()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): out = infer()
def step():
    graph.replay(); out.sum().item()
go(step)
""",
    "notebook": """
def step():
    (torch.randn(4096, 4096, device="cuda") @ torch.randn(4096, 4096, device="cuda")).sum().item()
    torch.cuda.empty_cache()
    select.select([sys.stdin], [], [], 2)
go(step)
""",
}
#: Rank 0 says in what is summed when it is over, so that both make the same steps.
NCCL = """
import torch.distributed as ranks
rank, last = int(sys.argv[1]), False
torch.cuda.set_device(rank)
ranks.init_process_group("nccl", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
matrix = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
data = torch.empty(8 << 20, dtype=torch.float32, device="cuda")
def step(over):
    matrix @ matrix
    data.fill_(1.0)
    if over: data[0] = 100.0
    ranks.all_reduce(data)
    first, second = data[:2].tolist()
    if second != 2.0: raise SystemExit(f"the sum is {second}")
    return first > 50
step(False)
if rank == 0: print("ready", flush=True)
steps = 0
while not last:
    last = step(rank == 0 and bool(select.select([sys.stdin], [], [], 0)[0]))
    steps += 1
ranks.destroy_process_group()
if rank == 0: print(steps, "steps", flush=True)
"""
#: Rank 1 beside rank 0, which is the program and has its input.
BOTH = '"$0" -c "$1" 1 "$2" & exec "$0" -c "$1" 0 "$2"'


def test_nothing_is_found_of_honest_programs(measured: Callable[[str, object], None]) -> None:
    scratch = tempfile.mkdtemp(prefix="alarm-", dir="/tmp")
    place, running = Place(STAGE, scratch), []
    python, seconds = program("python3"), 60 * MINUTES
    launcher = os.path.join(STAGE, "bin/nvc-cli")
    devices = gpus.all_uuids()[:2]

    def start(name: str, on: list[str], *words: str) -> None:
        before = options(place, launcher, gpus.ROOT, name, on, "16GiB")
        variables = plain_environment(CUDA_VISIBLE_DEVICES=",".join(on), NCCL_SOCKET_IFNAME="lo")
        running.append(Honest(name, [*before, *words], variables))

    try:
        place.start(*([] if gpus.ROOT == "/" else [f"--root={gpus.ROOT}"]))
        for name, code in TENANTS.items():
            start(name, [devices[-1] if name == "graphs" else devices[0]], python, "-c", f"{HEAD}{code}")
        if len(devices) == 2:
            start("NCCL", devices, "sh", "-c", BOTH, python, f"{HEAD}{NCCL}", f"{scratch}/store")
        else:
            measured("NCCL", "not run: there is one GPU")
        said = side_by_side(place, running, seconds)
        for name, steps in said.items():
            measured(f"{name}, in {seconds:.0f} s at the same time", steps)
            assert int(steps.split()[0]) > 0, name
        measured(
            "found by nvcd; NVML asked, times", f"{ask(place)['found']}; {ask(place)['nvml']['answers']}"
        )
    finally:
        for one in running:
            one.kill()
        place.end()
