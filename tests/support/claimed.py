"""Claims in containers of runc: plugin, nvcd and driver are real, kubelet and API server the tests' own.

with node(stage, directory, root) as made:
    (name,) = made.give(claim("part", [result("gpu", made.device(uuid), "4Gi", "30")]))
    with made.container(name) as container: ...
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Protocol

from nvc.base.value import Value
from nvc.frontends.runtime.spec import Spec, apply_edits

from . import CLEAN_ENV, run
from .apiserver import ApiServer, claim, result
from .bundle import Bundle, Container
from .kubelet import NODE, Kubelet, Plugin, add
from .nvcd import Place
from .vgpucap import Worker

OVERLAY = (
    'mount -t tmpfs tmpfs "$1"; cd "$1"; shift; mkdir upper work root;'
    " mount -t overlay -o lowerdir=/,upperdir=upper,workdir=work overlay root;"
    ' for at; do mkdir -p "root$at"; mount --rbind "$at" "root$at"; done'
)
#: Of the container's own on a root that is the host's.
OWN = {"/tmp": "mode=1777", "/dev/shm": "mode=1777", "/run": "mode=755"}


class ClaimNode:
    """A node of Kubernetes without Kubernetes; see `node`."""

    def __init__(self, place: Place, kubelet: Kubelet, plugin: Plugin) -> None:
        self.place, self.kubelet, self.plugin = place, kubelet, plugin

    def device(self, uuid: str) -> str:
        """The name under which the plugin publishes the GPU."""
        (slice,) = self.plugin.api.wait(self.plugin.api.slices)
        (name,) = (
            one["name"] for one in slice["spec"]["devices"] if one["attributes"]["uuid"]["string"] == uuid
        )
        return str(name)

    def give(self, *claims: dict[str, Any]) -> list[str]:
        """Have allocated claims prepared, by one call. Returns the CDI devices of the answer, in order."""
        for made in claims:
            add(self.plugin.api, made)
        entries = self.kubelet.prepare(*claims)
        found = []
        for made in claims:
            entry = entries[made["metadata"]["uid"]]
            assert entry.error == "", entry.error
            found += [name for device in entry.devices for name in device.cdi_device_ids]
        return found

    def take_back(self, *claims: dict[str, Any]) -> None:
        """Have them unprepared; nothing of them may stay."""
        entries = self.kubelet.unprepare(*claims)
        assert [entries[made["metadata"]["uid"]].error for made in claims] == [""] * len(claims)
        assert self.plugin.files() == [] and self.plugin.claims() == []
        left = {name for name in os.listdir(f"{self.place.run}/vgpu") if name != "empty"}
        assert left == set(), "slices are left"

    @contextlib.contextmanager
    def container(self, name: str, *places: str) -> Iterator[Container]:
        """A running one that has the CDI device. Its root is the host's, with what else is mounted at `places`.

        The root is read-only. What runtime and hooks have to make there is in a layer, which goes with the node.
        """
        directory = tempfile.mkdtemp(dir=self.plugin.directory)
        layers = f"{directory}/layers"
        os.mkdir(layers)
        apart = [path for path in places if os.stat(path).st_dev != os.stat("/").st_dev]
        run(*self.place.enter("sh", "-ec", OVERLAY, "sh", layers, *apart))
        bundle = Bundle(directory, f"{layers}/root")
        bundle.before = tuple(self.place.enter())
        bundle.config["root"]["readonly"] = True
        bundle.config["mounts"] += [
            {"destination": at, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", mode]}
            for at, mode in OWN.items()
        ]
        with edit(self.plugin, bundle, name).created("runc") as made:
            made.start()
            yield made


@contextlib.contextmanager
def node(stage: str, directory: str, root: str, *words: str) -> Iterator[ClaimNode]:
    """The plugin, registered, and nvcd, ready, in a mount namespace with a /run/nvc of its own.

    `root` is the driver's, `words` are the plugin's. What is given must be taken back before the end.
    """
    with contextlib.ExitStack() as ends:
        place = Place(stage, directory)
        ends.callback(place.end)
        place.start(f"--root={root}")
        api = ApiServer(f"{directory}/api")
        ends.callback(api.close)
        api.node(NODE)
        kubelet = Kubelet(f"{directory}/kubelet")
        ends.callback(kubelet.close)
        plugin = Plugin(stage, directory, root, kubelet, api)
        plugin.wrapper = tuple(place.enter())
        ends.callback(plugin.close)
        plugin.start(*words)
        plugin.said(": ready")
        kubelet.register()
        yield ClaimNode(place, kubelet, plugin)


def edit(plugin: Plugin, bundle: Any, *names: str) -> Any:
    """The bundle with what the devices' documents say."""
    spec = Spec(bundle.config)
    for file in plugin.files():
        with open(f"{plugin.cdi}/{file}", encoding="utf-8") as text:
            document = json.load(text)
        wanted = [one for one in document["devices"] if f"{document['kind']}={one['name']}" in names]
        for edits in (
            [document["containerEdits"], *(one["containerEdits"] for one in wanted)] if wanted else []
        ):
            apply_edits(spec, edits)
    return bundle


class Program(Protocol):
    """What runs in containers."""

    places: tuple[str, ...]  # directories that it needs, if they are no part of the host's root
    work: tuple[str, ...]  # it says its progress as tests/native/vgpu_work.c does

    def memory(self, container: Container, size: int) -> Memory:
        """What it has of a claim of so many GiB."""


class Memory(Value):
    """What a program sees and gets of a claim's memory, in bytes."""

    total: int
    got: int
    refused: bool  # whether one GiB more than the claim was


class Had(Value):
    """What the program of a claim had."""

    cores: int
    memory: Memory
    share: float  # per cent of the steps that the same program does alone


def measure(
    made: ClaimNode, uuid: str, program: Program, size: int, cores: tuple[int, ...], seconds: float
) -> tuple[float, list[Had]]:
    """Steps a second with the whole GPU by a claim, and what claims of `size` GiB and these cores have at once."""
    device = made.device(uuid)
    whole = claim("whole", [result("gpu", device)])
    (name,) = made.give(whole)
    with made.container(name, *program.places) as container:
        (alone,) = _rates([container], program, seconds)
    made.take_back(whole)
    claims = [claim(f"cores{each}", [result("gpu", device, f"{size}Gi", str(each))]) for each in cores]
    with contextlib.ExitStack() as ends:
        containers = [
            ends.enter_context(made.container(name, *program.places)) for name in made.give(*claims)
        ]
        memory = [program.memory(each, size) for each in containers]
        shares = [100 * rate / alone for rate in _rates(containers, program, seconds)]
    made.take_back(*claims)
    return alone, [Had(*one) for one in zip(cores, memory, shares, strict=True)]


def _rates(containers: list[Container], program: Program, seconds: float) -> list[float]:
    """Steps a second in each, in the same time: from three seconds after the last began. nvcd knows them then."""
    workers = []
    for container in containers:
        words = [*container.bundle.command("runc"), "exec", container.name, *program.work]
        workers.append(Worker(words[0], CLEAN_ENV, *words[1:], trace=20, seconds=600))
    for one in workers:
        one.started()
        one.progress()
    begin = 1000 * (time.monotonic() + 3)
    found = [_rate(one, begin, begin + 1000 * seconds) for one in workers]
    for one in workers:
        one.stop()
    return found


def _rate(worker: Worker, begin: float, end: float) -> float:
    while (first := worker.progress())[0] < begin:
        pass
    while (last := worker.progress())[0] < end:
        pass
    return 1000 * (last[1] - first[1]) / (last[0] - first[0])
