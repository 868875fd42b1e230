"""nvc-kubelet-plugin as a process: a kubelet that speaks the real protocol, an API server, a simulated driver."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support import PATIENCE, run, until
from support.apiserver import CLAIMS, CLOSE, HANG, ApiServer, claim, parameters, result
from support.cdi import schema_problems
from support.fileleases import Lease
from support.kubelet import DRIVER, NODE, Kubelet, Plugin, add
from support.rootfs import LIBS

from nvc.frontends.cdi.store import read_spec
from nvc.kubernetes.plugin import record

UUID_AND_PLACE = "k8s.gpu.nvc.dev/{}={}-{}"


def documents(plugin: Plugin) -> list[dict[str, Any]]:
    """The CDI documents, each as an engine would accept it."""
    found = []
    for name in plugin.files():
        spec = read_spec(f"{plugin.cdi}/{name}")
        assert spec.problems == () and schema_problems(spec.document) == [], name
        found.append(spec.document)
    return found


def test_registration_and_what_is_published(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    info = kubelet.register()
    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
    assert info.endpoint == f"{kubelet.plugins}/{DRIVER}/dra.sock"
    (slice,) = api.wait(api.slices)
    spec = slice["spec"]
    assert (spec["driver"], spec["nodeName"]) == (DRIVER, NODE)
    assert spec["pool"] == {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    assert [device["name"] for device in spec["devices"]] == ["gpu-0", "gpu-1"]
    (reference,) = slice["metadata"]["ownerReferences"]
    assert reference["uid"] == api.objects[f"/api/v1/nodes/{NODE}"]["metadata"]["uid"]
    first = spec["devices"][0]
    assert first["allowMultipleAllocations"] is True
    assert first["capacity"]["cores"]["value"] == "100"
    assert first["attributes"]["type"] == {"string": "gpu"}


def test_a_slice_a_whole_gpu_and_back(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    part = add(api, claim("part", [result("gpu", "gpu-0", "4Gi", "25")], config=[parameters(weight=3)]))
    whole = add(api, claim("whole", [result("gpu", "gpu-1")]))
    reply = kubelet.prepare(part, whole)
    uid = part["metadata"]["uid"]
    (device,) = reply[uid].devices
    assert reply[uid].error == "" and list(device.request_names) == ["gpu"]
    assert (device.pool_name, device.device_name) == (NODE, "gpu-0")
    assert device.share_id == part["status"]["allocation"]["devices"]["results"][0]["shareID"]
    assert list(device.cdi_device_ids) == [UUID_AND_PLACE.format("slice", uid, 0)]
    (other,) = reply[whole["metadata"]["uid"]].devices
    assert list(other.cdi_device_ids) == [UUID_AND_PLACE.format("claim", whole["metadata"]["uid"], 0)]
    assert not other.HasField("share_id")
    by_kind = {document["kind"]: document for document in documents(plugin)}
    words = json.dumps(by_kind["k8s.gpu.nvc.dev/slice"])
    assert f"={4 << 30},25,3,3" in words and "slice-memory" in words and "/vgpu/" in words
    words = json.dumps(by_kind["k8s.gpu.nvc.dev/claim"])
    assert "slice-memory" not in words and "/vgpu/" not in words
    nodes = [
        node["path"]
        for node in by_kind["k8s.gpu.nvc.dev/claim"]["devices"][0]["containerEdits"]["deviceNodes"]
    ]
    assert nodes == ["/dev/nvidia1"]
    before = plugin.files()
    assert kubelet.prepare(part)[uid] == reply[uid] and plugin.files() == before
    answer = kubelet.unprepare(part, whole)
    assert [entry.error for entry in answer.values()] == ["", ""] and len(answer) == 2
    assert plugin.files() == [] and plugin.claims() == []
    assert kubelet.unprepare(part)[uid].error == ""


def test_no_container_gets_a_lease_on_a_driver_file(plugin: Plugin, kubelet: Kubelet, driver: str) -> None:
    kubelet.register()
    with Lease(f"{driver}{LIBS}/libcuda.so.1") as lease:
        assert "temporarily unavailable" in lease.refused


def test_killed_and_started_again(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    """What was prepared is still there; documents are made anew; what nobody remembers goes."""
    part = add(api, claim("part", [result("gpu", "gpu-0", "4Gi", "25")]))
    uid = part["metadata"]["uid"]
    first = kubelet.prepare(part)[uid]
    plugin.kill()
    (name,) = plugin.files()
    os.unlink(f"{plugin.cdi}/{name}")
    leaked = f"{plugin.cdi}/k8s.gpu.nvc.dev-slice-0b2e2f0e-0000-4000-8000-000000000000.json"
    foreign = f"{plugin.cdi}/nvidia.com-gpu.json"
    # It was killed while it wrote a document: of a claim that it knows, and of one that it does not.
    halves = [f"{plugin.cdi}/.{name}.7", f"{plugin.cdi}/.{os.path.basename(leaked)[:-10]}000001.json.7"]
    for path in (leaked, foreign, *halves):
        with open(path, "w", encoding="ascii") as file:
            file.write("{}")
    plugin.start()
    until(lambda: name in plugin.files() and not os.path.exists(leaked) and not os.path.exists(halves[1]))
    assert os.path.exists(foreign)
    kubelet.register()
    assert kubelet.prepare(part)[uid] == first
    # The claim is gone, and the API server with it: what was made is removed all the same.
    api.fail("GET", 503)
    assert kubelet.unprepare(part)[uid].error == "" and plugin.claims() == []
    assert os.listdir(plugin.cdi) == [os.path.basename(foreign)]


def test_an_api_server_that_does_not_answer(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    """A claim that was prepared is prepared again without it; another one fails, and says why."""
    known = add(api, claim("known", [result("gpu", "gpu-0", "4Gi", "50")]))
    new = add(api, claim("new", [result("gpu", "gpu-0", "4Gi", "50")]))
    first = kubelet.prepare(known)[known["metadata"]["uid"]]
    for status in (409, 410, 429, 500, 503, CLOSE):
        api.fail("GET .*/resourceclaims/", status)
        reply = kubelet.prepare(known, new)
        assert reply[known["metadata"]["uid"]] == first
        failed = reply[new["metadata"]["uid"]]
        assert not failed.devices and "resourceclaims/new" in failed.error and "NVC-2402" in failed.error
        assert ("no answer" if status == CLOSE else f"HTTP {status}") in failed.error
    api.fail("", 0)
    assert plugin.claims() == [known["metadata"]["uid"]]
    assert kubelet.prepare(new)[new["metadata"]["uid"]].error == ""


BAD: list[tuple[dict[str, Any], str]] = [
    ({"result": {"consumedCapacity": None}}, "DRAConsumableCapacity"),
    ({"memory": "900Gi"}, "consumedCapacity.memory: 900Gi: want 1Mi to"),
    ({"memory": "4Ki"}, "consumedCapacity.memory: 4Ki: want 1Mi to"),
    ({"cores": "0"}, "consumedCapacity.cores: 0: want 1 to 100"),
    ({"memory": "lots"}, "consumedCapacity.memory: lots: not a quantity"),
    ({"device": "gpu-7"}, "device: gpu-7: the node has no such device any more"),
    ({"config": {"apiVersion": "gpu.nvc.dev/v9"}}, "apiVersion: gpu.nvc.dev/v9: unknown version"),
    ({"config": {"kind": "GpuConfig"}}, "kind: GpuConfig: unknown kind"),
    ({"config": {"polcy": "fair"}}, "polcy: no such field of SliceParameters"),
    ({"config": {"policy": "best"}}, "policy: best: want one of fair"),
    ({"config": {"weight": 0}}, "weight: 0: want a whole number from 1 to 65536"),
    ({"config": {"isolation": "mps"}}, "isolation: mps: not for claims: the MPS server would be in nvcd's"),
    ({"config": {"isolation": "mig"}}, "gpu-0 is not a MIG device"),
    ({"config": {"policy": "native"}}, "policy: native: policy native ignores caps"),
]


def test_bad_claims(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    """Each is one error for kubelet's event, which names the claim and what is wrong, and gives nothing."""
    for number, (wrong, said) in enumerate(BAD):
        one = result("gpu", wrong.get("device", "gpu-0"), wrong.get("memory", "4Gi"), wrong.get("cores", "50"))
        made = claim(f"bad{number}", [one])
        one.update(wrong.get("result", {}))
        if "config" in wrong:
            made["status"]["allocation"]["devices"]["config"] = [parameters(**wrong["config"])]
        add(api, made)
        entry = kubelet.prepare(made)[made["metadata"]["uid"]]
        assert said in entry.error and f"ml/bad{number}" in entry.error and "NVC-2401" in entry.error, entry.error
        assert not entry.devices and plugin.files() == [] and plugin.claims() == []


def test_names_of_253_characters(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    made = add(api, claim("c" * 253, [result("r" * 63, "gpu-0", "4Gi")], namespace="n" * 63, pod="p" * 253))
    uid = made["metadata"]["uid"]
    assert kubelet.prepare(made)[uid].error == ""
    assert len(documents(plugin)) == 1
    assert kubelet.unprepare(made)[uid].error == ""
    # What could leave the directory is the name of nothing.
    made["metadata"]["uid"] = "../../etc/passwd"
    assert "../../etc/passwd is not a UID" in kubelet.prepare(made)["../../etc/passwd"].error
    made["metadata"].update(uid=uid, name="../nodes")
    assert "not a name of a claim" in kubelet.prepare(made)[uid].error


def test_another_claim_of_the_same_name(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    made = add(api, claim("part", [result("gpu", "gpu-0", "4Gi")]))
    old = {"metadata": {**made["metadata"], "uid": "0b2e2f0e-0000-4000-8000-000000000000"}}
    assert "its UID is" in kubelet.prepare(old)[old["metadata"]["uid"]].error
    del made["status"]
    assert "no device of gpu.nvc.dev is allocated" in kubelet.prepare(made)[made["metadata"]["uid"]].error


def test_32_requests_and_two_of_one_device(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    made = add(api, claim("many", [result(f"r{n}", f"gpu-{n % 2}", "1Gi", "3") for n in range(32)]))
    entry = kubelet.prepare(made)[made["metadata"]["uid"]]
    assert entry.error == "" and len({device.cdi_device_ids[0] for device in entry.devices}) == 32
    (document,) = documents(plugin)
    assert len(document["devices"]) == 32


def test_a_cdi_directory_that_others_can_change(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    os.makedirs(plugin.cdi)
    os.chmod(plugin.cdi, 0o777)
    made = add(api, claim("part", [result("gpu", "gpu-0", "4Gi")]))
    entry = kubelet.prepare(made)[made["metadata"]["uid"]]
    assert plugin.cdi in entry.error and "can be changed by others" in entry.error and not entry.devices
    os.chmod(plugin.cdi, 0o755)
    assert kubelet.prepare(made)[made["metadata"]["uid"]].error == ""


def test_a_full_disk_below_the_cdi_directory(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    os.makedirs(plugin.cdi)
    run("mount", "-t", "tmpfs", "-o", "size=4k,mode=755", "tmpfs", plugin.cdi)
    try:
        made = add(api, claim("part", [result("gpu", "gpu-0", "4Gi")]))
        uid = made["metadata"]["uid"]
        entry = kubelet.prepare(made)[uid]
        assert plugin.cdi in entry.error and "no space left on device" in entry.error and not entry.devices
        assert plugin.files() == []
        assert kubelet.unprepare(made)[uid].error == "" and plugin.claims() == []
    finally:
        run("umount", plugin.cdi)


@pytest.mark.parametrize("status", [409, 500, CLOSE])
def test_publishing_goes_on_after(
    stage: str, scratch: str, driver: str, api: ApiServer, kubelet: Kubelet, status: int
) -> None:
    plugin = Plugin(stage, scratch, driver, kubelet, api)
    # A connection that was kept, and is closed, is tried anew without a word.
    api.make_up("POST .*/resourceslices", *[status] * (2 if status == CLOSE else 1))
    try:
        plugin.start("--mode=dra")
        api.wait(api.slices)
        settled = status == 409  # by looking again, without a word
        assert settled or "NVC-2402" in plugin.said("NVC-2402")
    finally:
        assert plugin.close() == 0


def test_two_kubelets_in_a_row_and_the_end(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    """A kubelet that registers twice changes nothing; the plugin's end leaves what is prepared."""
    kubelet.register()
    kubelet.register()
    made = add(api, claim("part", [result("gpu", "gpu-0", "4Gi")]))
    assert kubelet.prepare(made)[made["metadata"]["uid"]].error == ""
    before = plugin.files()
    assert plugin.close() == 0
    assert os.listdir(kubelet.registry) == [] and os.listdir(f"{kubelet.plugins}/{DRIVER}") == []
    assert plugin.files() == before and len(api.slices()) == 1


@pytest.mark.driver(gpus=2, mig=("", "7x1g.10gb"))
def test_mig_devices(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    (slice,) = api.wait(api.slices)
    names = [device["name"] for device in slice["spec"]["devices"]]
    assert (
        names[0] == "gpu-0" and len(names) == 8 and all(name.startswith("gpu-1-mig-") for name in names[1:])
    )
    made = claim("mig", [result("a", names[1]), result("b", names[2], "2Gi", "50")])
    made["status"]["allocation"]["devices"]["config"] = [parameters(isolation="mig", requests=("b",))]
    add(api, made)
    entry = kubelet.prepare(made)[made["metadata"]["uid"]]
    assert entry.error == "" and len(entry.devices) == 2
    assert {document["kind"].partition("/")[2] for document in documents(plugin)} == {"claim", "slice"}


def test_what_cannot_be_cleared_away_keeps_nobody_from_starting(
    plugin: Plugin, kubelet: Kubelet, api: ApiServer
) -> None:
    """It is told, and claims are prepared all the same."""
    plugin.close()
    name = "k8s.gpu.nvc.dev-slice-0b2e2f0e-0000-4000-8000-000000000000.json"
    os.makedirs(f"{plugin.cdi}/{name}")
    plugin.start()
    assert name in plugin.said("NVC-1102")
    kubelet.register()
    made = add(api, claim("part", [result("gpu", "gpu-0", "4Gi")]))
    assert kubelet.prepare(made)[made["metadata"]["uid"]].error == ""


@pytest.mark.parametrize(
    ("setting", "said", "rights"),
    [
        ('vgpu-memory-max = "2GiB"', "4 GiB is asked for, the operator grants 2GiB", "all"),
        ("vgpu-cores-max = 20", "25% of its time is asked for, the operator grants 20%", "no mounts"),
    ],
)
def test_more_than_the_operator_grants(
    plugin: Plugin, kubelet: Kubelet, api: ApiServer, setting: str, said: str, rights: str
) -> None:
    """Is refused before anything is made, with the claim's name, what it asks for and what it may have."""
    plugin.close()
    plugin.config = f"{plugin.directory}/config.toml"
    with open(plugin.config, "w", encoding="ascii") as file:
        file.write(f"[nvc]\n{setting}\n")
    if rights == "no mounts":
        plugin.wrapper = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    plugin.start()
    kubelet.register()
    made = add(api, claim("large", [result("gpu", "gpu-0", "4Gi", "25")], config=[parameters(weight=3)]))
    entry = kubelet.prepare(made)[made["metadata"]["uid"]]
    assert said in entry.error and "ml/large" in entry.error and "NVC-2401" in entry.error, entry.error
    assert not entry.devices and plugin.files() == [] and plugin.claims() == []


def test_an_api_server_that_hangs(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    """A prepared claim is prepared and unprepared without it, beside another one that fails before the kubelet's
    patience of 45 s is over."""
    known = add(api, claim("known", [result("gpu", "gpu-0", "4Gi")]))
    new = add(api, claim("new", [result("gpu", "gpu-0", "4Gi")]))
    first = kubelet.prepare(known)[known["metadata"]["uid"]]
    api.fail("GET .*/resourceclaims/", HANG)
    assert kubelet.prepare(known)[known["metadata"]["uid"]] == first
    asked = f"GET {CLAIMS.format('ml')}/new"
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(kubelet.prepare, new)
        api.wait(lambda: asked in api.requests)
        assert kubelet.unprepare(known)[known["metadata"]["uid"]].error == "" and plugin.claims() == []
        assert not reply.done()
        failed = reply.result()[new["metadata"]["uid"]]
    assert "resourceclaims/new: no answer: " in failed.error and "timed out" in failed.error


def test_an_update_without_a_gap(
    stage: str, scratch: str, driver: str, plugin: Plugin, kubelet: Kubelet, api: ApiServer
) -> None:
    """The next plugin prepares claims while the old one still runs; it publishes once that has ended."""
    old = add(api, claim("old", [result("gpu", "gpu-0", "4Gi", "25")]))
    before = kubelet.prepare(old)[old["metadata"]["uid"]]
    (slice,) = api.wait(api.slices)
    newer = Plugin(stage, scratch, driver, kubelet, api)
    newer.log = f"{scratch}/newer.log"
    try:
        newer.start("--instance=0b2e2f0e-1111-4000-8000-000000000000")
        newer.said(": ready")
        info = kubelet.register("0b2e2f0e-1111-4000-8000-000000000000")
        assert info.endpoint != f"{kubelet.plugins}/{DRIVER}/dra.sock"
        assert kubelet.prepare(old)[old["metadata"]["uid"]] == before
        made = add(api, claim("new", [result("gpu", "gpu-1", "4Gi", "25")]))
        assert kubelet.prepare(made)[made["metadata"]["uid"]].error == ""
        kubelet.register()  # the old one answers, too
        assert kubelet.prepare(old)[old["metadata"]["uid"]] == before
        path = f"/apis/resource.k8s.io/v1/resourceslices/{slice['metadata']['name']}"
        plugin.kill()  # at once: its sockets stay
        api.remove(path)
        kubelet.register("0b2e2f0e-1111-4000-8000-000000000000")
        api.wait(api.slices)
        assert kubelet.unprepare(old, made)[old["metadata"]["uid"]].error == ""
        newer.close()
        newer.start("--instance=0b2e2f0e-2222-4000-8000-000000000000")
        newer.said(": ready")
        assert len(os.listdir(kubelet.registry)) == len(os.listdir(f"{kubelet.plugins}/{DRIVER}")) == 1
    finally:
        newer.close()


def test_a_worker_that_is_killed_while_it_prepares(plugin: Plugin, kubelet: Kubelet, api: ApiServer) -> None:
    """The kubelet notices nothing: its call takes longer, and it need not register the driver again."""
    made = add(api, claim("part", [result("gpu", "gpu-0", "4Gi", "25")]))
    asked = f"GET {CLAIMS.format('ml')}/part"
    api.fail(asked, HANG)
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(kubelet.prepare, made)
        api.wait(lambda: asked in api.requests)
        os.kill(plugin.worker(), signal.SIGKILL)
        api.fail("", 0)
        entry = reply.result()[made["metadata"]["uid"]]
    assert entry.error == "" and len(entry.devices) == 1 and len(plugin.files()) == 1
    assert "ended by signal 9 and is started again" in plugin.said("started again")
    os.kill(plugin.worker(), signal.SIGKILL)
    assert kubelet.unprepare(made)[made["metadata"]["uid"]].error == "" and plugin.claims() == []
    found = record.read(plugin.state)
    assert found is not None and found.registered
    assert plugin.close() == 0


def test_a_worker_that_cannot_begin(plugin: Plugin) -> None:
    """Is not started again and again: its exit code is the plugin's, whose container shows why."""
    plugin.close()
    plugin.start("--metrics-listen=192.0.2.1:1")
    assert plugin.process is not None and plugin.process.wait(PATIENCE) == 1
    with open(plugin.log, encoding="utf-8") as file:
        assert "serve metrics: 192.0.2.1:1" in file.read()
