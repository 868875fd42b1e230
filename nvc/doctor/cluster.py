"""What checks of a node of Kubernetes look at: what its plugin says and keeps, and what the API server has."""

from __future__ import annotations

import os

from nvc.doctor import Blocked
from nvc.errors import InputError
from nvc.kubernetes import record
from nvc.kubernetes.access import by_kubeconfig, in_cluster
from nvc.kubernetes.api import Api
from nvc.kubernetes.checkpoint import Checkpoint
from nvc.kubernetes.errors import CheckpointError
from nvc.kubernetes.give import Outlet
from nvc.kubernetes.publish import Publisher
from nvc.kubernetes.record import Record
from nvc.kubernetes.settings import DRA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from nvc.kubernetes.api import Server
    from nvc.kubernetes.claim import Allocation

AGENT = "nvc-cli doctor"
PATIENCE = 5.0  # seconds that an answer of the API server may take


class Node:
    """One node. Each fact is gathered once."""

    def __init__(self, state: str, kubeconfig: str, claim: str, environment: dict[str, str]) -> None:
        """`kubeconfig` and `claim`, NAMESPACE/NAME, may be "". Raises InputError for a claim without a slash."""
        self.state = state
        self.kubeconfig = kubeconfig
        self.namespace, slash, self.name = claim.partition("/")
        if claim and not (slash and self.namespace and self.name and "/" not in self.name):
            raise InputError("--claim", claim, "want NAMESPACE/NAME")
        self.environment = environment
        self.error: CheckpointError | None = None  # why the plugin's record cannot be read
        self.found: Record | None = None
        try:
            self.found = record.read(state)
        except CheckpointError as error:
            self.error = error
        self.api = Api(self._server, AGENT, PATIENCE)
        self._kept: dict[str, Any] = {}

    def _server(self) -> Server:
        path = self.kubeconfig or (self.found.kubeconfig if self.found else "")
        return by_kubeconfig(path) if path else in_cluster(self.environment)

    @property
    def record(self) -> Record:
        """What the plugin says of itself. Raises Blocked."""
        if self.found is None:
            raise Blocked("kubernetes.plugin")
        return self.found

    @property
    def outlet(self) -> Outlet:
        """Where it writes CDI documents."""
        return Outlet(self.record.cdi_dir, self.record.hook_path)

    def serves_dra(self) -> bool:
        """Whether it prepares claims."""
        return DRA in self.record.modes

    def answered(self, path: str) -> dict[str, Any]:
        """An object of the API server, asked for once. Raises ApiError, InputError."""
        if path not in self._kept:
            self._kept[path] = self.api.get(path)
        found: dict[str, Any] = self._kept[path]
        return found

    def slices(self) -> list[dict[str, Any]]:
        """The ResourceSlices that the plugin has published. Raises ApiError, InputError."""
        if "slices" not in self._kept:
            one = self.record
            self._kept["slices"] = Publisher(self.api, one.driver, one.node, lambda _: None).there()
        found: list[dict[str, Any]] = self._kept["slices"]
        return found

    def prepared(self) -> list[Allocation | CheckpointError]:
        """The prepared claims; in place of one that cannot be read, why. Raises CheckpointError."""
        if not os.path.isdir(f"{self.state}/claims"):
            return []
        if "prepared" not in self._kept:
            self._kept["prepared"] = list(Checkpoint(self.state).all())
        found: list[Allocation | CheckpointError] = self._kept["prepared"]
        return found

    def allocations(self) -> list[Allocation]:
        """The allocations that can be read."""
        return [one for one in self.prepared() if not isinstance(one, CheckpointError)]
