"""The configuration of nvc, and what it keeps until the next boot: the inventory and journals."""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
from collections.abc import Iterator

from nvc.apply.journal import kept, read_journal
from nvc.base.files import closing
from nvc.base.rundir import STATE, SYSTEM
from nvc.discovery.containers.files import names_in
from nvc.doctor import AS_ROOT, FAILED, OK, UNKNOWN, WARNING, Check, Fact, Row, aside, first
from nvc.doctor.context import Context
from nvc.request.config import PATHS, check_file

_PLUGINS = "/var/lib/kubelet/device-plugins"


def _file(context: Context) -> Iterator[Fact]:
    config, failure = context.config, context.config_error
    if failure is not None:
        yield Fact(error=failure, means="no container starts while the file is invalid",
                   advice=failure.hint,
                   run=[failure.hint] if failure.hint.startswith("ch") else [])  # fmt: skip
        return
    there = [path for path in PATHS if os.path.exists(path)]
    yield Fact(used=config.path, other=there[1] if len(there) > 1 else "")
    wrong = check_file(config.path)[1] if config.path else ()
    for one in wrong:
        yield Fact(error=one, means="programs that use this value do not start", advice=one.hint)
    for text in config.warnings:
        if not any(str(one.cause) in text for one in wrong):
            yield Fact(warning=text)


def _device_rules(context: Context) -> Iterator[Fact]:
    yield Fact(off=context.config.no_cgroups and os.geteuid() == 0, path=context.config.path)


def _environment(context: Context) -> Iterator[Fact]:
    yield Fact(open=context.config.accept_environment_unprivileged and os.path.isdir(_PLUGINS), plugins=_PLUGINS)


def _directory(context: Context) -> Iterator[Fact]:
    path = context.runtime_directory
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    yield Fact(
        path=path,
        hidden=os.geteuid() != 0 and path == SYSTEM,
        file=not stat.S_ISDIR(status.st_mode),
        owner=status.st_uid if status.st_uid != os.geteuid() else "",
        mode=f"{stat.S_IMODE(status.st_mode):04o}" if status.st_mode & 0o022 else "",
        aside=aside(path),
    )


def _journals(context: Context) -> Iterator[Fact]:
    left = []
    for base in (f"{context.runtime_directory}/containers", f"{STATE}/containers"):
        for name in [name for name in names_in(base) if not name.startswith(".")]:
            records = _left(f"{base}/{name}")
            rootfs, whole = kept(records)
            if rootfs and not whole:
                yield Fact(rootfs=rootfs, quoted=shlex.quote(rootfs), journal=f"{base}/{name}")
            elif records and not rootfs:
                left.append(f"{base}/{name}")
    if left:
        more = f" and {len(left) - 1} more say" if len(left) > 1 else " says"
        yield Fact(journal=left[0], more=more, seen=first(left), run=[aside(path) for path in left])


def _left(path: str) -> bytes:
    """The records of a journal that nobody is at work on."""
    try:
        with closing(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return read_journal(fd)
    except OSError:
        return b""


FILE = (
    Check("config.file", "the configuration file: readable, valid, no unknown keys", _file, (
        Row(FAILED, "{error.path}: {error.step}: {error.cause}", "error", seen=("{means}",), advice="{advice}"),
        Row(WARNING, "{warning}", "warning", advice="see docs/configuration.md"),
        Row(WARNING, "{other} is not read, because there is {used}", "other",
            advice="put the settings in one of the two"),
        Row(OK, "the configuration is {used}", "used"),
        Row(OK, "without a configuration file, defaults apply"),
    )),
    Check("config.cgroups", "no-cgroups with containers of root", _device_rules, (
        Row(WARNING, "no-cgroups is set in {path}: containers of root cannot open their nodes", "off",
            run=("sed -i 's/^ *no-cgroups *= *true/no-cgroups = false/' {path}",),
            advice="rootless engines do not need this setting"),
    )),
    Check("config.environment", "variables that bypass a device plugin", _environment, (
        Row(WARNING, "any pod can get every GPU with NVIDIA_VISIBLE_DEVICES, without the device plugin", "open",
            seen=("{plugins} is there, and variables of unprivileged containers count",),
            advice="set accept-nvidia-visible-devices-envvar-when-unprivileged = false and "
            "accept-nvidia-visible-devices-as-volume-mounts = true in /etc/nvc/config.toml, "
            "and forbid pods hostPath volumes; or use CDI"),
    )),
)  # fmt: skip
KEPT = (
    Check("inventory.directory", "the runtime directory: private to root", _directory, (
        Row(UNKNOWN, "{path} is root's", "hidden", advice=AS_ROOT),
        Row(FAILED, "{path} is not a directory: container starts refuse to use it", "file", run=("{aside}",)),
        Row(FAILED, "{path} belongs to user {owner}: container starts refuse to use it", lambda it: it.owner != "",
            run=("{aside}",)),
        Row(FAILED, "{path} can be written by others (mode {mode}): container starts refuse to use it", "mode",
            run=("chmod 700 {path}",)),
    )),
    Check("inventory.journals", "runs that were killed before they ended", _journals, (
        Row(WARNING, "a run was killed while it changed {rootfs}", "rootfs", seen=("{journal}",),
            run=("nvc-cli configure --undo {quoted}",)),
        Row(WARNING, "a run was killed while it changed a container: {journal}{more} what it did",
            advice="only if that container is gone; its next `nvc-cli configure` undoes it"),
    )),
)  # fmt: skip
