"""Metrics for Prometheus, where the configuration asks for them: over HTTP, by prometheus-client's text format.

Where a figure means the same as one of HAMi's monitor, it has that name too. The labels `namespace`, `pod` and
`container` are what the container's engine calls it; `slice` is the key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
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
SLICE = ("slice", "namespace", "pod", "container", "device_uuid")
TYPE = b"text/plain; version=0.0.4; charset=utf-8"


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
        yield from self._hosts()
        yield from self._memory()
        yield from self._use()
        yield from self._time()
        yield from self._suspensions()
        yield from self._own()

    def _hosts(self) -> Iterator[Metric]:
        index = self._indices()
        used = GaugeMetricFamily("hami_host_gpu_memory_used_bytes", "Memory in use of a device", labels=HOST)
        busy = GaugeMetricFamily("hami_host_gpu_utilization_ratio", "Share of the last second with kernels",
                                 labels=HOST)  # fmt: skip
        moving = GaugeMetricFamily("hami_host_gpu_memory_controller_utilization_ratio",
                                   "Share of the last second with memory in motion", labels=HOST)  # fmt: skip
        for device in self.daemon.accountant.devices:
            place, name = index.get(device.uuid.lower(), ("", ""))
            labels = (place, device.uuid, name)
            if device.used >= 0:
                used.add_metric(labels, device.used)
            if device.busy >= 0:
                busy.add_metric(labels, device.busy / 100)
                moving.add_metric(labels, device.memory_busy / 100)
        yield from (used, busy, moving)

    def _indices(self) -> dict[str, tuple[str, str]]:
        return {
            device.uuid.lower(): (device.index, device.name)
            for known in self.daemon.slices.by_key.values()
            for device in known.entry.devices
        }

    def _seen(self) -> Iterator[Balance]:
        """Without devices that are hidden from a slice and that nobody in it uses."""
        for one in self.daemon.accountant.balances:
            if one.limit or one.model or one.truth > 0:
                yield one

    def _named(self, key: str) -> tuple[str, str, str]:
        return self.daemon.names.labels(key, self.now)

    def _memory(self) -> Iterator[Metric]:
        used = GaugeMetricFamily("nvc_slice_memory_bytes", "Memory that a slice has, by NVML or by its ledger",
                                 labels=(*SLICE, "source"))  # fmt: skip
        peak = GaugeMetricFamily("nvc_slice_memory_peak_bytes", "The most that it was seen to have", labels=SLICE)
        refused = CounterMetricFamily("nvc_slice_refused", "Requests for memory that did not fit", labels=SLICE)
        limit = GaugeMetricFamily("nvc_slice_memory_limit_bytes", "Memory that it may have", labels=SLICE)
        theirs = {
            name: GaugeMetricFamily(name, text, labels=VGPU)
            for name, text in (
                ("hami_vgpu_memory_used_bytes", "Memory that a slice has"),
                ("hami_vgpu_memory_limit_bytes", "Memory that a slice may have"),
                ("hami_container_device_memory_bytes", "Memory that a slice has"),
            )
        }
        for balance in self._seen():
            named = self._named(balance.key)
            labels = (balance.key, *named, balance.uuid)
            vgpu = (*named, balance.index, balance.uuid)
            most = balance.on_device(self.daemon.suspender.records.get(balance.key))
            used.add_metric((*labels, "ledger"), min(balance.model, most))
            if balance.truth >= 0:
                used.add_metric((*labels, "nvml"), balance.truth)
            peak.add_metric(labels, self.daemon.accountant.peaks[balance.key, balance.uuid])
            told = self.daemon.accountant.refused(balance.key).get(balance.uuid)
            if told is not None:
                refused.add_metric(labels, told)
            theirs["hami_vgpu_memory_used_bytes"].add_metric(vgpu, most)
            theirs["hami_container_device_memory_bytes"].add_metric(vgpu, most)
            if balance.limit != NO_LIMIT:
                limit.add_metric(labels, balance.limit)
                theirs["hami_vgpu_memory_limit_bytes"].add_metric(vgpu, balance.limit)
        yield from (used, peak, refused, limit, *theirs.values())

    def _use(self) -> Iterator[Metric]:
        ours = GaugeMetricFamily("nvc_slice_use_ratio", "Part of the time with kernels of a slice, by NVML",
                                 labels=SLICE)  # fmt: skip
        theirs = GaugeMetricFamily("hami_container_device_utilization_ratio",
                                   "Part of the time with kernels of a slice", labels=VGPU)  # fmt: skip
        use: dict[tuple[str, str], int] = {}
        for one in self.daemon.accountant.use:
            use[one.key, one.uuid] = use.get((one.key, one.uuid), 0) + one.percent
        for balance in self._seen():
            if self.daemon.accountant.sampled.get(balance.uuid.lower()) == 0:
                ratio = use.get((balance.key, balance.uuid.lower()), 0) / 100
                named = self._named(balance.key)
                ours.add_metric((balance.key, *named, balance.uuid), ratio)
                theirs.add_metric((*named, balance.index, balance.uuid), ratio)
        yield from (ours, theirs)

    def _time(self) -> Iterator[Metric]:
        entitlement = GaugeMetricFamily("nvc_slice_entitlement_ratio", "Entitlement of a slice",
                                        labels=SLICE)  # fmt: skip
        pace = GaugeMetricFamily("nvc_slice_pace_ratio", "Part of the time for which a slice may have work"
                                 " beside others", labels=SLICE)  # fmt: skip
        policy = GaugeMetricFamily("nvc_device_policy", "1 for the policy of a device",
                                   labels=("device_uuid", "policy"))  # fmt: skip
        kept = GaugeMetricFamily("nvc_device_time_by_driver", "1 where nvcd keeps time by the driver's scheduler, 0"
                                 " where the shim does", labels=("device_uuid",))  # fmt: skip
        had = CounterMetricFamily("nvc_slice_time_seconds", "Time that a slice had, by the driver's log",
                                  labels=SLICE)  # fmt: skip
        stopped = CounterMetricFamily("nvc_slice_stopped_seconds", "Time in which nvcd had stopped it",
                                      labels=SLICE)  # fmt: skip
        for raw, force in self.daemon.slices.force.items():
            uuid = self.daemon.slices.names.get(raw, "")
            policy.add_metric((uuid, force.policy.name), 1)
            kept.add_metric((uuid,), 0 if self.daemon.timing.keeper_of(uuid, self.now) else 1)
            for key, time_had, time_stopped in self.daemon.timing.books.slices(uuid):
                had.add_metric((key, *self._named(key), uuid), time_had / 1e9)
                stopped.add_metric((key, *self._named(key), uuid), time_stopped / 1e9)
            for key, part in entitlements(force).items():
                entitlement.add_metric((key, *self._named(key), uuid), part)
            for terms in force.weighed:
                labels = (terms.key, *self._named(terms.key), uuid)
                if (raw, terms.key) in self.daemon.pacer.paces:
                    pace.add_metric(labels, self.daemon.pacer.paces[raw, terms.key] / 100)
        yield from (entitlement, pace, policy, kept, had, stopped)

    def _suspensions(self) -> Iterator[Metric]:
        """What came of suspending slices, of each for which that was asked since nvcd started."""
        labels = SLICE[:-1]
        saved = GaugeMetricFamily("nvc_slice_saved_bytes", "Memory of its devices that is kept in the host's",
                                  labels=SLICE)  # fmt: skip
        woke = SummaryMetricFamily("nvc_slice_wake_seconds", "Time that its programs waited until it was resumed",
                                   labels=labels)  # fmt: skip
        longest = GaugeMetricFamily("nvc_slice_wake_longest_seconds", "The longest of these", labels=labels)
        numbers = {
            name: CounterMetricFamily(f"nvc_slice_{name}", text, labels=labels)
            for name, text in (
                ("suspends", "Times that it was suspended"),
                ("resumes", "Times that it was resumed"),
                ("suspend_failures", "Times that it could not be suspended or resumed"),
                ("hook_failures", "Times that its programs could not be told"),
            )
        }
        for key, one in self.daemon.suspender.counts.items():
            named = (key, *self._named(key))
            for name, metric in numbers.items():
                metric.add_metric(named, getattr(one, name))
            woke.add_metric(named, one.wakes, one.waited / 1e9)
            longest.add_metric(named, one.longest / 1e9)
        for key, record in self.daemon.suspender.records.items():
            for uuid in sorted({each.uuid for each in record.saved}) if record.is_away else ():
                saved.add_metric((key, *self._named(key), uuid), record.moved(uuid))
        yield from (saved, woke, longest, *numbers.values())

    def _own(self) -> Iterator[Metric]:
        found = CounterMetricFamily("nvc_found", "Violations that were detected", labels=("kind",))
        for kind, count in self.daemon.verifier.counts.items():
            found.add_metric((kind,), count)
        denied = GaugeMetricFamily("nvc_slice_denied", "1 while a slice has no more of a device",
                                   labels=(*SLICE, "kind"))  # fmt: skip
        for one in self.daemon.verifier.denied.values():
            denied.add_metric((one.key, *self._named(one.key), one.uuid, one.kind), 1)
        going = GaugeMetricFamily("nvc_slice_violation", "1 while something goes on that verification found",
                                  labels=(*SLICE, "kind", "action"))  # fmt: skip
        for one in self.daemon.verifier.ongoing.values():
            action = self.daemon.verifier.actions.get(one.kind, REPORT)
            going.add_metric((one.key, *self._named(one.key), one.uuid, one.kind, action), 1)
        clients = GaugeMetricFamily("nvc_mps_clients", "Processes of slices that share an MPS server",
                                    labels=("device_uuid",))  # fmt: skip
        restarts = CounterMetricFamily("nvc_mps_restarts", "Times that such a server was started again",
                                       labels=("device_uuid",))  # fmt: skip
        for uuid, watched in self.daemon.shared.watched.items():
            clients.add_metric((uuid,), len(watched.clients))
            restarts.add_metric((uuid,), watched.restarts)
        yield from (clients, restarts)
        yield from (found, denied, going)
        yield CounterMetricFamily("nvcd_processor_seconds", "Processor time of nvcd", time.process_time())
        yield CounterMetricFamily("nvcd_nvml_failures", "Times that NVML failed", self.daemon.nvml.failures)


def _reply(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (status, TYPE, len(body)) + body
