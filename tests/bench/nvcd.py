"""What nvcd costs while slices take turns: its share of a core, its memory, and how long a hand-over takes.

    python3 tests/bench/nvcd.py [--tenants 16] [--seconds 10] [--slice-us 10000]

The slices are processes that do nothing but answer, so that a small machine can have 16 of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(1, os.path.join(os.path.dirname(os.path.dirname(sys.path[0])), "build/stage/lib/nvc/python"))
sys.path.insert(1, os.path.join(os.path.dirname(sys.path[0]), "build/stage/lib/nvc/python"))

from support import STAGE
from support.nvcd import GPU, Place


def hand_overs(found: list[dict[str, list[int]]]) -> list[int]:
    """Nanoseconds from each end of a turn to the beginning of the next one."""
    begins = sorted(begin for one in found for begin in one["begins"])
    ends = sorted(end for one in found for end in one["ends"])
    gaps, place = [], 0
    for end in ends:
        while place < len(begins) and begins[place] < end:
            place += 1
        if place < len(begins):
            gaps.append(begins[place] - end)
    return sorted(gaps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tenants", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--slice-us", type=int, default=10000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Place(STAGE, scratch)
        try:
            place.lay_down(GPU.format(0), f"policy preempt\nslice-us {options.slice_us}\n")
            daemon = place.start()
            tenants = [place.tenant() for _ in range(options.tenants)]
            end = time.monotonic() + options.seconds + 1
            for tenant in tenants:
                tenant.send("busy", end, 0, True)
            tenants[0].process.poll()
            while time.monotonic() < end - options.seconds:
                os.sched_yield()
            cpu, began = daemon.cpu(), time.monotonic()
            found = [tenant.receive(options.seconds + 30) for tenant in tenants]
            seconds = time.monotonic() - began
            used = daemon.cpu() - cpu
            gaps = hand_overs(found)
            held = [one["held"][0] for one in found]
            print(json.dumps({
                "tenants": options.tenants,
                "sliceUs": options.slice_us,
                "turnsPerSecond": round(sum(one["turns"] for one in found) / (options.seconds + 1), 1),
                "percentOfCore": round(used / seconds * 100, 2),
                "residentMiB": round(daemon.memory() / (1 << 20), 1),
                "withHelpersMiB": round(daemon.proportional() / (1 << 20), 1),
                "handOverUs": {
                    "median": gaps[len(gaps) // 2] // 1000,
                    "p95": gaps[len(gaps) * 95 // 100] // 1000,
                },
                "shareLeastMost": [round(min(held) / sum(held), 4), round(max(held) / sum(held), 4)],
            }))  # fmt: skip
        finally:
            place.end()


if __name__ == "__main__":
    main()
