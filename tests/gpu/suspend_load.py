"""Work on a GPU whose results can be compared bit by bit, with PyTorch; what is suspended has to go on with them.

    suspend_load.py train|decode|llama STEPS

`train` is of eight layers with momentum. `decode` is a CUDA graph of six layers whose result is its next input.
`llama` is a model of transformers with 8 billion random weights, whose likeliest token is its next input. It prints
`ready`, and `STEP DIGEST` each 50 ms or so.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from loads import decoder, graph_of

#: Steps between two digests.
EACH = {"train": 12, "decode": 60, "llama": 4}


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
    x, layers = decoder(6)
    graph = graph_of(lambda: x.copy_(layers().roll(1, 0)))
    return graph.replay, lambda: digest(torch, x)


def llama(torch: Any) -> tuple[Callable[[], object], Callable[[], str]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).eval()
        tokens = torch.arange(64).view(1, 64) * 911
    last = torch.zeros(config.vocab_size, device="cuda", dtype=torch.bfloat16)

    @torch.no_grad()
    def step() -> None:
        last.copy_(model(input_ids=tokens, use_cache=False, logits_to_keep=1).logits[0, -1])
        tokens.copy_(torch.cat((tokens[:, 1:], last.argmax().view(1, 1)), 1))

    return step, lambda: digest(torch, last)


def main() -> None:
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch

    torch.manual_seed(4711)
    torch.use_deterministic_algorithms(True)
    step, result = {"train": train, "decode": decode, "llama": llama}[sys.argv[1]](torch)
    each = EACH[sys.argv[1]]
    torch.cuda.synchronize()
    print("ready", os.getpid(), flush=True)
    for number in range(1, int(sys.argv[2]) + 1):
        step()
        if number % each == 0:
            print(number, result(), flush=True)


if __name__ == "__main__":
    main()
