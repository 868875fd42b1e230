"""Which records of slices may be removed, and how a slice that runs is ended first."""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.discovery.containers import ContainerName
from nvc.model.slices.entry import Entry
from nvc.slices.store.liveness import Life


def check_ended(name: str, entry: Entry, container: ContainerName, life: Life | None, force: bool) -> None:
    """Refuse to remove the record of a slice that runs; raises InputError, which says how to end it.

    Its processes would run on without a weight or a policy, and nobody would see them. `force` removes one that
    only may run: of which no process is seen.
    """
    if life is None:
        return
    if not life.pids:
        if not force:
            raise InputError("remove slice", name, f"may run: {life.doubt}", "use --force")
        return
    first = entry.pid if entry.pid in life.pids else life.pids[0]
    more = f" and {len(life.pids) - 1} more" if len(life.pids) > 1 else ""
    hint = f"end it first: `{_end(container, first, bool(entry.rootfs))}`"
    raise InputError("remove slice", name, f"runs: process {first}{more}", hint)


def _end(container: ContainerName, pid: int, of_container: bool) -> str:
    """The command that ends a container, or a program whose first process is `pid`."""
    if container.pod:
        return f"kubectl delete pod {f'-n {container.namespace} ' if container.namespace else ''}{container.pod}"
    if container.engine in ("docker", "podman"):
        return f"{container.engine} kill {container.label}"
    if container.engine == "containerd":
        return f"ctr -n {container.realm or 'default'} tasks kill {container.id}"
    return f"kill -KILL {pid}" if of_container else f"kill {pid}"  # the first process ignores other signals
