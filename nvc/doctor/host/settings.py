"""This installation: its programs, its configuration, and what it keeps until the next boot."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from nvc.base.rundir import SYSTEM
from nvc.doctor import AS_ROOT, FAILED, OK, UNKNOWN, WARNING, Check, Fact, Row, aside
from nvc.doctor.context import Context
from nvc.request.config import PATHS, check_file

PROGRAMS = ("nvc-cli", "nvc-hook", "nvc-cdi-hook", "nvc-runtime")
REINSTALL = "install nvc again: `make install`, or the package"
_PLUGINS = "/var/lib/kubelet/device-plugins"


def _programs(context: Context) -> Iterator[Fact]:
    for path in [f"{context.programs}/{name}" for name in PROGRAMS if context.programs]:
        if not os.access(path, os.X_OK):
            yield Fact(missing=path)
    yield Fact(directory=context.programs)


def _file(context: Context) -> Iterator[Fact]:
    used, *others = [path for path in PATHS if os.path.exists(path)] or [""]
    warnings, errors = check_file(used) if used else ((), ())
    for error in errors:
        yield Fact(error=error, run=[error.hint] if error.hint.startswith("ch") else [], advice=error.hint)
    yield from (Fact(warning=text) for text in warnings)
    yield from (Fact(other=path, used=used) for path in others)
    yield Fact(used=used)


def _device_rules(context: Context) -> Iterator[Fact]:
    if context.config.no_cgroups and os.geteuid() == 0:
        yield Fact(path=context.config.path)


def _environment(context: Context) -> Iterator[Fact]:
    if context.config.accept_environment_unprivileged and os.path.isdir(_PLUGINS):
        yield Fact(plugins=_PLUGINS)


def _directory(context: Context) -> Iterator[Fact]:
    path = context.runtime_directory
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if os.geteuid() != 0 and path == SYSTEM:
        yield Fact(path=path, hidden=True)
    elif not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        yield Fact(path=path, problem="is not a directory of this user", run=[aside(path)])
    elif status.st_mode & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        yield Fact(path=path, problem=f"can be written by others (mode {mode:04o})", run=[f"chmod 700 {path}"])


FILE = (
    Check("install.programs", "the programs of this installation", _programs, (
        Row(FAILED, "{missing} is not a program: the installation is incomplete", "missing", advice=REINSTALL),
        Row(OK, "programs are in {directory}", "directory"),
        Row(UNKNOWN, "this code is not installed anywhere: there are no programs beside it"),
    )),
    Check("config.file", "the configuration file: readable, valid, no unknown keys", _file, (
        Row(FAILED, "{error.path}: {error.step}: {error.cause}", "error"),
        Row(WARNING, "{warning}", "warning", advice="see docs/configuration.md"),
        Row(WARNING, "{other} is not read, because there is {used}", "other",
            advice="put the settings in one of the two"),
        Row(OK, "the configuration is {used}", "used"),
        Row(OK, "without a configuration file, defaults apply"),
    )),
    Check("config.cgroups", "no-cgroups with containers of root", _device_rules, (
        Row(WARNING, "no-cgroups is set in {path}: containers of root cannot open their nodes",
            run=("sed -i 's/^ *no-cgroups *= *true/no-cgroups = false/' {path}",),
            advice="rootless engines do not need this setting"),
    )),
    Check("config.environment", "variables that bypass a device plugin", _environment, (
        Row(WARNING, "any pod can get every GPU with NVIDIA_VISIBLE_DEVICES, without the device plugin",
            seen=("{plugins} is there, and variables of unprivileged containers count",),
            advice="use CDI; or set accept-nvidia-visible-devices-envvar-when-unprivileged = false and "
            "accept-nvidia-visible-devices-as-volume-mounts = true, and forbid pods hostPath volumes"),
    )),
)  # fmt: skip
KEPT = (
    Check("inventory.directory", "the runtime directory: private to root", _directory, (
        Row(UNKNOWN, "{path} is root's", "hidden", advice=AS_ROOT),
        Row(FAILED, "{path} {problem}: container starts refuse to use it"),
    )),
)  # fmt: skip
