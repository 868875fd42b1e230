"""A claim with slices, made as the plugin for Kubernetes makes them, and a container that has them."""

from __future__ import annotations

from typing import Any

from nvc.cdi.generate import driver_arguments
from nvc.cdi.sliced import written
from nvc.discovery import discover
from nvc.kernel import LinuxKernel
from nvc.kubernetes import give
from nvc.kubernetes.claim import Allocation, Given
from nvc.request import DriverOptions, SliceRequest
from nvc.slices.model.entry import write_about
from nvc.slices.store import registry

from . import GIB
from .cdi_world import World

UID = "00000000-0000-4000-8000-00000000c1a1"
FIXED = 3


class Claimed:
    """A claim with slices of the first GPUs, and a container that has them."""

    def __init__(self, world: World, count: int = 1, **fields: Any) -> None:
        self.world, self.kernel = world, LinuxKernel()
        self.by_python = [f"{world.stage}/bin/nvc-cdi-hook", "--container-spec=/dev/stdin"]
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
        nodes = [self.facts.control, *self.facts.uvm, *(gpu.node for gpu in self.facts.gpus[:count])]
        self.devices = [
            {"path": node.path, "type": "c", "major": node.major, "minor": node.minor} for node in nodes if node
        ]
        (self.entry,) = (
            one for one in registry.sound_entries(registry.base_directory())
            if one.claim and len(one.holds.split()) == count
        )  # fmt: skip
        self.fresh = self.about()
        self.say()
        for library in self.facts.libraries:
            world.library(library.path.rpartition("/")[2])

    def hold(self) -> None:
        give.hold(self.kernel, self.facts, self.options, self.allocation, SliceRequest())

    def say(self, *more: list[str]) -> None:
        """Have the bundle say what a runtime's does."""
        hooks = [{"path": "/x", "args": ["nvc-cdi-hook", *words]} for words in (*self.words, *more)]
        self.world.more.update(hooks={"createContainer": hooks}, linux={"devices": self.devices})

    def about(self) -> str:
        with open(f"{self.entry.directory}/about", encoding="ascii") as file:
            return file.read()

    def agree(self, place: int = 0) -> tuple[list[str], list[str]]:
        """Both ways give the same, also in the registry, and no interpreter is wanted."""
        found = []
        for program in ([self.world.alone], self.by_python):
            write_about(self.entry.directory, self.fresh)
            found.append((self.world.start(*program, *self.words[place]), self.about()))
        assert found[0] == found[1] and found[0][1] != self.fresh
        return found[0][0]

    def is_pythons(self) -> tuple[list[str], list[str]]:
        """The launcher leaves it to Python with all as it was; what comes of it then."""
        untouched, _ = self.world.start("/bin/false")
        seen, said = self.world.start(self.world.alone, *self.words[0])
        assert seen == untouched and "launch.conf" in said[0]
        by_python = self.world.start(*self.by_python, *self.words[0])
        seen, said = self.world.start(f"{self.world.stage}/bin/nvc-cdi-hook", *self.words[0])
        assert (seen[0], said) == (by_python[0][0], by_python[1])  # a slice of its own has another place each time
        return by_python
