"""What a simulated driver root contains and who uses it, as plain data."""

from __future__ import annotations

import os

from nvc.base.errors import InitializationError
from nvc.base.value import Value
from nvc.testing.sim import description, state
from nvc.testing.sim.layout import DESCRIPTION, STATE, is_root, not_a_root


class MigReport(Value):
    """A MIG device of a simulated driver."""

    index: int
    uuid: str
    profile: str
    gpu_instance: int
    compute_instance: int
    memory: int  # bytes
    used: int


class GpuReport(Value):
    """A GPU of a simulated driver."""

    index: int
    uuid: str
    name: str
    minor: int
    bus_id: str
    memory: int  # bytes
    used: int  # by programs, MIG devices included
    mig_enabled: bool
    mig: tuple[MigReport, ...]


class ProcessReport(Value):
    """A process that uses a simulated GPU."""

    pid: int  # in its own pid namespace
    gpu: int
    mig: int  # MIG device, -1 for a whole GPU
    used: int  # bytes
    busy_ns: int


class SimReport(Value):
    """What a simulated driver has and who uses it."""

    driver_version: str
    cuda_version: str
    gpus: tuple[GpuReport, ...]
    processes: tuple[ProcessReport, ...]


def report(directory: str) -> SimReport:
    """What `directory` simulates now. Raises InputError where it is no simulated root, InitializationError."""
    if not is_root(directory):
        raise not_a_root("read simulated driver", directory)
    try:
        with open(os.path.join(directory, DESCRIPTION), "rb") as text:
            driver, gpus = description.parse(text.read())
        usages = state.usage(os.path.join(directory, STATE))
    except OSError as error:
        path = error.filename or directory
        raise InitializationError.of("read simulated driver", path, error, "create it again") from None
    used: dict[int, int] = {}
    for usage in usages:
        used[usage.partition] = used.get(usage.partition, 0) + usage.bytes + usage.managed
    try:
        return SimReport(
            driver_version=driver["driver_version"],
            cuda_version=driver["cuda_version"],
            gpus=tuple(_gpu(index, keys, migs, used) for index, (keys, migs) in enumerate(gpus)),
            processes=tuple(ProcessReport(u.pid, u.partition // 9, u.partition % 9 - 1, u.bytes, u.busy_ns)
                            for u in usages),  # fmt: skip
        )
    except (KeyError, ValueError) as error:
        path = os.path.join(directory, DESCRIPTION)
        raise InitializationError("read simulated driver", path, error, "create it again") from None


def _gpu(index: int, keys: dict[str, str], migs: list[dict[str, str]], used: dict[int, int]) -> GpuReport:
    devices = tuple(
        MigReport(
            number, mig["mig_uuid"], mig["mig_profile"], int(mig["mig_gpu_instance"]),
            int(mig["mig_compute_instance"]), int(mig["mig_memory"]), used.get(index * 9 + 1 + number, 0),
        )  # fmt: skip
        for number, mig in enumerate(migs)
    )
    return GpuReport(
        index=index,
        uuid=keys["uuid"],
        name=keys["name"],
        minor=int(keys["minor"]),
        bus_id=keys["bus_id"],
        memory=int(keys["memory"]),
        used=used.get(index * 9, 0) + sum(device.used for device in devices),
        mig_enabled=keys["mig_enabled"] == "1",
        mig=devices,
    )
