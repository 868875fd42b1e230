"""A container held at the moment of its prestart hook, so that a test can act there in its own process.

with at_prestart(bundle, "runc", "ls -l /dev") as held:
    ...                      # held.pid, held.rootfs: the mount namespace exists, nothing has pivoted
    done = held.release()    # CompletedProcess of the whole `run`
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator

from . import CLEAN_ENV, PATIENCE
from .bundle import Bundle


class Held:
    """A runtime that waits for its hook."""

    def __init__(
        self, process: subprocess.Popen[str], state: dict[str, object], go: str, rootfs: str
    ) -> None:
        self.process = process
        self.pid = int(str(state["pid"]))
        self.rootfs = rootfs
        self._go = go
        self._released = False

    def release(self, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Let the hook succeed and wait for the container's end."""
        self._let_go()
        out, err = self.process.communicate(timeout=PATIENCE)
        code = self.process.returncode
        assert not check or code == 0, f"exit {code}\n{out}{err}"
        return subprocess.CompletedProcess(self.process.args, code, out, err)

    def _let_go(self) -> None:
        if not self._released:
            self._released = True
            with open(self._go, "w", encoding="ascii") as go:
                go.write("\n")

    def abandon(self) -> None:
        """End the runtime, whatever it waits for."""
        if self.process.poll() is None:
            self._let_go()
            self.process.communicate(timeout=PATIENCE)


@contextlib.contextmanager
def at_prestart(bundle: Bundle, runtime: str, script: str) -> Iterator[Held]:
    """Run `script` in a container whose prestart hook waits until the caller releases it."""
    state, go = (os.path.join(bundle.directory, name) for name in ("state.fifo", "go.fifo"))
    for fifo in (state, go):
        if not os.path.exists(fifo):
            os.mkfifo(fifo)
    wait = f"cat > {state}; read line < {go}"
    bundle.hook("prestart", "/bin/sh", ["sh", "-c", wait], env=["PATH=/bin:/usr/bin"])
    bundle._for_runtime(runtime)
    bundle.write(script)
    name = f"nvc-held-{os.getpid()}-{os.path.basename(bundle.directory)}-{runtime}"
    command = [*bundle.command(runtime), "run", "--bundle", bundle.directory, name]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=CLEAN_ENV,
    )
    held = None
    try:
        with open(state, encoding="utf-8") as document:
            held = Held(process, json.load(document), go, bundle.rootfs)
        yield held
    finally:
        if held is not None:
            held.abandon()
        else:
            process.kill()
            process.communicate()
        bundle.config["hooks"]["prestart"].pop()
