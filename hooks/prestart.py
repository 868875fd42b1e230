"""The hook itself: state and bundle become a request, `nvc.frontends.configure` does the work."""

from __future__ import annotations

import sys

from nvc.base.errors import ContainerError, InputError, NvcError, one_line
from nvc.base.program import say
from nvc.request.config import driver_options, load
from nvc.request.environment import is_known, request_from
from nvc.request.oci import HINT, read_container, read_state
from nvc_hooks.log import STANDARD_ERROR, open_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    from nvc.apply.again import Call
    from nvc.frontends.configure import RunLog
    from nvc.kernel import Kernel
    from nvc.request.config import Config
    from nvc.request.oci import Container, ContainerState

    #: The configuration file that was named, or "", and whether to log to standard error.
    Options: TypeAlias = tuple[str, bool]

#: As NVIDIA's hook says it: people search for these words.
NOT_SUPPORTED = (
    "invoking the NVIDIA Container Runtime Hook directly "
    "(e.g. specifying the docker --gpus flag) is not supported"
)


def run(command: str, call: Options) -> None:
    """Give the container on standard input what it asks for. Raises NvcError; it is then as it was."""
    named, debug = call
    config = load(named)
    log = open_log(STANDARD_ERROR if debug else config.log or config.cli_debug)
    try:
        log.step(f"{command} with {config.path or 'the default configuration'}")
        log.warnings(config.warnings)
        _inject(command, config, log, debug)
    except Exception as error:
        log.error(str(error) if isinstance(error, NvcError) else repr(error))
        raise


def _inject(command: str, config: Config, log: RunLog, debug: bool) -> None:
    state = read_state()
    log.step(f"bundle {state.bundle}, pid {state.pid}")
    container = read_container(state.bundle)
    notes: list[str] = []
    request = request_from(container, config, notes)
    log.warnings(tuple(notes))
    if request is None:
        log.step("no GPU is asked for")
        return
    _check_mode(config)
    again = _again(command, container, config, debug)

    from nvc.base.rundir import in_user_namespace
    from nvc.frontends.configure import Run, configure, opener
    from nvc.kernel import LinuxKernel, privileges

    if in_user_namespace():  # nobody may change a device cgroup there
        request = request.replace(cgroups=False)
    options = driver_options(config, request.imex_channels)
    kernel = LinuxKernel()
    privileges.reduce("configure", options.load_kmods, kernel)
    pid = _pid(kernel, command, state)
    opened = opener(kernel, pid, container.rootfs, (state.id, state.bundle))
    outcome = configure(Run(kernel, options, request, opened, log, last=True, again=again))
    log.step(f"{outcome.changes} changes")
    log.warnings(outcome.warnings)
    if not debug:  # only after success: engines show a hook's first line as the cause of its failure
        for warning in outcome.warnings:
            say("nvc-hook", f"warning: {one_line(warning)}")


def _again(command: str, container: Container, config: Config, debug: bool) -> Call | None:
    """This call for any container, where the launcher may be able to do it. None where something else decides.

    native/launcher/replay/hook.c reads the same of the bundle.
    """
    logs = debug or config.log or config.cli_debug
    asks = config.swarm_resource or any(
        "nvidia-container-devices" in one.destination for one in container.mounts
    )
    if command == "createContainer" or logs or asks:
        return None
    from nvc.apply.again import Call, settings_of

    # Others may be secrets, such as NVIDIA_API_KEY, and records stay.
    read = [f"{name}={value}" for name, value in container.environment.items() if is_known(name)]
    rights = "privileged" if container.privileged else "usual"
    return Call(("hook", *sys.argv[1:], rights, *read), settings_of(config))


def _check_mode(config: Config) -> None:
    """The other modes edit the bundle before the container exists: a hook comes too late for that."""
    if config.mode in ("csv", "cdi", "jit-cdi") and not config.skip_mode_detection:
        raise InputError(
            NOT_SUPPORTED, config.path, f'mode is "{config.mode}"',
            "use --runtime=nvc or --runtime=nvidia, or set skip-mode-detection in [nvidia-container-runtime-hook]",
        )  # fmt: skip


def _pid(kernel: Kernel, command: str, state: ContainerState) -> int:
    """Which process `configure` is to look at.

    A createContainer hook runs in the container's namespaces, with the host's file tree: it is itself of the
    container, and the state's pid is 1 (runc), 0 (crun) or as the container's namespace has it.
    """
    from nvc.apply.target import SELF, shares_mount_namespace

    if command != "createContainer":
        if state.pid <= 1:
            hint = "a createContainer hook calls `nvc-hook createContainer`" if state.pid else HINT
            raise ContainerError("read container state", "pid", f"{state.pid} is no container's", hint)
        return state.pid
    if state.pid and not shares_mount_namespace(kernel, state.pid):
        raise ContainerError(
            "open container", f"pid {state.pid}", "this hook runs outside of the container's namespaces",
            "only createContainer hooks call `nvc-hook createContainer`, others call `nvc-hook prestart`",
        )  # fmt: skip
    return SELF
