"""limit-memory: has the driver limit the memory of a container's cgroup.

A createRuntime hook: in the container's own cgroup namespace no path would name its cgroup to the driver.
"""

from __future__ import annotations

from nvc.base.errors import ContainerError, DeviceError, InputError
from nvc.discovery import discover
from nvc.frontends.cdi.hooks.arguments import Call
from nvc.frontends.cdi.hooks.slices import driver_of
from nvc.frontends.cdi.hookspec import LIMIT_STEP, OPTION
from nvc.frontends.cdi.sliced import parsed
from nvc.kernel import LinuxKernel
from nvc.kernel.privileges import reduce
from nvc.model.request import Part, Request
from nvc.model.selection import select
from nvc.model.slices.slice import devices_of
from nvc.request.config import load
from nvc.request.oci import read_state
from nvc.slices.make.kernel_limits import check_devices, held_processes, set_limits

HINT = "nvc-cdi-hook limit-memory is to be called by an OCI runtime, as a createRuntime hook"


def limit_memory(call: Call) -> None:
    """Do what a call of this one step asks for. Raises NvcError: the cgroup is then as it was."""
    if len(call.steps) != 1:
        raise InputError(LIMIT_STEP, cause="not together with other hooks", hint=HINT)
    step = call.steps[0]
    parts: dict[str, Part] = {part.uuid: part for part in map(parsed, step.all(OPTION))}
    state = read_state()
    if state.pid <= 1:
        raise ContainerError("read container state", "pid", f"{state.pid} is no container's", HINT)
    kernel, config = LinuxKernel(), load()
    reduce("configure", kernel=kernel)
    facts = discover(kernel, driver_of(config, step))
    found = [
        device.replace(limit=parts[device.uuid].limit)
        for device in devices_of(select(facts, Request(devices=("all",))))
        if device.uuid in parts
    ]
    missing = parts.keys() - {device.uuid for device in found}
    if missing:
        raise DeviceError(min(missing), cause="no such device any more", hint="run `nvc-cli cdi refresh`")
    check_devices(facts, tuple(found))
    (held,) = held_processes(facts, (state.pid,), "", {device.uuid: device.limit for device in found}, {})
    set_limits(held, config.timeout)
