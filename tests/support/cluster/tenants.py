"""Programs of the catalogue (tests/adversary) in the containers of a pod: the slice of a claim as they see it."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Sequence
from typing import Any

from .. import GIB
from ..adversary_time import take_time
from ..builds import kept
from ..dialog import Dialog
from ..vgpushim import Process, Slice, compile_tool
from ..virtual import device_time
from .pods import DRIVER, Space, pod, template
from .state import Node

#: Of a node, and the same path in pods: the programs; and what containers of a pod share.
TOOLS, SHARED = "/srv/tools", "/shared"
NODE = "node1"
SELECTORS = [{"cel": {"expression": 'device.attributes["gpu.nvc.dev"].index == 0'}}]


def equip(space: Space) -> None:
    """Put the programs on the node."""
    directory = f"{space.cluster.state.nodes[NODE].directory}{TOOLS}"
    os.makedirs(directory, exist_ok=True)
    for path in (kept("vgpu_tool", lambda place: compile_tool(place, "-O2")), take_time()):
        if not os.path.exists(f"{directory}/{os.path.basename(path)}"):
            shutil.copy(path, directory)


def tenant(name: str, of: str, containers: Sequence[str] = ("main",), **spec: Any) -> dict[str, Any]:
    """A pod on the node whose containers have one claim, made from the template `of`, and wait."""
    document = pod(name, "exec sleep infinity", {"gpu": of}, nodeSelector={"kubernetes.io/hostname": NODE}, **spec)
    (first,) = document["spec"]["containers"]
    first["volumeMounts"] = [{"name": "tools", "mountPath": TOOLS}, {"name": "shared", "mountPath": SHARED}]
    document["spec"]["containers"] = [{**first, "name": each} for each in containers]
    document["spec"]["volumes"] = [
        {"name": "tools", "hostPath": {"path": TOOLS, "type": "Directory"}},
        {"name": "shared", "emptyDir": {}},
    ]
    return document


class Tenant(Slice):
    """The slice of a running pod. Each process is of the next of its containers."""

    def __init__(self, space: Space, name: str, containers: Sequence[str] = ("main",)) -> None:
        node: Node = space.cluster.state.nodes[NODE]
        self.space, self.name = space, name
        self.driver = f"{node.directory}{DRIVER}"
        self.root = SHARED
        self.uuids = [space.kubectl("exec", name, "--", "nvidia-smi", "-L").split("UUID: ")[1].strip(") \n")]
        self.processes: list[Process] = []
        self.containers = itertools.cycle(containers)

    def words(self, *words: str) -> list[str]:
        """A command line that runs a program in the next container."""
        cluster = self.space.cluster
        kubectl = [cluster.state.program("kubectl"), "--kubeconfig", cluster.kubeconfig, "-n", self.space.name]
        return [*kubectl, "exec", "-i", self.name, "-c", next(self.containers), "--", *words]

    def process(self, *arguments: str, **variables: str) -> Process:
        self.processes.append(InPod(self, *arguments))
        return self.processes[-1]

    def taken(self, device: int = 0) -> int:
        """Bytes that the node's simulated driver has given of the GPU, to all pods."""
        from nvc.testing.sim.report import report

        (gpu,) = [gpu for gpu in report(self.driver).gpus if gpu.uuid == self.uuids[device]]
        return gpu.used

    def busy(self) -> float:
        """Seconds that kernels ran on the GPU, of all pods."""
        return device_time(self.driver, 0).total

    def end(self) -> None:
        """End what runs in it."""
        for process in self.processes:
            if process.process.poll() is None:
                process.kill()


class InPod(Process):
    """vgpu_tool in a container."""

    def __init__(self, tenant: Tenant, *arguments: str) -> None:
        self.slice = self.tenant = tenant
        line = tenant.words("sh", "-c", f'echo $$; exec {TOOLS}/vgpu_tool "$@"', "sh", *arguments)
        self._container = line[line.index("-c") + 1]
        Dialog.__init__(self, line, tenant.space.cluster.state.environment)
        self._pid = int(self.receive()[0])

    @property
    def pid(self) -> int:
        """Its number in the pod."""
        return self._pid

    def kill(self) -> None:
        self.tenant.space.kubectl(
            "exec", self.tenant.name, "-c", self._container, "--", "kill", "-9", str(self._pid), check=False
        )
        self.end()


def small(memory: int = 2 * GIB, cores: int = 50) -> dict[str, Any]:
    """The template of a claim for a part of the node's first GPU."""
    capacity = {"memory": str(memory), "cores": str(cores)}
    return template(f"small-{memory >> 20}-{cores}", capacity, selectors=SELECTORS)
