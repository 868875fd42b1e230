"""A claim with slices, made as the plugin for Kubernetes makes them, and a container that has them."""

from __future__ import annotations

from typing import Any

from nvc.discovery import discover
from nvc.frontends.cdi.generate import driver_arguments
from nvc.frontends.cdi.sliced import written
from nvc.kernel import LinuxKernel
from nvc.kubernetes.claims import give
from nvc.kubernetes.claims.claim import Allocation, Given
from nvc.model.request import DriverOptions, SliceRequest
from nvc.slices.store import registry

from . import GIB
from .cdi_world import World

UID = "00000000-0000-4000-8000-00000000c1a1"
FIXED = 3


class Claimed:
    """A claim with slices of the first GPUs, and a container that has them."""

    def __init__(self, world: World, count: int = 1, **fields: Any) -> None:
        self.world, self.kernel = world, LinuxKernel()
        self.options = DriverOptions(root=world.driver)
        self.facts = discover(self.kernel, self.options)
        given = {"limit": 4 * GIB, "cores": 30, "policy": FIXED, **fields}
        self.allocation = Allocation(UID, "default", "claim", tuple(
            Given(f"r{place}", "node", f"gpu-{place}", "", gpu.uuid, False, **given)
            for place, gpu in enumerate(self.facts.gpus[:count])
        ))  # fmt: skip
        self.hold()
        parts = [give._part(self.allocation, place) for place in range(count)]
        self.words = [
            ["slice-memory", *driver_arguments(self.options), f"--slice={written(part)}"] for part in parts
        ]
        nodes = [one.node for one in self.facts.controls if one.capability != "display"]
        nodes += [gpu.node for gpu in self.facts.gpus[:count]]
        self.devices = [
            {"path": node.path, "type": "c", "major": node.major, "minor": node.minor} for node in nodes
        ]
        (self.entry,) = (
            one for one in registry.sound_entries(registry.base_directory())
            if one.claim and len(one.holds.split()) == count
        )  # fmt: skip
        self.say()
        for library in self.facts.libraries:
            world.library(library.path.rpartition("/")[2])

    def hold(self) -> None:
        give.hold(self.kernel, self.facts, self.allocation, SliceRequest())

    def say(self, *more: list[str]) -> None:
        """Have the bundle say what a runtime's does."""
        hooks = [{"path": "/x", "args": ["nvc-cdi-hook", *words]} for words in (*self.words, *more)]
        self.world.more.update(hooks={"createContainer": hooks}, linux={"devices": self.devices})

    def about(self) -> str:
        with open(f"{self.entry.directory}/about", encoding="ascii") as file:
            return file.read()

    def start(self, place: int = 0) -> tuple[list[str], list[str]]:
        """A container of the image: what it holds, and what the hook says."""
        return self.world.start(f"{self.world.stage}/bin/nvc-cdi-hook", *self.words[place])
