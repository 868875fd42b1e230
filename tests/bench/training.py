"""Times training steps of PyTorch: native, in a slice, in a slice with a share of time, and under another shim.

Contenders take turns, each in a process of its own, since clocks and neighbours change: compare ratios. On a host
with a GPU and PyTorch, as root:

    python3 tests/bench/training.py --nvc /usr/local/bin/nvc-cli [--peer-shim /path/to/libvgpu.so] [--cores 50]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

STEPS = """
import json, sys, time, torch
torch.manual_seed(1)
kind, seconds = sys.argv[1], float(sys.argv[2])
torch.backends.cudnn.benchmark = True
if kind == "transformer":
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).cuda()
    inputs = torch.randn(64, 512, 768, device="cuda")
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
for _ in range(20):
    step()
torch.cuda.synchronize()
# In batches of 10, so that a stall of the machine costs one sample and not the mean.
times, end = [], time.monotonic() + seconds
while time.monotonic() < end:
    start = time.perf_counter()
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    times.append((time.perf_counter() - start) / 10)
total = sum(times)
busy = 0.0
if sys.argv[3] == "busy":  # the GPU's own time for a step
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(10):
            step()
        torch.cuda.synchronize()
    busy = sum(entry.self_device_time_total for entry in profile.key_averages()) / 1e7
print(json.dumps({"busy": busy, "mean": total / len(times)}))
"""


def contenders(options: argparse.Namespace) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Name, words before the program, variables."""
    run = [options.nvc, "vgpu", "run"]
    found: dict[str, tuple[list[str], dict[str, str]]] = {"native": ([], {})}
    found["slice"] = ([*run, "--memory", options.memory, "--"], {})
    for cores in options.cores:
        found[f"slice, {cores} %"] = ([*run, "--memory", options.memory, "--cores", str(cores), "--"], {})
    if options.peer_shim:
        limits = {
            "LD_PRELOAD": options.peer_shim,
            "CUDA_DEVICE_MEMORY_LIMIT": "40g",
            "LIBCUDA_LOG_LEVEL": "0",
        }
        for cores in (0, *options.cores):
            limits["CUDA_DEVICE_SM_LIMIT"] = str(cores)
            limits["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"/tmp/nvc-bench-{os.getpid()}-{cores}.cache"
            found[f"other shim, {cores} %" if cores else "other shim"] = ([], dict(limits))
    return found


def once(prefix: list[str], variables: dict[str, str], kind: str, seconds: float) -> tuple[float, float]:
    """Mean seconds a step, and the GPU's own time in it where no nvc or other shim is in the way."""
    argv = [*prefix, "python3", "-c", STEPS, kind, str(seconds), "" if prefix or variables else "busy"]
    done = subprocess.run(argv, env={**os.environ, **variables}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"bench: {' '.join(argv[:6])}: exit {done.returncode}\n{done.stderr[-2000:]}")
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    # Under a cap a batch takes as long as the budget says: only the mean counts.
    return float(figures["mean"]), float(figures["busy"])


def main() -> None:
    parser = argparse.ArgumentParser(description="Times training steps natively and in slices.")
    parser.add_argument("--nvc", default="nvc-cli")
    parser.add_argument("--memory", default="40GiB")
    parser.add_argument(
        "--cores", type=int, action="append", default=[], help="also with this share of time"
    )
    parser.add_argument("--peer-shim", default=os.environ.get("PEER_SHIM", ""))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--kind", action="append", choices=("transformer", "resnet50", "small"))
    options = parser.parse_args()
    for kind in options.kind or ("transformer", "resnet50", "small"):
        found: dict[str, list[float]] = {}
        busy = 0.0
        for _ in range(options.rounds):
            for name, (prefix, variables) in contenders(options).items():
                try:
                    taken, own = once(prefix, variables, kind, options.seconds)
                    found.setdefault(name, []).append(taken)
                    busy = max(busy, own)
                except SystemExit as error:
                    print(f"{kind}: {name}: {error}", file=sys.stderr)
        if "native" not in found:
            continue
        native = statistics.median(found["native"])
        share = busy / native
        print(f"\n{kind}: ms a step, median of {options.rounds} runs (least to most), speed beside native")
        print(
            f"  alone the GPU is busy {100 * share:.1f} % of the time: that is u, and min(1, cap / u) is wanted"
        )
        for name, times in found.items():
            median, least, most = (
                1000 * value for value in (statistics.median(times), min(times), max(times))
            )
            speed = native / statistics.median(times)
            cores = int(name.split()[-2]) if name.endswith("%") else 100
            wanted = min(1.0, cores / 100 / share) if share else 1.0
            line = (
                f"  {name:18} {median:8.3f} ({least:.3f} to {most:.3f})  {speed:7.4f}  wanted {wanted:.4f}"
            )
            print(line, flush=True)


if __name__ == "__main__":
    main()
