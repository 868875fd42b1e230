"""The driver's own Multi-Process Service as another way to share a GPU: a control daemon of the bench alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator

from tenants import Gpu

CONTROL = "nvidia-cuda-mps-control"
PLACES = "/usr/bin:/usr/sbin:/usr/local/bin:/usr/local/nvidia/bin:/usr/local/cuda/bin"


def find() -> str:
    """Its path; "" where the host has none."""
    return shutil.which(CONTROL, path=f"{os.environ.get('PATH', '')}:{PLACES}") or ""


@contextlib.contextmanager
def serving(program: str, gpu: Gpu) -> Iterator[dict[str, str]]:
    """Runs it for one GPU. Yields the variables with which programs are its clients."""
    directory = tempfile.mkdtemp(prefix="nvc-bench-mps-")
    pipes, logs = os.path.join(directory, "pipe"), os.path.join(directory, "log")
    os.mkdir(pipes)
    os.mkdir(logs)
    variables = {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": logs}
    environment = gpu.environment(**variables)
    # In the foreground, so that it is ours to end.
    process = subprocess.Popen(
        [program, "-f"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end = time.monotonic() + 10
        while not os.path.exists(os.path.join(pipes, "control")):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"bench: {CONTROL} does not start\n{_said(logs)}")
            time.sleep(0.02)
        try:
            yield variables
        except SystemExit as error:
            raise SystemExit(f"{error}\n{_said(logs)}") from None
    finally:
        try:
            subprocess.run(
                [program], input="quit\n", env=environment, text=True, capture_output=True, timeout=20
            )
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(directory)


def _said(directory: str) -> str:
    """The ends of its logs."""
    text = ""
    for name in sorted(os.listdir(directory)):
        with open(os.path.join(directory, name), encoding="utf-8", errors="replace") as log:
            text += f"{name}: {log.read()[-1000:]}"
    return text
