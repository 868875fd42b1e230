"""From the id of a container, and what else is known of it, to what its engine calls it."""

from __future__ import annotations

import os
from operator import itemgetter

from nvc.base.types import Any
from nvc.base.value import Value
from nvc.discovery.containers import ContainerName, is_long_id
from nvc.discovery.containers.cgroup import ids_in
from nvc.discovery.containers.files import names_in, read_json, table, text
from nvc.discovery.containers.places import Places, places

TASKS = "io.containerd.runtime.v2.task"
STORED = "-containers"  # of containers/storage: overlay-containers, vfs-containers
#: containerd's namespace of the containers that Docker starts.
MOBY = "moby"
#: Annotations and labels for the name of a container, its pod, and the pod's namespace.
_PODS = (
    ("containerd", "io.kubernetes.cri.container-name", "io.kubernetes.cri.sandbox-name",
     "io.kubernetes.cri.sandbox-namespace"),
    ("cri-o", "io.kubernetes.container.name", "io.kubernetes.pod.name", "io.kubernetes.pod.namespace"),
)  # fmt: skip
#: What containerd and CRI-O call the container of a pod's sandbox.
_OF_SANDBOXES = ("", "POD")
_NERDCTL = "nerdctl/name"
_IN_ID = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+-.")


class Trace(Value):
    """What is known of a container from its start."""

    id: str = ""  # of its runtime
    bundle: str = ""  # directory of its OCI configuration
    cgroup: str = ""  # path, where no id is known


class Lookup:
    """Names of containers. Files and names that were found are kept: make a new one to look again."""

    def __init__(self, where: Places | None = None) -> None:
        self._where = where
        self._stored: dict[str, dict[str, str]] = {}
        self._found: dict[Trace, ContainerName] = {}

    def of(self, trace: Trace) -> ContainerName:
        """What the container is called; where no engine here knows it, its plain id. Never raises."""
        if trace in self._found:
            return self._found[trace]
        ids = (trace.id,) if trace.id else ids_in(trace.cgroup)
        for id in ids:
            if id and _IN_ID.issuperset(id) and id.strip(".") and len(id) <= 255:
                found = self._named(id, trace.bundle)
                if found.name:
                    self._found[trace] = found
                    return found
        plain = trace.id or next(filter(is_long_id, ids), "")
        return ContainerName(id=text(plain))

    def _named(self, id: str, bundle: str) -> ContainerName:
        plain = ContainerName(id=text(id))
        for place in [bundle] if bundle else self._bundles(id):
            found = self._by_bundle(id, place)
            if found.name:
                return found
        for root in self.where.docker:
            found = _docker(f"{root}/containers/{id}", id)
            if found.name:
                return found
        for root in self.where.storage:
            for name in _drivers(_seen(root)):
                found = self._by_storage(f"{root}/{name}", id, table(None))
                if found.name:
                    return found
        return plain

    @property
    def where(self) -> Places:
        """Where engines are looked for; their configuration is read once."""
        if self._where is None:
            self._where = places()
        return self._where

    def _bundles(self, id: str) -> list[str]:
        found = []
        for root in self.where.tasks:
            found += [f"{root}/{TASKS}/{realm}/{id}" for realm in _seen(f"{root}/{TASKS}")]
        for root in self.where.storage:
            found += [f"{root}/{name}/{id}/userdata" for name in _drivers(_seen(root))]
        return [path for path in found if os.path.isdir(path)]

    def _by_bundle(self, id: str, bundle: str) -> ContainerName:
        """By the OCI configuration, and by what its engine keeps beside it."""
        config = table(read_json(f"{bundle}/config.json"))
        notes = table(config.get("annotations"))
        parts = bundle.split("/")
        if parts[-3:-2] == [TASKS] and parts[-2] == MOBY:
            return _docker(_directory_of(config, id), id)
        if parts[-3:-2] == [TASKS]:
            found = _in_pod(_PODS[0], notes, id)
            # Who starts one by `ctr` chooses its id.
            name = found.name or text(notes.get(_NERDCTL)) or ("" if is_long_id(id) else text(id))
            return found.replace(name=name, engine="containerd", realm=text(parts[-2]))
        if parts[-1:] == ["userdata"] and parts[-2] == id and parts[-3].endswith(STORED):
            return self._by_storage(os.path.dirname(os.path.dirname(bundle)), id, notes)
        return ContainerName()

    def _by_storage(self, directory: str, id: str, notes: dict[str, Any]) -> ContainerName:
        """The name of a container of CRI-O, whose annotations name a pod, or else of Podman."""
        notes = notes or table(table(read_json(f"{directory}/{id}/userdata/config.json")).get("annotations"))
        found = _in_pod(_PODS[1], notes, id)
        if found.name:
            return found
        name = self._names_in_storage(directory).get(id, "")
        if not name:
            return ContainerName()
        return ContainerName("podman", text(id), name)

    def _names_in_storage(self, directory: str) -> dict[str, str]:
        if directory not in self._stored:
            self._stored[directory] = {
                entry["id"]: text(entry["names"][0])
                for name in ("containers.json", "volatile-containers.json")  # the second: those of `run --rm`
                for known in [read_json(f"{directory}/{name}")]
                for entry in (known if type(known) is list else ())
                if type(entry) is dict and type(entry.get("id")) is str
                and type(entry.get("names")) is list and entry["names"]
            }  # fmt: skip
        return self._stored[directory]

    def ids_of(self, name: str) -> tuple[list[str], OSError | None]:
        """Ids of the containers that an engine here knows by this name; also of rootless Podman.

        The sandbox of a pod, which holds its namespaces and is no container of a user's, comes after the others.
        Other users' directories that cannot be read are left out, and the first error is returned. Raises OSError
        for others, which may have a container of this name.
        """
        found: list[tuple[bool, str]] = []
        unread: OSError | None = None

        def names(directory: str, of_users: bool = False) -> list[str]:
            nonlocal unread
            try:
                return names_in(directory)
            except OSError as error:
                if not of_users and not (isinstance(error, PermissionError) and os.geteuid()):
                    raise
                unread = unread or error
                return []

        def add(id: str, known: ContainerName) -> None:
            if name in known.aliases:
                found.append((bool(known.pod) and known.name in _OF_SANDBOXES, id))

        for root in self.where.docker:
            for id in names(f"{root}/containers"):
                add(id, _docker(f"{root}/containers/{id}", id))
        for root in self.where.tasks:
            for realm in names(f"{root}/{TASKS}"):
                for id in names(f"{root}/{TASKS}/{realm}"):
                    add(id, self._by_bundle(id, f"{root}/{TASKS}/{realm}/{id}"))
        homes = [f"/home/{user}/.local/share/containers/storage" for user in names("/home", True)]
        for root in (*self.where.storage, *homes):
            for driver in _drivers(names(root, root in homes)):
                for id in names(f"{root}/{driver}", root in homes):
                    add(id, self._by_storage(f"{root}/{driver}", id, {}))
        return list(dict.fromkeys(id for _, id in sorted(found, key=itemgetter(0)))), unread


def _seen(directory: str) -> list[str]:
    """The names in a directory, as far as it can be read: a container whose name is not found goes by its id."""
    try:
        return names_in(directory)
    except OSError:
        return []


def _drivers(names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(STORED)]


def _in_pod(keys: tuple[str, str, str, str], notes: dict[str, Any], id: str) -> ContainerName:
    engine, container, pod, namespace = keys
    return ContainerName(
        engine, text(id), text(notes.get(container)), text(notes.get(pod)), text(notes.get(namespace))
    )


def _docker(directory: str, id: str) -> ContainerName:
    """By what dockerd keeps in a container's directory; cri-dockerd has the pod in labels."""
    known = table(read_json(f"{directory}/config.v2.json")) if directory else {}
    labels = table(table(known.get("Config")).get("Labels"))
    pod = _in_pod(_PODS[1], labels, id)
    if pod.name:
        return ContainerName("docker", pod.id, pod.name, pod.pod, pod.namespace)
    name = text(known.get("Name")).removeprefix("/")
    return ContainerName("docker", text(id), name) if name else ContainerName()


def _directory_of(config: dict[str, Any], id: str) -> str:
    """Docker's directory of a container, whatever its data root: resolv.conf is mounted from there."""
    mounts = config.get("mounts")
    for mount in mounts if type(mounts) is list else ():
        source = table(mount).get("source")
        directory = os.path.dirname(source) if type(source) is str else ""
        if os.path.basename(directory) == id and directory.startswith("/"):
            return directory
    return ""
