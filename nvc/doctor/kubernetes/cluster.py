"""What checks of a node of Kubernetes look at: what its plugin says and keeps, and what the API server has."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from nvc.base.errors import InputError
from nvc.doctor import Blocked
from nvc.doctor.context import Context
from nvc.kubernetes.api.access import by_kubeconfig, in_cluster
from nvc.kubernetes.api.client import Api, Server
from nvc.kubernetes.api.publish import Publisher
from nvc.kubernetes.claims.checkpoint import Checkpoint
from nvc.kubernetes.claims.claim import Allocation
from nvc.kubernetes.claims.give import Outlet
from nvc.kubernetes.errors import ApiError, CheckpointError
from nvc.kubernetes.names import CLAIMS
from nvc.kubernetes.plugin import record
from nvc.kubernetes.plugin.record import Record
from nvc.kubernetes.plugin.settings import DRA

AGENT = "nvc-cli doctor"
PATIENCE = 5.0  # seconds that an answer of the API server may take


class Node:
    """One node. Each fact is gathered once."""

    def __init__(self, state: str, kubeconfig: str, claim: str, environment: dict[str, str]) -> None:
        """`kubeconfig` and `claim`, NAMESPACE/NAME, may be "". Raises InputError for a claim without a slash."""
        self.state = state
        self.kubeconfig = kubeconfig
        self.namespace, _, self.name = claim.partition("/")
        if claim and not (self.namespace and self.name and "/" not in self.name):
            raise InputError("--claim", claim, "want NAMESPACE/NAME")
        self.environment = environment
        self.error: CheckpointError | None = None  # why the plugin's record cannot be read
        self.found: Record | None = None
        try:
            self.found = record.read(state)
        except CheckpointError as error:
            self.error = error
        self.api = Api(self._server, AGENT, PATIENCE)

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

    @property
    def prepares(self) -> bool:
        """Whether it prepares claims."""
        return DRA in self.record.modes

    @cached_property
    def claim(self) -> dict[str, Any]:
        """The claim as the API server has it, {} where there is none. Raises Blocked."""
        try:
            return self.api.get(CLAIMS.format(self.namespace, self.name))
        except (ApiError, InputError) as error:
            if isinstance(error, ApiError) and error.status == 404:
                return {}
            raise Blocked("kubernetes.api") from None

    @cached_property
    def slices(self) -> list[dict[str, Any]]:
        """The ResourceSlices that the plugin has published; none where it prepares no claims. Raises Blocked."""
        if not self.prepares:
            return []
        try:
            return Publisher(self.api, self.record.driver, self.record.node, lambda _: None).there()
        except (ApiError, InputError):
            raise Blocked("kubernetes.api") from None

    @property
    def devices(self) -> list[dict[str, Any]]:
        """The devices that it has published. Raises Blocked."""
        return [device for one in self.slices for device in one.get("spec", {}).get("devices") or ()]

    @cached_property
    def prepared(self) -> list[Allocation | CheckpointError]:
        """The prepared claims; in place of one that cannot be read, why. Raises CheckpointError."""
        return list(Checkpoint(self.state).all()) if os.path.isdir(f"{self.state}/claims") else []

    @property
    def allocations(self) -> list[Allocation]:
        """The allocations that can be read."""
        return [one for one in self.prepared if not isinstance(one, CheckpointError)]


def node_of(context: Context) -> Node:
    """The node that is looked at."""
    assert context.node is not None
    return context.node
