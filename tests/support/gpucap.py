"""Loads under caps on a real GPU: what they do alone, how busy the device is then, and what they get."""

from __future__ import annotations

import os
from collections.abc import Callable

from . import gpus
from .vgpucap import Capped, Result, Worker

CAPS = (10, 25, 50, 75, 90)
LAUNCH_COST = 1e-6  # seconds
SECONDS = float(os.environ.get("NVC_CAP_SECONDS", "2"))  # that a load is measured under a cap
Measured = Callable[[str, object], None]


class Sliced(Capped):
    """One on the GPU that tests of a real driver use. Calibrates a kernel's loop once for each length and grid."""

    known: dict[tuple[int, int], int]

    def __init__(self, root: str, shims: str, program: str) -> None:
        self.workers = []
        self.make(gpus.place_of_slice(root), shims, program, gpus.libraries(), [gpus.uuid()])

    def environment(self, **variables: str) -> dict[str, str]:
        return super().environment(**{**gpus.visible(), **variables})

    def rounds(self, ns: int, grid: int = 1) -> int:
        if (ns, grid) not in self.known:
            worker = self.native(ns=ns, grid=grid, seconds=0.05, warm=0.05).started()
            self.known[ns, grid] = worker.result().rounds
        return self.known[ns, grid]


#: What keeps the device busy all the time: a queue of the same, be they kernels or graphs. The host needs 3 to 4 us
#: for a launch, and an H100 6.7 us from one kernel of 5 us to the next one of its stream (5.8 us in a graph): so a
#: queue of these is limited by the device.
FULL_SPEED: dict[str, object] = {"batch": 0, "streams": 1, "threads": 1}


class Load:
    """One kind of work, what it does alone, and how busy the device is then."""

    def __init__(self, slice_: Sliced, name: str, **arguments: object) -> None:
        self.slice, self.name, self.arguments = slice_, name, arguments
        self.ns = int(str(arguments["ns"]))
        self.arguments["rounds"] = slice_.rounds(self.ns, int(str(arguments.get("grid", 1))))
        self.alone = self.run_native(0.75 * SECONDS)  # kernels a second

    def run_native(self, seconds: float, **more: object) -> float:
        words = {"warm": 0.3, **self.arguments, **more, "seconds": seconds}
        return self.slice.native(**words).started().result().rate

    def busy(self) -> float:
        """u: of the rate at which the device does nothing else, what the program reaches alone."""
        if all(self.arguments.get(name, 1) == value for name, value in FULL_SPEED.items()):
            return 1.0
        return min(1.0, self.alone / self.run_native(0.75 * SECONDS, **FULL_SPEED))

    def capped(self, cap: int, **more: object) -> Result:
        self.slice.cap(cap)
        return self.slice.work(**{"seconds": SECONDS, "warm": 0.5, **self.arguments, **more})


def check(load: Load, caps: tuple[int, ...], points: float, measured: Measured, **more: object) -> None:
    """Measure a load under caps; all figures are noted before any is judged.

    What is not to be held back, and waits for each launch, may lose LAUNCH_COST with each.
    """
    found = [(cap, load.capped(cap, **more)) for cap in caps]
    busy = load.busy()
    measured(f"{load.name}: alone, a second; u", f"{load.alone:.0f}; {busy:.3f}")
    wrong = []
    for cap, got in found:
        share, target = 100 * got.rate / load.alone, min(100.0, cap / busy)
        measured(
            f"{load.name}: cap, target, got, error in points, longest launch",
            f"{cap} %, {target:.1f} %, {share:.2f} %, {share - target:+.2f}, {got.longest:.1f} ms",
        )
        lost = 1 / got.rate - 1 / load.alone
        if target == 100 and load.arguments.get("batch") == 1 and 0 < lost < LAUNCH_COST:
            continue
        if abs(share - target) > points:
            wrong.append((cap, target, share))
    assert wrong == []


def rate_between_kernels(worker: Worker, seconds: float) -> float:
    """Kernels a second, from when one of a trace was launched to when another was: for few and long ones."""
    changes: list[tuple[float, int]] = []
    begin, kernels = worker.progress()
    at = begin
    while at < begin + 1000 * seconds:
        at, now = worker.progress()
        if now > kernels:
            changes.append((at, now))
            kernels = now
    assert len(changes) > 1, "less than two kernels"
    (first, before), (last, after) = changes[0], changes[-1]
    return 1000 * (after - before) / (last - first)
