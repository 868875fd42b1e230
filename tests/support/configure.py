"""`nvc-cli configure`, called as a runtime's hook would call it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

from . import run
from .bundle import Bundle

BASIC = ("--device=all", "--compute", "--utility")


class Configure:
    """Calls one installed nvc-cli for one driver root; `options` are global ones."""

    def __init__(self, launcher: str, driver_root: str, *options: str) -> None:
        self.launcher = launcher
        self.command = [launcher, f"--root={driver_root}", *options]

    def __call__(
        self, pid: int, rootfs: str, words: Iterable[str] = BASIC, check: bool = True, **more: object
    ) -> subprocess.CompletedProcess[str]:
        """Configure the container of `pid`; exit code and output are returned."""
        return run(*self.command, "configure", f"--pid={pid}", *words, rootfs, check=check, **more)  # type: ignore[arg-type]

    def refusal(self, pid: int, rootfs: str, words: Iterable[str] = BASIC, **more: object) -> str:
        """Configure, which must fail with exit 1 and one line on standard error: that line."""
        done = self(pid, rootfs, words, check=False, **more)
        assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
        assert done.stdout == ""
        assert done.stderr.startswith("nvc-cli: ") and done.stderr.count("\n") == 1, done.stderr
        assert len(done.stderr) < 2000
        return done.stderr.rstrip("\n")


def as_hook(bundle: Bundle, configure: Configure, words: Iterable[str] = BASIC) -> None:
    """Add a prestart hook that reads the state's pid and calls `configure`, as a runtime's config would."""
    arguments = " ".join(f"'{word}'" for word in words)
    command = " ".join(f"'{word}'" for word in configure.command)
    script = (
        r"""pid=$(sed -n 's/.*"pid":[ ]*\([0-9]*\).*/\1/p'); """
        f'exec {command} configure --pid="$pid" {arguments} {bundle.rootfs}'
    )
    bundle.hook("prestart", "/bin/sh", ["sh", "-c", script], env=["PATH=/usr/bin:/bin"])
