"""Starts by the installed programs, and by a copy of the launcher that has no Python beside it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from .bundle import Bundle
from .configure import BASIC, Configure
from .plans import mounts, snapshot

WORDS = (*BASIC, "--no-cgroups")
#: What that copy says where a start is not its own.
NO_PYTHON = "launch.conf"
PARAMS = "/proc/driver/nvidia/params"


class Starts:
    """One driver, the installed programs, and the same without Python."""

    def __init__(self, scratch: str, stage: str, driver: str, image: Callable[[], Bundle]) -> None:
        self.driver, self.image = driver, image
        alone = f"{scratch}/alone/bin"
        os.makedirs(alone)
        for name in ("nvc-cli", "nvc-hook"):
            shutil.copy(os.path.realpath(f"{stage}/bin/nvc-cli"), f"{alone}/{name}")
        self.whole = Configure(f"{stage}/bin/nvc-cli", driver)
        self.alone = Configure(f"{alone}/nvc-cli", driver)
        self.config = f"{scratch}/config.toml"
        self.settle("")
        words = ["-config", self.config, "prestart"]
        self.hooks = {
            name: [f"{path}/nvc-hook", *words]
            for name, path in (("whole", f"{stage}/bin"), ("alone", alone))
        }

    def settle(self, settings: str) -> None:
        """Write the configuration of hooks."""
        with open(self.config, "w", encoding="ascii") as out:
            out.write(f'[nvidia-container-cli]\nroot = "{self.driver}"\nload-kmods = false\n{settings}\n')

    def start(
        self, configure: Configure, words: tuple[str, ...] = WORDS, bundle: Bundle | None = None
    ) -> Any:
        """What a container of a fresh image has after the call."""
        bundle = bundle or self.image()
        with bundle.created("runc") as container:
            configure(container.pid, bundle.rootfs, words)
            lines = [
                line.split(" ", 1)[1].replace(f"/{os.path.basename(bundle.rootfs)} ", "/ROOTFS ")
                for line in mounts(container.pid)
            ]
            with open(f"/proc/{container.pid}/root{PARAMS}", encoding="ascii") as params:
                return sorted(lines), snapshot(bundle.rootfs), params.read()

    def refused(self, words: tuple[str, ...] = WORDS, bundle: Bundle | None = None) -> None:
        """Without Python a container gets nothing."""
        with self.refusing(bundle) as refused:
            refused(words)

    @contextlib.contextmanager
    def refusing(self, bundle: Bundle | None = None) -> Iterator[Callable[..., None]]:
        """`refused(words, env)`, again and again: without Python a container of a fresh image gets nothing."""
        bundle = bundle or self.image()
        with bundle.created("runc") as container:
            before = mounts(container.pid), snapshot(bundle.rootfs)

            def refused(words: tuple[str, ...] = WORDS, **more: Any) -> None:
                assert NO_PYTHON in self.alone.refusal(container.pid, bundle.rootfs, words, **more)
                assert (mounts(container.pid), snapshot(bundle.rootfs)) == before

            yield refused

    def hooked(
        self, which: str, script: str = "nvidia-smi -L | wc -l", check: bool = True, **changes: Any
    ) -> Any:
        """A container whose hook is this one."""
        bundle = self.image()
        bundle.config["process"]["env"] += changes.pop("env", ["NVIDIA_VISIBLE_DEVICES=all"])
        bundle.unified = changes.pop("unified", False)
        bundle.config.update(changes)
        bundle.hook("prestart", self.hooks[which][0], self.hooks[which], ["PATH=/usr/bin:/bin"])
        return bundle.run("runc", script, check=check)
