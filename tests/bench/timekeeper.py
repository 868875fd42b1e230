"""The timekeeper's processor time, with the model of a GPU: python3 tests/bench/timekeeper.py [--seconds 20]

Prints what a second of a GPU costs: the timekeeper's own arithmetic, measured here, and the calls of the driver,
at what they took where they were measured (tests/support/gpumodel.py has the figures).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path[:0] = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
sys.path[:0] = [os.path.dirname(sys.path[0])]

from support.gpumodel import MS, SECOND, Gpu, Log, Subdevice, always, steps  # noqa: E402
from support.timehost import Host, demand  # noqa: E402

from nvc.daemon.keeper import wire  # noqa: E402

Work = Callable[[], Host]


class Watch:
    """Time spent in the timekeeper, without that in the model."""

    def __init__(self) -> None:
        self.own = self.model = 0

    def timed(self, function: Callable[..., Any], model: bool) -> Callable[..., Any]:
        """The function, with its time counted."""

        def call(*args: Any) -> Any:
            begun, inside = time.thread_time_ns(), self.model
            try:
                return function(*args)
            finally:
                took = time.thread_time_ns() - begun
                if model:
                    self.model += took - (self.model - inside)
                else:
                    self.own += took - (self.model - inside)

        return call


def caps(*found: int, neighbour: bool = False) -> Host:
    """Capped slices that always work."""
    demands = [demand(str(place), "fixed", cap) for place, cap in enumerate(found)]
    host = Host(*demands, *((demand("free", "fixed"),) if neighbour else ()))
    for place in range(len(found)):
        host.tenant(str(place), place + 1, always())
    if neighbour:
        host.tenant("free", 99, always())
    return host


def weights(count: int) -> Host:
    """Slices that share by weight."""
    host = Host(*(demand(str(place), "weight", weight=place + 1) for place in range(count)))
    for place in range(count):
        host.tenant(str(place), place + 1, always() if place % 2 else steps(2 * MS, 20 * MS))
    return host


def idle(count: int) -> Host:
    """Capped slices that have nothing to do."""
    host = Host(*(demand(str(place), "fixed", 10) for place in range(count)))
    for place in range(count):
        host.tenant(str(place), place + 1, steps(100_000, 60 * SECOND))
    return host


CASES: dict[str, Work] = {
    "one cap of 10, alone": lambda: caps(10),
    "one cap of 10, beside another": lambda: caps(10, neighbour=True),
    "one cap of 50, beside another": lambda: caps(50, neighbour=True),
    "caps of 30 and 60": lambda: caps(30, 60),
    "eight caps of 10": lambda: caps(*[10] * 8),
    "eight caps of 10 that idle": lambda: idle(8),
    "16 by weight": lambda: weights(16),
}


def measure(make: Work, seconds: int) -> tuple[float, float, dict[str, float]]:
    """Percent of a core: own arithmetic, calls; and calls a second by name."""
    watch = Watch()
    kept = {(owner, name): getattr(owner, name) for owner, name in (
        (Subdevice, "stop"), (Subdevice, "start"), (Subdevice, "now"), (Log, "read"), (Gpu, "set_timeslice"),
    )}  # fmt: skip
    for (owner, name), function in kept.items():
        setattr(owner, name, watch.timed(function, True))
    try:
        host = make()
        host.run(2 * SECOND)
        host.keeper.step = watch.timed(host.keeper.step, False)  # type: ignore[method-assign]
        account = host.keeper.account

        def told(processor: int) -> wire.Account:
            found = account(processor)
            list(wire.packets(wire.account_message(found), 1))
            return found

        host.keeper.account = watch.timed(told, False)  # type: ignore[method-assign]
        calls, spent = dict(host.gpu.calls), host.gpu.spent
        watch.own = watch.model = 0
        host.run(seconds * SECOND)
    finally:
        for (owner, name), function in kept.items():
            setattr(owner, name, function)
    rates = {name: (count - calls.get(name, 0)) / seconds for name, count in host.gpu.calls.items()}
    return watch.own / seconds / 1e7, (host.gpu.spent - spent) / seconds / 1e7, rates


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=20)
    seconds = parser.parse_args().seconds
    print(f"{'percent of a core':32} {'own':>6} {'calls':>6} {'sum':>6}  calls a second")
    for name, make in CASES.items():
        own, called, rates = measure(make, seconds)
        shown = ", ".join(f"{call} {rate:.0f}" for call, rate in sorted(rates.items()) if rate >= 0.5)
        print(f"{name:32} {own:6.2f} {called:6.2f} {own + called:6.2f}  {shown}")


if __name__ == "__main__":
    main()
