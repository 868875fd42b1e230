"""NCCL in one slice of two GPUs with unequal caps: whether it ever stands still, and how fast it is beside native.

Two ranks of PyTorch multiply matrices and sum 32 MiB over both GPUs, step by step, each waited for: first without
nvc, then in the slice. Fails where a step takes longer than 10 s. As root, on a host with two GPUs and PyTorch:

    python3 tests/bench/nccl.py --bin /usr/local/bin [--device 0,1] [--cores 30,70] [--seconds 600] [--nvcd]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time

from tenants import Gpu, daemon

STALL = 10.0  # seconds that no step may take
SILENCE = 40.0  # seconds without a word, which come once a second
START = 180.0  # seconds for two interpreters, PyTorch and NCCL
MINUTE = 60.0  # between two lines of ours

#: Prints lines: steps, those that took longer than a second, the longest one's seconds, seconds in all. Rank 0 says
#: when it is over, by what is summed, so that both take the same number of steps.
RANK = """
import sys, time, torch
import torch.distributed as ranks
rank, seconds, place = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
torch.cuda.set_device(rank)
ranks.init_process_group("nccl", init_method="file://" + place, rank=rank, world_size=2)
matrix = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
data = torch.empty(8 << 20, dtype=torch.float32, device="cuda")
def step(last):
    matrix @ matrix
    data.fill_(1.0)
    if last:
        data[0] = 100.0
    ranks.all_reduce(data)
    first, second = data[:2].tolist()
    if second != 2.0:
        raise SystemExit(f"the sum is {second}")
    return first > 50
for _ in range(20):
    step(False)
begin = before = told = time.monotonic()
steps, slow, longest, last = 0, 0, 0.0, False
while not last:
    last = step(rank == 0 and before >= begin + seconds)
    now = time.monotonic()
    steps, slow, longest = steps + 1, slow + (now - before > 1), max(longest, now - before)
    before = now
    if rank == 0 and (last or now >= told + 1):
        print(steps, slow, longest, now - begin, flush=True)
        told = now
ranks.destroy_process_group()
"""
#: Rank 1 beside rank 0, which is the program: both are in the one slice.
BOTH = '"$0" -c "$1" 1 "$2" "$3" & exec "$0" -c "$1" 0 "$2" "$3"'


class Progress:
    """How far the ranks have come."""

    def __init__(self, line: str) -> None:
        words = line.split()
        self.steps, self.slow = int(words[0]), int(words[1])
        self.longest, self.seconds = float(words[2]), float(words[3])

    def __str__(self) -> str:
        return (
            f"{self.steps} steps in {self.seconds:.1f} s, {self.rate:.1f} a second; longest step "
            f"{1000 * self.longest:.1f} ms, {self.slow} longer than 1 s"
        )

    @property
    def rate(self) -> float:
        return self.steps / self.seconds


def measure(prefix: list[str], python: str, variables: dict[str, str], seconds: float) -> Progress:
    """Let both ranks run. Raises SystemExit where they fail or stand still."""
    with tempfile.TemporaryDirectory(prefix="nvc-bench-nccl-") as directory:
        words = [*prefix, "sh", "-c", BOTH, python, RANK, str(seconds), os.path.join(directory, "store")]
        with open(os.path.join(directory, "error"), "w+", encoding="utf-8", errors="replace") as error:
            process = subprocess.Popen(
                words, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=error,
                start_new_session=True,
            )  # fmt: skip
            try:
                last = follow(process)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
            error.seek(0)
            said = error.read()[-3000:]
    if last is None:
        raise SystemExit(f"bench: nccl: exit {code}, nothing was done\n{said}")
    if last.seconds < seconds:
        raise SystemExit(f"bench: nccl: ended or stood still after {last}\n{said}")
    return last


def follow(process: subprocess.Popen[bytes]) -> Progress | None:
    """The last that was said before the end, or before the ranks fell silent."""
    assert process.stdout is not None
    out = process.stdout.fileno()
    last: Progress | None = None
    text, shown = b"", time.monotonic()
    while True:
        try:
            ready, _, _ = select.select([out], [], [], SILENCE if last else START)
        except KeyboardInterrupt:
            return last
        if not ready:
            return last
        data = os.read(out, 1 << 16)
        if not data:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SILENCE)
            return last
        *lines, text = (text + data).split(b"\n")
        for line in lines:
            last = Progress(line.decode())
        if last and time.monotonic() > shown + MINUTE:
            print(f"  {last}", flush=True)
            shown = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description="NCCL in one slice of two GPUs with unequal caps.")
    parser.add_argument("--bin", default="/usr/local/bin", help="where nvc-cli and nvcd are")
    parser.add_argument("--root", default=os.environ.get("NVC_BENCH_ROOT", "/"), help="driver root")
    parser.add_argument("--device", default="0,1", help="two, by index or UUID; default 0,1")
    parser.add_argument("--cores", default="30,70", help="caps; default 30,70")
    parser.add_argument("--memory", default="20GiB")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--native-seconds", type=float, default=8)
    parser.add_argument("--nvcd", action="store_true", help="with nvcd and the policy `fixed`")
    parser.add_argument("--python", default=sys.executable, help="one that has PyTorch")
    options = parser.parse_args()
    nvc = os.path.join(options.bin, "nvc-cli")
    gpus = [Gpu(nvc, options.root, wanted) for wanted in options.device.split(",")]
    if len(gpus) != 2:
        raise SystemExit(f"bench: --device {options.device}: two are needed")
    both = ",".join(gpu.uuid for gpu in gpus)
    variables = gpus[0].environment(CUDA_VISIBLE_DEVICES=both)
    variables.setdefault("NCCL_SOCKET_IFNAME", "lo")  # all of it is on this host
    native = measure([], options.python, variables, options.native_seconds)
    print(f"native: {native}", flush=True)
    words = [
        "vgpu",
        "run",
        f"--device={both}",
        f"--memory={options.memory}",
        f"--cores={options.cores}",
        "--",
    ]
    with daemon(gpus, "fixed") if options.nvcd else contextlib.nullcontext():
        capped = measure([*gpus[0].nvc, *words], options.python, variables, options.seconds)
    beside = "with nvcd" if options.nvcd else "without nvcd"
    part = 100 * capped.rate / native.rate
    print(f"caps of {options.cores} %, {beside}: {capped}; {part:.1f} % of native", flush=True)
    if capped.longest > STALL:
        raise SystemExit(f"bench: nccl: a step took {capped.longest:.1f} s, more than {STALL:.0f}")


if __name__ == "__main__":
    main()
