"""edit: the bundle of a container that asks for GPUs is changed so that it gets them, any other left alone.

By the hook (modes hook, legacy and, for plain selectors, auto): a prestart hook is added, which gives the
container its files, and the device nodes and rules go into the configuration. There they survive what rewrites
the device list later: `docker update`, or systemd's daemon-reload.

By CDI (modes cdi, jit-cdi and, for qualified names, auto): the edits of a specification that is made for this
container, or of the specification files for other vendors' devices, are applied as an engine would.
"""

from __future__ import annotations

from nvc.base.errors import ContainerError
from nvc.base.fastjson import parse, write
from nvc.frontends.runtime import bundle as files
from nvc.frontends.runtime.choice import choose
from nvc.request.oci import MAX_CONFIG, Malformed, container_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.frontends.configure import Log
    from nvc.request.config import Config


def is_gvisor(runtime: str) -> bool:
    """Whether the low-level runtime at this path is gVisor's, under its name or with more after it."""
    return runtime[runtime.rfind("/") + 1 :].startswith("runsc")


def edit(config: Config, bundle: str, path: str, programs: str, log: Log, gvisor: bool = False) -> bool:
    """Edit the configuration `path` of `bundle`; whether it has been changed. Raises NvcError, nothing changed.

    `programs` is the directory of nvc-hook and nvc-cdi-hook; `gvisor`: the runtime is_gvisor.
    """
    source = files.read_source(path)
    try:
        document = parse(source.data, MAX_CONFIG)
        container = container_of(document, bundle)
        notes = list(config.warnings)
        choice = choose(container, config, notes)
        for note in notes:
            log.step(note)
        if choice is None:
            log.step(f"{bundle}: no GPU is asked for")
            return False
        # Most containers ask for nothing: they do not wait for what only the others need.
        from nvc.frontends.runtime.give import give

        give(config, document, choice, programs, log, gvisor)
        data = write(document, source.data)
    except (ValueError, Malformed) as error:
        raise ContainerError(files.STEP, source.path, error) from None
    if document == parse(source.data, MAX_CONFIG):
        log.step(f"{source.path}: nothing to add")
        return False
    files.replace(source, data)
    log.step(f"{source.path}: edited, mode {choice.mode}")
    return True
