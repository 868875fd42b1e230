"""A shim while nvcd keeps time by the driver, and once it has ended, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from pytest import approx
from support import GIB
from support.vgpucap import NATIVE, Capped, Shares
from support.vgpushim import OUT_OF_MEMORY, Slice
from support.virtual import World, device_time

from nvc.model.slices import layout, quota

LONG = {"seconds": 10_000, "warm": 0}


def keep(slice_: Capped, until: int) -> None:
    """Say in the quota until when nvcd keeps time, as it does."""
    with open(slice_.path("nvc/quota"), "r+b", buffering=0) as file:
        quota.set_kept(file.fileno(), 0, until - layout.KEPT_FOR if until else 0, 0, 0)


def test_time_that_is_kept_from_outside(world: World, capped: Callable[..., Capped]) -> None:
    """Nothing is held back, nor measured, while nvcd says so; once it has ended, all is as before."""
    slice_ = capped()
    slice_.cap(20)
    slice_.worker(ns=1_000_000, batch=4, **LONG)
    assert Shares(world, slice_).total == approx(0.2, abs=0.02)
    for _ in range(2):
        keep(slice_, world.now_ns + 3 * 10**9)
        world.run(0.05)
        free = Shares(world, slice_, 2.9, 0)
        assert free.total > 0.95 and free.charged == 0
        world.run(0.1)
        assert Shares(world, slice_, 5, 0).total == approx(0.2, abs=0.03)
    keep(slice_, world.now_ns + 3 * 10**9)
    world.run(0.05)
    keep(slice_, 0)
    assert Shares(world, slice_, 5, 0.05).total == approx(0.2, abs=0.03)


def test_who_keeps_time_comes_and_goes(world: World, capped: Callable[..., Capped]) -> None:
    """As nvcd that is killed again and again: what ran while it kept time leaves no credit for later."""
    slice_ = capped()
    slice_.cap(20)
    slice_.worker(ns=1_000_000, batch=1, **LONG)
    world.run(1)
    had = 0.0
    for _ in range(20):
        keep(slice_, world.now_ns + 10**8)
        world.run(0.1)
        before = device_time(slice_.root).total
        world.run(0.2)
        had += device_time(slice_.root).total - before
    assert had / 20 < 0.2 * 0.2 + 0.01, "half of the time until it looks at the quota"


def test_a_pause_is_kept_from_outside_too(world: World, capped: Callable[..., Capped]) -> None:
    """The shim holds launches back for it only where nobody else does; memory it denies always."""
    slice_ = capped()
    slice_.cap(0, NATIVE, flags=layout.PAUSED)
    slice_.worker(ns=1_000_000, batch=1, **LONG)
    assert Shares(world, slice_, 1).total == 0
    keep(slice_, world.now_ns + 10 * 10**9)
    assert Shares(world, slice_, 5, 0.05).total > 0.9
    keep(slice_, 0)
    assert Shares(world, slice_, 1, 0.05).total == 0


def test_denied_memory_while_time_is_kept(vgpu: Slice) -> None:
    process = vgpu.start().do("alloc a 1m")
    vgpu.limit(8 * GIB, flags=layout.DENIED, kept_until=1 << 62)
    assert process.code("alloc b 64m") == OUT_OF_MEMORY
    process.do("module m", "launch m", "wait")
