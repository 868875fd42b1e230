"""What nvcd and its helpers cost: their part of a core and their memory, with slices that want nothing and with the
same slices all busy; and how long it takes from the end of a turn to the beginning of the next one.

    python3 tests/bench/nvcd.py [--bin DIR] [--root DRIVER_ROOT] [--tenants 16] [--seconds 4] [--windows 5]
        [--policy first] [--quantum-us 10000] [--json FILE]

As root. The slices are processes that have books and a connection, and do nothing but answer, so that a small
machine can have 16 of them. They take turns on the first GPU of the host or of the driver root, and leave it alone.
Without either, a simulated one is made. The daemon has a /run/nvc of its own, beside the host's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NOBODY = 65534  # as whom NVML is asked


def find(options: argparse.Namespace) -> tuple[str, str, list[str]]:
    """Where nvc is installed, its interpreter, and where that finds modules."""
    sys.path.insert(0, TESTS)
    from support import STAGE

    prefix = os.path.dirname(os.path.abspath(options.bin)) if options.bin else STAGE
    interpreter, paths = sys.executable, [f"{prefix}/lib/nvc/python", TESTS]
    with open(f"{prefix}/lib/nvc/launch.conf", encoding="utf-8") as file:
        for line in file:
            word, _, value = line.strip().partition(" ")
            if word == "interpreter":
                interpreter = value
            elif word == "path":
                paths.append(value if value.startswith("/") else f"{prefix}/lib/nvc/{value}")
    sys.path[1:1] = paths[:1]
    return prefix, interpreter, paths


def processor(pid: int) -> float:
    """Seconds of processor time that all threads have used (proc(5), schedstat)."""
    used = 0.0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            used += int(file.read().split()[0]) / 1e9
    return used


def used_by(pids: list[int]) -> dict[str, float]:
    """Seconds of processor time of nvcd and of its helpers, by what they do."""
    found: dict[str, float] = {}
    for pid in pids:
        try:
            name = (
                "nvcd"
                if pid == pids[0]
                else "asks"
                if os.stat(f"/proc/{pid}").st_uid == NOBODY
                else "watches"
            )
            found[name] = found.get(name, 0.0) + processor(pid)
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def watch(daemon: object, windows: int, seconds: float) -> dict[str, object]:
    """Percent of a core in each window, by process; bytes at the end."""
    from support.nvcd import Daemon, proportional

    assert isinstance(daemon, Daemon)
    percent: dict[str, list[float]] = {}
    began = time.monotonic()
    for number in range(windows):
        before, start = used_by(daemon.family()), time.monotonic()
        time.sleep(max(0.0, began + (number + 1) * seconds - start))
        after, length = used_by(daemon.family()), time.monotonic() - start
        rates = {name: 100 * (used - before.get(name, 0.0)) / length for name, used in after.items()}
        for name, rate in (rates | {"all": sum(rates.values())}).items():
            percent.setdefault(name, []).append(round(rate, 3))
    pss = [proportional(pid) for pid in daemon.family()]
    return {
        "percentOfCore": percent,
        "residentMiB": round(daemon.memory() / (1 << 20), 1),
        "proportionalMiB": round(pss[0] / (1 << 20), 1),
        "allProportionalMiB": round(sum(pss) / (1 << 20), 1),
    }


def hand_overs(found: list[dict[str, list[int]]], since: int, until: int) -> tuple[int, list[int]]:
    """Turns that began between two moments, and the nanoseconds from each end of one to the next beginning."""
    begins = sorted(at for one in found for at in one["begins"] if since <= at <= until)
    ends = sorted(at for one in found for at in one["ends"] if since <= at <= until)
    gaps, place = [], 0
    for end in ends:
        while place < len(begins) and begins[place] < end:
            place += 1
        if place < len(begins):
            gaps.append(begins[place] - end)
    return len(begins), sorted(gaps)


def measure(place: object, uuid: str, root: str, options: argparse.Namespace) -> dict[str, object]:
    """Both halves, idle and busy."""
    from support.nvcd import Place

    assert isinstance(place, Place)
    place.set_device_policy(uuid, f"policy {options.policy}\nquantum-us {options.quantum_us}\n")
    daemon = place.start(*([f"--root={root}"] if root else []))
    cores = {"cores": 100 // options.tenants} if options.policy == "fixed" else {}
    tenants = [place.tenant(uuids=(uuid,), **cores) for _ in range(options.tenants)]
    for tenant in tenants:
        tenant.ask("keep books")
        tenant.ask("connect")
    time.sleep(2)  # until all that is done for a slice that is new has been done
    idle = watch(daemon, options.windows, options.seconds)
    length = options.windows * options.seconds
    end = time.monotonic() + length + 2
    for tenant in tenants:
        tenant.send("busy", end, options.drain_us / 1e6, True)
    time.sleep(1)
    since = time.monotonic_ns()
    busy = watch(daemon, options.windows, options.seconds)
    until = time.monotonic_ns()
    found = [tenant.receive(length + 60) for tenant in tenants]
    turns, gaps = hand_overs(found, since, until)
    held = [one["held"][0] for one in found]
    busy["turnsPerSecond"] = round(turns * 1e9 / (until - since), 1)
    busy["handOverUs"] = [gaps[len(gaps) * part // 100] // 1000 for part in (50, 95)]
    busy["shareLeastMost"] = [round(part / sum(held), 4) for part in (min(held), max(held))]
    return {"tenants": options.tenants, "policy": options.policy, "quantumUs": options.quantum_us,
            "seconds": options.seconds, "idle": idle, "busy": busy}  # fmt: skip


def show(name: str, found: dict[str, object]) -> None:
    idle, busy = found["idle"], found["busy"]
    assert isinstance(idle, dict) and isinstance(busy, dict)
    print(f"{found['tenants']} slices on {name}, {found['policy']}, turns of {found['quantumUs']} us")
    print(
        f"percent of a core, median of {len(busy['percentOfCore']['nvcd'])} windows of {found['seconds']:g} s:"
    )
    labels = {
        "nvcd": "nvcd",
        "watches": "its helper that watches",
        "asks": "its helper that asks NVML",
        "all": "all",
    }
    for key, label in labels.items():
        cells = []
        for half in (idle, busy):
            values = half["percentOfCore"].get(key, [0.0])
            cells.append(f"{statistics.median(values):5.2f} ({min(values):.2f} to {max(values):.2f})")
        print(f"  {label:26} idle {cells[0]}   busy {cells[1]}")
    for key, label in (
        ("residentMiB", "nvcd, resident"),
        ("proportionalMiB", "nvcd, its part"),
        ("allProportionalMiB", "all, their parts"),
    ):
        print(f"  {label:26} idle {idle[key]:5.1f} MiB   busy {busy[key]:5.1f} MiB")
    print(f"  turns a second {busy['turnsPerSecond']}; from the end of one to the beginning of the next "
          f"{busy['handOverUs'][0]} us, 95 % within {busy['handOverUs'][1]} us")  # fmt: skip
    print(f"  least and most of the time that a slice had: {busy['shareLeastMost']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures what nvcd costs.")
    parser.add_argument(
        "--bin", default="", help="where nvc-cli and nvcd are; else in $NVC_STAGE or build/stage"
    )
    parser.add_argument("--root", default="", help="driver root")
    parser.add_argument("--device", default="", help="index or UUID of the GPU")
    parser.add_argument("--tenants", type=int, default=16)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4, help="of each window")
    parser.add_argument("--policy", default="first")
    parser.add_argument("--quantum-us", type=int, default=10000)
    parser.add_argument("--drain-us", type=int, default=0, help="after a turn, until it is given back")
    parser.add_argument("--json", default="", help="keep all windows in this file")
    options = parser.parse_args()
    prefix, interpreter, paths = find(options)
    from support.nvcd import Place
    from tenants import Gpu

    nvc = f"{prefix}/bin/nvc-cli"
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o755)  # NVML is asked without rights
        root = options.root
        if not root and not os.path.exists("/proc/driver/nvidia/version"):
            root = f"{scratch}/driver"
            os.spawnv(os.P_WAIT, nvc, [nvc, "sim", "create", root])
        gpu = Gpu(nvc, root or "/", options.device)
        place = Place(prefix, scratch)
        place.interpreter, place.paths = interpreter, paths
        try:
            found = measure(place, gpu.uuid, root, options)
        finally:
            place.end()
    show(gpu.name, found)
    if options.json:
        with open(options.json, "w", encoding="ascii") as out:
            json.dump({"device": gpu.name} | found, out)


if __name__ == "__main__":
    main()
