"""Preparing claims: idempotent, one at a time, and right again after the process was killed at any point.

The order of a preparation is: remember the claim, make its slices, write its CDI documents. The other way round:
remove the documents, remove the slices, forget the claim. Whatever a killed plugin left is thus either complete, or
found by what is remembered.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading

from nvc.errors import InputError, NvcError, unforeseen
from nvc.kubernetes import give
from nvc.kubernetes.checkpoint import Checkpoint, is_uid
from nvc.kubernetes.claim import STEP, allocation_of, cause_of
from nvc.kubernetes.devices import ALL_CORES
from nvc.kubernetes.errors import ApiError, CheckpointError, ClaimError
from nvc.kubernetes.holdings import Held
from nvc.kubernetes.names import CLAIMS
from nvc.slices.store import claims

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from nvc.kernel import Kernel
    from nvc.kubernetes.api import Api
    from nvc.kubernetes.claim import Allocation
    from nvc.kubernetes.devices import Device
    from nvc.kubernetes.give import Outlet
    from nvc.model import HostFacts
    from nvc.request import DriverOptions, SliceRequest

_IN_NAME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-.")
_NAME_MAX = 253
CAP_SYS_ADMIN = 21  # capabilities(7)
#: Answers that say nothing about the claim.
_UNSETTLED = (0, 408, 429, 500, 502, 503, 504)


class Host:
    """The node's driver: facts and devices of now."""

    def __init__(
        self,
        kernel: Kernel,
        options: DriverOptions,
        discover: Callable[[Kernel, DriverOptions], HostFacts],
        devices: Callable[[HostFacts], tuple[Device, ...]],
    ) -> None:
        self.kernel = kernel
        self.options = options
        self._discover = discover
        self._devices = devices

    def look(self) -> tuple[HostFacts, dict[str, Device]]:
        """Facts, and devices by name. Raises NvcError."""
        facts = self._discover(self.kernel, self.options)
        return facts, {device.name: device for device in self._devices(facts)}


class Preparer:
    """Prepares the claims of one driver on this node. Its methods may be called from any thread."""

    def __init__(
        self,
        host: Host,
        api: Api,
        driver: str,
        state: str,
        outlet: Outlet,
        bounds: SliceRequest,
        admit: Callable[[Allocation], None],
    ) -> None:
        """`bounds` is what the operator grants. `admit` raises ClaimError where something else has the devices.

        Who gives devices to others holds `giving` from the look at claims until that is known. Raises
        CheckpointError.
        """
        self.giving = threading.Lock()
        self.bounds = bounds
        self.shares = bool(host.kernel.capget()[0] & 1 << CAP_SYS_ADMIN)
        self.admit = admit
        self.host = host
        self.api = api
        self.driver = driver
        self.outlet = outlet
        self.checkpoint = Checkpoint(state)
        self._lock = threading.Lock()
        self._lock_path = f"{state}/lock"

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """One at a time in this process, and in another one that an update has started beside it."""
        with self._lock:
            fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                yield
            finally:
                os.close(fd)

    def prepare(self, namespace: str, name: str, uid: str) -> Allocation:
        """Have the devices of a claim ready for its containers, which name them by `give.device_name`.

        Raises NvcError, after which nothing is given to anybody.
        """
        if not is_uid(uid) or not _is_name(namespace) or not _is_name(name):
            where, cause = f"{namespace}/{name}"[:300], f"not a name of a claim, or {uid[:80]} is not a UID"
            raise ClaimError(STEP, where, cause)
        with self.alone():
            facts, devices = self.host.look()
            allocation = self._allocation(namespace, name, uid, devices)
            try:
                documents = self._documents(facts, allocation)
            except InputError as error:
                raise ClaimError(STEP, f"{namespace}/{name}", cause_of(error), error.hint) from None
            with self.giving:
                self.admit(allocation)
                self.checkpoint.write(allocation)
            self._hold(facts, allocation)
            give.write(self.outlet, allocation, documents)
            return allocation

    def _allocation(self, namespace: str, name: str, uid: str, devices: dict[str, Device]) -> Allocation:
        """The claim as the API server has it, or as it was prepared while that does not answer. Raises NvcError."""
        kept = self._kept(uid)
        try:
            claim = self.api.get(CLAIMS.format(namespace, name))
        except ApiError as error:
            if error.status == 404:
                raise ClaimError(STEP, f"{namespace}/{name}", "the API server has no such claim") from None
            if error.status in _UNSETTLED and kept is not None:
                return kept
            raise
        return allocation_of(claim, uid, self.driver, devices)

    def _documents(self, facts: HostFacts, allocation: Allocation) -> dict[str, dict[str, Any]]:
        """Raises InputError for more than the operator grants, NvcError."""
        host = self.host
        return give.documents(host.kernel, facts, host.options, self.outlet, allocation, self.bounds)

    def _kept(self, uid: str) -> Allocation | None:
        try:
            return self.checkpoint.read(uid)
        except CheckpointError:
            return None  # it is written anew from what the API server says, or the preparation fails

    def _hold(self, facts: HostFacts, allocation: Allocation) -> None:
        """Make the slices that containers share. Raises NvcError.

        Without the right to mount they are made when containers start, and only one at a time has a request.
        """
        if self.shares:
            give.hold(self.host.kernel, facts, allocation, self.bounds)

    def unprepare(self, uid: str) -> None:
        """Undo what was made for a claim. The API server is not asked, and a claim that is not known is well.

        Raises NvcError, OSError.
        """
        if not is_uid(uid):
            return  # nothing was ever prepared for it
        with self.alone():
            self._drop(uid)

    def _drop(self, uid: str) -> None:
        give.remove(self.outlet, uid)
        claims.release(self.host.kernel, uid)
        self.checkpoint.remove(uid)

    def prepared(self) -> list[Allocation]:
        """The claims that are prepared, for metrics; one that cannot be read is told when it is adopted."""
        return [one for one in self.checkpoint.all() if not isinstance(one, CheckpointError)]

    def held(self, apart: str = "") -> list[Held]:
        """What claims have of devices, but for the one with the UID `apart`. Raises CheckpointError."""
        found = []
        for allocation in self.checkpoint.all():
            if isinstance(allocation, CheckpointError):
                raise allocation
            found += held_of(allocation) if allocation.uid != apart else []
        return found

    def adopt(self) -> list[NvcError]:
        """Go on with what an earlier process has prepared: documents are written for the driver of now.

        What it has left half done is removed. Returned is what went wrong; those claims are prepared again when
        kubelet asks for them.
        """
        problems: list[NvcError] = []
        with self.alone():
            known = set(self.checkpoint.uids())
            for uid in (give.uids_there(self.outlet) | claims.held_uids()) - known:
                if is_uid(uid):
                    try:
                        self._drop(uid)
                    except (NvcError, OSError) as error:
                        problems.append(error if isinstance(error, NvcError) else unforeseen(error))
            if not known:
                return problems
            try:
                facts, _ = self.host.look()
            except NvcError as error:
                return [error]
            for found in self.checkpoint.all():
                if isinstance(found, CheckpointError):
                    problems.append(found)
                    continue
                try:
                    made = self._documents(facts, found)
                    self._hold(facts, found)
                    give.write(self.outlet, found, made)
                except NvcError as error:
                    problems.append(error)
        return problems

    def collect(self) -> list[str]:
        """Forget claims that the API server has no longer, which nobody will unprepare; their UIDs.

        One whose slices have processes stays: whoever may delete claims could otherwise free memory that a pod goes
        on using. Raises NvcError where the API server does not say, or slices cannot be read, OSError.
        """
        gone = []
        for found in list(self.checkpoint.all()):
            if isinstance(found, CheckpointError):
                continue  # `adopt` has said so; it goes when kubelet unprepares the claim
            if self._is_gone(found) and not claims.in_use(self.host.kernel, found.uid):
                self.unprepare(found.uid)
                gone.append(found.uid)
        return gone

    def _is_gone(self, allocation: Allocation) -> bool:
        try:
            claim = self.api.get(CLAIMS.format(allocation.namespace, allocation.name))
        except ApiError as error:
            if error.status == 404:
                return True
            raise
        return bool(claim.get("metadata", {}).get("uid") != allocation.uid)


def held_of(allocation: Allocation) -> list[Held]:
    """What a claim has of devices."""
    return [
        Held(one.uuid, 0 if one.whole else one.limit, one.cores or ALL_CORES, one.whole)
        for one in allocation.given
    ]


def _is_name(name: str) -> bool:
    """Whether this can be the name of an object: it becomes part of a URL."""
    return 0 < len(name) <= _NAME_MAX and _IN_NAME.issuperset(name) and name not in (".", "..")
