"""The installed nvc-hook: in a bundle's hooks, or called directly as a runtime would."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from . import run
from .bundle import Bundle
from .plans import mounts

ENVIRONMENT = ["PATH=/usr/bin:/bin"]


class Hook:
    """nvc-hook of one installation with a configuration file of its own, for one driver root."""

    def __init__(self, stage: str, directory: str, driver_root: str, settings: str = "") -> None:
        self.program = os.path.join(stage, "bin/nvc-hook")
        self.config = os.path.join(directory, "config.toml")
        self.log = os.path.join(directory, "hook.log")
        with open(self.config, "w", encoding="utf-8") as out:
            out.write(f'{settings}\n[nvidia-container-cli]\nroot = "{driver_root}"\nload-kmods = false\n')
            out.write(f'[nvc]\nlog = "{self.log}"\n')
        os.chmod(self.config, 0o644)

    def add(
        self,
        bundle: Bundle,
        kind: str = "prestart",
        command: str = "",
        env: list[str] | None = ENVIRONMENT,
        called: str = "nvc-hook",
    ) -> None:
        """Register the hook in a bundle; with `env` None it inherits whatever the runtime hands on."""
        bundle.hook(kind, self.program, [called, "-config", self.config, command or kind], env)

    def add_settings(self, settings: str) -> None:
        """More lines of [nvc], which is the last table."""
        with open(self.config, "a", encoding="utf-8") as config:
            config.write(f"{settings}\n")

    def call(
        self, state: dict[str, Any] | bytes, command: str = "prestart", check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run it with this state on its standard input."""
        data = state if isinstance(state, bytes) else json.dumps(state).encode()
        path = os.path.join(os.path.dirname(self.config), "state.json")
        with open(path, "wb") as out:
            out.write(data)
        with open(path, "rb") as stdin:
            command_line = [self.program, "-config", self.config, command]
            return run(*command_line, check=check, stdin=stdin, **options)

    def refusal(self, state: dict[str, Any] | bytes, command: str = "prestart", **options: Any) -> str:
        """Run it; it must fail with exit 1 and one line on standard error: that line."""
        done = self.call(state, command, check=False, **options)
        assert (done.returncode, done.stdout) == (1, ""), (done.returncode, done.stdout, done.stderr)
        assert done.stderr.startswith("nvc-hook: ") and done.stderr.count("\n") == 1, done.stderr
        assert done.stderr[:-1].isprintable() and len(done.stderr) < 2000, done.stderr
        return done.stderr.rstrip("\n")

    def logged(self) -> str:
        """What is in the log file so far."""
        if not os.path.exists(self.log):
            return ""
        with open(self.log, encoding="utf-8") as text:
            return text.read()


def ask(bundle: Bundle, **variables: str) -> None:
    """Set variables of the container, replacing those of the same names."""
    kept = [entry for entry in bundle.config["process"]["env"] if entry.partition("=")[0] not in variables]
    bundle.config["process"]["env"] = kept + [f"{name}={value}" for name, value in variables.items()]


def mounted(directory: str) -> list[str]:
    """What is mounted below a directory in this process's mount namespace; others come and go meanwhile."""
    return [mount for mount in mounts(os.getpid()) if f"{directory}/" in mount or directory in mount.split()]
