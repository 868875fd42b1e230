"""From a ResourceClaim to what a pod gets: for each result of its allocation a whole device or a slice. Pure.

What holds is the allocation, which the scheduler made and the API server keeps: the amounts in `consumedCapacity`.
Nothing of a pod, its environment or its image is looked at.
"""

from __future__ import annotations

from typing import Any

from nvc.base.errors import InputError, NvcError
from nvc.base.value import Value
from nvc.discovery.containers.files import table as _table
from nvc.kubernetes.claims.devices import ALL_CORES, MIG, Device
from nvc.kubernetes.claims.parameters import merged
from nvc.kubernetes.claims.quantity import MIB, parse_quantity
from nvc.kubernetes.errors import ClaimError
from nvc.kubernetes.names import CORES, GPU_PARAMETERS, MEMORY, SLICE_PARAMETERS
from nvc.model.request import Portion, Told
from nvc.model.slices.isolation import KERNEL
from nvc.model.slices.layout import CORES_UNCAPPED, NO_LIMIT
from nvc.model.slices.slice import timed

RESULTS_MAX, CONFIGS_MAX = 32, 64
STEP = "prepare claim"
_OF_CLASS, _OF_CLAIM = "of the class", "of the claim"


class Given(Portion):
    """One device, or a part of it, for one request of a claim."""

    request: str  # without a subrequest
    pool: str
    device: str  # its name in the pool
    share: str  # shareID; "": the device is not shared
    uuid: str
    whole: bool  # nothing is measured
    limit: int = NO_LIMIT  # bytes
    capabilities: tuple[str, ...] = ()
    admin: bool = False  # admin access: nothing is consumed, and nothing counts


class Consumer(Value):
    """A pod that may use a claim."""

    name: str
    uid: str


class Allocation(Value):
    """A claim as it is to be prepared on this node."""

    uid: str
    namespace: str
    name: str
    given: tuple[Given, ...]
    pods: tuple[Consumer, ...] = ()


def allocation_of(claim: dict[str, Any], uid: str, driver: str, devices: dict[str, Device]) -> Allocation:
    """What a claim gets of this driver's `devices`, by name.

    Raises ClaimError, which names the claim and what of it is wrong: another claim by now, not allocated, a device
    that is gone, amounts that are not counted, parameters that make no sense.
    """
    meta = _table(claim.get("metadata"))
    namespace, name = str(meta.get("namespace", "")), str(meta.get("name", ""))
    path = f"{namespace}/{name}"
    if meta.get("uid") != uid:
        raise ClaimError(
            STEP, path, f"its UID is {meta.get('uid')} by now, not {uid}", "the pod starts again"
        )
    status = _table(claim.get("status"))
    allocated = _table(_table(status.get("allocation")).get("devices"))
    results = [one for one in tables(allocated.get("results")) if one.get("driver") == driver]
    if not results:
        raise ClaimError(STEP, path, f"no device of {driver} is allocated to it")
    if len(results) > RESULTS_MAX:
        raise ClaimError(STEP, path, f"{len(results)} devices, at most {RESULTS_MAX}")
    requests = _requests(claim)
    configs = _configs(allocated, driver)
    given = []
    for result in results:
        where = f"{path}: request {str(result.get('request', ''))[:128]}"
        try:
            given.append(_given(result, requests, configs, devices))
        except InputError as error:
            raise ClaimError(STEP, where, cause_of(error), error.hint) from None
    return Allocation(uid, namespace, name, tuple(given), consumers_of(claim))


def consumers_of(claim: dict[str, Any]) -> tuple[Consumer, ...]:
    """The pods that a claim is reserved for."""
    return tuple(
        Consumer(str(one.get("name", "")), str(one.get("uid", "")))
        for one in tables(_table(claim.get("status")).get("reservedFor"))
        if one.get("resource") == "pods"
    )


def _given(
    result: dict[str, Any],
    requests: dict[str, dict[str, Any]],
    configs: list[tuple[str, list[str], object]],
    devices: dict[str, Device],
) -> Given:
    request, name = str(result.get("request", "")), str(result.get("device", ""))
    pool, share = str(result.get("pool", "")), str(result.get("shareID") or "")
    main = request.partition("/")[0]
    device = devices.get(name)
    if device is None:
        raise InputError("device", name, f"the node has no such device any more, of pool {pool}", ClaimError.hint)
    asking = requests.get(request)
    if asking is None:
        raise InputError("request", request, "the claim has no such request", ClaimError.hint)
    asked = _table(_table(asking.get("capacity")).get("requests"))
    consumed = _table(result.get("consumedCapacity"))
    admin = result.get("adminAccess") is True
    whole = _is_whole(device, asked, consumed, admin)
    objects = tuple(
        (label, value) for label, names, value in configs if not names or request in names or main in names
    )
    wanted, capabilities = merged(GPU_PARAMETERS if whole else SLICE_PARAMETERS, objects)
    made = Given(main, pool, name, share, device.uuid, whole, capabilities=capabilities, admin=admin)
    if whole:
        return made
    by_class = tuple((label, value) for label, value in objects if _OF_CLASS in label)
    if wanted.uncounted and not merged(SLICE_PARAMETERS, by_class)[0].uncounted:
        raise InputError(
            "uncounted", cause="a claim cannot lift its own limit",
            hint="the cluster's administrator can say so in a DeviceClass",
        )  # fmt: skip
    limit, cores = _amounts(device, consumed)
    _check_isolation(device, wanted.isolation)
    isolation = KERNEL if wanted.isolation == KERNEL else ""
    made = made.replace(limit=limit, uncounted=wanted.uncounted, isolation=isolation,
                        **wanted.only(Told))  # fmt: skip
    return timed(made, wanted, cores, device.name)


def _is_whole(device: Device, asked: dict[str, Any], consumed: dict[str, Any], admin: bool) -> bool:
    """Whether a result is all of a device. Raises InputError where amounts were asked for, and nobody counted."""
    if admin:  # only in namespaces that the cluster's administrator has chosen; nothing is consumed
        return True
    if not consumed:
        if asked:
            raise InputError(
                "consumedCapacity", cause="amounts were asked for, and the scheduler has counted none",
                hint="the cluster needs the feature gate DRAConsumableCapacity (on by default from 1.36)",
            )  # fmt: skip
        return True  # without that gate the API server drops what says that a device may be shared
    if asked:
        return False
    return _amounts(device, consumed) == (device.memory, CORES_UNCAPPED)


def _amounts(device: Device, consumed: dict[str, Any]) -> tuple[int, int]:
    """Bytes and percent of a device that a result has. Raises InputError."""
    unknown = set(consumed) - {MEMORY, CORES}
    if unknown or MEMORY not in consumed or CORES not in consumed:
        names = ", ".join(sorted(map(str, consumed)))
        raise InputError("consumedCapacity", names, f"want {MEMORY} and {CORES}, which {device.name} has")
    memory = parse_quantity(f"consumedCapacity.{MEMORY}", consumed[MEMORY])
    cores = parse_quantity(f"consumedCapacity.{CORES}", consumed[CORES])
    if not MIB <= memory <= device.memory:
        wanted = f"want 1Mi to {device.memory // MIB}Mi of {device.name}"
        raise InputError(f"consumedCapacity.{MEMORY}", str(consumed[MEMORY]), wanted)
    if not 1 <= cores <= ALL_CORES:
        raise InputError(f"consumedCapacity.{CORES}", str(consumed[CORES]), f"want 1 to {ALL_CORES}")
    return memory, cores % ALL_CORES


def _check_isolation(device: Device, isolation: str) -> None:
    """Refuse a kind of isolation that the device cannot have. Raises InputError."""
    if isolation == MIG and device.kind != MIG:
        cause = f"{device.name} is not a MIG device"
        raise InputError("isolation", MIG, cause, "use a class of MIG devices, or leave it out")
    if isolation == KERNEL and device.kind == MIG:
        cause = f"{device.name} is a MIG device: the driver limits whole GPUs by cgroup"
        raise InputError("isolation", KERNEL, cause, "use a class of whole GPUs, or leave it out")


def _requests(claim: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The requests of a claim, and subrequests as MAIN/SUB, each with what it asks for."""
    found: dict[str, dict[str, Any]] = {}
    for request in tables(_table(_table(claim.get("spec")).get("devices")).get("requests")):
        name = str(request.get("name", ""))
        found[name] = _table(request.get("exactly"))
        for sub in tables(request.get("firstAvailable")):
            found[f"{name}/{sub.get('name', '')}"] = sub
    return found


def _configs(allocated: dict[str, Any], driver: str) -> list[tuple[str, list[str], object]]:
    """Parameters for this driver: where they stand, the requests they are for, the object; the class's first."""
    found = []
    for place, config in enumerate(tables(allocated.get("config"))[:CONFIGS_MAX]):
        opaque = _table(config.get("opaque"))
        if opaque.get("driver") == driver:
            names = config.get("requests")
            source = _OF_CLASS if config.get("source") == "FromClass" else _OF_CLAIM
            label = f"parameters {source} (config {place})"
            found.append((label, names if type(names) is list else [], opaque.get("parameters")))
    # The API server has them in this order; what a claim says must win in any.
    return sorted(found, key=lambda one: _OF_CLAIM in one[0])


def cause_of(error: NvcError) -> str:
    """What an error says, without its hint and its code: for the error of a claim."""
    return ": ".join(str(part) for part in (error.step, error.path, error.cause) if part != "")


def tables(value: object) -> list[dict[str, Any]]:
    """The objects in a list of JSON; none where it is no list."""
    return [one for one in value if type(one) is dict] if type(value) is list else []
