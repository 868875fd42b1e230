"""The switch log as a trace."""

from __future__ import annotations

import json

from nvc.kernel import rm
from nvc.slices.show import trace

MS = 1_000_000
GPU = "GPU-1"


def test_regions_of_processes() -> None:
    begin = 1_700_000_000_000_000_000
    records = [
        (GPU, begin, rm.START, 7),
        (GPU, begin + 2 * MS, rm.END, 7),
        (GPU, begin + 2 * MS + 80_000, rm.START, 8),
        (GPU, begin + 5 * MS, rm.START, 7),  # the end of the other was lost
        (GPU, begin + 6 * MS, rm.RESET, 7),
        (GPU, begin + 7 * MS, rm.START, trace.KERNEL),
        ("GPU-2", begin + 8 * MS, rm.START, 9),
        (GPU, begin + 9 * MS, rm.START, 7),
        (GPU, begin + 10 * MS, rm.END, 7),
        ("GPU-2", begin + 11 * MS, rm.END, 9),
    ]
    found = trace.document(records, {7: "python3", 9: "spin"}, {7: "web", 8: "train"}, {GPU: "0"})
    json.dumps(found)
    regions = [
        (one["pid"], one["tid"], one["name"], one["ts"], one["dur"])
        for one in found["traceEvents"]
        if one["ph"] == "X"
    ]
    assert regions == [
        (1, 7, "web", 0, 2000),
        (1, 8, "train", 2080, 2920),
        (1, 7, "web", 5000, 1000),
        (1, trace.KERNEL, "driver", 7000, 2000),
        (1, 7, "web", 9000, 1000),
        (2, 9, "spin (9)", 0, 3000),
    ]
    names = {
        (one["pid"], one.get("tid")): one["args"]["name"] for one in found["traceEvents"] if one["ph"] == "M"
    }
    assert names == {
        (1, None): "GPU 0", (2, None): "GPU GPU-2", (1, 7): "web python3 (7)", (1, 8): "train (8)",
        (1, trace.KERNEL): "driver", (2, 9): "spin (9)",
    }  # fmt: skip


def test_who_is_on_at_the_end_has_a_region_until_then() -> None:
    found = trace.document([(GPU, 5 * MS, rm.START, 7), (GPU, 6 * MS, rm.START, 8)], {}, {}, {})
    regions = [(one["tid"], one["ts"], one["dur"]) for one in found["traceEvents"] if one["ph"] == "X"]
    assert regions == [(7, 0, 1000), (8, 1000, 0)]


def test_no_records() -> None:
    assert trace.document([], {}, {}, {})["traceEvents"] == []
