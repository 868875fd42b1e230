"""What a pod has on a node stays its own until it has ended there, whatever the API server has forgotten."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support import PATIENCE, until
from support.apiserver import CLAIMS, ApiServer, claim, result
from support.cluster.processes import remove_group
from support.kubelet import Kubelet, Plugin, add

#: The cgroup of pods.
PODS = f"nvc-held-{os.getpid()}"
#: Claims that wait for one device: more than the plugin has threads.
WAITING = 60


def forgotten(api: ApiServer, made: dict[str, Any]) -> None:
    """The API server has a claim no longer: its pod was deleted by force, or its finalizer was taken away."""
    api.remove(f"{CLAIMS.format('ml')}/{made['metadata']['name']}")


def in_pod(bundle: Any, made: dict[str, Any], systemd: bool) -> Any:
    """The bundle with a cgroup as the kubelet makes it for the pod of a claim."""
    (pod,) = made["status"]["reservedFor"]
    name = f"kubepods-pod{pod['uid'].replace('-', '_')}.slice" if systemd else f"kubepods/pod{pod['uid']}"
    bundle.config["linux"]["cgroupsPath"] = f"/{PODS}/{name}/main"
    return bundle


@pytest.fixture
def pods() -> Iterator[None]:
    """The runtime removes a container's cgroup, and the kubelet those of pods above it."""
    yield
    remove_group(PODS)


@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize("systemd", [False, True], ids=["cgroupfs", "systemd"])
def test_a_whole_gpu_under_a_running_pod(
    plugin: Plugin, kubelet: Kubelet, api: ApiServer, runc_bundle: Any, systemd: bool
) -> None:
    """Nobody else gets it, or a slice of it, until the pod has ended; then it is free at once."""
    made, unused = claim("whole", [result("gpu", "gpu-0")]), claim("unused", [result("gpu", "gpu-1")])
    wanted = [claim("next", [result("gpu", "gpu-0")]), claim("part", [result("gpu", "gpu-0", "1Gi", "10")])]
    for one in (made, unused, *wanted):
        add(api, one)
    assert not any(entry.error for entry in kubelet.prepare(made, unused).values())
    with in_pod(runc_bundle(), made, systemd).created("runc") as container:
        container.start()
        forgotten(api, made)
        forgotten(api, unused)
        assert plugin.close() == 0
        plugin.start()
        plugin.said(f"claim {unused['metadata']['uid']} is gone from the API server")
        kubelet.register()
        assert plugin.claims() == [made["metadata"]["uid"]]
        for entry in kubelet.prepare(*wanted).values():
            assert "gpu-0 is still held on this node by claim ml/whole: " in entry.error and not entry.devices
    assert kubelet.prepare(wanted[0])[wanted[0]["metadata"]["uid"]].error == ""
    assert plugin.claims() == [wanted[0]["metadata"]["uid"]]
    assert [name for name in plugin.files() if made["metadata"]["uid"] in name] == []


def test_slices_that_do_not_fit_any_more(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    """A claim that the API server still has is not given away, and it can be prepared again itself."""
    first, second = (add(api, claim(name, [result("gpu", "gpu-0", "60Gi", "10")])) for name in ("a", "b"))
    assert kubelet.prepare(first)[first["metadata"]["uid"]].error == ""
    said = kubelet.prepare(second)[second["metadata"]["uid"]].error
    assert "ml/b: gpu-0 is still held on this node by claim ml/a: " in said and "are free" in said
    assert kubelet.prepare(first)[first["metadata"]["uid"]].error == ""
    assert kubelet.unprepare(first)[first["metadata"]["uid"]].error == ""
    assert kubelet.prepare(second)[second["metadata"]["uid"]].error == ""


def test_claims_that_wait_keep_nobody_waiting(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    """However many wait for a device: another claim is prepared and unprepared at once, and one of them gets it."""
    has, other = claim("has", [result("gpu", "gpu-0")]), claim("other", [result("gpu", "gpu-1", "1Gi", "10")])
    wanting = [claim(f"w{number}", [result("gpu", "gpu-0")]) for number in range(WAITING)]
    for made in (has, other, *wanting):
        add(api, made)
    assert kubelet.prepare(has)[has["metadata"]["uid"]].error == ""
    with ThreadPoolExecutor(WAITING) as pool:
        replies = [pool.submit(kubelet.prepare, made) for made in wanting]
        asked = [f"GET {CLAIMS.format('ml')}/{made['metadata']['name']}" for made in wanting]
        api.wait(lambda: set(asked) <= set(api.requests))
        assert kubelet.prepare(other)[other["metadata"]["uid"]].error == ""
        assert kubelet.unprepare(other)[other["metadata"]["uid"]].error == ""
        assert not any(reply.done() for reply in replies)
        assert kubelet.unprepare(has)[has["metadata"]["uid"]].error == ""
        errors = [next(iter(reply.result().values())).error for reply in replies]
    assert errors.count("") == 1
    assert all("gpu-0 is still held on this node by claim ml/w" in error for error in errors if error)


def test_who_has_a_device_cannot_be_read(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    """Then nothing is given, and the file is named."""
    torn = f"{plugin.state}/claims/{uuid.uuid4()}.json"
    with open(torn, "w", encoding="ascii") as file:
        file.write("{")
    made = add(api, claim("part", [result("gpu", "gpu-0", "1Gi", "10")]))
    entry = kubelet.prepare(made)[made["metadata"]["uid"]]
    assert f"read claim: {torn}" in entry.error and not entry.devices and plugin.files() == []


def test_access_of_an_administrator_holds_nothing(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    """Beside a pod that has the whole GPU, and in front of one."""
    watching = [claim(name, [result("gpu", "gpu-0", adminAccess=True)]) for name in ("before", "after")]
    whole = claim("whole", [result("gpu", "gpu-0")])
    for made in (watching[0], whole, watching[1]):
        add(api, made)
        assert kubelet.prepare(made)[made["metadata"]["uid"]].error == ""


def test_a_pod_that_shares_a_claim_later_is_known(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    """The kubelet does not prepare a claim again for it."""
    made = add(api, claim("named", [result("gpu", "gpu-0")]))
    uid = made["metadata"]["uid"]
    assert kubelet.prepare(made)[uid].error == ""
    assert plugin.close() == 0
    made["status"]["reservedFor"].append({"resource": "pods", "name": "second", "uid": str(uuid.uuid4())})
    plugin.start()

    def pods() -> list[str]:
        with open(f"{plugin.state}/claims/{uid}.json", encoding="utf-8") as file:
            return [pod["name"] for pod in json.load(file)["pods"]]

    until(lambda: pods() == ["train", "second"], pods)


@pytest.mark.parametrize("broken", ["cdi", "state/lock"])
def test_what_there_is_cannot_be_told(plugin: Plugin, broken: str) -> None:
    """A plugin that does not know what an earlier one has left serves nothing, and says what it was at."""
    assert plugin.close() == 0
    path = f"{plugin.directory}/{broken}"
    if broken == "cdi":
        with open(path, "w", encoding="ascii"):
            said = f"list specifications: {path}: not a directory"
    else:
        os.unlink(path)
        os.mkdir(path)
        said = f"open lock: {path}: is a directory"
    plugin.start()
    assert plugin.process is not None and plugin.process.wait(PATIENCE) == 1
    with open(plugin.log, encoding="utf-8") as log:
        text = log.read()
    assert said in text and text.count(": ready") == 1
