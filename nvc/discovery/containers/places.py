"""Where engines keep what they know of their containers: their defaults, and directories that their files name."""

from __future__ import annotations

import re

from nvc.base.value import Value
from nvc.discovery.containers.files import read_bytes, read_json, table

_SMALL = 1 << 20  # bytes of a configuration file


class Places(Value):
    """Directories of this host."""

    #: Docker's data roots: containers/ID/config.v2.json
    docker: tuple[str, ...] = ("/var/lib/docker",)
    #: Of Podman and CRI-O: DRIVER-containers/containers.json and DRIVER-containers/ID/userdata
    storage: tuple[str, ...] = ("/var/lib/containers/storage", "/run/containers/storage")
    #: State directories of containerd: io.containerd.runtime.v2.task/NAMESPACE/ID
    tasks: tuple[str, ...] = ("/run/containerd", "/run/docker/containerd/daemon")


def places(etc: str = "/etc") -> Places:
    """Where this host's engines keep their state, by their configuration below `etc`, else their defaults."""
    daemon = table(read_json(f"{etc}/docker/daemon.json"))
    storage = read_bytes(f"{etc}/containers/storage.conf", _SMALL)
    containerd = read_bytes(f"{etc}/containerd/config.toml", _SMALL)
    default = Places()
    exec_root = _absolute(daemon.get("exec-root"))
    return Places(
        _first(_absolute(daemon.get("data-root") or daemon.get("graph")), default.docker),
        _first(_toml(storage, b"graphroot"), _first(_toml(storage, b"runroot"), default.storage)),
        _first(
            _toml(containerd, b"state"),
            _first(f"{exec_root}/containerd/daemon" if exec_root else "", default.tasks),
        ),
    )


def _first(path: str, others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((path, *others))) if path else others


def _absolute(value: object) -> str:
    return value.rstrip("/") if type(value) is str and value.startswith("/") else ""


def _toml(data: bytes, key: bytes) -> str:
    """A path that a line of TOML sets: a parser takes ten times as long, and tables do not matter here."""
    found = re.search(rb"(?m)^[ \t]*" + key + rb'[ \t]*=[ \t]*["\'](/[^"\'\n]*)["\']', data)
    return _absolute(found[1].decode("utf-8", "surrogateescape")) if found else ""
