"""What the two ranks of a job do on two GPUs, with PyTorch: one process a GPU, started by torchrun.

    two_ranks.py make DIRECTORY [--layers N] [--width N]   random weights of a Llama, the same ones each time
    two_ranks.py decode DIRECTORY [--graph]                tokens, tensor parallel by `tp_plan="auto"`
    two_ranks.py steps | sweep | train | ipc
    two_ranks.py notebook                                  one process that does little on both GPUs

Rank 0 prints lines of JSON. The first comes when all can begin: `pids`, `nccl`. Then each line of its input has
seconds to work for, and is answered by what each rank did; an empty line, or the end, ends the job. With --steady
it works from the beginning to the next line of its input, and prints how many steps it made.
On a host without a GPU the ranks use the processor, with small sizes: so the programs can be tried.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import json
import os
import select
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as ranks

CUDA = torch.cuda.is_available()
GIB = 1 << 30
BATCH, LENGTH = 8, 128  # sequences, and tokens of each in one round
SIZES = [1 << power for power in range(10, 31 if CUDA else 19, 2)]  # bytes
Round = Callable[[], dict[str, Any]]


def wait() -> None:
    """Until the GPU has done all."""
    if CUDA:
        torch.cuda.synchronize()


class Group:
    """Both ranks. What they agree on goes by the processors: a waiting NCCL call would keep the GPUs busy."""

    def __init__(self, timeout: float) -> None:
        self.rank = int(os.environ["RANK"])
        limit = datetime.timedelta(seconds=timeout)
        self.device = torch.device("cuda", self.rank) if CUDA else torch.device("cpu")
        if CUDA:
            torch.cuda.set_device(self.rank)
            ranks.init_process_group("nccl", timeout=limit, device_id=self.device)
        else:
            ranks.init_process_group("gloo", timeout=limit)
        self.side = ranks.new_group(backend="gloo", timeout=datetime.timedelta(minutes=30))

    def agreed(self, value: float) -> float:
        """What rank 0 says."""
        told = torch.tensor([value], dtype=torch.float64)
        ranks.broadcast(told, 0, group=self.side)
        return float(told)

    def gathered(self, one: object) -> list[Any]:
        """Of each rank, for rank 0."""
        found: list[Any] | None = [None, None] if self.rank == 0 else None
        ranks.gather_object(one, found, 0, group=self.side)
        return found or []

    def say(self, **what: object) -> None:
        if self.rank == 0:
            print(json.dumps(what), flush=True)

    def turns(self) -> Iterator[float]:
        """Seconds to work for, as asked."""
        while True:
            asked = 0.0
            if self.rank == 0:
                line = sys.stdin.readline()
                asked = float(line) if line.strip() else 0.0
            asked = self.agreed(asked)
            if not asked:
                return
            yield asked


def answer(group: Group, round_: Round, steady: bool) -> None:
    """Make rounds as they are asked for. Each is the same for both ranks, and all of it is waited for."""
    version = ".".join(map(str, torch.cuda.nccl.version())) if CUDA else ""
    group.say(ready=True, pids=group.gathered(os.getpid()), nccl=version)
    if steady:
        steps = 0
        while group.agreed(group.rank != 0 or not select.select([sys.stdin], [], [], 0)[0]):
            steps += len(round_()["times"])
        if group.rank == 0:
            print(steps, "steps", flush=True)
        return
    for seconds in group.turns():
        begin = time.monotonic()
        made: list[dict[str, Any]] = []
        while group.agreed(time.monotonic() < begin + seconds):
            made.append(round_())
        mine: dict[str, Any] = {"begin": begin, "times": [at for one in made for at in one.pop("times", [])]}
        for name in made[0]:
            mine[name] = [one[name] for one in made]
        group.say(ranks=group.gathered(mine))


def make(directory: str, layers: int, width: int) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    torch.set_default_dtype(torch.bfloat16)
    heads = width // 128
    config = LlamaConfig(
        hidden_size=width, intermediate_size=width * 7 // 2, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=max(2, heads // 4), vocab_size=128256 * width // 4096, max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("cuda" if CUDA else "cpu"):
        model = LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(directory)


def tensor_parallel(directory: str) -> Any:
    """The model, of which each rank has its part."""
    from transformers import LlamaForCausalLM

    how: dict[str, Any] = {"tp_plan": "auto"}
    with contextlib.suppress(ImportError, TypeError):  # an older one has it as an argument of its own
        from transformers.distributed import DistributedConfig

        how = {"distributed_config": DistributedConfig(tp_plan="auto")}
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.bfloat16, local_files_only=True, **how)
    return model.eval()


def decode(group: Group, directory: str, graph: bool) -> Round:
    """One round is LENGTH tokens of BATCH sequences, each the likeliest one, always from the same beginning."""
    from transformers import StaticCache

    model = tensor_parallel(directory)
    cache = StaticCache(config=model.config, max_cache_len=LENGTH)
    whole = {"device": group.device, "dtype": torch.long}
    start = (torch.arange(BATCH, **whole) * 911 + 17).view(BATCH, 1)
    token, position, slots = start.clone(), torch.zeros(1, **whole), torch.arange(LENGTH, **whole)
    out = torch.zeros(BATCH, LENGTH, **whole)
    last = torch.zeros(BATCH, model.config.vocab_size, device=group.device, dtype=torch.bfloat16)

    @torch.no_grad()
    def step() -> None:
        mask = (slots <= position).view(1, 1, 1, LENGTH).expand(BATCH, 1, 1, LENGTH)
        logits = model(
            input_ids=token, attention_mask=mask, position_ids=position.view(1, 1), past_key_values=cache,
            use_cache=True, logits_to_keep=1,
        ).logits  # fmt: skip
        logits = logits.full_tensor() if hasattr(logits, "full_tensor") else logits
        last.copy_(logits[:, -1])
        token.copy_(last.argmax(-1, keepdim=True))
        out.index_copy_(1, position, token)
        position.add_(1)

    def rewind() -> None:
        token.copy_(start)
        position.zero_()
        cache.reset()

    for _ in range(3):
        step()
    wait()
    replay = captured(step) if graph and CUDA else step

    def round_() -> dict[str, Any]:
        rewind()
        times = []
        for _ in range(LENGTH):
            replay()
            wait()
            times.append(time.monotonic())
        sums = zlib.crc32(out.cpu().numpy().tobytes()), zlib.crc32(last.float().cpu().numpy().tobytes())
        return {"times": times, "tokens": sums[0], "logits": sums[1], "different": len(out.unique())}

    round_()
    return round_


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """A CUDA graph of the step. Fails where it cannot be captured; the state of both ranks is undefined then."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    torch.cuda.synchronize()
    return lambda: graph.replay()


def steps(group: Group) -> Round:
    """Matrices are multiplied and 32 MiB summed over both GPUs; each step is waited for, its sum judged."""
    matrix = torch.randn(
        4096 if CUDA else 64, 4096 if CUDA else 64, device=group.device, dtype=torch.bfloat16
    )
    data = torch.empty(8 << 20 if CUDA else 1 << 10, device=group.device)

    def round_() -> dict[str, Any]:
        times = []
        for _ in range(10):
            for _ in range(4):
                matrix @ matrix
            data.fill_(1.0)
            ranks.all_reduce(data)
            found = float(data[0])
            if found != 2.0:
                raise SystemExit(f"the sum is {found}")
            times.append(time.monotonic())
        return {"times": times}

    round_()
    return round_


def sweep(group: Group) -> Round:
    """One round is all sizes: bytes a second of an all-reduce on the bus, and from rank 0 to rank 1.

    The calling thread stays on one processor, the same one in each job: small calls are bound by it.
    """
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[(2 * group.rank + 1) * len(processors) // 4]})
    space = torch.empty(SIZES[-1] // 4, device=group.device)

    def reduce(data: torch.Tensor) -> None:
        ranks.all_reduce(data)

    def send(data: torch.Tensor) -> None:
        if group.rank == 0:
            ranks.send(data, 1)
        else:
            ranks.recv(data, 0)

    def rate(call: Callable[[torch.Tensor], None], size: int, sent: float) -> float:
        data, count = space[: size // 4], max(5, min(4000, 16 * GIB // size)) if CUDA else 5
        data.fill_(1.0 + (call is send and group.rank))
        call(data)
        if not bool((data == sent).all()):
            raise SystemExit(f"{size} bytes: wrong values")
        data.zero_()
        for _ in range(5):
            call(data)
        wait()
        ranks.barrier(group=group.side)
        begin = time.monotonic()
        for _ in range(count):
            call(data)
        wait()
        return size * count / (time.monotonic() - begin)

    def round_() -> dict[str, Any]:
        return {
            "reduce": [rate(reduce, size, 2.0) for size in SIZES],
            "send": [rate(send, size, 1.0) for size in SIZES],
        }

    round_()
    return round_


def train(group: Group) -> Round:
    """Data parallel: gradients are summed over both GPUs."""
    torch.manual_seed(group.rank)
    width = 4096 if CUDA else 32
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.GELU())]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers).to(group.device), device_ids=[group.rank] if CUDA else None
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    given = torch.randn(512, width, device=group.device)

    def round_() -> dict[str, Any]:
        for _ in range(10):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(group.device.type, dtype=torch.bfloat16):
                loss = model(given).float().square().mean()
            loss.backward()
            optimizer.step()
        loss.item()
        return {"times": [time.monotonic()] * 10}

    round_()
    return round_


def ipc(group: Group) -> Round:
    """Rank 1 opens 1 GiB and an event of rank 0's GPU, reads all of it, writes all of it. Bytes a second."""
    from torch.multiprocessing.reductions import reduce_tensor

    held: list[Any] = [None]
    mine = torch.full((GIB // 4,), 1.0, device=group.device)
    event = torch.cuda.Event(interprocess=True)
    if group.rank == 0:
        event.record()
        held = [(*reduce_tensor(mine), bytes(event.ipc_handle()))]
        wait()
    ranks.broadcast_object_list(held, 0, group=group.side)
    shared = mine
    if group.rank == 1:
        rebuild, arguments, handle = held[0]
        shared = rebuild(*arguments)
        torch.cuda.Event.from_ipc_handle(torch.device("cuda", 0), handle).synchronize()

    def rate(to: torch.Tensor, source: torch.Tensor) -> float:
        to.copy_(source)
        wait_both()
        begin = time.monotonic()
        for _ in range(20):
            to.copy_(source)
        wait_both()
        return 20 * GIB / (time.monotonic() - begin)

    def wait_both() -> None:
        for index in range(2):
            torch.cuda.synchronize(index)

    def round_() -> dict[str, Any]:
        found: dict[str, Any] = {
            "peer": [torch.cuda.can_device_access_peer(one, 1 - one) for one in range(2)]
        }
        mine.fill_(1.0 + group.rank)
        wait()
        ranks.barrier(group=group.side)
        if group.rank == 1:
            found["read"] = rate(mine, shared)
            found["right"] = bool((mine == 1.0).all())
            mine.fill_(3.0)
            found["written"] = rate(shared, mine)
        ranks.barrier(group=group.side)
        if group.rank == 0:
            found["right"] = bool((mine == 3.0).all())
        return found

    return round_


def notebook() -> None:
    """A little on each GPU every two seconds."""
    count = torch.cuda.device_count()
    done = 0
    while not done or not select.select([sys.stdin], [], [], 2)[0]:
        for index in range(count):
            one = torch.randn(4096, 4096, device=f"cuda:{index}")
            (one @ one).sum().item()
            del one
            torch.cuda.empty_cache()
        done += 1
        if done == 1:
            print("ready", flush=True)
    print(done, "steps", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("directory", nargs="?", default="")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--steady", action="store_true")
    parser.add_argument("--timeout", type=float, default=600, help="seconds that a call of NCCL may take")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: no rank outlives what started it
    if options.kind == "make":
        make(options.directory, options.layers, options.width)
    elif options.kind == "notebook":
        notebook()
    else:
        group = Group(options.timeout)
        if options.kind == "decode":
            round_ = decode(group, options.directory, options.graph)
        else:
            round_ = {"steps": steps, "sweep": sweep, "train": train, "ipc": ipc}[options.kind](group)
        answer(group, round_, options.steady)
        wait()
        ranks.barrier(group=group.side)  # none leaves while the other still needs it
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
