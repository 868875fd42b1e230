"""What the applier holds open is the host's: nobody else may take it, not even with the same capabilities."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

from support import CLEAN_ENV, REPO, need
from support.plans import plan_of
from support.prestart import at_prestart

from nvc.kernel import LinuxKernel
from nvc.kernel.privileges import DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, SYS_ADMIN, mask

TAKEN, REFUSED = 42, 43


def take_descriptors(pid: int) -> int:
    """In a process with the applier's capabilities, as a container in the host's pid namespace may have them."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            kept = mask(DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, SYS_ADMIN)
            LinuxKernel().capset(kept)
            names = os.listdir(f"/proc/{pid}/fd")
            os.open(f"/proc/{pid}/fd/{names[0]}", os.O_PATH)
            code = TAKEN
        except PermissionError:
            code = REFUSED
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_descriptors_cannot_be_taken(runc_bundle: Any, scratch: str) -> None:
    plan_of(f"{scratch}/driver")
    log = f"{scratch}/strace.fifo"
    os.mkfifo(log)
    with at_prestart(runc_bundle(), "runc", "true") as held:
        command = [
            *(need("strace"), "-f", "-qq", "-o", log, "-e", "trace=move_mount"),
            *("-e", "inject=move_mount:signal=SIGSTOP:when=1", sys.executable, "-m", "support.apply_once"),
            *(f"{scratch}/driver", str(held.pid), held.rootfs),
        ]
        run = subprocess.Popen(command, env={**CLEAN_ENV, "PYTHONPATH": f"{REPO}:{REPO}/tests"})
        with open(log, encoding="utf-8") as lines:
            stopped = next(line for line in lines if "stopped by SIGSTOP" in line)
            applier = int(stopped.split()[0])
            with open(f"/proc/{applier}/comm", encoding="ascii") as name:
                assert name.read() == "nvc:[apply]\n"
            assert take_descriptors(run.pid) == REFUSED  # strace itself, with all capabilities
            assert take_descriptors(applier) == REFUSED
            os.kill(applier, signal.SIGCONT)
            lines.read()
        assert run.wait() == 0
        held.release()
