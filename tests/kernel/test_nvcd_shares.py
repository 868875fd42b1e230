"""The shim and nvcd together: programs in slices of one simulated GPU, whose kernels take the time they say."""

from __future__ import annotations

from typing import Any

from support.measured import above, near
from support.nvcd import Place, ask, eventually
from support.vgpucap import Worker

POINTS = 0.05


def shares(place: Place, *workers: Worker) -> list[float]:
    """The part of the time that each slice had the GPU, in the order of their cores or weights, all being busy."""
    for worker in workers:
        worker.started()
    first = ask(place)
    last = eventually(place, lambda state: state["now"] - first["now"] > 1.5e9)
    before = {tenant["key"]: tenant["heldNs"] for tenant in first["devices"][0]["tenants"]}
    held = [
        ((tenant["cores"] or 0, tenant["weight"]), tenant["heldNs"] - before[tenant["key"]])
        for tenant in last["devices"][0]["tenants"]
    ]
    whole = last["now"] - first["now"]
    above(sum(time for _, time in held) / whole, 0.9)
    return [time / whole for _, time in sorted(held)]


def test_percentages(place: Place, driver: str, busy: Any) -> None:
    place.start(f"--root={driver}")
    low, high = busy("--cores=30"), busy("--cores=70")
    for share, wanted in zip(shares(place, low, high), (0.3, 0.7)):
        near(share, wanted, POINTS)
    above(high.result().rate / low.result().rate, 1.2)


def test_what_an_idle_one_leaves(place: Place, driver: str, busy: Any) -> None:
    """It gives its turn back before the end, and is skipped from then on."""
    place.start(f"--root={driver}")
    low = busy("--weight=3", "--policy=weight", seconds=600)
    high = busy("--weight=7", "--policy=weight", seconds=600, idle=1000)
    for worker in (low, high):
        worker.started()

    def held(state: Any) -> dict[int, tuple[int, bool]]:
        return {one["weight"]: (one["heldNs"], one["wants"]) for one in state["devices"][0]["tenants"]}

    first = eventually(place, lambda state: held(state)[7][0] and not held(state)[7][1])
    last = eventually(place, lambda state: state["now"] - first["now"] > 1e9)
    above((held(last)[3][0] - held(first)[3][0]) / (last["now"] - first["now"]), 0.95)
    assert held(last)[7] == held(first)[7]
    assert all(worker.stop().kernels for worker in (low, high))


def test_weights(place: Place, driver: str, busy: Any) -> None:
    place.start(f"--root={driver}")
    workers = [busy(f"--weight={weight}", "--policy=weight", seconds=3) for weight in (1, 2, 4)]
    for share, weight in zip(shares(place, *workers), (1, 2, 4)):
        near(share, weight / 7, POINTS)
    rates = [worker.result().rate for worker in workers]
    above(min(rates[1] / rates[0], rates[2] / rates[1]), 1)
