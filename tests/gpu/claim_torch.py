"""What PyTorch does in a container with a claim. Usage: claim_torch.py memory GIB | work [NAME=VALUE...]

`memory` prints support.claimed.Memory as a JSON line. `work` trains without ever waiting for the last steps. It
says its progress as tests/native/vgpu_work.c does, of whose arguments it knows `trace`.
"""

from __future__ import annotations

import collections
import json
import select
import sys
import time
from typing import Any

import torch

GIB = 1 << 30
QUEUED = 8  # steps that are not done; the GPU always has some


def memory(size: int) -> dict[str, Any]:
    total = torch.cuda.mem_get_info()[1]
    assert torch.cuda.get_device_properties(0).total_memory == total
    try:
        torch.empty((size + 1) * GIB, dtype=torch.uint8, device="cuda")
        refused = False
    except torch.OutOfMemoryError:
        refused = True
    held: list[Any] = []
    try:
        while len(held) <= 2 * size:
            held.append(torch.zeros(GIB // 2, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        pass
    return {"total": total, "got": len(held) * GIB // 2, "refused": refused}


def work(trace: float) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(8192, 8192), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data, target = torch.randn(256, 8192, device="cuda"), torch.randn(256, 8192, device="cuda")
    queue: collections.deque[Any] = collections.deque()
    done, said = 0, time.monotonic()
    began = said
    print("start 0", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(data), target).backward()
        optimizer.step()
        event = torch.cuda.Event()
        event.record()
        queue.append(event)
        if len(queue) > QUEUED:
            queue.popleft().synchronize()
            done += 1
        now = time.monotonic()
        if now - said >= trace:
            said = now
            print(f"{1000 * now:.3f} {done}", flush=True)
    torch.cuda.synchronize()
    seconds = time.monotonic() - began
    print(done, seconds, 0, done / seconds, done, seconds, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "memory":
        print(json.dumps(memory(int(sys.argv[2]))))
    else:
        settings = dict(word.split("=") for word in sys.argv[2:])
        work(float(settings["trace"]) / 1000)
