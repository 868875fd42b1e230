"""Manifests of pods and claims, and what tests ask of them."""

from __future__ import annotations

import json
import os
from typing import Any

from .. import PATIENCE, STAGE, until
from .images import BUSYBOX
from .plane import Cluster

SLICE = "slice.gpu.nvc.dev"
#: Of a node.
DRIVER = "/srv/sim"
#: What kubectl and helm wait for: less than the test's own PATIENCE, so that they say what did not come.
WAIT = f"--timeout={PATIENCE - 20:.0f}s"
CDI, CLAIMS, NVC = "/run/cdi", "/var/lib/nvc/kubernetes/claims", "/opt/nvc/current/bin/nvc-cli"


def template(
    name: str,
    capacity: dict[str, str],
    of: str = SLICE,
    parameters: dict[str, Any] | None = None,
    **request: Any,
) -> dict[str, Any]:
    """A ResourceClaimTemplate with the one request `gpu`."""
    exactly = {"deviceClassName": of, **request}
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    devices: dict[str, Any] = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if parameters is not None:
        given = {"apiVersion": "gpu.nvc.dev/v1alpha1", "kind": "SliceParameters", **parameters}
        devices["config"] = [{"opaque": {"driver": "gpu.nvc.dev", "parameters": given}}]
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    return {**kind, "metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}


def pod(name: str, script: str, claims: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod that runs a shell script; `claims` are templates by the names that its container knows them under."""
    main: dict[str, Any] = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", script]}
    main["resources"] = {"claims": [{"name": each} for each in claims or {}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [main],
            "resourceClaims": [
                {"name": each, "resourceClaimTemplateName": of} for each, of in (claims or {}).items()
            ],
            **spec,
        },
    }


class Space:
    """A namespace of the cluster."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def kubectl(self, *words: str, check: bool = True, **options: Any) -> str:
        """What kubectl prints, in this namespace."""
        done = self.cluster.kubectl("-n", self.name, *words, check=check, **options)
        return str(done.stdout)

    def open(self) -> None:
        self.cluster.kubectl("create", "namespace", self.name)
        self.kubectl("wait", "--for=create", "serviceaccount/default", WAIT)

    def close(self) -> None:
        """Delete its pods, and then it; that it has gone is not waited for.

        What its claims had is free for the next test.
        """
        self.kubectl("delete", "pod", "--all", "--now", WAIT)
        self.kubectl("delete", "resourceclaim", "--all", WAIT)
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false")

    def apply(self, *documents: dict[str, Any]) -> None:
        self.kubectl(
            "apply", "-f", "-", input=json.dumps({"kind": "List", "apiVersion": "v1", "items": documents})
        )

    def get(self, kind: str, *words: str) -> Any:
        return json.loads(self.kubectl("get", kind, *words, "-o", "json"))

    def _asked(self, path: str) -> Any:
        """What the API server answers: each kubectl would take a tenth of a second of a processor."""
        return self.cluster.get(f"/api/v1/namespaces/{self.name}/{path}")

    def phase(self, name: str, wanted: str) -> None:
        """Wait until a pod has that phase. Raises AssertionError with its events."""

        def reached() -> bool:
            seen = self._asked(f"pods/{name}")["status"].get("phase")
            assert seen not in ({"Succeeded", "Failed"} - {wanted}), f"{seen}: {self.said(name)}"
            return bool(seen == wanted)

        until(reached, lambda: f"{name} is not {wanted}: {self.said(name)}")

    def said(self, name: str) -> str:
        """The log of a pod and its events."""
        return self.kubectl("logs", name, "--all-containers", check=False) + self.event_messages(name)

    def event_messages(self, name: str) -> str:
        """Messages of a pod's events."""
        found = self._asked(f"events?fieldSelector=involvedObject.name%3D{name}")["items"]
        return "\n".join(f"{each['reason']}: {each['message']}" for each in found)

    def until_event(self, name: str, reason: str) -> None:
        """Wait for an event of a pod."""
        until(lambda: f"{reason}: " in self.event_messages(name), lambda: f"no {reason}: {self.said(name)}")

    def output(self, document: dict[str, Any]) -> str:
        """Run a pod to its end; what it printed."""
        self.apply(document)
        name = document["metadata"]["name"]
        self.phase(name, "Succeeded")
        return self.kubectl("logs", name)

    def run(self, name: str, script: str) -> str:
        """What a shell script prints in a running pod."""
        return self.kubectl("exec", name, "--", "sh", "-c", script)

    def delete(self, *names: str) -> None:
        self.kubectl("delete", "pod", *names, "--wait=true", WAIT)


def simulate(cluster: Cluster, **wanted: Any) -> None:
    """Give each node a simulated driver at DRIVER with two GPUs; options of `nvc-cli sim create`."""
    options = [f"--{name}={value}" for name, value in {"gpus": 2, **wanted}.items()]
    for name in cluster.state.nodes:
        command = [os.path.join(STAGE, "bin/nvc-cli"), "sim", "create", DRIVER, f"--seed={name}"]
        cluster.inside(name, *command, *options)


def left(cluster: Cluster) -> list[str]:
    """What any node still has of claims: CDI files, the plugin's state, slices."""
    found = []
    for name in cluster.state.nodes:
        for place in (CDI, CLAIMS):
            names = cluster.inside(name, "find", place, "-mindepth", "1", check=False).stdout.split()
            found += [f"{name}:{each}" for each in names]
        slices = json.loads(cluster.inside(name, NVC, "vgpu", "ls", "--format", "json").stdout)["slices"]
        found += [f"{name}: {each}" for each in slices]
    return found


def until_nothing_is_left(cluster: Cluster) -> None:
    """Wait until nodes have no trace of claims. Raises AssertionError with what there is."""
    until(lambda: not left(cluster), lambda: left(cluster))
