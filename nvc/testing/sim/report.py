"""What a simulated driver root contains and who uses it, as plain data."""

from __future__ import annotations

import os
from types import SimpleNamespace

from nvc.base.errors import InitializationError
from nvc.testing.sim import description, state
from nvc.testing.sim.layout import DESCRIPTION, STATE, is_root, not_a_root

#: Sizes in bytes; what a GPU has in use includes that of its MIG devices.
_MIG = {"uuid": str, "profile": str, "gpu_instance": int, "compute_instance": int, "memory": int}
_GPU = {"uuid": str, "name": str, "minor": int, "bus_id": str, "memory": int}


def report(directory: str) -> SimpleNamespace:
    """What `directory` simulates now: its versions, GPUs and the processes that use them.

    Raises InputError where it is no simulated root, InitializationError.
    """
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
        return SimpleNamespace(
            driver_version=driver["driver_version"],
            cuda_version=driver["cuda_version"],
            gpus=[_gpu(index, keys, migs, used) for index, (keys, migs) in enumerate(gpus)],
            processes=[
                SimpleNamespace(
                    pid=u.pid, gpu=u.partition // 9, mig=u.partition % 9 - 1, used=u.bytes, busy_ns=u.busy_ns
                )
                for u in usages
            ],
        )
    except (KeyError, ValueError) as error:
        path = os.path.join(directory, DESCRIPTION)
        raise InitializationError("read simulated driver", path, error, "create it again") from None


def _gpu(
    index: int, keys: dict[str, str], migs: list[dict[str, str]], used: dict[int, int]
) -> SimpleNamespace:
    devices = [
        SimpleNamespace(
            index=number, used=used.get(index * 9 + 1 + number, 0),
            **{name: kind(mig[f"mig_{name}"]) for name, kind in _MIG.items()},
        )
        for number, mig in enumerate(migs)
    ]  # fmt: skip
    return SimpleNamespace(
        index=index, used=used.get(index * 9, 0) + sum(device.used for device in devices),
        mig_enabled=keys["mig_enabled"] == "1", mig=devices,
        **{name: kind(keys[name]) for name, kind in _GPU.items()},
    )  # fmt: skip
