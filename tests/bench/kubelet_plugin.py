"""What nvc-kubelet-plugin takes to prepare a claim, and when idle: memory, processor time and wake-ups.

    python tests/bench/kubelet_plugin.py [--seconds 120] [--gpus 8] [--metrics] [-- OPTION...]

As root, after `make stage`, on a simulated driver. The API server and the kubelet are the tests' own: the plugin is
registered, its health stream is read, and it has prepared and unprepared 100 claims. Options after `--` are the
plugin's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time

import grpc

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [REPO, os.path.join(REPO, "tests")]

from support import STAGE, run  # noqa: E402
from support.apiserver import ApiServer, claim, result  # noqa: E402
from support.kubelet import NODE, Kubelet, Plugin, add, children  # noqa: E402
from support.vgpu import ensure_shim  # noqa: E402

CLAIMS = 100


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    return [pid, *(one for child in children(pid) for one in family(child))]


def memory(pid: int) -> tuple[float, float, float]:
    """MiB: PSS, that of anonymous pages alone, and resident pages of files, which others may share."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as text:
        fields = {name: value for name, _, value in (line.partition(":") for line in text.read().splitlines()[1:])}
    whole, anonymous = (int(fields[name].split()[0]) / 1024 for name in ("Pss", "Pss_Anon"))
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as text:
        resident = next(int(line.split()[1]) / 1024 for line in text if line.startswith("RssFile:"))
    return whole, anonymous, resident


def used(pid: int) -> float:
    """Seconds of processor time of the threads that a process has."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/schedstat", encoding="ascii") as text:
            total += int(text.read().split()[0])
    return total / 1e9


def woken(pid: int) -> int:
    """How often threads of a process began to run after they had waited."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii", errors="replace") as text:
            total += next(int(line.split()[1]) for line in text if line.startswith("voluntary_ctxt_switches:"))
    return total


def watched(kubelet: Kubelet) -> None:
    """Read the health of devices until the plugin ends."""
    with contextlib.suppress(grpc.RpcError):
        for _ in kubelet.health():
            pass


def main() -> None:
    """Parse options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--metrics", action="store_true", help="serve metrics, and scrape them every 15 s")
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nvc-") as scratch:
        measure(args, scratch)


def measure(args: argparse.Namespace, scratch: str) -> None:
    """Start everything, and print a line for each process."""
    os.chmod(scratch, 0o755)  # the process that asks NVML has no rights
    driver = f"{scratch}/driver"
    run(f"{STAGE}/bin/nvc-cli", "sim", "create", f"--gpus={args.gpus}", driver)
    ensure_shim(STAGE, scratch)
    server, kubelet = ApiServer(f"{scratch}/api"), Kubelet(f"{scratch}/kubelet")
    server.node(NODE)
    plugin = Plugin(STAGE, scratch, driver, kubelet, server)
    try:
        plugin.start(*args.options, *(["--metrics-listen=127.0.0.1:9933"] if args.metrics else []))
        plugin.said(": ready")
        plugin.said(" is healthy")
        kubelet.register()
        threading.Thread(target=watched, args=(kubelet,), daemon=True).start()
        took = []
        for number in range(CLAIMS):
            one = add(server, claim(f"c{number}", [result("r", "gpu-0", "1Gi", "10")]))
            began = time.monotonic()
            assert not kubelet.prepare(one)[one["metadata"]["uid"]].error
            took.append(1000 * (time.monotonic() - began))
            assert not kubelet.unprepare(one)[one["metadata"]["uid"]].error
        print(f"prepare: median {statistics.median(took):.1f} ms, {min(took):.1f} to {max(took):.1f}, "
              f"of {CLAIMS} slices", flush=True)  # fmt: skip
        time.sleep(2)
        assert plugin.process is not None
        pids = family(plugin.process.pid)
        began = time.monotonic()
        before = {pid: (used(pid), woken(pid)) for pid in pids}
        end = began + args.seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(15, left))
            if args.metrics:
                run("curl", "-sf", "http://127.0.0.1:9933/metrics")
        seconds = time.monotonic() - began
        whole = anonymous = share = most = 0.0
        for name, pid in zip(("relay", "worker", "keeper", "NVML"), pids):
            found = memory(pid)
            part = (used(pid) - before[pid][0]) / seconds * 100
            wakes = (woken(pid) - before[pid][1]) / seconds
            whole, anonymous, share = whole + found[0], anonymous + found[1], share + part
            most = max(most, found[2])
            print(f"{name}: PSS {found[0]:.1f} MiB, {part:.3f} % of a core, woken {wakes:.1f} times a second")
        print(f"all: PSS {whole:.1f} MiB, at most {anonymous + most:.1f} without other users of its libraries; "
              f"{share:.3f} % of a core in {seconds:.0f} s")  # fmt: skip
    finally:
        plugin.close()
        kubelet.close()
        server.close()


if __name__ == "__main__":
    main()
