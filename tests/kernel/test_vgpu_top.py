"""`nvc-cli vgpu top` and `report`: what slices received, on a terminal, as text and as a drawing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from xml.etree import ElementTree

import pytest
from support import CLEAN_ENV
from support.completion import offers
from support.nvcd import CLI
from support.programs import Programs
from support.vgpu import cli, entry_of, listed
from support.virtual import World

from nvc.model.slices import layout

SHARE = 0.4
pytestmark = pytest.mark.usefixtures("shim")


@pytest.fixture
def tenant(launcher: str, sim_root: Callable[..., str]) -> Iterator[int]:
    """A process with a slice of a GPU of its own: a cap of 40 %."""
    programs = Programs(launcher, sim_root(), "--memory=4g", "--cores=40")
    yield programs.start()
    programs.end()


class Budget:
    """The ledger of a slice: what a process writes there that uses its device for 40 % of the time."""

    def __init__(self, pid: int) -> None:
        libs = entry_of(pid).libs_dir
        self.path = f"/proc/{pid}/root{libs}/{layout.LEDGER_DIRECTORY}/{layout.LEDGER_NAME}"

    def after(self, passed: int) -> None:
        """So many nanoseconds."""
        budget = layout.BUDGET.pack(0, 0, int(passed * SHARE), int(passed * 0.5), passed // 10**6, 0, 0)
        with open(self.path, "r+b", buffering=0) as ledger:
            os.pwrite(ledger.fileno(), budget, layout.BUDGETS_OFFSET)


def beside(world: World, pid: int, *words: str) -> str:
    """What `nvc-cli vgpu` says in virtual time, in which the process's ledger is written each millisecond.

    In real time a busy host would let seconds pass between two writes, and the share would be another one.
    """
    budget, began = Budget(pid), world.now_ns
    command = [sys.executable, "-B", "-c", CLI, "vgpu", *words]
    process = world.start(command, CLEAN_ENV, stdout=subprocess.PIPE, text=True)
    while process.poll() is None:
        world.run(0.001)
        budget.after(world.now_ns - began)
    assert process.stdout is not None and process.returncode == 0
    with process.stdout as out:
        return str(out.read())


def test_what_a_slice_received(launcher: str, tenant: int, world: World) -> None:
    shown = beside(world, tenant, "top", "--once")
    name = listed(launcher, tenant)["name"]
    line = next(line for line in shown.splitlines() if line.startswith(name) and " 40% " in line).split()
    assert line[1] == "0" and line[7:11] == ["40.0%", "capped", "40%", "1"]
    assert 39 < float(line[6].rstrip("%")) < 41
    assert 49 < float(line[11].rstrip("%")) < 51
    assert "launches, held back" in cli(launcher, "show", name).stdout
    assert listed(launcher, tenant)["devices"][0]["time"]["launches"] > 0
    cli(launcher, "pause", name)
    assert "paused" in cli(launcher, "top", "--once").stdout


def test_a_report(launcher: str, tenant: int, scratch: str, world: World) -> None:
    drawing = f"{scratch}/shares.svg"
    words = (
        "report",
        str(tenant),
        "--seconds=1",
        "--interval=0.1",
        "--format=json",
        f"--output={drawing}",
    )
    (track,) = json.loads(beside(world, tenant, *words))["tracks"]
    assert len(track["points"]) == 10
    assert abs(track["mean"] - SHARE) < 0.01
    assert {share for _, share in track["entitlement"]} == {0.4}
    root = ElementTree.parse(drawing).getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2
    shown = cli(launcher, "report", str(tenant), "--seconds=0.2").stdout.splitlines()
    assert shown[0].split()[:4] == ["SLICE", "DEVICE", "ENTITLED", "MEAN"] and " 0       40.0%" in shown[1]


@pytest.mark.parametrize("command", ["set", "report"])
def test_tab_offers_slices(launcher: str, tenant: int, command: str) -> None:
    name = listed(launcher, tenant)["name"]
    assert name in offers(launcher, f"nvc-cli vgpu {command} {name[:1]}")
    if command == "set":
        assert offers(launcher, f"nvc-cli vgpu {command} {tenant} --device 0") == ["0"]
    assert name not in offers(launcher, f"nvc-cli vgpu rm {name[:1]}"), "it runs"
    if command == "report":
        assert name not in offers(launcher, f"nvc-cli vgpu {command} {name} ")


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--output=shares.png", "--seconds=1"), "--output: shares.png: only SVG is drawn"),
        (("--output=/no/such/place.svg", "--seconds=600"), "no such file or directory"),  # at once
        (("--interval=5", "--seconds=1"), "--interval: 5: longer than --seconds 1"),
        (("nobody",), "no such slice"),
        (("--interval=0.05", "--seconds=80000"), "more than 100000 readings"),
        (("--seconds=nan",), "nan is not a number of seconds"),
        (("--seconds=inf",), "is not in the range"),
    ],
)
def test_reports_that_cannot_be(launcher: str, words: tuple[str, ...], cause: str) -> None:
    done = cli(launcher, "report", *words, check=False)
    assert done.returncode == 1 and cause in done.stderr
