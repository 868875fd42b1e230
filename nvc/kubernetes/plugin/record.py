"""What the plugin of a node says of itself in STATE/plugin.json, for `nvc-cli doctor`.

It names where the plugin serves, and what the kubelet has answered. The installer keeps the version that it names.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import nvc
from nvc.base.files import replace_file
from nvc.base.value import Value
from nvc.kubernetes.errors import CheckpointError
from nvc.kubernetes.plugin.settings import Settings

FILE_MAX = 1 << 16


class Record(Value):
    """One plugin, as it was when this last changed."""

    version: str
    node: str
    driver: str
    modes: tuple[str, ...]
    root: str  # of the driver
    cdi_dir: str
    hook_path: str
    registry_dir: str  # kubelet's directories
    device_plugin_dir: str
    endpoint: str  # the DRA driver's socket, and the one that it registers at; "": it is not served
    registration: str
    kubeconfig: str
    front: int = 0  # the process that the kubelet talks to
    shares: bool = True  # slices are made on the host, before containers start
    registered: bool = False  # the kubelet has said so
    refused: str = ""  # why it has not
    offered: tuple[str, ...] = ()  # resources of the device plugin
    resources: tuple[str, ...] = ()  # those that the kubelet has registered


def path_of(state: str) -> str:
    """The file in a state directory."""
    return f"{state}/plugin.json"


def read(state: str) -> Record | None:
    """The record of the plugin with this state directory; None: none has run. Raises CheckpointError."""
    path = path_of(state)
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read(FILE_MAX))
        lists = {name: tuple(map(str, data[name])) for name in ("modes", "offered", "resources")}
        return Record(**{**data, **lists})
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError.of("read", path, error) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError("read", path, f"not as this version writes it: {error}") from None


class Recorder:
    """Keeps the file of one plugin. Used by any thread."""

    def __init__(self, settings: Settings, root: str, hook_path: str, log: Callable[[str], None]) -> None:
        self.state = settings.state_dir
        self.log = log
        self._lock = threading.Lock()
        self._written: Record | None = None
        self._now = Record(
            nvc.__version__, settings.node_name, settings.driver_name, (), root, settings.cdi_dir, hook_path,
            settings.registry_dir, settings.device_plugin_dir, "", "", settings.kubeconfig, settings.front,
        )  # fmt: skip
        try:
            before = read(self.state)
        except CheckpointError:
            before = None
        if before is not None and before.front == settings.front:  # a worker before this one has heard it
            self._now = self._now.replace(registered=before.registered, refused=before.refused)

    def note(self, **changes: object) -> None:
        """Keep these fields. A file that cannot be written is no reason to serve nobody: it is logged."""
        with self._lock:
            self._now = self._now.replace(**changes)
            if self._now == self._written:
                return
            path = path_of(self.state)
            try:
                data = json.dumps(dict(zip(self._now._fields, self._now))).encode()
                replace_file(path, data, 0o644, sync=False)
                self._written = self._now
            except OSError as error:
                self.log(CheckpointError.of("write", path, error).line())
