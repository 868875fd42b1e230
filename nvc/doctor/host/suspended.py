"""Slices that are suspended, and GPUs whose policy suspends idle ones."""

from __future__ import annotations

from collections.abc import Iterator

from nvc.base.errors import NvcError, counted
from nvc.base.files import lines_of
from nvc.discovery.containers.files import names_in
from nvc.doctor import FAILED, OK, WARNING, Check, Fact, Row, first
from nvc.doctor.context import Context, read_text
from nvc.doctor.host.slices import PATIENCE, restart_of
from nvc.model.slices import suspension
from nvc.model.slices.hook import OFF
from nvc.slices.client.nvcd import ask
from nvc.slices.policy import policies

PTRACE = "/proc/sys/kernel/yama/ptrace_scope"
NOBODY_MAY = "3"


def _suspension(context: Context) -> Iterator[Fact]:
    living = context.living()
    away = [one for one in living if one.suspension is not None]
    for one in away:
        if one.suspension is not None and one.suspension.state == suspension.FAILED:
            yield Fact(failed=one.name, problem=one.suspension.problem)
    idle = _idle(f"{context.runtime_directory}/vgpu-policy")
    own = [one for one in living if one.entry.idle_suspend not in ("", OFF)]
    idle |= {device.uuid for one in own for device in one.devices}
    if not away and not idle:
        return
    try:
        state = ask("state", PATIENCE)
    except NvcError as error:
        seen = first(f"slice {one.name} is {one.state}" for one in away)
        yield Fact(silent=error.cause, away=len(away), seen=seen, run=restart_of(str(error.cause)))
        return
    if idle and read_text(PTRACE) == NOBODY_MAY:
        yield Fact(unseen=PTRACE)
    for device in state["devices"]:
        if device["uuid"] in idle and device["time"] != "by the driver":
            yield Fact(uuid=device["uuid"], kept=device["time"])
    used = sum(device.used for one in living if one not in away for device in one.devices if device.uuid in idle)
    free = _available() - suspension.HOST_SPARE
    if used > free:
        yield Fact(used=used >> 20, free=max(0, free) >> 20)
    yield Fact(suspended=counted(len(away), "suspended slice"))


def _idle(base: str) -> set[str]:
    """UUIDs of the devices whose policy has idle-suspend. Raises PolicyError."""
    return {uuid for uuid in names_in(base) if not uuid.startswith(".") and policies.read(uuid).idle_s}


def _available() -> int:
    """Free memory of the host, bytes."""
    lines = (line.split() for line in lines_of(read_text("/proc/meminfo")))
    return next((int(words[1]) << 10 for words in lines if words[0] == "MemAvailable:"), 0)


NOTHING = "idle-suspend suspends nothing"
CHECKS = (
    Check("vgpu.suspension", "whether slices can be suspended, and come back", _suspension, (
        Row(FAILED, "slice {failed} is not back: {problem}", "failed", run=("nvc-cli vgpu resume {failed}",),
            advice="if that fails, end its processes"),
        Row(FAILED, "nvcd cannot be reached, and suspended slices stay so: {silent}", "away"),
        Row(WARNING, NOTHING + ": nvcd cannot be reached: {silent}", "silent"),
        Row(WARNING, NOTHING + ": nobody may look at programs' threads", "unseen", seen=("{unseen} is 3",),
            advice="boot with another value of kernel.yama.ptrace_scope"),
        Row(WARNING, NOTHING + " on {uuid}: its time is kept {kept}", "kept", run=("nvcd --state",),
            advice="docs/time.md says what that needs"),
        Row(WARNING, "not all slices can be suspended: they use {used} MiB, the host has {free} MiB for that",
            "used", advice="give the host more memory, or turn idle-suspend off for some GPUs"),
        Row(OK, "{suspended}"),
    )),
)  # fmt: skip
