"""The self-test on a simulated driver: what it says where all is well, and where one thing is not."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from support.simrm import Served

from nvc.daemon.keeper import selftest
from nvc.daemon.keeper.selftest import SelfTest
from nvc.kernel import rm as driver
from nvc.kernel.rm import Rm, Subdevice
from nvc.kernel.tracer import Tracer
from nvc.slices.make.calibrate import Libraries


def tried(tracer: Tracer, served: Served, *faults: str, device: int = 1) -> SelfTest:
    library = f"{served.root}/usr/lib/{os.uname().machine}-linux-gnu/libcuda.so.1"
    libraries = Libraries("/", library, "")
    rm = Rm.open(served.path, driver=f"{served.root}/proc/driver/nvidia")
    try:
        found = rm.devices()[device]
        served.fault(*(faults or ("none",)))
        return selftest.run(tracer, rm, found, libraries, served.path)
    finally:
        served.fault("none")
        rm.close()


def impatient(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """Wait for that alone a short time."""
    real = selftest._wait

    def wait(condition: Callable[[], bool], said: str) -> None:
        monkeypatch.setattr(selftest, "PATIENCE", 0.3 if said in why else 10.0)
        real(condition, said)

    monkeypatch.setattr(selftest, "_wait", wait)


def test_a_driver_that_does_all_passes(tracer: Tracer, served: Served) -> None:
    result = tried(tracer, served)
    assert (result.ok, result.why) == (True, "")


@pytest.mark.parametrize(
    ("fault", "why"),
    (
        ("fail 2080110b 56", "stop our channels: not supported (RM status 0x56)"),
        ("fail a06c0104 24", "read a timeslice: invalid command (RM status 0x24)"),
        ("fail 20801238 1b", "bind the switch log"),
        ("fail 80 26", "open device 1"),
        ("drop 1000000", "the switch log does not name our process"),
    ),
)
def test_what_does_not_work_is_named(
    tracer: Tracer, served: Served, fault: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch, why)
    result = tried(tracer, served, fault)
    assert not result.ok and why in result.why


@pytest.mark.parametrize(
    ("place", "name", "why"),
    (
        (Subdevice, "stop", "kernels ended in 50 ms after a stop"),
        (Subdevice, "start", "our kernels did not go on after a start"),
        (driver, "set_timeslice", "a timeslice of 3000 µs was set, and 2048 are read"),
    ),
)
def test_what_is_answered_and_not_done_is_seen(
    tracer: Tracer, served: Served, place: object, name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch, why)
    monkeypatch.setattr(place, name, lambda *_: 0)
    result = tried(tracer, served)
    assert not result.ok and why in result.why
