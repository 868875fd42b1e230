"""Ids of containers in the paths of cgroups. Pure."""

from __future__ import annotations

from nvc.discovery.containers import is_long_id

#: What drivers of cgroups put before an id.
_PREFIXES = ("cri-containerd-", "docker-", "crio-", "libpod-", "nerdctl-")


def ids_in(path: str) -> tuple[str, ...]:
    """Ids that the path of a cgroup may have, the likeliest first.

    docker-ID.scope, crio-ID.scope, libpod-ID.scope, ...slice:cri-containerd:ID, .../ID, .../ID/container
    """
    parts = [part.removesuffix(".scope") for part in path.split("/") if part]
    if parts[-1:] == ["container"] and len(parts) > 1:
        del parts[-1]  # of Podman and CRI-O: not the group of their monitor
    found = _ids_of(parts[-1]) if parts else ()  # further up are those that this one is nested in
    return tuple(sorted(found, key=lambda id: not is_long_id(id)))


def _ids_of(part: str) -> tuple[str, ...]:
    last = part.rpartition(":")[2]
    bare = next((last.removeprefix(prefix) for prefix in _PREFIXES if last.startswith(prefix)), last)
    return tuple(dict.fromkeys((bare, bare.rpartition("-")[2], part)))
