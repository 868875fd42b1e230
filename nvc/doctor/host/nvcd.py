"""nvcd: whether it answers, keeps the time that policies need, and suspends idle slices."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from nvc.base.errors import NvcError, counted
from nvc.base.files import closing, lines_of
from nvc.discovery.containers.files import names_in
from nvc.doctor import FAILED, OK, UNKNOWN, WARNING, Check, Fact, Row, first, with_systemd
from nvc.doctor.context import Context, read_text
from nvc.kernel import Kernel
from nvc.kernel.processes import open_root, start_of
from nvc.model.slices import suspension
from nvc.model.slices.hook import OFF
from nvc.model.slices.policy import policy_of
from nvc.slices.client.nvcd import SHIM, ask, by_shim
from nvc.slices.client.presence import NOT_RUNNING
from nvc.slices.policy import policies
from nvc.slices.store.status import SliceStatus

SOCKET = "/run/nvc/nvcd/nvcd.sock"
PATIENCE = 3.0  # seconds
BEGINNING = 3.0  # seconds until nvcd has made its sockets, on any host
PTRACE = "/proc/sys/kernel/yama/ptrace_scope"
NOBODY_MAY = "3"


def _daemon(context: Context) -> Iterator[Fact]:
    living = context.living()
    devices = [(one, policy_of(device.policy)) for one in living for device in one.devices]
    yield from unreached(context.kernel)
    needing = dict.fromkeys(one.name for one, policy in devices if policy.needs_nvcd)
    if not needing and not os.path.exists(SOCKET):
        yield Fact(idle=True)
        return
    try:
        ask("alive", PATIENCE)
    except NvcError as error:
        needed = first((f"slice {name} shares the time of its GPUs" for name in needing), 4)
        yield Fact(silent=error, needed=needed, seen=needed, run=_restart(error))
        return
    yield from _not_enforced(living)
    yield Fact()


def unreached(kernel: Kernel) -> Iterator[Fact]:
    """The nvcds that share this /run, and whose socket is not even there: their directory was removed.

    Any process may be called so. Nothing is asked of file systems of its own.
    """
    here = os.stat("/run")
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        if read_text(f"/proc/{pid}/comm") != "nvcd":
            continue
        try:
            with closing(open_root(pid)) as root:
                with closing(kernel.open_cached(root, "/run")) as run:
                    there = kernel.identity(run)
                if (there.device, there.inode) != (here.st_dev, here.st_ino) or _is_there(kernel, root):
                    continue
            began = start_of(f"/proc/{pid}") / os.sysconf("SC_CLK_TCK")
        except TimeoutError as error:
            yield Fact(mute=pid, seen=[f"{error.filename}: {error.strerror}"])
            continue
        except OSError:  # it has ended, or may not be looked at
            continue
        if time.clock_gettime(time.CLOCK_BOOTTIME) - began > BEGINNING:
            yield Fact(hidden=pid, run=with_systemd("systemctl restart nvcd", without=(f"kill {pid}", "nvcd &")))


def _is_there(kernel: Kernel, root: int) -> bool:
    try:
        os.close(kernel.open_cached(root, SOCKET))
    except OSError:
        return False
    return True


def _restart(error: NvcError) -> tuple[str, ...]:
    """Commands that start nvcd, which does not answer."""
    stop = () if error.cause == NOT_RUNNING else ("nvcd --stop",)
    return with_systemd("systemctl restart nvcd", "journalctl -u nvcd -n 50", without=(*stop, "nvcd &"))


def _not_enforced(living: tuple[SliceStatus, ...]) -> Iterator[Fact]:
    """Policies in force on devices whose time nvcd, which answers, does not keep. Raises InitializationError."""
    shown = [device for one in living for device in one.devices if not device.hidden and not device.kept]
    for uuid, policy in {device.uuid: policy_of(device.policy) for device in shown}.items():
        if policy.needs_nvcd and not policy.server and by_shim(uuid):
            yield Fact(policy=policy.name, uuid=uuid)


def _suspension(context: Context) -> Iterator[Fact]:
    living = context.living()
    away = [(one, one.suspension) for one in living if one.suspension is not None]
    for one, how in away:
        if how.state == suspension.FAILED:
            yield Fact(failed=one.name, problem=how.problem)
    idle = _idle(f"{context.runtime_directory}/vgpu-policy")
    idle |= {device.uuid for one in living if one.entry.idle_suspend not in ("", OFF) for device in one.devices}
    if not away and not idle:
        return
    try:
        state = ask("state", PATIENCE)
    except NvcError as error:
        seen = first(f"slice {one.name} is {one.state}" for one, _ in away)
        yield Fact(silent=error, away=len(away), seen=seen, run=_restart(error))
        return
    if idle and read_text(PTRACE) == NOBODY_MAY:
        yield Fact(unseen=PTRACE)
    for device in state["devices"]:
        if device["uuid"] in idle and device["time"] != "by the driver":
            yield Fact(uuid=device["uuid"], kept=device["time"])
    here = [device for one in living if one.suspension is None for device in one.devices]
    used, free = sum(device.used for device in here if device.uuid in idle), _available() - suspension.HOST_SPARE
    swap = state["swap"]
    left = swap["size"] - swap["used"] + swap["kept"] if swap["size"] else free
    if left < used <= free:
        yield Fact(used=used >> 20, left=max(0, left) >> 20)
    elif used > free:
        yield Fact(used=used >> 20, free=max(0, free) >> 20)
    yield Fact(suspended=counted(len(away), "suspended slice"))


def _idle(base: str) -> set[str]:
    """UUIDs of the devices whose policy has idle-suspend. Raises PolicyError."""
    return {uuid for uuid in names_in(base) if not uuid.startswith(".") and policies.read(uuid).idle_s}


def _available() -> int:
    """Free memory of the host, bytes."""
    lines = (line.split() for line in lines_of(read_text("/proc/meminfo")))
    return next((int(words[1]) << 10 for words in lines if words[0] == "MemAvailable:"), 0)


WITHOUT = "without nvcd, only memory limits and caps hold"
NOTHING = "idle-suspend suspends nothing"
CHECKS = (
    Check("vgpu.daemon", "whether nvcd answers", _daemon, (
        Row(FAILED, f"process {{hidden}} is an nvcd that nobody reaches: {SOCKET} is not where it looks", "hidden",
            advice="its directory was removed"),
        Row(UNKNOWN, "process {mute} may be an nvcd that nobody reaches", "mute"),
        Row(OK, "nvcd does not run; no slice needs it", "idle"),
        Row(FAILED, "nvcd cannot be reached: {silent.path}: {silent.cause}", "needed", advice=WITHOUT),
        Row(WARNING, "nvcd cannot be reached: {silent.path}: {silent.cause}", "silent", advice=WITHOUT),
        Row(WARNING, f"the policy {{policy}} of {{uuid}} is not enforced: {SHIM}", "policy", run=("nvcd --state",),
            advice="docs/time.md says what that needs; until then, only memory limits and caps hold"),
        Row(OK, "nvcd answers"),
    )),
    Check("vgpu.suspension", "whether slices can be suspended, and come back", _suspension, (
        Row(FAILED, "slice {failed} is not back: {problem}", "failed", run=("nvc-cli vgpu resume {failed}",),
            advice="if that fails, end its processes"),
        Row(FAILED, "nvcd cannot be reached, and suspended slices stay so: {silent.cause}", "away"),
        Row(WARNING, NOTHING + ": nvcd cannot be reached: {silent.cause}", "silent"),
        Row(WARNING, NOTHING + ": nobody may look at programs' threads", "unseen", seen=("{unseen} is 3",),
            advice="boot with another value of kernel.yama.ptrace_scope"),
        Row(WARNING, NOTHING + " on {uuid}: its time is kept {kept}", "kept", run=("nvcd --state",),
            advice="docs/time.md says what that needs"),
        Row(WARNING, "not all slices can be suspended: they use {used} MiB, swap-size leaves {left} MiB",
            "left", advice="raise it in config.toml and restart nvcd, or turn idle-suspend off for some GPUs"),
        Row(WARNING, "not all slices can be suspended: they use {used} MiB, the host has {free} MiB for that",
            "used", advice="give the host more memory, or turn idle-suspend off for some GPUs"),
        Row(OK, "{suspended}"),
    )),
)  # fmt: skip
