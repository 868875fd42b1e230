"""Shares of a GPU's time between tenants, as an operator would set them: measured and printed.

Every tenant is a program under `nvc-cli vgpu run` that launches kernels of fixed work. Its share is its kernels a
second, as a part of what the same program reaches alone without nvc, in the same run. As root, where a GPU is:

    python3 tests/bench/sharing.py --bin /usr/local/bin --work build/vgpu_work [--device ID]
        [--only alone --only live ...] [--root DRIVER_ROOT]

`alone`: caps of one tenant. `live`: a cap that changes. `uncapped`: no cap beside no nvc, in turns. `long`: kernels
of 500 ms, NVC_LONG_SECONDS or --long-seconds for each cap. `fixed`, `weight`, `arrival`, `fair`, `first`, `soft`:
under nvcd. `native`: what the driver does by itself. `mps`: the driver's Multi-Process Service beside nvc, both
with kernels that fill the GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

import mps_peer
import stats
from tenants import DEVICE, FULL, MILLISECOND, Bench, Tenant, Work, daemon

CAPS = (10, 25, 50, 75, 90)
TEN: Work = {"ns": 10000000, "batch": 0}


def together(
    bench: Bench, title: str, tenants: dict[str, list[str]], wanted: dict[str, float], idle: str = "",
    work: Work = MILLISECOND,
) -> None:  # fmt: skip
    """Tenants that are all busy, but for the one that is called `idle`: shares and their sum."""
    native = bench.native(work)
    running = []
    for name, options in tenants.items():
        # It was busy for a moment, and keeps its context.
        running.append(bench.tenant(name, options, {**work, **({"idle": 500} if name == idle else {})}))
    shown(bench, title, running, wanted, native, idle)


def shown(
    bench: Bench, title: str, running: list[Tenant], wanted: dict[str, float], native: float, idle: str = ""
) -> None:
    """Let them run, end them, and print what each got."""
    begin = time.monotonic() * 1000 + 1000
    time.sleep(1 + bench.seconds)
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


def length(work: Work) -> str:
    """For a title: what is said of kernels of another length than a millisecond."""
    return "" if work == MILLISECOND else f", kernels of {int(str(work['ns'])) // 1000000} ms"


def arrives(bench: Bench, work: Work, part: float = 0.9) -> None:
    """A busy tenant, and one that comes and goes: how long until it has its part, and the first all again."""
    title = f"weight, 15 arrives at 1{length(work)}"
    native = bench.native(work)
    first = bench.tenant("low", ["--weight=1"], work)
    time.sleep(1.5)
    second = bench.tenant("high", ["--weight=15"], {**work, "trace": 10})
    came = time.monotonic() * 1000
    time.sleep(bench.seconds)
    second.stop()
    went = second.points[-1][0]
    time.sleep(1)
    first.stop()
    share = second.rate(came + 300, went) / native
    soon = second.reaches(part * native, came)
    print(f"\n{title}\n  high gets {100 * share:.1f} %, and {100 * part:.0f} % after {soon:.0f} ms")
    print(f"  low has 90 % again {first.reaches(0.9 * native, went):.0f} ms after it went", flush=True)


def changes(bench: Bench, work: Work, steps: tuple[int, ...]) -> None:
    """A cap that is changed while the tenant runs: how long until it holds, and how far it overshoots."""
    title = f"fixed, changed while it runs{length(work)}, without nvcd"
    native = bench.native(work)
    tenant = bench.tenant("tenant", [f"--cores={steps[0]}"], work)
    moments = [time.monotonic() * 1000]
    for cores in steps[1:]:
        time.sleep(3)
        bench.gpu.call("vgpu", "set", bench.newest(), f"--cores={cores}")
        moments.append(time.monotonic() * 1000)
    time.sleep(3)
    tenant.stop()
    print(f"\n{title}")
    for cores, since in zip(steps, moments):
        settled = tenant.rate(since + 500, since + 2900) / native
        worst = max(tenant.rate(at, at + 300) / native for at in (since + 500 + 100 * i for i in range(21)))
        print(
            f"  {cores:3} %: from 500 ms on {100 * settled:6.2f} %, at most {100 * worst:.1f} % in 300 ms",
            flush=True,
        )


def alone(bench: Bench) -> None:
    for cores in CAPS:
        title = f"fixed, alone, {cores} %, without nvcd"
        together(bench, title, {"tenant": [f"--cores={cores}"]}, {"tenant": cores / 100})


def live(bench: Bench) -> None:
    for work in (MILLISECOND, TEN):
        changes(bench, work, (20, 80, 20))


def uncapped(bench: Bench) -> None:
    """Each runs before and after the others in turn, so that what drifts hits all alike."""
    kinds: dict[str, list[str] | None] = {
        "no nvc": None, "native": ["--policy=native"], "100 %": ["--cores=100"]
    }  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(bench.pairs):
        names = list(kinds)
        for name in names[turn % 3 :] + names[: turn % 3]:
            ran = bench.measured(name, kinds[name], MILLISECOND, max(0.5, bench.seconds / 2))
            found[name].append(ran.whole_rate())
    print("\nno cap, beside no nvc, in turns; kernels of 1 ms")
    for name in ("native", "100 %"):
        print(f"  {name:12} {stats.ratio(found[name], found['no nvc'])}", flush=True)


def long(bench: Bench) -> None:
    """Kernels of 500 ms, each waited for. Few fit into the time, so the ends are kernels and not moments."""
    work: Work = {"ns": 500000000, "batch": 1, "trace": 2}
    native = bench.measured("native", None, work, 3.2).rate_between_kernels()
    print(f"\nkernels of 500 ms, {bench.long_seconds:.0f} s each, without nvcd: {native:.4f} a second alone")
    for cores in bench.long_caps:
        ran = bench.measured("tenant", [f"--cores={cores}"], work, bench.long_seconds)
        share = 100 * ran.rate_between_kernels() / native
        print(f"  {cores:3} %  got {share:6.2f} %  {share - cores:+6.2f} points", flush=True)


def fixed(bench: Bench) -> None:
    with daemon([bench.gpu], "fixed"):
        two = {"a": ["--cores=30"], "b": ["--cores=70"]}
        together(bench, "fixed, 30 and 70 %", two, {"a": 0.3, "b": 0.7})
        four = {name: ["--cores=25"] for name in "abcd"}
        together(bench, "fixed, four with 25 %", four, dict.fromkeys(four, 0.25))


def weight(bench: Bench) -> None:
    with daemon([bench.gpu], "weight"):
        three = {f"weight {n}": [f"--weight={n}"] for n in (1, 2, 4)}
        together(bench, "weight, 1 : 2 : 4", three, {f"weight {n}": n / 7 for n in (1, 2, 4)})
        pair = {"weight 3": ["--weight=3"], "weight 7": ["--weight=7"]}
        together(bench, "weight, 3 : 7", pair, {"weight 3": 0.3, "weight 7": 0.7})
        together(bench, "weight, 3 : 7, the second idle", pair, {"weight 3": 0.95}, idle="weight 7")


def arrival(bench: Bench) -> None:
    with daemon([bench.gpu], "weight"):
        for work in (MILLISECOND, TEN):
            arrives(bench, work)


def equal(policy: str) -> Callable[[Bench], None]:
    def scenario(bench: Bench) -> None:
        with daemon([bench.gpu], policy):
            two = {"a": ["--weight=1"], "b": ["--weight=1"]}
            together(bench, f"{policy}, two", two, {"a": 0.5, "b": 0.5})

    return scenario


def native(bench: Bench) -> None:
    together(bench, "native, two, without nvcd", {"a": [], "b": []}, {})


def mps(bench: Bench) -> None:
    """Both ways to a part of the GPU, with the same kernels: all multiprocessors have blocks of them waiting."""
    program = mps_peer.find()
    alone = bench.native(FULL)
    print(f"\nkernels that fill the GPU: {alone:.1f} a second alone")

    def clients(title: str, parts: dict[str, int]) -> None:
        with mps_peer.serving(program, bench.gpu) as variables:
            running = []
            for name, cores in parts.items():
                percent = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(cores)}
                running.append(bench.tenant(name, None, FULL, **variables, **percent))
            shown(bench, title, running, {name: cores / 100 for name, cores in parts.items()}, alone)

    if not program:
        print(f"MPS: {mps_peer.CONTROL} is not on this host", flush=True)
    for cores in CAPS:
        options = {"tenant": [f"--cores={cores}"]}
        together(bench, f"nvc, {cores} %, full GPU", options, {"tenant": cores / 100}, work=FULL)
        if program:
            try:
                clients(f"MPS, {cores} %, full GPU", {"tenant": cores})
            except SystemExit as error:
                print(f"MPS does not work on this host: {error}", flush=True)
                program = ""
    with daemon([bench.gpu], "fixed"):
        two = {"a": ["--cores=30"], "b": ["--cores=70"]}
        together(bench, "nvc, fixed, 30 and 70 %, full GPU", two, {"a": 0.3, "b": 0.7}, work=FULL)
    if program:
        clients("MPS, 30 and 70 %, full GPU", {"a": 30, "b": 70})
        isolation = {"tenant": ["--isolation=mps", "--cores=50"]}
        with daemon([bench.gpu], "none"):
            together(bench, "nvc with --isolation mps, 50 %, full GPU", isolation, {"tenant": 0.5}, work=FULL)


SCENARIOS: dict[str, Callable[[Bench], None]] = {
    "alone": alone, "live": live, "uncapped": uncapped, "fixed": fixed, "weight": weight, "arrival": arrival,
    "fair": equal("fair"), "first": equal("first"), "soft": equal("soft"), "native": native, "mps": mps,
    "long": long,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures shares of a GPU's time between tenants.")
    parser.add_argument("--bin", default="/usr/local/bin", help="where nvc-cli and nvcd are")
    parser.add_argument("--work", required=True, help="tests/native/vgpu_work.c, compiled")
    parser.add_argument("--root", default=os.environ.get("NVC_BENCH_ROOT", "/"), help="driver root")
    parser.add_argument(
        "--device", default=DEVICE, help="index or UUID; else NVC_BENCH_DEVICE, or the first"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="for each measurement")
    parser.add_argument("--pairs", type=int, default=9, help="of `uncapped`")
    parser.add_argument(
        "--long-seconds", type=float, default=float(os.environ.get("NVC_LONG_SECONDS", "60"))
    )
    parser.add_argument("--long-caps", default="25,50", help="caps of `long`; default 25,50")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="scenarios; default: all")
    options = parser.parse_args()
    bench = Bench(options)
    print(
        f"{bench.gpu.name}; {bench.native(MILLISECOND):.1f} kernels of about 1 ms a second alone, without nvc"
    )
    failed = False
    for name in options.only or SCENARIOS:
        try:
            SCENARIOS[name](bench)
        except SystemExit as error:  # the others are measured all the same
            print(f"\n{name} failed: {error}", flush=True)
            failed = True
        finally:
            bench.end()
    sys.exit(failed)


if __name__ == "__main__":
    main()
