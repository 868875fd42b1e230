"""Containers on a test's own host, for `nvc-cli doctor --container`."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

from .bundle import Bundle, Container
from .doctor import Named, problems
from .engines import Host


class HostBundle(Bundle):
    """A bundle that runc of the test's host runs, with its state where runc keeps it."""

    host: Host

    def command(self, runtime: str) -> list[str]:
        return [*self.host.namespace, runtime]


class Box:
    """Makes bundles below the host's directory."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.count = 0

    def bundle(self, hook: bool = True, **variables: str) -> HostBundle:
        """A bundle with a root file system of its own; with `hook`, nvc-hook gives it what `variables` ask for."""
        self.count += 1
        self.host.rootfs()
        rootfs = os.path.join(self.host.directory, f"box{self.count}")
        shutil.copytree(os.path.join(self.host.directory, "rootfs"), rootfs, symlinks=True)
        with open(f"{rootfs}/etc/debian_version", "w", encoding="ascii") as out:
            out.write("12.0\n")
        made = HostBundle(os.path.join(self.host.directory, f"bundle{self.count}"), rootfs)
        made.host = self.host
        made.config["process"]["env"] += [f"{name}={value}" for name, value in variables.items()]
        if hook:
            made.hook(
                "prestart", "/usr/local/bin/nvc-hook", ["nvc-hook", "prestart"], ["PATH=/usr/bin:/bin"]
            )
        return made

    def doctor(self, name: object, *words: str, check: int | None = None) -> str:
        """What doctor says of a container; `check` is the exit code that it must have."""
        done = self.host.doctor("doctor", "--container", str(name), *words)
        assert "Traceback" not in done.stderr, done.stderr
        assert check is None or done.returncode == check, done.stdout + done.stderr
        return done.stdout

    def named(self, container: Container, check: str, says: str, status: str = "failed") -> Named:
        """The one problem of a container that `check` names."""
        text = self.doctor(container.name)
        found = [one for one in problems(text) if f"{check}: " in one.line and says in one.line]
        assert len(found) == 1 and found[0].line.startswith(status), text
        return found[0]

    def document(self, container: Container) -> dict[str, Any]:
        """The same for programs."""
        return json.loads(self.doctor(container.name, "--format", "json"))
