"""Prints what the slices of this host use, whenever that changes. Usage: watch_slices.py [ROUNDS [SECONDS]]"""

import sys
import time

import nvc


def lines() -> list[str]:
    found = []
    for tenant in nvc.list_slices():
        for device in tenant.devices:
            used = f"{device.used >> 20} MiB" if tenant.alive and not tenant.problem else "?"
            found.append(f"{tenant.name} on {device.index}: {used}, processes: {len(tenant.pids)}")
    return found


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    before: list[str] = []
    count = 0
    try:
        while True:
            now = lines()
            if now != before:
                print("\n".join(now) or "no slices", flush=True)
            before, count = now, count + 1
            if count == rounds:
                return 0
            time.sleep(seconds)
    except nvc.NvcError as error:
        print(error, file=sys.stderr)
        return error.exit_code


sys.exit(main())
