"""Times training steps of PyTorch: native, in a slice without a cap, with caps, and under another shim.

All contenders are started at once and then work one at a time, by turns of less than a second, while the others are
idle: so what drifts hits all alike, and many pairs fit into a short time. `again` is a second one without nvc,
whose difference is that of the machine. On a host with a GPU and PyTorch, as root:

    python3 tests/bench/training.py --bin /usr/local/bin [--device ID] [--peer-shim /path/to/libvgpu.so]
        [--kind transformer] [--kind small]
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile

import stats
from tenants import DEVICE, Gpu

CAPS = (10, 25, 50, 75, 90)
PATIENCE = 240.0  # seconds for any answer
NATIVE, AGAIN, SLICE, WHOLE = "native", "again", "slice", "slice, 100 %"

#: Answers `steps N` with the seconds of one of N steps, and `busy` with the GPU's own time in one. A step of the
#: transformer takes a GPU about 15 ms and the host a third of that, so that the GPU is what limits it.
STEPS = """
import json, sys, time, torch
torch.manual_seed(1)
kind = sys.argv[1]
torch.backends.cudnn.benchmark = True
if kind == "transformer":
    layer = torch.nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda()
    inputs = torch.randn(8, 1024, 2048, device="cuda")
elif kind == "resnet50":
    import torchvision
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    inputs = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
else:  # small kernels: the host is what limits it
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(64)]).cuda()
    inputs = torch.randn(32, 256, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
def step():
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(inputs).float().square().mean()
    loss.backward()
    optimizer.step()
def steps(count):
    start = time.perf_counter()
    for _ in range(count):
        step()
    ahead = time.perf_counter()
    torch.cuda.synchronize()
    end = time.perf_counter()
    return (end - start) / count, end - ahead
steps(5)
print(json.dumps(steps(5)[0]), flush=True)
for line in sys.stdin:
    if line.startswith("busy"):
        busy, ahead = steps(20)
        if ahead < busy:  # else the host is a step ahead, and the GPU always has work
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                steps(10)
            busy = sum(entry.self_device_time_total for entry in profile.key_averages()) / 1e7
        print(json.dumps(busy), flush=True)
    else:
        count = int(line)
        steps(count // 4 + 1)  # what was saved up while it was idle is used
        print(json.dumps(steps(count)[0]), flush=True)
"""


class Contender:
    """A process that trains when it is told to."""

    def __init__(self, words: list[str], variables: dict[str, str], cores: int) -> None:
        self.words, self.cores = words, cores
        self.error = tempfile.TemporaryFile("w+", errors="replace")
        self.process = subprocess.Popen(
            words, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.error, text=True
        )

    def answer(self) -> float:
        """The next figure. Raises SystemExit where none comes."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.process.kill()
            code = self.process.wait()
            self.error.seek(0)
            raise SystemExit(f"bench: {' '.join(self.words[:8])}: exit {code}\n{self.error.read()[-2000:]}")
        return float(json.loads(line))

    def ask(self, question: object) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{question}\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def contenders(options: argparse.Namespace, gpu: Gpu, kind: str, directory: str) -> dict[str, Contender]:
    """All of them, started, by name."""
    program = [options.python, "-c", STEPS, kind]
    made = {name: Contender(program, gpu.environment(), 100) for name in (NATIVE, AGAIN)}
    made[SLICE] = Contender([*gpu.slice(memory=options.memory), *program], gpu.environment(), 100)
    for cores in (100, *CAPS):
        words = [*gpu.slice(f"--cores={cores}", memory=options.memory), *program]
        made[f"slice, {cores} %"] = Contender(words, gpu.environment(), cores)
    for cores in (100, *CAPS) if options.peer_shim else ():
        limits = gpu.environment(
            LD_PRELOAD=options.peer_shim, CUDA_DEVICE_MEMORY_LIMIT="40g", LIBCUDA_LOG_LEVEL="0",
            CUDA_DEVICE_SM_LIMIT=str(cores % 100), CUDA_DEVICE_MEMORY_SHARED_CACHE=f"{directory}/{cores}",
            CUDA_VISIBLE_DEVICES=gpu.index, CUDA_DEVICE_ORDER="PCI_BUS_ID",  # it knows no UUIDs
        )  # fmt: skip
        made[f"other shim, {cores} %"] = Contender(program, limits, cores)
    return made


def ready(made: dict[str, Contender]) -> float:
    """Wait until all are warm, without those that fail. Seconds of a native step, with nothing beside it."""
    for name in tuple(made):
        try:
            made[name].answer()
        except SystemExit as error:
            print(f"{name}: {error}", file=sys.stderr)
            del made[name]
    if NATIVE not in made:
        raise SystemExit("bench: PyTorch does not run here")
    return made[NATIVE].ask(10)


def measure(options: argparse.Namespace, gpu: Gpu, kind: str, made: dict[str, Contender]) -> None:
    """Uncapped ones in pairs with native, then caps one after the other."""
    step = ready(made)
    count = max(10, round(options.seconds / step))
    free = [name for name, one in made.items() if one.cores == 100]
    found: dict[str, list[float]] = {name: [] for name in free}
    for turn in range(options.rounds):
        first = turn % len(free)
        for name in free[first:] + free[:first]:
            found[name].append(made[name].ask(count))
    native = sum(found[NATIVE]) / options.rounds
    print(f"\n{kind} on {gpu.name}: {1000 * native:.3f} ms a step without nvc, {count} steps a turn")
    for name in free[1:]:
        print(f"  {name:18} longer by {stats.ratio(found[name], found[NATIVE])}", flush=True)
    capped, clocks = {}, gpu.clock()
    for name, one in made.items():
        if one.cores != 100:
            few = max(6, round(options.cap_seconds * one.cores / 100 / step))
            capped[name] = one.ask(few), gpu.clock()
    beside = made[NATIVE].ask(2 * count)
    native = (native * options.rounds + beside) / (options.rounds + 1)
    # Where the profiler is told nothing, the GPU is taken for the limit.
    busy = min(1.0, (made[NATIVE].ask("busy") or native) / native)
    print(f"  alone the GPU is busy {100 * busy:.1f} % of the time: u; min(1, cap / u) is wanted")
    print(f"  the GPU after that: {clocks}")
    for name, (taken, clocks) in capped.items():
        wanted, got = 100 * min(1.0, made[name].cores / 100 / busy), 100 * native / taken
        points = f"{got - wanted:+6.2f} points"
        print(f"  {name:18} wanted {wanted:6.2f} %  got {got:6.2f} %  {points}  {clocks}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Times training steps natively and in slices.")
    parser.add_argument("--bin", default="/usr/local/bin", help="where nvc-cli is")
    parser.add_argument("--root", default=os.environ.get("NVC_BENCH_ROOT", "/"), help="driver root")
    parser.add_argument(
        "--device", default=DEVICE, help="index or UUID; else NVC_BENCH_DEVICE, or the first"
    )
    parser.add_argument("--memory", default="12GiB")
    parser.add_argument("--peer-shim", default=os.environ.get("PEER_SHIM", ""))
    parser.add_argument("--rounds", type=int, default=14, help="turns of each without a cap")
    parser.add_argument("--seconds", type=float, default=0.7, help="of each turn")
    parser.add_argument("--cap-seconds", type=float, default=4.0, help="for each cap")
    parser.add_argument("--kind", action="append", choices=("transformer", "resnet50", "small"))
    parser.add_argument("--python", default=sys.executable, help="one that has PyTorch")
    options = parser.parse_args()
    gpu = Gpu(os.path.join(options.bin, "nvc-cli"), options.root, options.device)
    for kind in options.kind or ("transformer",):
        with tempfile.TemporaryDirectory(prefix="nvc-bench-training-") as directory:
            made = contenders(options, gpu, kind, directory)
            try:
                measure(options, gpu, kind, made)
            finally:
                for one in made.values():
                    one.end()


if __name__ == "__main__":
    main()
