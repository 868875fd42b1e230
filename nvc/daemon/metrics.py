"""Metrics for Prometheus, where the configuration asks for them: over HTTP, by prometheus-client's text format.

Where a figure means the same as one of HAMi's monitor, it has that name too. The labels `namespace`, `pod` and
`container` are what the container's engine calls it; `slice` is the key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric
from prometheus_client.core import SummaryMetricFamily as Summary
from prometheus_client.exposition import generate_latest

from nvc.base.errors import NvcError, one_line
from nvc.daemon.audit.accountant import Balance
from nvc.daemon.audit.verify import REPORT
from nvc.daemon.daemon import Daemon
from nvc.model.slices.layout import NO_LIMIT
from nvc.slices.policy.entitlement import entitlements

PATHS = (b"/", b"/metrics")
HOST = ("device_index", "device_uuid", "device_type")
VGPU = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
WHOSE = ("slice", "namespace", "pod", "container")
SLICE = (*WHOSE, "device_uuid")
DEVICE = ("device_uuid",)
TYPE = b"text/plain; version=0.0.4; charset=utf-8"
Kind = type[Gauge] | type[Counter] | type[Summary]
#: By name: what it is, for people, and its labels.
METRICS: dict[str, tuple[Kind, str, tuple[str, ...]]] = {
    "hami_host_gpu_memory_used_bytes": (Gauge, "Memory in use of a device", HOST),
    "hami_host_gpu_utilization_ratio": (Gauge, "Share of the last second with kernels", HOST),
    "hami_host_gpu_memory_controller_utilization_ratio":
        (Gauge, "Share of the last second with memory in motion", HOST),
    "nvc_slice_memory_bytes":
        (Gauge, "Memory that a slice has, by NVML or by its ledger", (*SLICE, "source")),
    "nvc_slice_memory_peak_bytes": (Gauge, "The most that it was seen to have", SLICE),
    "nvc_slice_refused": (Counter, "Requests for memory that did not fit", SLICE),
    "nvc_slice_memory_limit_bytes": (Gauge, "Memory that it may have", SLICE),
    "hami_vgpu_memory_used_bytes": (Gauge, "Memory that a slice has", VGPU),
    "hami_vgpu_memory_limit_bytes": (Gauge, "Memory that a slice may have", VGPU),
    "hami_container_device_memory_bytes": (Gauge, "Memory that a slice has", VGPU),
    "nvc_slice_use_ratio": (Gauge, "Part of the time with kernels of a slice, by NVML", SLICE),
    "hami_container_device_utilization_ratio": (Gauge, "Part of the time with kernels of a slice", VGPU),
    "nvc_slice_entitlement_ratio": (Gauge, "Entitlement of a slice", SLICE),
    "nvc_slice_pace_ratio": (Gauge, "Part of the time for which a slice may have work beside others", SLICE),
    "nvc_device_policy": (Gauge, "1 for the policy of a device", (*DEVICE, "policy")),
    "nvc_device_time_by_driver":
        (Gauge, "1 where nvcd keeps time by the driver's scheduler, 0 where the shim does", DEVICE),
    "nvc_slice_time_seconds": (Counter, "Time that a slice had, by the driver's log", SLICE),
    "nvc_slice_stopped_seconds": (Counter, "Time in which nvcd had stopped it", SLICE),
    "nvc_slice_saved_bytes": (Gauge, "Memory of its devices that is kept in the host's", SLICE),
    "nvc_swap_used_bytes": (Gauge, "Memory of the host for what suspended slices have on devices", ()),
    "nvc_swap_size_bytes": (Gauge, "The most that this may be", ()),
    "nvc_slice_wake_seconds": (Summary, "Time that its programs waited until it was resumed", WHOSE),
    "nvc_slice_wake_longest_seconds": (Gauge, "The longest of these", WHOSE),
    "nvc_slice_suspends": (Counter, "Times that it was suspended", WHOSE),
    "nvc_slice_resumes": (Counter, "Times that it was resumed", WHOSE),
    "nvc_slice_suspend_failures": (Counter, "Times that it could not be suspended or resumed", WHOSE),
    "nvc_slice_hook_failures": (Counter, "Times that its programs could not be told", WHOSE),
    "nvc_mps_clients": (Gauge, "Processes of slices that share an MPS server", DEVICE),
    "nvc_mps_restarts": (Counter, "Times that such a server was started again", DEVICE),
    "nvc_found": (Counter, "Violations that were detected", ("kind",)),
    "nvc_slice_denied": (Gauge, "1 while a slice has no more of a device", (*SLICE, "kind")),
    "nvc_slice_violation":
        (Gauge, "1 while something goes on that verification found", (*SLICE, "kind", "action")),
    "nvcd_processor_seconds": (Counter, "Processor time of nvcd", ()),
    "nvcd_nvml_failures": (Counter, "Times that NVML failed", ()),
}  # fmt: skip
#: The name of a metric, its labels and its value; of a summary, how often and the sum.
Sample = tuple[str, tuple[str, ...], Any]


class Exporter:
    """Answers requests for metrics."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.now = 0

    def answer(self, question: bytes, now: int) -> bytes:
        """The answer to one request of HTTP."""
        words = question.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] not in (b"GET", b"HEAD"):
            return _reply(b"405 Method Not Allowed", b"")
        if words[1].partition(b"?")[0] not in PATHS:
            return _reply(b"404 Not Found", b"")
        self.now = now
        try:
            body = generate_latest(self.registry)
        except (OSError, ValueError, NvcError) as error:  # whatever a scraper asks, nvcd goes on
            self.daemon.slices.say(f"no metrics: {error}")
            return _reply(b"500 Internal Server Error", b"")
        return _reply(b"200 OK", body if words[0] == b"GET" else b"")

    def collect(self) -> Iterator[Metric]:
        """All metrics; called by the registry, once when it is made. Labels quote names that tenants give."""
        for metric in self._all() if self.now else ():
            for sample in metric.samples:
                for name, value in sample.labels.items():
                    if not value.isprintable():
                        sample.labels[name] = one_line(value)
            yield metric

    def _all(self) -> Iterator[Metric]:
        families = {name: kind(name, text, labels=labels) for name, (kind, text, labels) in METRICS.items()}
        for part in (self._hosts, self._memory, self._use, self._time, self._suspensions, self._own):
            for name, labels, value in part():
                families[name].add_metric(labels, *(value if isinstance(value, tuple) else (value,)))
        yield from families.values()

    def _hosts(self) -> Iterator[Sample]:
        index = {
            device.uuid.lower(): (device.index, device.name)
            for known in self.daemon.slices.by_key.values()
            for device in known.entry.devices
        }
        for device in self.daemon.accountant.devices:
            place, name = index.get(device.uuid.lower(), ("", ""))
            labels = (place, device.uuid, name)
            if device.used >= 0:
                yield "hami_host_gpu_memory_used_bytes", labels, device.used
            if device.busy >= 0:
                yield "hami_host_gpu_utilization_ratio", labels, device.busy / 100
                yield "hami_host_gpu_memory_controller_utilization_ratio", labels, device.memory_busy / 100

    def _seen(self) -> Iterator[Balance]:
        """Without devices that are hidden from a slice and that nobody in it uses."""
        for one in self.daemon.accountant.balances:
            if one.limit or one.model or one.truth > 0:
                yield one

    def _named(self, key: str, *more: str) -> tuple[str, ...]:
        """The labels of a slice, with more behind them."""
        return (key, *self.daemon.slices.containers.labels(key, self.now), *more)

    def _memory(self) -> Iterator[Sample]:
        for balance in self._seen():
            labels = self._named(balance.key, balance.uuid)
            vgpu = (*labels[1:-1], balance.index, balance.uuid)
            most = balance.on_device(self.daemon.suspender.records.get(balance.key))
            yield "nvc_slice_memory_bytes", (*labels, "ledger"), min(balance.model, most)
            if balance.truth >= 0:
                yield "nvc_slice_memory_bytes", (*labels, "nvml"), balance.truth
            peak = self.daemon.accountant.peaks[balance.key, balance.uuid]
            yield "nvc_slice_memory_peak_bytes", labels, peak
            told = self.daemon.accountant.refused(balance.key).get(balance.uuid)
            if told is not None:
                yield "nvc_slice_refused", labels, told
            yield "hami_vgpu_memory_used_bytes", vgpu, most
            yield "hami_container_device_memory_bytes", vgpu, most
            if balance.limit != NO_LIMIT:
                yield "nvc_slice_memory_limit_bytes", labels, balance.limit
                yield "hami_vgpu_memory_limit_bytes", vgpu, balance.limit

    def _use(self) -> Iterator[Sample]:
        use: dict[tuple[str, str], int] = {}
        for one in self.daemon.accountant.use:
            use[one.key, one.uuid] = use.get((one.key, one.uuid), 0) + one.percent
        for balance in self._seen():
            if self.daemon.accountant.sampled.get(balance.uuid.lower()) == 0:
                ratio = use.get((balance.key, balance.uuid.lower()), 0) / 100
                labels = self._named(balance.key, balance.uuid)
                yield "nvc_slice_use_ratio", labels, ratio
                vgpu = (*labels[1:-1], balance.index, balance.uuid)
                yield "hami_container_device_utilization_ratio", vgpu, ratio

    def _time(self) -> Iterator[Sample]:
        timing, paces = self.daemon.timing, self.daemon.pacer.paces
        for raw, force in self.daemon.slices.force.items():
            uuid = self.daemon.slices.names.get(raw, "")
            yield "nvc_device_policy", (uuid, force.policy.name), 1
            yield "nvc_device_time_by_driver", (uuid,), 0 if timing.keeper_of(uuid, self.now) else 1
            for key, had, stopped in timing.books.slices(uuid):
                yield "nvc_slice_time_seconds", self._named(key, uuid), had / 1e9
                yield "nvc_slice_stopped_seconds", self._named(key, uuid), stopped / 1e9
            for key, part in entitlements(force).items():
                yield "nvc_slice_entitlement_ratio", self._named(key, uuid), part
            for terms in force.weighed:
                if (raw, terms.key) in paces:
                    yield "nvc_slice_pace_ratio", self._named(terms.key, uuid), paces[raw, terms.key] / 100

    def _suspensions(self) -> Iterator[Sample]:
        """What came of suspending slices, of each for which that was asked since nvcd started."""
        for key, one in self.daemon.suspender.counts.items():
            for name in ("suspends", "resumes", "suspend_failures", "hook_failures"):
                yield f"nvc_slice_{name}", self._named(key), getattr(one, name)
            yield "nvc_slice_wake_seconds", self._named(key), (one.wakes, one.waited / 1e9)
            yield "nvc_slice_wake_longest_seconds", self._named(key), one.longest / 1e9
        for key, record in self.daemon.suspender.records.items():
            for uuid in sorted({each.uuid for each in record.saved}) if record.is_away else ():
                yield "nvc_slice_saved_bytes", self._named(key, uuid), record.moved(uuid)
        host = self.daemon.suspender.host
        yield "nvc_swap_used_bytes", (), host.used()
        if host.size:
            yield "nvc_swap_size_bytes", (), host.size

    def _own(self) -> Iterator[Sample]:
        verifier = self.daemon.verifier
        for kind, count in verifier.counts.items():
            yield "nvc_found", (kind,), count
        for one in verifier.denied.values():
            yield "nvc_slice_denied", self._named(one.key, one.uuid, one.kind), 1
        for one in verifier.ongoing.values():
            action = verifier.actions.get(one.kind, REPORT)
            yield "nvc_slice_violation", self._named(one.key, one.uuid, one.kind, action), 1
        for uuid, watched in self.daemon.shared.watched.items():
            yield "nvc_mps_clients", (uuid,), len(watched.clients)
            yield "nvc_mps_restarts", (uuid,), watched.restarts
        yield "nvcd_processor_seconds", (), time.process_time()
        yield "nvcd_nvml_failures", (), self.daemon.nvml.failures


def _reply(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (status, TYPE, len(body)) + body
