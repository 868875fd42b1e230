"""The configuration of nvc, and what it keeps until the next boot: the inventory and journals."""

from __future__ import annotations

import fcntl
import marshal
import os
import shlex
import stat

from nvc import inventory
from nvc.apply.journal import kept, read_journal
from nvc.config import PATHS, check_file, driver_options
from nvc.discovery.key import host_key, unchanged
from nvc.discovery.pack import pack
from nvc.doctor import AS_ROOT, Check, aside, failed, first, ok, unknown, warning
from nvc.rundir import STATE, SYSTEM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.doctor import Finding
    from nvc.doctor.context import Context
    from nvc.request import DriverOptions

_SHOWN = 8
_PLUGINS = "/var/lib/kubelet/device-plugins"


def file(context: Context) -> Iterator[Finding]:
    """Whether the configuration file can be read and makes sense."""
    error = context.config_error
    if error is not None:
        commands = (error.hint,) if error.hint.startswith("ch") else ()
        yield failed(
            f"{error.path}: {error.step}: {error.cause}",
            "no container starts while the file is invalid",
            commands=commands,
            advice=error.hint or "correct it; docs/configuration.md has every key",
        )
        return
    there = [path for path in PATHS if os.path.exists(path)]
    yield ok(
        f"the configuration is {context.config.path}" if there else "without a configuration file, defaults apply"
    )
    if len(there) > 1:
        yield warning(
            f"{there[1]} is not read, because there is {there[0]}", advice="put the settings in one of the two"
        )
    wrong = check_file(context.config.path)[1] if context.config.path else ()
    for one in wrong:
        yield failed(
            f"{one.path}: {one.step}: {one.cause}",
            "programs that use this value do not start",
            advice="correct it; docs/configuration.md has every key",
        )
    for text in context.config.warnings:
        if not any(str(one.cause) in text for one in wrong):
            yield warning(text, advice="see docs/configuration.md")


def device_rules(context: Context) -> Iterator[Finding]:
    """Whether device rules are switched off, as a rootless set-up wants and another does not."""
    if context.config.no_cgroups and os.geteuid() == 0:
        yield warning(
            f"no-cgroups is set in {context.config.path}: containers of root cannot open their nodes",
            commands=(f"sed -i 's/^ *no-cgroups *= *true/no-cgroups = false/' {context.config.path}",),
            advice="rootless engines do not need this setting",
        )


def environment(context: Context) -> Iterator[Finding]:
    """Whether any pod can take all GPUs by a variable of its image."""
    if context.config.accept_environment_unprivileged and os.path.isdir(_PLUGINS):
        yield warning(
            "any pod can get every GPU with NVIDIA_VISIBLE_DEVICES, without the device plugin",
            f"{_PLUGINS} is there, and variables of unprivileged containers count",
            advice="set accept-nvidia-visible-devices-envvar-when-unprivileged = false and "
            "accept-nvidia-visible-devices-as-volume-mounts = true in /etc/nvc/config.toml, "
            "and forbid pods hostPath volumes; or use CDI",
        )


def directory(context: Context) -> Iterator[Finding]:
    """Whether the runtime directory is one that can be trusted."""
    path = context.runtime_directory
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        yield ok(f"there is no inventory yet in {path}")
        return
    wrong = ""
    if os.geteuid() != 0 and path == SYSTEM:
        yield unknown(f"{path} is root's", advice=AS_ROOT)
    elif not stat.S_ISDIR(status.st_mode):
        wrong = "is not a directory"
    elif status.st_uid != os.geteuid():
        wrong = f"belongs to user {status.st_uid}"
    elif status.st_mode & 0o022:
        wrong = f"can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    if wrong:
        remedy = (aside(path),) if "can be" not in wrong else (f"chmod 700 {path}",)
        yield failed(f"{path} {wrong}: container starts refuse to use it", commands=remedy)


def _names(base: str) -> tuple[list[str], list[Finding]]:
    """What is in a directory, nothing if there is none; and what is to be said where that cannot be told."""
    try:
        return sorted(os.listdir(base)), []
    except FileNotFoundError:
        return [], []
    except PermissionError:
        return [], [unknown(f"{base} cannot be read", advice=AS_ROOT)]


def trust(context: Context) -> Iterator[Finding]:
    """Whether each file of the inventory counts."""
    base = context.runtime_directory
    names, findings = _names(base)
    yield from findings
    wrong = []
    for name in names:
        if not name.startswith("inventory-"):
            continue
        status = os.lstat(f"{base}/{name}")
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            wrong.append((f"{base}/{name}", "others could have written it"))
        elif inventory.load(name, base) is None:
            wrong.append((f"{base}/{name}", "it is damaged, or of another version of Python"))
    if wrong:
        more = f", and {len(wrong) - 1} more," if len(wrong) > 1 else ""
        yield warning(
            f"{wrong[0][0]}{more} is not used: {wrong[0][1]}; each container start asks the driver",
            *first((f"{path}: {why}" for path, why in wrong), _SHOWN),
            commands=tuple(aside(path) for path, _ in wrong),
        )


def stale(context: Context) -> Iterator[Finding]:
    """Whether the inventory says what the driver says now, wherever it would be believed."""
    facts = context.facts
    base = context.runtime_directory
    root = os.fstat(context.host.driver.fd)
    fresh = marshal.loads(marshal.dumps(pack(facts)))
    for apart, options in ((False, context.options), (True, driver_options(context.config))):
        name = inventory.file_name(root, apart)
        kept = inventory.load(name, base)
        if not isinstance(kept, tuple) or len(kept) != 4:
            continue
        if apart and options.root != context.root or not _believed(context, options, kept):
            continue
        fields = [field for field, one, two in zip(facts._fields, kept[2], fresh) if one != two]
        if "warnings" in fields:
            fields.remove("warnings")
        if fields:
            yield failed(
                f"the inventory {base}/{name} is out of date: it differs in {', '.join(fields)}",
                commands=(aside(f"{base}/{name}"),),
                advice="please report it: nvc should have noticed",
            )
        else:
            yield ok(f"the inventory {base}/{name} is up to date")


def _believed(context: Context, options: DriverOptions, kept: tuple[object, ...]) -> bool:
    """Whether the next container start would go by it."""
    key = host_key(context.host, options, options.configuration)
    fingerprints: object = kept[1]
    return kept[0] == key and isinstance(fingerprints, tuple) and unchanged(context.host.driver, fingerprints)


def journals(context: Context) -> Iterator[Finding]:
    """Whether a run was killed while it changed a container."""
    left = []
    for base in (f"{context.runtime_directory}/containers", f"{STATE}/containers"):
        names, findings = _names(base)
        yield from findings
        for name in names[:4096]:
            records = _left(f"{base}/{name}")
            rootfs, whole = kept(records)
            if rootfs and not whole and not name.startswith("."):
                yield warning(
                    f"a run was killed while it changed {rootfs}",
                    f"{base}/{name}",
                    commands=(f"nvc-cli configure --undo {shlex.quote(rootfs)}",),
                )
            elif records and not rootfs and not name.startswith("."):
                left.append(f"{base}/{name}")
    if left:
        more = f" and {len(left) - 1} more say" if len(left) > 1 else " says"
        yield warning(
            f"a run was killed while it changed a container: {left[0]}{more} what it did",
            *first(left, _SHOWN),
            commands=tuple(aside(path) for path in left),
            advice="only if that container is gone; its next `nvc-cli configure` undoes it",
        )


def _left(path: str) -> bytes:
    """The records of a journal that nobody is at work on."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return read_journal(fd)
    except OSError:
        return b""
    finally:
        os.close(fd)


FILE = (
    Check("config.file", "the configuration file: readable, valid, no unknown keys", file),
    Check("config.cgroups", "no-cgroups with containers of root", device_rules),
    Check("config.environment", "variables that bypass a device plugin", environment),
)
KEPT = (
    Check("inventory.directory", "the runtime directory: private to root", directory),
    Check("inventory.trust", "files of the inventory that nvc does not trust", trust),
    Check("inventory.stale", "whether the inventory is up to date", stale),
    Check("inventory.journals", "runs that were killed before they ended", journals),
)
