"""Where a policy needs nvcd, and that does not run or answer, whoever asks is told at once."""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import CLEAN_ENV, PATIENCE, run
from support.bundle import Bundle
from support.hook import Hook, ask
from support.nvcd import Place, eventually
from support.vgpu import shares_of
from support.vgpucap import Worker

pytestmark = [pytest.mark.usefixtures("shim"), pytest.mark.driver(gpus=1)]
NOT_RUNNING = "(not enforced: nvcd is not running)"


Slice = Callable[..., "Held"]


class Held:
    """A program with a slice that waits for the end of its input."""

    def __init__(self, words: list[str]) -> None:
        self.process = subprocess.Popen(
            [*words, "sh", "-c", "echo $$; read line"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=CLEAN_ENV,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.pid = self.process.stdout.readline().strip()

    def end(self) -> str:
        """What was said on standard error."""
        return self.process.communicate(timeout=PATIENCE)[1]


@pytest.fixture
def start(place: Place, launcher: str, driver: str) -> Iterator[Slice]:
    started = []

    def one(*words: str) -> Held:
        started.append(Held(place.sliced(launcher, driver, "--memory=1g", *words)))
        return started[-1]

    yield one
    for held in started:
        held.end()


@pytest.fixture
def vgpu(place: Place, launcher: str, driver: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    return lambda *words: run(*place.enter(launcher, f"--root={driver}", "vgpu", *words))


def test_without_nvcd(vgpu: Any, start: Slice) -> None:
    held = start("--weight=3", "--policy=fair")
    text = f"fair {NOT_RUNNING}"
    for words in (("ls",), ("top", "--once"), ("show", held.pid)):
        assert text in vgpu(*words).stdout, words
    (one,) = json.loads(vgpu("ls", "--format=json").stdout)["slices"]
    assert one["devices"][0]["notEnforced"] == "nvcd is not running"
    assert text in vgpu("set", held.pid, "--weight=4").stderr
    assert vgpu("set", held.pid, "--memory=2g").stderr == ""
    assert f"policy {text}" in held.end()


def test_policies_that_are_laid_down(vgpu: Any) -> None:
    assert f"weight, quantum {NOT_RUNNING}" in vgpu("policy", "0", "weight", "--quantum=2ms").stderr
    assert f" quantum, floor {NOT_RUNNING}" in vgpu("policy", "0", "none", "--floor=1ms").stderr
    assert vgpu("policy", "0", "--reset").stderr == ""
    assert vgpu("policy", "0", "native", "--max-instances=8").stderr == ""


@pytest.mark.parametrize("options", [("--cores=30",), ()])
def test_what_needs_no_nvcd(vgpu: Any, start: Slice, options: tuple[str, ...]) -> None:
    held = start(*options)
    assert "not enforced" not in vgpu("ls").stdout + vgpu("show", held.pid).stdout
    assert held.end() == ""


def test_with_nvcd_and_with_one_that_hangs(
    place: Place, vgpu: Any, start: Slice, driver: str, launcher: str
) -> None:
    """The simulated driver has no resource manager here: nvcd runs, and the shim keeps time."""
    daemon = place.start(f"--root={driver}")
    held = start("--weight=3", "--policy=weight")
    eventually(place, lambda s: any("does not run" in one["time"] for one in s["devices"]))
    changes = (
        ("set", held.pid, "--weight=2"), ("set", held.pid, "--idle-suspend=5s"), ("policy", "0", "weight"),
        ("policy", "0", "--idle-suspend=5s"),
    )  # fmt: skip
    for words in changes:
        idle = ", idle-suspend" if "idle" in words[-1] else ""
        text = f"policy weight{idle} (not enforced: the driver's scheduler is not used; `nvcd --state`"
        assert text in vgpu(*words).stderr, words
    for words in (("ls",), ("show", held.pid)):
        assert "weight (not enforced: the driver's scheduler is not used" in vgpu(*words).stdout, words
    found = run(*place.enter(launcher, f"--root={driver}", "doctor", "vgpu.daemon"), check=False).stdout
    assert found.startswith("warning") and "the policy weight of GPU-" in found and "is not enforced" in found
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        # Asking has a bound, a shorter one than this command.
        assert "weight (not enforced: nvcd does not answer)" in vgpu("show", held.pid).stdout
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
    held.end()  # a start warns only where nvcd has looked at the GPU before


def test_nothing_is_shown_that_nobody_measured(
    place: Place, vgpu: Any, driver: str, busy: Callable[..., Worker]
) -> None:
    """A slice with a cap measures its own time; the others do so for nvcd alone, which was killed."""
    daemon = place.start(f"--root={driver}")
    names = ("bounded", "free")
    busy("--policy=weight", "--cores=30", f"--name={names[0]}", seconds=600)
    busy("--policy=weight", f"--name={names[1]}", seconds=600)
    eventually(place, lambda s: [len(device["tenants"]) for device in s["devices"] if device["tenants"]] == [2])
    daemon.kill()
    told = f"weight {NOT_RUNNING}: GPU time is not measured\n"
    shown = vgpu("top", "--once").stdout
    (head,) = [line for line in shown.splitlines() if "WAITED" in line]
    rows = {line.split()[0]: line for line in reversed(shown.splitlines()) if line.startswith(names)}

    def cell(name: str, title: str) -> str:
        return rows[name][head.index(title) :].split()[0]

    assert [cell("free", title) for title in ("ENTITLED", "UTILIZED", "WAITED", "STATE")] == ["-"] * 4, shown
    assert cell("bounded", "ENTITLED") == "-" and cell("bounded", "UTILIZED") not in ("-", "0.0%") and told in shown
    assert "utilization is not measured: nvcd is not running\n" in vgpu("show", "free").stdout
    assert told in vgpu("ls").stdout
    picture = json.loads(vgpu("top", "--once", "--format=json").stdout)
    found = {one["name"]: one["devices"][0] for one in picture["slices"]}
    free = found["free"]
    assert [free[name] for name in ("entitlement", "utilization", "waited", "time")] == [None] * 4
    assert found["bounded"]["entitlement"] is None and found["bounded"]["utilization"] > 0
    (device,) = json.loads(vgpu("advise", "--seconds=0.3", "--format=json").stdout)["devices"]
    loads = {one["name"]: one for one in device["slices"]}
    assert loads["free"]["utilization"] is None and loads["free"]["work"] == "not measured"
    report = vgpu("report", "--seconds=0.3")
    assert [line.split()[:2] for line in report.stdout.splitlines()[1:]] == [["bounded", "0"]]
    assert told.rstrip() in report.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("policy", "0", "concurrent"),
        ("run", "--memory=1g", "--policy=concurrent", "--", "true"),
        ("run", "--memory=1g", "--isolation=mps", "--", "true"),
    ],
)
def test_a_simulated_driver_has_no_mps(
    place: Place, launcher: str, driver: str, words: tuple[str, ...]
) -> None:
    """Who asks hears it at once, before nvcd starts the program that does nothing."""
    done = run(*place.enter(launcher, f"--root={driver}", "vgpu", *words), check=False)
    cause = f"{driver}/usr/bin/nvidia-cuda-mps-control: simulated drivers have no MPS"
    assert done.returncode == 1 and cause in done.stderr
    assert glob.glob(f"{place.run}/vgpu*/*") == [], "nothing was made or set"


def test_containers_by_variable(hook: Callable[[], Hook], bundle: Bundle) -> None:
    """The hook says so on standard error and in its log, once the container has what it asked for."""
    ask(bundle, NVIDIA_VISIBLE_DEVICES="0", NVC_VGPU_WEIGHT="3", NVC_VGPU_POLICY="weight")
    made = hook()
    with bundle.created("runc") as container:
        said = made.call(container.state).stderr
        assert "nvc-hook: warning: GPU-" in said and f"policy weight {NOT_RUNNING}" in said
        assert f"policy weight {NOT_RUNNING}" in made.logged()
        assert shares_of(container.pid) == [(0, 3, "weight", 0)]


def test_nvcd_is_required(hook: Callable[[], Hook], bundle: Bundle) -> None:
    """Such a container does not start; one that needs no nvcd does."""
    ask(bundle, NVIDIA_VISIBLE_DEVICES="0", NVC_VGPU_WEIGHT="3")
    made = hook()
    made.add_settings("require-nvcd = true")
    with bundle.created("runc") as container:
        done = made.call(container.state, check=False)
        assert done.returncode == 1 and "[NVC-2107: nvc-cli doctor vgpu]" in done.stderr
        assert "the policy weight needs nvcd: nvcd is not running" in done.stderr
        assert not os.path.exists(f"{bundle.rootfs}/dev/nvidia0")
    ask(bundle, NVC_VGPU_CORES="30", NVC_VGPU_POLICY="fixed", NVC_VGPU_WEIGHT="")
    with bundle.created("runc") as container:
        assert made.call(container.state).stderr == ""
        assert shares_of(container.pid) == [(30, 1, "fixed", 0)]


def test_nvcd_is_required_and_hangs(place: Place, launcher: str, driver: str, scratch: str) -> None:
    """Who needs it is refused and told what to do; who needs none starts."""
    os.makedirs(f"{scratch}/etc/nvc")
    with open(f"{scratch}/etc/nvc/config.toml", "w", encoding="utf-8") as config:
        config.write("[nvc]\nrequire-nvcd = true\n")
    run(*place.enter("mount", "-t", "overlay", "-o", f"lowerdir={scratch}/etc:/etc", "none", "/etc"))

    def start(*words: str) -> subprocess.CompletedProcess[str]:
        return run(*place.sliced(launcher, driver, "--memory=1g", *words), "echo", "it ran", check=False)

    refused = start("--weight=3")
    assert "the policy weight needs nvcd: nvcd is not running; start nvcd: " in refused.stderr
    assert refused.returncode == 1 and "[NVC-2107: nvc-cli doctor vgpu]" in refused.stderr
    daemon = place.start(f"--root={driver}")
    assert start("--weight=3").stdout == "it ran\n"
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        refused = start("--weight=3")
        assert "the policy weight needs nvcd: nvcd does not answer; `systemctl restart nvcd`" in refused.stderr
        assert refused.returncode == 1 and "[NVC-2107: nvc-cli doctor vgpu]" in refused.stderr
        assert start("--cores=30").stdout == "it ran\n"
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
