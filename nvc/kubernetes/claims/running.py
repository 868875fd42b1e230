"""Which pods have processes on this node, whatever the API server and the kubelet say of them: by their cgroups."""

from __future__ import annotations

import os
from collections.abc import Iterable

from nvc.base.errors import HostError
from nvc.kernel.processes import is_over
from nvc.kubernetes.claims.claim import Consumer
from nvc.slices.store.process_info import ENDED

STEP = "look for processes of pods"
CGROUPS_MAX = 1 << 16


def running(pods: Iterable[Consumer]) -> tuple[Consumer, ...]:
    """The pods, of those given, that have a process on this node.

    The kubelet's cgroups have a pod's UID in their names: `kubepods/pod<UID>/...`, or with systemd
    `kubepods-pod<UID>.slice` with `_` for each dash. Raises HostError where that cannot be told.
    """
    left = {(f"pod{pod.uid}".encode(), f"pod{pod.uid.replace('-', '_')}".encode()): pod for pod in pods if pod.uid}
    found = []
    path = "/proc"
    try:
        for number in [int(name) for name in os.listdir(path) if name.isdigit()] if left else ():
            path = f"/proc/{number}/cgroup"
            text = _cgroups(path)
            own = [names for names in left if any(name in text for name in names)]
            if own and not is_over(number):
                found += [left.pop(names) for names in own]
    except OSError as error:
        raise HostError.of(STEP, path, error) from None
    return tuple(found)


def _cgroups(path: str) -> bytes:
    """The content of /proc/PID/cgroup; none of a process that has ended. Raises OSError."""
    try:
        with open(path, "rb") as file:
            return file.read(CGROUPS_MAX)
    except OSError as error:
        if error.errno in ENDED:
            return b""
        raise
