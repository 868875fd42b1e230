"""The switch log as a trace that Perfetto and chrome://tracing open: who had the GPU, to the microsecond. Pure.

The format is Chrome's trace events (JSON object format): complete events, `ph` X, with times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

START = 1  # as nvc/kernel/rm.py has it; whatever else ends a region
KERNEL = 0xFFFFFFFF  # the driver's own contexts (cl90cdfecs.h: NV_EVENT_BUFFER_KERNEL_PID)
THOUSAND = 1000


def document(
    records: Iterable[tuple[str, int, int, int]],
    names: Mapping[int, str],
    slices: Mapping[int, str],
    indices: Mapping[str, str],
) -> dict[str, Any]:
    """The trace.

    `records`: the GPU's UUID, nanoseconds of its timer, kind and process, in the order of the log. `names` and
    `slices` by process, `indices` of GPUs by UUID. A process is a row of its GPU; who is on it at the end has a
    region until then.
    """
    events: list[dict[str, Any]] = []
    rows: dict[str, int] = {}
    known: set[tuple[int, int]] = set()
    on: dict[str, tuple[int, int]] = {}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for uuid, time, kind, pid in records:
        row = rows.setdefault(uuid, len(rows) + 1)
        begin = first.setdefault(uuid, time)
        time = last[uuid] = max(last.get(uuid, time), time)  # as accounts.py counts a record that comes late
        if uuid in on:
            who, since = on.pop(uuid)
            events.append(_region(row, who, since - begin, time - begin, names, slices))
            known.add((row, who))
        if kind == START:
            on[uuid] = pid, time
    for uuid, (who, since) in on.items():
        events.append(_region(rows[uuid], who, since - first[uuid], last[uuid] - first[uuid], names, slices))
        known.add((rows[uuid], who))
    about = [
        {"ph": "M", "name": "process_name", "pid": row, "args": {"name": f"GPU {indices.get(uuid, uuid)}"}}
        for uuid, row in rows.items()
    ]
    about += [
        {"ph": "M", "name": "thread_name", "pid": row, "tid": pid, "args": {"name": _label(pid, names, slices)}}
        for row, pid in sorted(known)
    ]
    return {
        "displayTimeUnit": "ms",
        "otherData": {"clock": "the GPU's timer, from the first record of each GPU", "gpus": list(rows)},
        "traceEvents": about + events,
    }


def _region(
    row: int, pid: int, begin: int, end: int, names: Mapping[int, str], slices: Mapping[int, str]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": slices.get(pid) or _label(pid, names, slices),
        "cat": "gpu",
        "pid": row,
        "tid": pid,
        "ts": begin / THOUSAND,
        "dur": max(end - begin, 0) / THOUSAND,
    }


def _label(pid: int, names: Mapping[int, str], slices: Mapping[int, str]) -> str:
    if pid == KERNEL:
        return "driver"
    name = " ".join(part for part in (slices.get(pid, ""), names.get(pid, "")) if part)
    return f"{name} ({pid})" if name else str(pid)
