"""Metrics of the plugin for Prometheus: what it does, which claims it has given what, and how GPUs are.

What slices take is nvcd's to tell, by the label `slice`. `nvc_claim_info` has that label beside those of the
claim, so that a query can join them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from nvc.kubernetes.claims.claim import Allocation
from nvc.kubernetes.claims.devices import GPU, Device
from nvc.kubernetes.health.board import HEALTHY, UNHEALTHY, Board
from nvc.kubernetes.health.health import Figures
from nvc.model.slices.layout import NO_LIMIT
from nvc.slices.store.claims import key_of

#: Of a claim, under the names that dcgm-exporter uses; `slice` is the key that nvcd's metrics have.
CLAIM = (
    "slice", "namespace", "pod", "dra_claim_namespace", "dra_claim_name", "dra_driver_name", "dra_pool_name",
    "dra_device_name", "request", "device_uuid", "kind",
)  # fmt: skip
DEVICE = ("device", "device_uuid")
DCGM = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "namespace", "pod")
MIB = 1 << 20
#: Gauges by name: what each is, and its labels.
GAUGES = {
    "nvc_claim_info": ("What a claim has; 1", CLAIM),
    "nvc_claim_memory_limit_bytes": ("Memory that a claim was given", CLAIM),
    "nvc_claim_cores_ratio": ("Part of the time that a claim was given", CLAIM),
    "nvc_device_healthy": ("Whether a device is well", DEVICE),
    "nvc_device_monitored": ("Whether its health is known", DEVICE),
    "nvc_device_problem": ("What is wrong with a device; 1", (*DEVICE, "problem", "value")),
}
#: Those of dcgm-exporter: what each is, the field of Figures, and by what that is divided.
FIGURES = {
    "DCGM_FI_DEV_GPU_UTIL": ("GPU utilization (in %).", "busy", 1),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("Memory utilization (in %).", "copy", 1),
    "DCGM_FI_DEV_FB_USED": ("Framebuffer memory used (in MiB).", "used", MIB),
    "DCGM_FI_DEV_GPU_TEMP": ("GPU temperature (in C).", "celsius", 1),
    "DCGM_FI_DEV_POWER_USAGE": ("Power draw (in W).", "milliwatt", 1000),
    "DCGM_FI_DEV_SM_CLOCK": ("SM clock frequency (in MHz).", "sm_mhz", 1),
    "DCGM_FI_DEV_MEM_CLOCK": ("Memory clock frequency (in MHz).", "memory_mhz", 1),
    "DCGM_FI_DEV_FB_FREE": ("Framebuffer memory free (in MiB).", "", MIB),
    "DCGM_FI_DEV_XID_ERRORS": ("Value of the last XID error encountered.", "", 1),
}
#: The name of a gauge, its labels and its value.
Sample = tuple[str, Sequence[str], float]


class Counts:
    """What has happened since the start. Counted by any thread."""

    BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.registrations = 0
        self.durations = [0] * (len(self.BUCKETS) + 1)  # of preparations, by the first bucket that holds them
        self.seconds = 0.0
        self.failures: dict[str, int] = {"prepare": 0, "unprepare": 0, "allocate": 0, "publish": 0}

    def prepared(self, seconds: float) -> None:
        """A claim was prepared in that time."""
        place = sum(seconds > most for most in self.BUCKETS)
        with self._lock:
            self.durations[place] += 1
            self.seconds += seconds

    def failed(self, what: str) -> None:
        """Something went wrong: `prepare`, `unprepare`, `allocate` or `publish`."""
        with self._lock:
            self.failures[what] += 1

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """How many preparations took at most so long, and seconds in all."""
        with self._lock:
            found, total = [], 0
            for most, count in zip((*map(str, self.BUCKETS), "+Inf"), self.durations):
                total += count
                found.append((most, float(total)))
            return found, self.seconds


@dataclass(eq=False)  # who registers it keeps it in a dict
class Collector:
    """All metrics at one moment, for prometheus-client."""

    node: str
    driver: str
    counts: Counts
    board: Board
    devices: Callable[[], tuple[Device, ...]]
    claims: Callable[[], list[Allocation]]
    figures: Callable[[], dict[str, Figures]]
    xids: dict[str, int]
    dcgm: bool

    def collect(self) -> Iterator[Metric]:
        """Called for each scrape."""
        claims = self.claims()
        yield from self._own(len(claims))
        known = GAUGES | {name: (text, DCGM) for name, (text, _, _) in FIGURES.items() if self.dcgm}
        families = {name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in known.items()}
        for part in (self._claims(claims), self._health(), self._dcgm(claims) if self.dcgm else ()):
            for name, labels, value in part:
                families[name].add_metric(labels, value)
        yield from families.values()

    def _own(self, prepared: int) -> Iterator[Metric]:
        yield GaugeMetricFamily("nvc_plugin_prepared_claims", "Claims that are prepared", prepared)
        buckets, seconds = self.counts.buckets()
        text = "Time that a claim's preparation took"
        yield HistogramMetricFamily("nvc_plugin_prepare_seconds", text, buckets, seconds)
        failures = CounterMetricFamily("nvc_plugin_failures", "Calls that failed", labels=["operation"])
        for operation, count in self.counts.failures.items():
            failures.add_metric([operation], count)
        yield failures
        yield CounterMetricFamily(
            "nvc_plugin_registrations", "Registrations by kubelet", self.counts.registrations
        )

    def _claims(self, claims: list[Allocation]) -> Iterator[Sample]:
        sizes = {device.uuid: device.memory for device in self.devices()}
        for claim in claims:
            pod = claim.pods[0].name if len(claim.pods) == 1 else ""
            slices = [place for place, one in enumerate(claim.given) if not one.whole]
            together = " ".join(sorted(f"{claim.uid}-{place}" for place in slices))
            for place, one in enumerate(claim.given):
                keys = [""] if one.whole else list(dict.fromkeys((f"{claim.uid}-{place}", together)))
                for holds in keys:
                    labels = [
                        key_of(holds) if holds else "", claim.namespace, pod, claim.namespace, claim.name,
                        self.driver, one.pool, one.device, one.request, one.uuid, "whole" if one.whole else "slice",
                    ]  # fmt: skip
                    yield "nvc_claim_info", labels, 1
                    limit = sizes.get(one.uuid, 0) if one.limit == NO_LIMIT else one.limit
                    yield "nvc_claim_memory_limit_bytes", labels, limit
                    yield "nvc_claim_cores_ratio", labels, (one.cores or 100) / 100

    def _health(self) -> Iterator[Sample]:
        for device in self.devices():
            condition = self.board.of(device.parent or device.uuid)
            labels = [device.name, device.uuid]
            yield "nvc_device_healthy", labels, condition.health == HEALTHY
            yield "nvc_device_monitored", labels, condition.health in (HEALTHY, UNHEALTHY)
            for problem in condition.problems:
                yield "nvc_device_problem", [*labels, problem.kind, problem.value], 1

    def _dcgm(self, claims: list[Allocation]) -> Iterator[Sample]:
        """GPUs under the names of dcgm-exporter; of a pod, where one alone has the GPU."""
        owners: dict[str, set[tuple[str, str]]] = {}
        for claim in claims:
            for one in claim.given:
                pods = {(claim.namespace, pod.name) for pod in claim.pods}
                owners.setdefault(one.uuid, set()).update(pods)
        figures = self.figures()
        for device in self.devices():
            if device.kind != GPU or device.uuid not in figures:
                continue
            pods, now = owners.get(device.uuid, set()), figures[device.uuid]
            namespace, pod = next(iter(pods)) if len(pods) == 1 else ("", "")
            values = {name: str(value) for name, _, value in device.attributes}
            labels = [
                device.index, device.uuid, device.bus_id, f"nvidia{values.get('minor', '')}",
                values.get("productName", ""), self.node, namespace, pod,
            ]  # fmt: skip
            for name, (_, field, divisor) in FIGURES.items():
                if field and (value := getattr(now, field)) >= 0:
                    yield name, labels, value / divisor
            if now.total >= 0:
                yield "DCGM_FI_DEV_FB_FREE", labels, (now.total - now.used) / MIB
            yield "DCGM_FI_DEV_XID_ERRORS", labels, self.xids.get(device.uuid, 0)
