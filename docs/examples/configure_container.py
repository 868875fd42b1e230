"""Gives a container all GPUs, or a slice of each. Usage: configure_container.py PID ROOTFS [DRIVER_ROOT [SIZE]]

PID is the container's first process, started but not yet its program: where an engine calls its hooks.
"""

import sys

import nvc


def main() -> int:
    pid, rootfs, *rest = sys.argv[1:]
    slice = nvc.SliceRequest((nvc.parse_size("SIZE", rest[1]),)) if len(rest) > 1 else None
    request = nvc.Request(devices=("all",), capabilities=("utility", "compute"), vgpu=slice)
    options = nvc.DriverOptions(root=rest[0] if rest else "/")
    try:
        with nvc.Driver(options) as driver, nvc.Container(int(pid), rootfs) as container:
            plan = driver.plan(container, request)
            outcome = driver.configure(container, request)
    except nvc.NvcError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for warning in outcome.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{len(plan.devices)} devices, {outcome.changes} changes")
    return 0


sys.exit(main())
