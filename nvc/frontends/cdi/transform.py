"""`cdi transform root`: the same document for a driver in another root directory."""

from __future__ import annotations

from typing import Any

from nvc.base.errors import InputError
from nvc.frontends.cdi.versions import lowest_version, order

#: Options of hooks whose value is a path in the container, and those with a path of the host.
_CONTAINER_ARGUMENTS = ("--folder", "--path", "--cuda-compat-container-root")
_HOST_ARGUMENTS = ("--driver-root", "--ldconfig-path")


def transform_root(document: dict[str, Any], old: str, new: str, relative_to: str) -> dict[str, Any]:
    """A copy of a valid document, with paths below `old` moved below `new`.

    `relative_to` chooses the paths: `host` for sources of mounts, nodes and hooks, `container` for targets. The
    copy's version is higher if it needs a newer one. Raises InputError for a root that is not absolute.
    """
    for root in (old, new):
        if not root.startswith("/") or "\0" in root:
            raise InputError("transform root", root, "want an absolute path")
    move = _Move(old.rstrip("/"), new.rstrip("/"), relative_to == "host")
    result = dict(document)
    if document.get("containerEdits"):
        result["containerEdits"] = move.edits(document["containerEdits"])
    result["devices"] = [
        {**device, "containerEdits": move.edits(device["containerEdits"])} for device in document["devices"]
    ]
    result["cdiVersion"] = max(document["cdiVersion"], lowest_version(result), key=order)
    return result


class _Move:
    def __init__(self, old: str, new: str, host: bool) -> None:
        self.old = old
        self.new = new
        self.host = host

    def path(self, path: str) -> str:
        """`path`, moved if it is `old` or below it. `/usr2` is not below `/usr`."""
        if path == self.old or path.startswith(self.old + "/"):
            return self.new + path[len(self.old) :] or "/"
        return path

    def edits(self, edits: dict[str, Any]) -> dict[str, Any]:
        result = dict(edits)
        for name, change in (("deviceNodes", self._node), ("mounts", self._mount), ("hooks", self._hook)):
            if edits.get(name):
                result[name] = [change(item) for item in edits[name]]
        return result

    def _node(self, node: dict[str, Any]) -> dict[str, Any]:
        if not self.host:
            moved = {**node, "path": self.path(node["path"])}
            if moved["path"] != node["path"]:  # its source has not moved
                moved.setdefault("hostPath", node["path"])
            return moved
        source = node.get("hostPath") or node["path"]
        moved_source = self.path(source)
        if moved_source == source:
            return node
        rest = {name: value for name, value in node.items() if name != "hostPath"}
        return rest if moved_source == node["path"] else {**rest, "hostPath": moved_source}

    def _mount(self, mount: dict[str, Any]) -> dict[str, Any]:
        key = "hostPath" if self.host else "containerPath"
        return {**mount, key: self.path(mount[key])}

    def _hook(self, hook: dict[str, Any]) -> dict[str, Any]:
        result = dict(hook)
        if self.host:
            result["path"] = self.path(hook["path"])
        if hook.get("args"):
            result["args"] = self._arguments(hook["args"])
        return result

    def _arguments(self, args: list[str]) -> list[str]:
        """Values of the options that name paths, in both spellings: `--folder=DIR` and `--folder DIR`."""
        moved = []
        option = ""
        for arg in args:
            name, equals, value = arg.partition("=")
            if option:
                moved.append(self._value(option, arg))
                option = ""
            elif equals and name.startswith("--"):
                moved.append(f"{name}={self._value(name, value)}")
            else:
                moved.append(arg)
                option = arg if arg in (*_CONTAINER_ARGUMENTS, *_HOST_ARGUMENTS, "--link") else ""
        return moved

    def _value(self, option: str, value: str) -> str:
        if option == "--link" and not self.host:
            target, colons, link = value.partition("::")
            return f"{self.path(target)}{colons}{self.path(link)}"
        wanted = _HOST_ARGUMENTS if self.host else _CONTAINER_ARGUMENTS
        return self.path(value) if option in wanted else value
