"""Metrics of nvc-kubelet-plugin, by the text format's own parser."""

from __future__ import annotations

import contextlib
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support import GIB, until
from support.apiserver import ApiServer, claim, result
from support.kubelet import DRIVER, NODE, Kubelet, Plugin, add, forget
from support.vgpu import ensure_shim

from nvc.kernel import LinuxKernel
from nvc.kubernetes.plugin.web import CONNECTIONS
from nvc.kubernetes.protocol import health_pb2
from nvc.slices.store.status import statuses

Series = dict[str, list[tuple[dict[str, str], float]]]


@pytest.fixture
def address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def measured_plugin(
    stage: str, scratch: str, driver: str, api: ApiServer, kubelet: Kubelet, address: str
) -> Iterator[Plugin]:
    ensure_shim(stage, scratch)
    found = Plugin(stage, scratch, driver, kubelet, api)
    found.start(f"--metrics-listen={address}", "--dcgm-metrics")
    found.said(": ready")
    kubelet.register()
    yield found
    found.close()
    forget()


def scraped(address: str) -> Series:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_those_who_ask_nothing_keep_no_scraper_waiting(measured_plugin: Plugin, address: str) -> None:
    """Each has a thread, and a process has not any number of those."""
    host, _, port = address.partition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(8 * CONNECTIONS):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=0.9)).send(b"GET /met")
        assert scraped(address)["nvc_plugin_prepared_claims"] == [({}, 0.0)]
        until(lambda: len(measured_plugin.threads(measured_plugin.worker())) < 4 * CONNECTIONS)


def test_claims_and_what_was_done(
    measured_plugin: Plugin, kubelet: Kubelet, api: ApiServer, address: str
) -> None:
    part = add(api, claim("part", [result("gpu", "gpu-0", "4Gi", "25")], pod="train-0"))
    whole = add(api, claim("whole", [result("gpu", "gpu-1")], pod="serve-0"))
    bad = add(api, claim("bad", [result("gpu", "gpu-9")]))
    kubelet.prepare(part, whole, bad)
    found = scraped(address)
    by_name = {labels["dra_claim_name"]: labels for labels, _ in found["nvc_claim_info"]}
    assert set(by_name) == {"part", "whole"}
    (key,) = (one.entry.key for one in statuses(LinuxKernel())[0])
    assert by_name["part"] == {
        "slice": key, "namespace": "ml", "pod": "train-0", "dra_claim_namespace": "ml", "dra_claim_name": "part",
        "dra_driver_name": DRIVER, "dra_pool_name": NODE, "dra_device_name": "gpu-0", "request": "gpu",
        "device_uuid": by_name["part"]["device_uuid"], "kind": "slice",
    }  # fmt: skip
    limits = {labels["dra_claim_name"]: value for labels, value in found["nvc_claim_memory_limit_bytes"]}
    assert limits["part"] == 4 * GIB and limits["whole"] > 79 * GIB
    shares = {labels["dra_claim_name"]: value for labels, value in found["nvc_claim_cores_ratio"]}
    assert shares == {"part": 0.25, "whole": 1.0}
    assert found["nvc_plugin_prepared_claims"] == [({}, 2.0)]
    assert found["nvc_plugin_prepare_seconds_count"] == [({}, 2.0)]
    failures = {labels["operation"]: value for labels, value in found["nvc_plugin_failures_total"]}
    assert failures == {"prepare": 1.0, "unprepare": 0.0, "allocate": 0.0, "publish": 0.0}
    assert found["nvc_plugin_registrations_total"] == [({}, 1.0)]


def test_gpus_under_the_names_of_dcgm(
    measured_plugin: Plugin, kubelet: Kubelet, api: ApiServer, address: str
) -> None:
    """With the pod that has a GPU for itself."""
    measured_plugin.said(" is healthy")
    whole = add(api, claim("whole", [result("gpu", "gpu-1")], pod="serve-0"))
    kubelet.prepare(whole)
    found = scraped(address)
    assert {value for _, value in found["nvc_device_healthy"]} == {1.0}
    assert {value for _, value in found["nvc_device_monitored"]} == {1.0}
    rows = {labels["device"]: (labels, value) for labels, value in found["DCGM_FI_DEV_FB_USED"]}
    labels, used = rows["nvidia1"]
    assert (labels["namespace"], labels["pod"], labels["Hostname"], labels["gpu"]) == (
        "ml",
        "serve-0",
        NODE,
        "1",
    )
    assert rows["nvidia0"][0]["pod"] == "" and labels["modelName"].startswith("NVIDIA H100")
    free = {labels["device"]: value for labels, value in found["DCGM_FI_DEV_FB_FREE"]}
    assert used + free["nvidia1"] == pytest.approx(81559, abs=1)
    for name in (
        "GPU_UTIL",
        "MEM_COPY_UTIL",
        "GPU_TEMP",
        "POWER_USAGE",
        "SM_CLOCK",
        "MEM_CLOCK",
        "XID_ERRORS",
    ):
        assert len(found[f"DCGM_FI_DEV_{name}"]) == 2, name


def test_nothing_to_do(plugin: Plugin, kubelet: Kubelet) -> None:
    """While nobody calls, both processes that serve the kubelet sleep, though a stream of health is open."""
    assert plugin.process is not None
    plugin.said(" is healthy")
    front, worker, asker = plugin.process.pid, plugin.worker(), plugin.asker()
    health = kubelet.health()
    while any(one.health != health_pb2.HEALTHY for one in next(health).values()):
        pass
    until(lambda: plugin.api.watches == 1)
    before, began, asked = switches(front), switches(worker), switches(asker)
    until(lambda: switches(asker) >= asked + 60)  # the simulated NVML looks for events 20 times a second
    assert switches(front) < before + 10 and switches(worker) < began + 10


def switches(pid: int) -> int:
    """How often threads of Python have gone to sleep: those of gRPC have names of their own."""
    count = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii", errors="replace") as text:
            fields = dict(line.split(":\t", 1) for line in text)
        if fields["Name"].startswith(("python", "nvc")):
            count += int(fields["voluntary_ctxt_switches"])
    return count
