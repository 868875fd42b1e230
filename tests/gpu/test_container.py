"""A real driver in real containers: what they can do, what they cannot, and what a start costs."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import STAGE, need, run
from support.bundle import Bundle
from support.configure import BASIC, Configure, as_hook
from support.plans import mounts, snapshot
from support.prestart import at_prestart

pytestmark = pytest.mark.gpu
HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A CUDA program, built here."""
    path = str(tmp_path_factory.mktemp("program") / "vector_add_ptx")
    run(need("gcc"), "-O2", "-o", path, f"{HERE}/vector_add_ptx.c", "-ldl")
    return path


@pytest.fixture
def bundle(runc_bundle: Callable[..., Bundle], program: str) -> Iterator[Bundle]:
    """A bundle whose rootfs has the CUDA program and looks like Debian's."""
    made = runc_bundle()
    with open(f"{made.rootfs}/etc/debian_version", "w", encoding="ascii") as out:
        out.write("12.0\n")
    run("cp", program, f"{made.rootfs}/usr/bin/vector_add_ptx")
    yield made


def configure(*options: str) -> Configure:
    return Configure(os.path.join(STAGE, "bin/nvc-cli"), "/", *options)


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("options", [(), ("--no-inventory",)], ids=["inventory", "long way"])
def test_cuda_runs_in_a_container(bundle: Bundle, readonly: bool, options: tuple[str, ...]) -> None:
    bundle.config["root"]["readonly"] = readonly
    as_hook(bundle, configure(*options))
    done = bundle.run("runc", "nvidia-smi -L && vector_add_ptx")
    here = run(need("nvidia-smi"), "-L").stdout
    assert done.stdout.startswith(here)
    assert done.stdout.count("sums are right") == here.count("GPU ")


def test_cuda_runs_in_a_user_namespace(bundle: Bundle) -> None:
    for base, directories, files in os.walk(bundle.rootfs):
        for name in (*directories, *files):
            os.lchown(os.path.join(base, name), 100000, 100000)
    os.lchown(bundle.rootfs, 100000, 100000)
    bundle.user_namespace()
    as_hook(bundle, configure())
    assert "sums are right" in bundle.run("runc", "vector_add_ptx").stdout


def test_a_running_container(bundle: Bundle) -> None:
    with bundle.created("runc") as container:
        container.start()
        call = configure()
        call(container.pid, bundle.rootfs)
        assert "sums are right" in container.exec("vector_add_ptx").stdout
        before = snapshot(bundle.rootfs), mounts(container.pid)
        call(container.pid, bundle.rootfs)
        assert (snapshot(bundle.rootfs), mounts(container.pid)) == before


def test_only_what_was_asked_for(bundle: Bundle) -> None:
    """Utility alone: the driver's tool works, CUDA does not; the other nodes cannot even be made and opened."""
    for kind in bundle.config["process"]["capabilities"]:
        bundle.config["process"]["capabilities"][kind] = ["CAP_MKNOD"]
    bundle.config["linux"]["resources"]["devices"].append({"allow": True, "type": "c", "access": "m"})
    as_hook(bundle, configure(), ("--utility",))
    script = "ls /dev/nvidia0; busybox mknod /tmp/n c 195 0; cat /tmp/n; vector_add_ptx"
    done = bundle.run("runc", script, check=False)
    assert "/dev/nvidia0: No such file" in done.stderr
    assert [line for line in done.stderr.splitlines() if "/tmp/n" in line and "not permitted" in line]
    assert "libcuda" in done.stderr


def test_a_driver_process_cannot_make_nodes(bundle: Bundle) -> None:
    as_hook(bundle, configure())
    assert "ModifyDeviceFiles: 0" in bundle.run("runc", "cat /proc/driver/nvidia/params").stdout


def test_no_trace_on_the_host(bundle: Bundle) -> None:
    before = mounts(os.getpid())
    as_hook(bundle, configure())
    bundle.run("runc", "true")
    assert mounts(os.getpid()) == before


def test_what_a_start_costs(bundle: Bundle, measured: Callable[[str, object], None]) -> None:
    """Wall time of the whole process at prestart, and its peak memory."""
    for name, options in (("valid inventory", ()), ("without inventory", ("--no-inventory",))):
        times = []
        for _ in range(15):
            with at_prestart(bundle, "runc", "true") as held:
                start = time.perf_counter()
                configure(*options)(held.pid, bundle.rootfs)
                times.append((time.perf_counter() - start) * 1000)
                held.release()
        measured(f"configure, {name}, ms (median of 15)", f"{statistics.median(times):.1f}")
    with at_prestart(bundle, "runc", "true") as held:
        command = [
            *configure("--no-inventory").command,
            "configure",
            f"--pid={held.pid}",
            *BASIC,
            bundle.rootfs,
        ]
        peak = peak_memory(command)
    measured("configure, peak memory, MiB", f"{peak / 1024:.1f}")
    assert peak < 48 * 1024  # the pages of NVML, which it loads, count too


def peak_memory(command: list[str]) -> int:
    """Largest resident set of a command and its children, KiB (getrusage(2))."""
    pid = os.fork()
    if pid == 0:
        os.execv(command[0], command)
    _, status, usage = os.wait4(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return int(usage.ru_maxrss)


def test_the_same_as_the_peer(
    bundle: Bundle, runc_bundle: Any, measured: Callable[[str, object], None]
) -> None:
    """With NVC_PEER=/path/to/nvidia-container-cli: equal mounts, nodes and links but for documented ones."""
    peer = os.environ.get("NVC_PEER")
    if not peer:
        measured("peer", "not given (NVC_PEER)")
        return
    other = runc_bundle()
    with open(f"{other.rootfs}/etc/debian_version", "w", encoding="ascii") as out:
        out.write("12.0\n")
    found = {}
    # On Ubuntu /sbin/ldconfig is a script, which the peer cannot execute in a container.
    ldconfig = "/sbin/ldconfig.real" if os.path.exists("/sbin/ldconfig.real") else "/sbin/ldconfig"
    for name, one, command in (
        ("nvc", bundle, [*configure().command, "configure"]),
        ("peer", other, [peer, "configure", f"--ldconfig=@{ldconfig}", "--no-cgroups"]),
    ):
        with at_prestart(one, "runc", "true") as held:
            before = {line.split()[2] for line in mounts(held.pid)}
            words = [*command, f"--pid={held.pid}", *BASIC]
            run(*words, one.rootfs, env={"PATH": os.environ.get("PATH", "/usr/bin")})
            table = {}
            for line in mounts(held.pid):
                fields = line.split()
                if fields[2] not in before:
                    table[fields[2].removeprefix(one.rootfs)] = fields[3]
            links = {
                path: detail[3]
                for path, detail in snapshot(one.rootfs).items()
                if isinstance(detail[3], str) and ("nvidia" in path or "cuda" in path)
            }
            found[name] = (table, links)
            held.release(check=False)
    compared = (
        ("mount", found["nvc"][0], found["peer"][0]),
        ("link", found["nvc"][1], found["peer"][1]),
    )
    for kind, ours, theirs in compared:
        for path in sorted(ours.keys() | theirs.keys()):
            if ours.get(path) != theirs.get(path):
                measured(f"{kind} differs: {path}", f"nvc {ours.get(path)}, peer {theirs.get(path)}")
    missing = sorted(set(found["peer"][0]) - set(found["nvc"][0]))
    assert not missing, missing
