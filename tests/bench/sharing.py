"""Shares of a GPU's time between tenants, as an operator would set them: measured, printed, kept for plots.

Every tenant is a program under `nvc-cli vgpu run` that launches kernels of fixed work. Its share is its kernels a
second, as a part of what the same program reaches alone without nvc, in the same run. As root, where a GPU is:

    python3 tests/bench/sharing.py --bin /usr/local/bin --work build/vgpu_work [--root DRIVER_ROOT] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

TRACE_MS = 50
Points = list[tuple[float, float]]  # milliseconds of CLOCK_MONOTONIC, kernels so far


class Tenant:
    """One program with a slice, or without nvc where `options` is None."""

    def __init__(self, bench: Bench, name: str, options: list[str] | None, work: dict[str, object]) -> None:
        self.name = name
        self.points: Points = []
        prefix = [] if options is None else [*bench.nvc, "vgpu", "run", "--memory=8GiB", *options, "--"]
        words = {"ns": 1000000, "batch": 0, "seconds": 3600, "warm": 0, "trace": TRACE_MS} | work
        if bench.rounds:
            words["rounds"] = bench.rounds
        argv = [*prefix, bench.work, *(f"{key}={value}" for key, value in words.items())]
        env = dict(os.environ)
        if bench.root != "/":
            env["LD_LIBRARY_PATH"] = f"{bench.root}/usr/lib/{os.uname().machine}-linux-gnu"
        self.process = subprocess.Popen(
            argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        if not line or line[0] != "start":
            _, error = self.process.communicate()
            raise SystemExit(f"bench: {' '.join(argv)}: {line} {error}")
        self.rounds = int(line[1])

    def stop(self) -> None:
        """End it and keep what it has written."""
        out, error = self.process.communicate("\n", timeout=60)
        lines = [line.split() for line in out.splitlines()]
        self.points = [(float(at), float(done)) for at, done in (line for line in lines if len(line) == 2)]
        if not self.points:
            raise SystemExit(f"bench: {self.name}: nothing was done\n{error}")

    def rate(self, since: float, until: float) -> float:
        """Kernels a second between two moments, in milliseconds."""
        inside = [point for point in self.points if since <= point[0] <= until]
        if len(inside) < 2:
            return 0.0
        (first, before), (last, after) = inside[0], inside[-1]
        return 1000 * (after - before) / (last - first)

    def reaches(self, rate: float, since: float, window: float = 100.0) -> float:
        """Milliseconds after `since` until a window of `window` has that rate; infinite: never."""
        for at, _ in self.points:
            if at >= since and self.rate(at, at + window) >= rate:
                return at - since
        return float("inf")


class Bench:
    """What all scenarios need."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.root = options.root
        self.work = options.work
        self.bin = options.bin
        self.seconds = options.seconds
        self.nvc = [os.path.join(options.bin, "nvc-cli"), f"--root={options.root}"]
        self.rounds = 0
        self.alone: dict[int, float] = {}
        self.kept: list[dict[str, object]] = []

    def call(self, *words: str) -> str:
        done = subprocess.run([*self.nvc, *words], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"bench: {' '.join(words)}: {done.stderr}")
        return done.stdout

    def newest(self) -> str:
        """The name of the slice that was made last."""
        listed = json.loads(self.call("vgpu", "ls", "--format", "json"))
        slices = listed["slices"] if isinstance(listed, dict) else listed
        return str(
            max((item for item in slices if item["running"]), key=lambda item: item["created"])["name"]
        )

    def native(self, ns: int) -> float:
        """What the program reaches alone, without nvc."""
        if ns not in self.alone:
            tenant = Tenant(self, "native", None, {"ns": ns, "seconds": self.seconds})
            if not self.rounds and ns == 1000000 and self.root == "/":
                self.rounds = tenant.rounds
            time.sleep(self.seconds)
            tenant.stop()
            self.alone[ns] = tenant.rate(tenant.points[0][0] + 200, tenant.points[-1][0])
        return self.alone[ns]

    def together(
        self, title: str, tenants: dict[str, list[str]], wanted: dict[str, float], idle: str = ""
    ) -> None:
        """Tenants that are all busy, but for the one that is called `idle`: shares and their sum."""
        native = self.native(1000000)
        running = []
        for name, options in tenants.items():
            # It was busy for a moment, and keeps its context.
            running.append(Tenant(self, name, options, {"idle": 500} if name == idle else {}))
        begin = time.monotonic() * 1000 + 1000
        time.sleep(1 + self.seconds)
        end = time.monotonic() * 1000 - 100
        for tenant in running:
            tenant.stop()
        shares = {t.name: t.rate(begin, end) / native for t in running if t.name != idle}
        print(f"\n{title}")
        for name, share in shares.items():
            error = f"{100 * (share - wanted[name]):+6.2f} points" if name in wanted else ""
            target = f"{100 * wanted[name]:6.1f} %" if name in wanted else "       -"
            print(f"  {name:12} wanted {target}  got {100 * share:6.2f} %  {error}")
        print(f"  {'together':12} {100 * sum(shares.values()):22.2f} % of native", flush=True)
        self.keep(title, running, native)

    def arrival(self, title: str, low: list[str], high: list[str], part: float = 0.9) -> None:
        """A busy tenant, and one that comes and goes: how long until it has its part, and the first all again."""
        native = self.native(1000000)
        first = Tenant(self, "low", low, {})
        time.sleep(1.5)
        second = Tenant(self, "high", high, {})
        came = time.monotonic() * 1000
        time.sleep(self.seconds)
        second.stop()
        went = second.points[-1][0]
        time.sleep(1)
        first.stop()
        share = second.rate(came + 300, went) / native
        soon = second.reaches(part * native, came)
        print(f"\n{title}\n  high gets {100 * share:.1f} %, and {100 * part:.0f} % after {soon:.0f} ms")
        print(f"  low has 90 % again {first.reaches(0.9 * native, went):.0f} ms after it went", flush=True)
        self.keep(title, [first, second], native)

    def changes(self, title: str, steps: list[int]) -> None:
        """A cap that is changed while the tenant runs: how long until it holds, and how far it overshoots."""
        native = self.native(1000000)
        tenant = Tenant(self, "tenant", [f"--cores={steps[0]}"], {})
        moments = [time.monotonic() * 1000]
        for cores in steps[1:]:
            time.sleep(3)
            self.call("vgpu", "set", self.newest(), f"--cores={cores}")
            moments.append(time.monotonic() * 1000)
        time.sleep(3)
        tenant.stop()
        print(f"\n{title}")
        for cores, since in zip(steps, moments):
            settled = tenant.rate(since + 500, since + 2900) / native
            worst = max(
                tenant.rate(at, at + 300) / native for at in (since + 500 + 100 * i for i in range(21))
            )
            print(
                f"  {cores:3} %: from 500 ms on {100 * settled:6.2f} %, at most {100 * worst:.1f} % in 300 ms",
                flush=True,
            )
        self.keep(title, [tenant], native)

    def keep(self, title: str, tenants: list[Tenant], native: float) -> None:
        start = min(tenant.points[0][0] for tenant in tenants)
        lines = {}
        for tenant in tenants:
            pairs = list(zip(tenant.points, tenant.points[2:]))
            lines[tenant.name] = [
                (round((a[0] + b[0]) / 2 - start), round(1000 * (b[1] - a[1]) / (b[0] - a[0]) / native, 4))
                for a, b in pairs
            ]
        self.kept.append({"title": title, "shares": lines})


@contextlib.contextmanager
def daemon(bench: Bench, policy: str) -> Iterator[None]:
    """nvcd with a policy for the first GPU, if it is installed."""
    program = os.path.join(bench.bin, "nvcd")
    process = subprocess.Popen([program], stdout=sys.stderr)
    end = time.monotonic() + 10
    while not os.path.exists("/run/nvc/nvcd/tenant/socket"):
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit("bench: nvcd does not start")
        time.sleep(0.02)
    bench.call("vgpu", "policy", "0", policy)
    try:
        yield
    finally:
        bench.call("vgpu", "policy", "0", "--reset")  # what is laid down outlives the daemon
        process.terminate()
        process.wait(10)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures shares of a GPU's time between tenants.")
    parser.add_argument("--bin", default="/usr/local/bin", help="where nvc-cli and nvcd are")
    parser.add_argument("--work", required=True, help="tests/native/vgpu_work.c, compiled")
    parser.add_argument("--root", default="/", help="driver root")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement")
    parser.add_argument("--json", default="", help="keep the shares over time in this file")
    parser.add_argument("--only", action="append", help="names of policies")
    options = parser.parse_args()
    bench = Bench(options)

    def wanted(policy: str) -> bool:
        return not options.only or policy in options.only

    print(f"alone and without nvc: {bench.native(1000000):.1f} kernels of about 1 ms a second")
    if wanted("alone"):
        for cores in (10, 25, 50, 75, 90):
            title = f"fixed, alone, {cores} %, without nvcd"
            bench.together(title, {"tenant": [f"--cores={cores}"]}, {"tenant": cores / 100})
        bench.changes("fixed, changed while it runs, without nvcd", [20, 80, 20])
    if wanted("fixed"):
        with daemon(bench, "fixed"):
            bench.together(
                "fixed, 30 and 70 %", {"a": ["--cores=30"], "b": ["--cores=70"]}, {"a": 0.3, "b": 0.7}
            )
            four = {name: ["--cores=25"] for name in "abcd"}
            bench.together("fixed, four with 25 %", four, dict.fromkeys(four, 0.25))
    if wanted("weight"):
        with daemon(bench, "weight"):
            three = {f"weight {n}": [f"--weight={n}"] for n in (1, 2, 4)}
            parts = {f"weight {n}": n / 7 for n in (1, 2, 4)}
            bench.together("weight, 1 : 2 : 4", three, parts)
            pair = {"weight 3": ["--weight=3"], "weight 7": ["--weight=7"]}
            bench.together("weight, 3 : 7", pair, {"weight 3": 0.3, "weight 7": 0.7})
            bench.together("weight, 3 : 7, the second idle", pair, {"weight 3": 0.95}, idle="weight 7")
            bench.arrival("weight, 15 arrives at 1", ["--weight=1"], ["--weight=15"])
    for policy in ("fair", "preempt", "soft"):
        if wanted(policy):
            with daemon(bench, policy):
                bench.together(
                    f"{policy}, two", {"a": ["--weight=1"], "b": ["--weight=1"]}, {"a": 0.5, "b": 0.5}
                )
    if wanted("native"):
        bench.together("native, two, without nvcd", {"a": [], "b": []}, {})
    if options.json:
        with open(options.json, "w", encoding="ascii") as out:
            json.dump(bench.kept, out)


if __name__ == "__main__":
    main()
