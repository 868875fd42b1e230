"""Preparing claims: idempotent, one at a time, and right again after the process was killed at any point.

The order of a preparation is: remember the claim, make its slices, write its CDI documents. The other way round:
remove the documents, remove the slices, forget the claim. Whatever a killed plugin left is thus either complete, or
found by what is remembered.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
import time
from dataclasses import dataclass

from nvc.base.errors import HostError, InputError, NvcError
from nvc.base.files import closing
from nvc.base.value import Value
from nvc.kubernetes.claims import give
from nvc.kubernetes.claims.checkpoint import Checkpoint, is_uid, opened
from nvc.kubernetes.claims.claim import STEP, allocation_of, cause_of, consumers_of
from nvc.kubernetes.claims.devices import ALL_CORES
from nvc.kubernetes.claims.holdings import Held, lacking
from nvc.kubernetes.claims.running import running
from nvc.kubernetes.errors import ApiError, CheckpointError, ClaimError
from nvc.kubernetes.names import CLAIMS
from nvc.model.slices.hook import OFF
from nvc.slices.store import claims

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from nvc.kernel import Kernel
    from nvc.kubernetes.api.client import Api
    from nvc.kubernetes.claims.claim import Allocation, Consumer
    from nvc.kubernetes.claims.devices import Device
    from nvc.kubernetes.claims.give import Outlet
    from nvc.model.facts import HostFacts
    from nvc.model.request import DriverOptions, SliceRequest

_IN_NAME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-.")
_NAME_MAX = 253
CAP_SYS_ADMIN = 21  # capabilities(7)
#: Answers that say nothing about the claim.
_UNSETTLED = (0, 408, 409, 410, 429, 500, 502, 503, 504)

#: Seconds for which a device is waited for that a pod has which ends, and between two looks: the kubelet itself
#: tries again after 60 to 90. Of many claims that wait, so many look in that time: others must be prepared between.
ENDING, AGAIN, LOOKS = 10.0, 0.25, 2


class _Held(Exception):
    """Another claim has the devices on this node; what to say of that."""

    def __init__(self, error: ClaimError) -> None:
        self.error = error


class Host(Value):
    """The node's driver: facts and devices of now."""

    kernel: Kernel
    options: DriverOptions
    discover: Callable[[Kernel, DriverOptions], HostFacts]
    devices: Callable[[HostFacts], tuple[Device, ...]]

    def look(self) -> tuple[HostFacts, dict[str, Device]]:
        """Facts, and devices by name. Raises NvcError."""
        facts = self.discover(self.kernel, self.options)
        return facts, {device.name: device for device in self.devices(facts)}


@dataclass
class Preparer:
    """Prepares the claims of one driver on this node. Its methods may be called from any thread.

    `prepare` is for the event loop of the servers alone. Who gives devices to others holds `giving` from the look
    at claims until that is known. Raises CheckpointError.
    """

    host: Host
    api: Api
    driver: str
    state: str
    outlet: Outlet
    bounds: SliceRequest  # what the operator grants
    admit: Callable[[Allocation], None]  # raises ClaimError where something else has the devices

    def __post_init__(self) -> None:
        self.giving = threading.Lock()
        self.shares = bool(self.host.kernel.capget()[0] & 1 << CAP_SYS_ADMIN)
        self.checkpoint = Checkpoint(self.state)
        self._lock = threading.Lock()
        self._waiting = 0  # claims that wait for a device

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """One at a time in this process, and in another one that an update has started beside it.

        Raises CheckpointError.
        """
        with self._lock:
            with closing(opened(f"{self.state}/lock")) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield

    async def prepare(self, namespace: str, name: str, uid: str) -> Allocation:
        """Have the devices of a claim ready for its containers, which name them by `give.device_name`.

        Waits without a thread while a pod that ends has them. Raises NvcError, after which nothing is given to
        anybody.
        """
        if not is_uid(uid) or not _is_name(namespace) or not _is_name(name):
            where, cause = f"{namespace}/{name}"[:300], f"not a name of a claim, or {uid[:80]} is not a UID"
            raise ClaimError(STEP, where, cause)
        until = time.monotonic() + ENDING
        while True:
            try:
                return await asyncio.to_thread(self._prepare, namespace, name, uid)
            except _Held as held:
                if time.monotonic() >= until:
                    raise held.error from None
            self._waiting += 1
            try:
                await asyncio.sleep(min(AGAIN * -(-self._waiting // LOOKS), ENDING))
            finally:
                self._waiting -= 1

    def _prepare(self, namespace: str, name: str, uid: str) -> Allocation:
        """Raises _Held while another claim has the devices, NvcError."""
        claim = self._asked(namespace, name)
        with self.alone():
            facts, devices = self.host.look()
            kept = self._kept(uid)
            if isinstance(claim, ApiError):
                if kept is None:
                    raise claim
                allocation = kept
            else:
                allocation = allocation_of(claim, uid, self.driver, devices)
            try:
                documents = self._documents(facts, allocation)
            except InputError as error:
                raise ClaimError(STEP, f"{namespace}/{name}", cause_of(error), error.hint) from None
            if kept is None or kept.given != allocation.given:
                self._make_room(allocation, tuple(devices.values()))
            with self.giving:
                self.admit(allocation)
                self.checkpoint.write(allocation)
            self._hold(facts, allocation)
            give.write(self.outlet, allocation, documents)
            return allocation

    def _make_room(self, allocation: Allocation, devices: tuple[Device, ...]) -> None:
        """Refuse what other claims still have on this node, and forget those of them that nobody uses any more.

        The scheduler counts what the API server has, and may give a device away under a pod that was deleted by
        force and still runs. Raises ClaimError, which names who has the device; other NvcError where that cannot
        be told.
        """
        where = f"{allocation.namespace}/{allocation.name}"
        crowded = {device.uuid for device in devices if device.room > device.memory}
        for given in allocation.given:
            if given.idle_suspend == OFF and given.uuid in crowded:
                cause = f"idleSuspend is off, and slices of {given.device} have to leave it for others"
                raise ClaimError(STEP, where, cause, "leave idleSuspend out, or give a time")
        others = [self.checkpoint.read(uid) for uid in self.checkpoint.uids() if uid != allocation.uid]
        left = [one for one in others if one is not None]
        while found := lacking(devices, held_of(allocation), [one for own in left for one in held_of(own)], []):
            owners = [one for one in left if found[0] in {held.uuid for held in held_of(one)}]
            unused = [one for one in owners if self.claim(one) is None and not self._is_used(one)]
            if not unused:
                name = next(given.device for given in allocation.given if given.uuid == found[0])
                names = ", ".join(f"{one.namespace}/{one.name}" for one in owners)
                cause = f"{name} is still held on this node by claim {names}: {found[1].text}"
                hint = "it is tried again; the device is free when the pods of that claim have ended here"
                raise _Held(ClaimError(STEP, where, cause, hint))
            for one in unused:
                self._drop(one.uid)
            left = [one for one in left if one not in unused]

    def _asked(self, namespace: str, name: str) -> dict[str, Any] | ApiError:
        """The claim as the API server has it; why that does not say, in which case what was prepared holds.

        Nobody waits for the answer but the claim itself. Raises ApiError, ClaimError where there is no such claim.
        """
        try:
            return self.api.get(CLAIMS.format(namespace, name))
        except ApiError as error:
            if error.status == 404:
                raise ClaimError(STEP, f"{namespace}/{name}", "the API server has no such claim") from None
            if error.status in _UNSETTLED:
                return error
            raise

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

        Raises NvcError.
        """
        if not is_uid(uid):
            return  # nothing was ever prepared for it
        with self.alone():
            self._drop(uid)

    def _drop(self, uid: str) -> None:
        """Raises NvcError."""
        try:
            give.remove(self.outlet, uid)
        except OSError as error:
            path = os.path.join(self.outlet.directory, error.filename or "")
            raise HostError.of("remove specification", path, error) from None
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
        kubelet asks for them. Raises NvcError where it cannot be told what there is.
        """
        problems: list[NvcError] = []
        with self.alone():
            known = set(self.checkpoint.uids())
            for uid in (give.uids_there(self.outlet) | claims.held_uids()) - known:
                if is_uid(uid):
                    try:
                        self._drop(uid)
                    except NvcError as error:
                        problems.append(error)
            if not known:
                return problems
            try:
                facts, _ = self.host.look()
            except (NvcError, OSError) as error:
                return [*problems, _named("look for devices", error)]
            for found in self.checkpoint.all():
                if isinstance(found, CheckpointError):
                    problems.append(found)
                    continue
                try:
                    made = self._documents(facts, found)
                    self._hold(facts, found)
                    give.write(self.outlet, found, made)
                except (NvcError, OSError) as error:
                    problems.append(_named(f"go on with claim {found.namespace}/{found.name}", error))
        return problems

    def collect(self) -> list[str]:
        """Forget claims that the API server has no longer, which nobody will unprepare; their UIDs.

        One whose pods or slices have processes stays: whoever may delete claims could otherwise free what a pod
        goes on using. Raises NvcError where the API server does not say, or processes or slices cannot be read.
        """
        gone = []
        for found in list(self.checkpoint.all()):
            if isinstance(found, CheckpointError):
                continue  # `adopt` has said so; it goes when kubelet unprepares the claim
            claim = self.claim(found)
            if claim is not None:
                self._keep_pods(found, consumers_of(claim))
            elif not self._is_used(found):
                self.unprepare(found.uid)
                gone.append(found.uid)
        return gone

    def claim(self, allocation: Allocation) -> dict[str, Any] | None:
        """A prepared claim as the API server has it now; None: it has it no longer. Raises ApiError."""
        try:
            claim = self.api.get(CLAIMS.format(allocation.namespace, allocation.name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return claim if claim.get("metadata", {}).get("uid") == allocation.uid else None

    def _keep_pods(self, allocation: Allocation, pods: tuple[Consumer, ...]) -> None:
        """Remember pods that share a claim since it was prepared: the kubelet tells of the first one alone."""
        if set(pods) <= set(allocation.pods):
            return
        with self.alone():
            if self.checkpoint.read(allocation.uid) is not None:
                own = tuple(dict.fromkeys((*pods, *running(allocation.pods))))
                self.checkpoint.write(allocation.replace(pods=own))

    def _is_used(self, allocation: Allocation) -> bool:
        return bool(running(allocation.pods)) or claims.in_use(self.host.kernel, allocation.uid)


def held_of(allocation: Allocation) -> list[Held]:
    """What a claim has of devices."""
    return [
        Held(one.uuid, 0 if one.whole else one.limit, one.cores or ALL_CORES, one.whole)
        for one in allocation.given
        if not one.admin
    ]


def _named(step: str, error: NvcError | OSError) -> NvcError:
    return error if isinstance(error, NvcError) else HostError.of(step, str(error.filename or ""), error)


def _is_name(name: str) -> bool:
    """Whether this can be the name of an object: it becomes part of a URL."""
    return 0 < len(name) <= _NAME_MAX and _IN_NAME.issuperset(name) and name not in (".", "..")
