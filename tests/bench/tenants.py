"""The GPU that a bench measures, and slices of it."""

from __future__ import annotations

import json
import os
import subprocess


class Gpu:
    """The GPU that is measured, and how nvc-cli is called for it."""

    def __init__(self, nvc: str, root: str, wanted: str) -> None:
        self.root = root
        self.nvc = [nvc, f"--root={root}"]
        found = json.loads(self.call("info", "--format", "json"))["gpus"]
        wanted = wanted or os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
        fitting = [gpu for gpu in found if wanted in (str(gpu["index"]), gpu["uuid"])]
        if not fitting:
            raise SystemExit(f"bench: no GPU {wanted} among {[gpu['uuid'] for gpu in found]}")
        self.uuid = str(fitting[0]["uuid"])
        self.index = str(fitting[0]["index"])
        self.name = str(fitting[0]["model"])

    def call(self, *words: str) -> str:
        """What nvc-cli prints; it must succeed."""
        done = subprocess.run([*self.nvc, *words], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"bench: {' '.join(words)}: {done.stderr}")
        return done.stdout

    @property
    def nvcd(self) -> list[str]:
        """How the daemon is called; it lies beside nvc-cli."""
        return [os.path.join(os.path.dirname(self.nvc[0]), "nvcd"), *self.nvc[1:]]

    def slice(self, *options: str, memory: str = "8GiB") -> list[str]:
        """The words before a program that is to have a slice of it."""
        return [*self.nvc, "vgpu", "run", f"--device={self.uuid}", f"--memory={memory}", *options, "--"]

    def environment(self, **more: str) -> dict[str, str]:
        """With or without a slice, a program sees this GPU alone."""
        found = {**os.environ, "CUDA_VISIBLE_DEVICES": self.uuid, **more}
        if self.root != "/":
            found["LD_LIBRARY_PATH"] = f"{self.root}/usr/lib/{os.uname().machine}-linux-gnu"
        return found
