"""Slices while their containers run: what programs in them get, and what the operator sees and changes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import GIB, MIB, PATIENCE
from support.bundle import Bundle
from support.configure import BASIC, Configure
from support.rootfs import LIBS
from support.vgpu import Inside, cli, entry_of, limits_of, listed

from nvc.model.slices import layout

OUT_OF_MEMORY = 2
pytestmark = pytest.mark.usefixtures("shim")


@pytest.fixture
def sliced(container: Callable[..., Any], tool: str) -> Iterator[Callable[..., tuple[Any, Inside]]]:
    """Factory: a running container with a slice of GPU 0, and a program with a context in it."""
    started: list[Inside] = []

    def make(memory: str, *words: str) -> tuple[Any, Inside]:
        made = container(f"--vgpu-memory={memory}", *words)
        started.append(Inside(made, tool))
        return made, started[-1].start()

    yield make
    for inside in started:
        inside.end()


def fill(inside: Inside, step: int = 128) -> int:
    """Take memory until there is no more; MiB that were had."""
    for number in range(1, 1000):
        code = inside.code(f"alloc {chr(33 + number % 90)} {step}m")
        if code:
            assert code == OUT_OF_MEMORY
            return (number - 1) * step
    raise AssertionError("there is no end to it")


def test_a_ten_gibibyte_gpu(sliced: Any) -> None:
    container, inside = sliced("10GiB")
    shown = container.exec("nvidia-smi").stdout
    assert "/ 10240MiB" in shown and "81559" not in shown
    free, total = inside.ask("info")
    assert total == 10 * GIB and free < total
    assert inside.ask("total 0") == [10 * GIB]
    assert 9 * 1024 <= fill(inside) < 10 * 1024
    assert inside.ask("info")[0] < 128 * MIB


def test_limits_change_while_a_program_runs(sliced: Any, launcher: str) -> None:
    container, inside = sliced("1g")
    assert inside.code("alloc a 2g") == OUT_OF_MEMORY
    assert cli(launcher, "set", str(container.pid), "--memory", "4g").stderr == ""
    assert inside.ask("total 0") == [4 * GIB]
    assert inside.code("alloc a 2g") == 0
    said = cli(launcher, "set", str(container.pid), "--memory", "2g").stderr
    assert "more than the new limit of 2 GiB: nothing is taken from it and its work goes on, but every new" in said
    assert inside.code("alloc b 2m") == OUT_OF_MEMORY and inside.ask("info") == [0, 2 * GIB]
    assert inside.code("free a") == 0
    assert inside.code("alloc b 2m") == 0
    cli(launcher, "set", str(container.pid), "--unlimited", "--device", "0")
    assert inside.ask("total 0")[0] > 70 * GIB
    cli(launcher, "set", str(container.pid), "--memory", "25%")
    assert limits_of(container.pid) == [81559 // 4 << 20]


def test_what_is_seen_from_outside(sliced: Any, launcher: str) -> None:
    container, inside = sliced("4g")
    inside.ask("alloc a 1g")
    seen = listed(launcher, container.pid)
    device = seen["devices"][0]
    free, total = inside.ask("info")
    assert (device["limit"], device["used"]) == (4 * GIB, total - free)
    assert seen["running"] and seen["processes"][0]["name"] == "vgpu_tool"
    # As `ps` and `kill` on the host have it: the one that it has inside is somebody else's there.
    (pid,) = [number for number in seen["pids"] if number != container.pid]
    assert seen["processes"][0]["pid"] == pid and seen["processes"][0]["pidInside"] < pid
    short = seen["name"]
    shown = cli(launcher, "show", short).stdout
    assert "limit 4 GiB of 81559 MiB" in shown and "1 of 2 use a GPU" in shown
    assert (
        json.loads(cli(launcher, "show", str(container.pid), "--format=json").stdout)["key"] == seen["key"]
    )
    once = cli(launcher, "top", "--once").stdout
    assert short in once and "\x1b" not in once
    for text in (once, shown):
        assert [line.split()[1] for line in text.splitlines() if line.endswith(" vgpu_tool")] == [str(pid)]
    assert short in cli(launcher, "ls").stdout


def test_a_killed_program_holds_nothing(sliced: Any, launcher: str) -> None:
    container, inside = sliced("4g")
    inside.ask("alloc a 3g")
    victim = next(pid for pid in listed(launcher, container.pid)["pids"] if name_of(pid) == "vgpu_tool")
    os.kill(victim, signal.SIGKILL)
    inside.process.wait(timeout=PATIENCE)
    seen = listed(launcher, container.pid)
    assert seen["devices"][0]["used"] == 0 and seen["processes"] == []


def name_of(pid: int) -> str:
    with open(f"/proc/{pid}/comm", encoding="ascii") as file:
        return file.read().strip()


def test_the_shim_is_proved_active(sliced: Any, launcher: str) -> None:
    container, _ = sliced("1g")
    done = cli(launcher, "check", "--all", "--format=json")
    found = {report["name"]: report for report in json.loads(done.stdout)["processes"]}
    assert found["vgpu_tool"]["status"] == "active"
    assert found["vgpu_tool"]["shims"][0].startswith(f"{LIBS}/libcuda.so")
    assert f"{container.pid} sleep: not loaded" in cli(launcher, "check", str(container.pid)).stdout


def test_a_way_around_is_named(sliced: Any, launcher: str, tool: str) -> None:
    """The private library, loaded by itself; and a file that was put there after the container began."""
    container, _ = sliced("1g")
    other = Inside(container, tool, f"LD_PRELOAD={LIBS}/nvc/real-libcuda.so.1")
    other.code("init")
    os.makedirs(f"{container.bundle.rootfs}/usr/lib64", exist_ok=True)
    container.exec(f"busybox cp {LIBS}/nvc/real-libcuda.so.1 /usr/lib64/libcuda.so.777")
    done = cli(launcher, "check", "--all", check=False)
    other.end()
    assert done.returncode == 1
    assert (
        f"not covered  {LIBS}/nvc/real-libcuda.so.1: the driver's libcuda.so.1, reached without the shim"
        in done.stdout
    )
    assert "should a program load it" in done.stdout and "/usr/lib64/libcuda.so.777" in done.stdout


def test_a_spoilt_ledger_is_said_and_nothing_hangs(sliced: Any, launcher: str) -> None:
    container, inside = sliced("1g")
    inside.end()
    container.exec(f"cp {LIBS}/nvc/ledger/ledger /sound")
    for limit, damage in enumerate(
        (
            "busybox mkfifo ledger", "busybox mkdir ledger", "ln -s /etc/passwd ledger", "ln -s /dev/zero ledger",
            "true", "cp /sound ledger; busybox truncate -s 100 ledger", "echo rubbish > ledger",
        ),
        2,
    ):  # fmt: skip
        container.exec(f"cd {LIBS}/nvc/ledger && rm -rf ledger && {{ {damage}; }}")
        seen = listed(launcher, container.pid)
        assert seen["problem"].startswith("ledger: ") and seen["devices"][0]["used"] is None, damage
        done = cli(launcher, "set", str(container.pid), f"--memory={limit}g")
        assert "what is in use is not known" in done.stderr and limits_of(container.pid) == [limit * GIB], damage
    container.exec(f"cd {LIBS}/nvc/ledger && cp /sound ledger")
    assert not listed(launcher, container.pid)["problem"]


def test_numbers_of_a_liar_stay_numbers(sliced: Any, launcher: str) -> None:
    container, inside = sliced("1g")
    inside.ask("alloc a 2m")
    path = f"/proc/{container.pid}/root{LIBS}/nvc/ledger/ledger"
    with open(path, "r+b") as ledger:
        ledger.seek(layout.AMOUNTS_OFFSET + 8)
        ledger.write(b"\xff" * 24)
    assert listed(launcher, container.pid)["devices"][0]["used"] == (1 << 63) - 1
    lines = cli(launcher, "ls").stdout.splitlines()
    assert "  8192P  " in "".join(lines)


def test_a_change_that_was_never_finished(sliced: Any, launcher: str) -> None:
    """Whoever is killed between its two writes leaves a quota that no shim takes."""
    container, _ = sliced("1g")
    path = entry_of(container.pid).quota
    with open(path, "r+b") as file:
        file.seek(layout.SEQUENCE_OFFSET)
        file.write(layout.SEQUENCE.pack(7))
    assert "its writer was killed" in cli(launcher, "set", str(container.pid), "--cores=30").stderr
    assert cli(launcher, "ls").stderr == "" and limits_of(container.pid) == [GIB]


def test_slices_are_forgotten_when_they_are_gone(sliced: Any, launcher: str) -> None:
    container, inside = sliced("1g")
    seen = listed(launcher, container.pid)
    for words in ((), ("--force",)):  # it would run on, and nobody would see it
        refused = cli(launcher, "rm", seen["name"], *words, check=False)
        assert refused.returncode == 1 and entry_of(container.pid)
        assert f"end it first: `kill -KILL {container.pid}`" in refused.stderr
    inside.end()
    assert cli(launcher, "pause", seen["key"]).stderr == ""
    container.call("delete", "--force", container.name)
    for words in (("set", seen["key"], "--cores=50"), ("pause", seen["key"]), ("resume", seen["key"])):
        assert "no process has this slice any more" in cli(launcher, *words).stderr
    assert seen["name"] != seen["key"]
    assert cli(launcher, "rm", "--gone").stdout.split() == [seen["name"]]
    assert cli(launcher, "show", seen["key"], check=False).returncode == 1
    assert not os.path.exists(seen["quota"])


#: What the operator is refused, and what is said.
REFUSED = [
    (("set", "nobody", "--memory=1g"), "no such slice"),
    (("set", "SLICE", "--memory=10gb"), "write 10GiB"),
    (("set", "SLICE", "--memory=90g"), "has 81559 MiB"),
    (("set", "SLICE", "--memory=1g,2g"), "2 sizes, but the number of devices is 1"),
    (("set", "SLICE", "--memory=1g", "--device=1"), "not a device of this slice"),
    (("set", "SLICE"), "want --memory or --unlimited, --cores"),
    (("set", "SLICE", "--memory=1g", "--unlimited"), "want either --memory or --unlimited"),
    (("set", "SLICE", "--memory=2g", "--cores=10,20"), "2 caps, but the number of devices is 1"),
    (("set", "SLICE", "--memory=2g", "--policy=fixed"), "has no cap for the policy fixed"),
    (("pause", "SLICE", "--device=1"), "not a device of this slice"),
    (("pause", "nobody"), "no such slice"),
    (("resume", "SLICE", "--device=1"), "not a device of this slice"),
    (("show", "nobody"), "no such slice"),
    (("rm",), "want either SLICE or --gone"),
    (("check", "999999999"), "no such slice"),
]


def test_refused(sliced: Any, launcher: str) -> None:
    """Each by itself, on one slice, which stays as it is."""
    container, _ = sliced("1g")
    name = listed(launcher, container.pid)["name"]
    for words, cause in REFUSED:
        done = cli(launcher, *[name if word == "SLICE" else word for word in words], check=False)
        assert done.returncode == 1 and cause in done.stderr, (words, done.stderr)
        assert limits_of(container.pid) == [GIB], words


def test_a_set_user_id_program(bundle: Bundle, configure: Configure, launcher: str, tool: str) -> None:
    """The loader trusts it with less, and no variable; it has the slice all the same."""
    bundle.config["process"]["noNewPrivileges"] = False
    with bundle.created("runc") as container:
        container.start()
        configure(container.pid, bundle.rootfs, ("--device=0", *BASIC[1:], "--vgpu-memory=4g"))
        inside = Inside(container, tool, "LD_LIBRARY_PATH=/nowhere", user="65534:65534", mode=0o4755).start()
        done = cli(launcher, "check", "--all", "--format=json")
        (report,) = [one for one in json.loads(done.stdout)["processes"] if one["name"] == "vgpu_tool"]
        with open(f"/proc/{report['pid']}/status", encoding="ascii") as status:
            uids = next(line.split()[1:] for line in status if line.startswith("Uid:"))
        assert uids[:2] == ["65534", "0"] and report["status"] == "active"
        assert inside.code("alloc a 4g") == OUT_OF_MEMORY and inside.code("alloc a 3g") == 0
        inside.end()
