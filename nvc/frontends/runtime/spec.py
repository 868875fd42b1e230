"""Edits of an OCI configuration, pure. Each is made once: what already exists stays as it is."""

from __future__ import annotations

import posixpath

from nvc.base.types import Any
from nvc.request.oci import Malformed

#: The programs whose hooks give a container its GPUs: ours, and NVIDIA's under its two names.
GIVERS = ("nvc-hook", "nvidia-container-runtime-hook", "nvidia-container-toolkit")
NODE_KEYS = ("path", "type", "major", "minor", "fileMode", "uid", "gid")
HOOK_KEYS = ("path", "args", "env", "timeout")
EARLY = ("prestart", "createRuntime")


class Spec:
    """A configuration in `document`, which is changed in place. Raises Malformed for a key of the wrong type."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.linux = self._table(document, "linux")

    @staticmethod
    def _table(table: dict[str, Any], name: str) -> dict[str, Any]:
        if table.get(name) is None:
            table[name] = {}
        if type(table[name]) is not dict:
            raise Malformed(f"{name} is of the wrong type")
        return table[name]

    @staticmethod
    def _list(table: dict[str, Any], name: str) -> list[Any]:
        if table.get(name) is None:
            table[name] = []
        if type(table[name]) is not list:
            raise Malformed(f"{name} is of the wrong type")
        return table[name]

    @property
    def user_namespace(self) -> bool:
        """Whether the container has one of its own: its runtime then binds the host's nodes, and makes none."""
        spaces = self.linux.get("namespaces")
        return type(spaces) is list and any(
            type(space) is dict and space.get("type") == "user" for space in spaces
        )

    def gives_gpus(self) -> bool:
        """Whether a hook that does so is there."""
        hooks = self.document.get("hooks")
        if type(hooks) is not dict:
            return False
        return any(_gives(entry) for kind in EARLY for entry in _entries(hooks, kind))

    def add_hook(self, kind: str, entry: dict[str, Any]) -> None:
        """Append a hook."""
        entries = self._list(self._table(self.document, "hooks"), kind)
        if entry not in entries:
            entries.append(entry)

    def remove_givers(self) -> None:
        """Take out the hooks that give GPUs: a container that has them by CDI must not get them twice."""
        if self.gives_gpus():
            hooks = self.document["hooks"]
            for kind in EARLY:
                if kind in hooks:
                    hooks[kind] = [entry for entry in _entries(hooks, kind) if not _gives(entry)]

    def add_node(self, node: dict[str, Any]) -> None:
        """Have the runtime make a device node; one at the same path is replaced unless it is the same device."""
        nodes = self._list(self.linux, "devices")
        for place, there in enumerate(nodes):
            if type(there) is dict and there.get("path") == node["path"]:
                if any(there.get(key) != node[key] for key in ("major", "minor")):
                    nodes[place] = node
                return
        nodes.append(node)

    def allow(self, major: int, minor: int, access: str = "rw") -> None:
        """Let the container use character device `major`:`minor`.

        The last rule that fits decides. Where there is no rule, runtimes differ in what that means; then it is
        left to the hook, which sees what the container's cgroup really does.
        """
        rules = self._list(self._table(self.linux, "resources"), "devices")
        if not rules:
            return
        rule = {"allow": True, "type": "c", "major": major, "minor": minor, "access": access}
        for there in reversed(rules):
            if type(there) is not dict or not there.get("allow"):
                break
            if there == rule:
                return
        rules.append(rule)

    def add_mount(self, mount: dict[str, Any]) -> None:
        """Add a mount; one at the same place is replaced."""
        mounts = self._list(self.document, "mounts")
        for place, there in enumerate(mounts):
            if type(there) is dict and there.get("destination") == mount["destination"]:
                mounts[place] = mount
                return
        mounts.append(mount)

    def set_variable(self, entry: str) -> None:
        """Set `NAME=value` for the container's process."""
        variables = self._list(self._table(self.document, "process"), "env")
        name = entry.partition("=")[0] + "="
        kept = [there for there in variables if not (type(there) is str and there.startswith(name))]
        variables[:] = [*kept, entry]

    def add_groups(self, groups: list[int]) -> None:
        """Add supplementary groups to the container's process."""
        user = self._table(self._table(self.document, "process"), "user")
        there = self._list(user, "additionalGids")
        there += [group for group in groups if group and group not in there]


def _entries(hooks: dict[str, Any], kind: str) -> list[Any]:
    entries = hooks.get(kind)
    return entries if type(entries) is list else []


def _gives(entry: Any) -> bool:
    path = entry.get("path") if type(entry) is dict else None
    return type(path) is str and posixpath.basename(path) in GIVERS


def _picked(entry: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: entry[name] for name in names if name in entry}


def apply_edits(spec: Spec, edits: dict[str, Any]) -> None:
    """Do what the `containerEdits` of a CDI document say, as engines do it. Nodes have their numbers."""
    for entry in edits.get("env") or ():
        spec.set_variable(entry)
    for node in edits.get("deviceNodes") or ():
        if spec.user_namespace and node.get("hostPath", node["path"]) != node["path"]:
            # Runtimes cannot make nodes there, and bind the host's of the same path.
            from nvc.plan.ops import NODES, options_of

            source, options = node["hostPath"], ["bind", *options_of(NODES)]
            bind = {"destination": node["path"], "source": source, "type": "bind", "options": options}
            spec.add_mount(bind)
        else:
            spec.add_node(_picked(node, NODE_KEYS))
        if node.get("type", "c") == "c":
            spec.allow(node["major"], node["minor"], node.get("permissions") or "rwm")
    for mount in edits.get("mounts") or ():
        entry = {"destination": mount["containerPath"], "source": mount["hostPath"]}
        entry["type"] = mount.get("type") or "bind"
        entry["options"] = list(mount.get("options") or ["rbind"])
        spec.add_mount(entry)
    for hook in edits.get("hooks") or ():
        spec.add_hook(hook["hookName"], _picked(hook, HOOK_KEYS))
    if edits.get("additionalGids"):
        spec.add_groups(edits["additionalGids"])
