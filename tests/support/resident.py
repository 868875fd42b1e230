"""The host's own nvcd, for tests of a real driver."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from . import CLEAN_ENV, STAGE, run

NVCD = os.path.join(STAGE, "bin/nvcd")
READY = 30.0  # seconds


def begin() -> subprocess.Popen[bytes]:
    """One that answers."""
    process = subprocess.Popen([NVCD], env=CLEAN_ENV)
    end = time.monotonic() + READY
    while run(NVCD, "--state", env=CLEAN_ENV, check=False).returncode:
        assert process.poll() is None and time.monotonic() < end, "nvcd does not answer"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    """End it; it may have ended."""
    process.send_signal(signal.SIGTERM)
    process.wait(20)
