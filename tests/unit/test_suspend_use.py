"""What counts as work of a slice: the time that the log gives it, while NVML shows kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nvc.daemon.suspend.use import Use
from nvc.slices.policy.policies import DevicePolicy

ONE, TWO, OTHER = "GPU-0000aaaa", "GPU-0000bbbb", "GPU-0000cccc"


def registered(**given: tuple[str, ...]) -> Any:
    """Slices, each with its own rule and its devices, on GPUs of which two have a rule."""
    return SimpleNamespace(
        device_policy={ONE: DevicePolicy(idle_s=60), TWO: DevicePolicy(idle_s=60), OTHER: DevicePolicy()},
        by_key={
            key: SimpleNamespace(
                alive=True, entry=SimpleNamespace(idle_suspend=own),
                devices=[SimpleNamespace(uuid=uuid) for uuid in uuids],
            )
            for key, (own, *uuids) in given.items()
        },
    )  # fmt: skip


def test_its_own_rule_beats_the_gpu_s() -> None:
    slices = registered(
        a=("", ONE, TWO), b=("", ONE, OTHER), c=("off", ONE), d=("90s", OTHER), e=("", OTHER), f=("1h", ONE)
    )
    nothing: Any = SimpleNamespace()
    use = Use(nothing, slices, nothing, nothing, nothing, print)
    assert use.seconds() == {"a": 60, "d": 90, "f": 3600}


def test_time_without_kernels_is_no_work() -> None:
    log: dict[str, list[tuple[str, int, int]]] = {}
    busy: dict[str, int] = {}
    slices = registered(a=("", ONE, TWO), b=("", OTHER))
    seen: Any = SimpleNamespace()
    timing: Any = SimpleNamespace(books=SimpleNamespace(slices=lambda uuid: log.get(uuid, [])))
    nothing: Any = SimpleNamespace()
    use = Use(nothing, slices, seen, timing, nothing, print)

    def count(one: int, two: int, percent_of_one: int, percent_of_two: int) -> int:
        log.update({ONE: [("a", one, 0)], TWO: [("a", two, 0)], OTHER: [("a", one, 0)]})
        busy.update({ONE.upper(): percent_of_one, TWO: percent_of_two})
        seen.devices = [SimpleNamespace(uuid=uuid, busy=percent) for uuid, percent in busy.items()]
        return use.count()["a"]

    assert count(100, 50, 7, 0) == 0
    assert count(110, 60, 7, 0) == 10
    assert count(120, 70, 0, 0) == 10  # who was last on the engine has it until another one is
    assert count(130, 80, -1, 3) == 30  # what is not known counts
