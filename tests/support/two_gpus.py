"""Jobs that span two GPUs, by programs of PyTorch (tests/gpu/two_ranks.py): plain, or each in a slice of both."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from typing import Any

from . import STAGE, gpus
from .honest import Honest
from .nvcd import Place, ask
from .realslice import plain_environment, program
from .realtime import REAL

PROGRAM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "gpu/two_ranks.py")
START = 120.0  # seconds until both ranks can begin
LATE = 30.0  # seconds that an answer may come late
#: Multicast over NVLink stays off: it can leave GPUs unusable that others share. All else is on this host.
ALWAYS = {
    "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1",
    "NCCL_CUMEM_ENABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "1", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip
#: Both ranks without torchrun, which would end the second as soon as the first fails: PORT PROGRAM [WORD...]
PLAIN = """export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$1"; shift
RANK=1 LOCAL_RANK=1 "$@" </dev/null & RANK=0 LOCAL_RANK=0 exec "$@" """


def environment() -> dict[str, str]:
    """Of each job, in a slice or not: it sees both GPUs."""
    return plain_environment(CUDA_VISIBLE_DEVICES=",".join(gpus.all_uuids()[:2]), **ALWAYS)


def ranks(*words: str, torchrun: bool = True) -> list[str]:
    """The command of both ranks."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port = made.getsockname()[1]
    python = program("python3")
    if not torchrun:
        return ["sh", "-c", PLAIN, "sh", str(port), python, PROGRAM, *words]
    options = (
        "--nproc-per-node=2",
        f"--master-port={port}",
        "--master-addr=127.0.0.1",
        "--local-addr=127.0.0.1",
    )
    return [python, "-m", "torch.distributed.run", *options, PROGRAM, *words]


class Job(Honest):
    """Two ranks that work when they are told to."""

    def __init__(self, name: str, words: Sequence[str], slice_: Sequence[str] = ()) -> None:
        super().__init__(name, [*slice_, *words], environment())
        self.begun: dict[str, Any] = {}

    def answer(self, seconds: float) -> dict[str, Any]:
        """The next line of JSON. Raises AssertionError, with what the job wrote, where none comes."""
        try:
            while not (line := self.line(seconds)).startswith("{"):
                pass
        except AssertionError as error:
            raise AssertionError(f"{self.name}: {error}: {self.problem()}") from None
        found: dict[str, Any] = json.loads(line)
        return found

    def ready(self) -> Job:
        """Wait until both ranks can begin."""
        self.begun = self.answer(START)
        return self

    def ask(self, seconds: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()

    def told(self, seconds: float) -> Worked:
        return Worked(self.answer(seconds + LATE)["ranks"])

    def work(self, seconds: float) -> Worked:
        """What it does in so many seconds."""
        self.ask(seconds)
        return self.told(seconds)

    def complaints(self) -> list[str]:
        """Lines of what it wrote about errors."""
        self.errors.seek(0)
        words = ("Error", "timeout", "Signal")
        return [line for line in self.errors if 'File "' not in line and any(word in line for word in words)]

    def quit(self) -> int:
        """Let it end by itself; its exit status."""
        self.stop()
        return self.time.finish(self.process, LATE)

    def kill(self) -> None:
        """All of it; torchrun ends its ranks when it is asked to."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.time.finish(self.process, 5)
        super().kill()
        for pid in self.begun.get("pids", ()):
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/cmdline", "rb") as file:  # nobody else has got its number
                    if PROGRAM.encode() in file.read():
                        os.kill(pid, signal.SIGKILL)


class Worked:
    """What both ranks did in a turn."""

    def __init__(self, of_ranks: Sequence[dict[str, Any]]) -> None:
        self.ranks = of_ranks
        self.times: list[float] = of_ranks[0]["times"]  # seconds of CLOCK_MONOTONIC, when each step was over

    def rate(self, since: float = 0.0, until: float = float("inf")) -> float:
        """Steps a second, from the first of them that was over to the last."""
        inside = [at for at in self.times if since <= at <= until]
        return (len(inside) - 1) / (inside[-1] - inside[0]) if len(inside) > 1 else 0.0

    def seen(self, name: str) -> set[int]:
        """All values of a round's sum, of both ranks."""
        return {one for rank in self.ranks for one in rank[name]}


def together(jobs: Sequence[Job], seconds: float) -> list[tuple[Worked, float]]:
    """What jobs did side by side, each with its steps a second while all of them worked."""
    for job in jobs:
        job.ask(seconds)
    found = [job.told(seconds) for job in jobs]
    since, until = max(one.times[0] for one in found), min(one.times[-1] for one in found)
    return [(one, one.rate(since, until)) for one in found]


def launcher() -> str:
    return os.path.join(STAGE, "bin/nvc-cli")


def slice_of_both(place: Place, name: str, *options: str) -> list[str]:
    """The words before a program that has a slice of both GPUs."""
    words = (f"--device={','.join(gpus.all_uuids()[:2])}", f"--name={name}", *options)
    return place.sliced(launcher(), gpus.ROOT, *words)


def order(place: Place, *words: str) -> float:
    """A command of `nvc-cli vgpu` in the place; the moment when it was over."""
    done = subprocess.run(
        place.enter(launcher(), f"--root={gpus.ROOT}", "vgpu", *words),
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return REAL.now


def policy(place: Place, name: str) -> None:
    """Of both GPUs, whichever slice is the oldest."""
    for uuid in gpus.all_uuids()[:2]:
        order(place, "policy", uuid, name)


def had(place: Place) -> dict[tuple[str, str], tuple[int, int]]:
    """Nanoseconds that each slice had and was stopped, by GPU and key."""
    return {
        (device["uuid"], one["key"]): (one["hadNs"], one["stoppedNs"])
        for device in ask(place)["devices"]
        for one in device["had"]
    }


def kept(place: Place) -> str:
    """Who keeps the GPUs' time."""
    return "; ".join(device["time"] for device in ask(place)["devices"])
