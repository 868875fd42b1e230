"""Honest programs beside each other under nvcd, which denies what is wrong: nothing is found of them.

NVC_ALARM_SECONDS (3600) long: PyTorch trains with a limit on memory, replays a CUDA graph as inference does, and a
third one does a little every two seconds, as somebody at a notebook does.
"""

from __future__ import annotations

import os
import subprocess
import tempfile

import pytest
from support import STAGE, gpus
from support.adversary_table import Note
from support.nvcd import Place, ask
from support.realslice import plain_environment, program

pytestmark = pytest.mark.gpu
SECONDS = float(os.environ.get("NVC_ALARM_SECONDS", "3600"))
START = 120.0  # seconds that PyTorch may take before and after
HEAD = """
import sys, time, torch
until = time.monotonic() + float(sys.argv[1])
steps = 0
"""
TENANTS = {
    "training": """
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
while time.monotonic() < until:
    loss = model(torch.randn(256, 2048, device="cuda")).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    steps += 1
    if steps % 50 == 0: loss.item()
""",
    "graphs": """
weights = [torch.randn(2048, 2048, device="cuda") for _ in range(24)]
given = torch.randn(16, 2048, device="cuda")
def step():
    out = given
    for one in weights: out = torch.relu(out @ one) * 0.01
    return out
side = torch.cuda.Stream()
with torch.cuda.stream(side): step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): out = step()
while time.monotonic() < until:
    graph.replay(); out.sum().item(); steps += 1
""",
    "notebook": """
while time.monotonic() < until:
    (torch.randn(4096, 4096, device="cuda") @ torch.randn(4096, 4096, device="cuda")).sum().item()
    torch.cuda.empty_cache(); steps += 1; time.sleep(2)
""",
}


def test_nothing_is_found_of_honest_programs(note: Note) -> None:
    place = Place(STAGE, tempfile.mkdtemp(prefix="alarm-", dir="/tmp"))
    root = [] if gpus.ROOT == "/" else [f"--root={gpus.ROOT}"]
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        place.start(*root)
        launcher = os.path.join(STAGE, "bin/nvc-cli")
        options = (f"--device={gpus.uuid()}", "--memory=16GiB", "--weight=1")
        for name, code in TENANTS.items():
            words = place.sliced(launcher, gpus.ROOT, *options, f"--name={name}")
            running[name] = subprocess.Popen(
                [*words, program("python3"), "-c", f"{HEAD}{code}\nprint(steps)", str(SECONDS)],
                env=plain_environment(),
                stdout=subprocess.PIPE,
                text=True,
            )
        for name, process in running.items():
            said, _ = process.communicate(timeout=SECONDS + START)
            assert process.returncode == 0, name
            note("honest", f"{name}: steps in {SECONDS:.0f} s", said.strip())
        state = ask(place)
        note("honest", "found", str(state["found"]))
        # A stranger is one: another test's program may hold the GPU awake.
        of_slices = {kind: count for kind, count in state["found"].items() if kind != "stranger"}
        assert not any(of_slices.values()), state["events"]
        assert not state["denied"]
    finally:
        for process in running.values():
            process.kill()
        place.end()
