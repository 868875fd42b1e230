"""Work on a GPU whose results can be compared bit by bit, with PyTorch; what is suspended has to go on with them.

    suspend_load.py train|decode STEPS

`train` is of eight layers with momentum, `decode` a CUDA graph of 24 layers whose result is its next input. Every
EACH steps it prints `STEP DIGEST`, and `ready` before the first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from loads import decoder, graph_of

EACH = 20


def digest(torch: Any, tensor: Any) -> str:
    """Of all bits and their places; integers, so in any order of the sum."""
    bits = tensor.detach().contiguous().view(torch.int16).flatten().long()
    places = torch.arange(1, bits.numel() + 1, device="cuda") * 2654435761 + 97
    return f"{int((bits * places).sum()) & (1 << 64) - 1:016x}"


def train(torch: Any) -> tuple[Callable[[], object], Callable[[], str]]:
    layers: list[Any] = []
    for _ in range(8):
        layers += [torch.nn.Linear(4096, 4096), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x = torch.randn(1024, 4096, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        (model(x) - x).float().square().mean().backward()
        optimizer.step()

    return step, lambda: digest(torch, layers[0].weight) + digest(torch, layers[-2].weight)


def decode(torch: Any) -> tuple[Callable[[], object], Callable[[], str]]:
    x, layers = decoder()
    graph = graph_of(lambda: x.copy_(layers().roll(1, 0)))
    return graph.replay, lambda: digest(torch, x)


def main() -> None:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch

    torch.manual_seed(4711)
    torch.use_deterministic_algorithms(True)
    step, result = {"train": train, "decode": decode}[sys.argv[1]](torch)
    torch.cuda.synchronize()
    print("ready", os.getpid(), flush=True)
    for number in range(1, int(sys.argv[2]) + 1):
        step()
        if number % EACH == 0:
            print(number, result(), flush=True)


if __name__ == "__main__":
    main()
