"""Every help text and every table fits a terminal of 80 columns."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import click
import pytest
from support import CLEAN_ENV, run
from support.facts import IDENTITY, MIG_UUID_0, PLAN, VERSION, facts, gpu, mig_device
from support.terminal import Terminal

from nvc.discovery.containers import ContainerName
from nvc.doctor import UNKNOWN, Finding, Result, text
from nvc.doctor.catalog import CHECKS
from nvc.frontends.cdi.hooks.arguments import OPTIONS
from nvc.model.facts import HostFacts
from nvc.model.request import Request
from nvc.model.selection import select
from nvc.model.slices.entry import Entry as SliceEntry
from nvc.model.slices.ledger import Account
from nvc.plan import listing
from nvc.plan.describe import describe
from nvc.plan.describe import table as plan_table
from nvc.plan.listing import Row
from nvc.plan.ops import BindFile, Ledger, LoaderEntry, Plan, Symlink, UpdateLoaderCache
from nvc.slices.admin.device_policy import SharedDevice
from nvc.slices.policy.advice import Load, Situation, advise
from nvc.slices.policy.policies import DevicePolicy
from nvc.slices.show import advice, tables
from nvc.slices.show.history import Track
from nvc.slices.store.status import SliceDeviceStatus, SliceStatus
from nvc_cli import boot, daemon, output, sim
from nvc_cli.main import CONTEXT, tree
from nvc_hooks import boot as hook_boot
from nvc_hooks import cdi as hook_cdi

WIDTH = 80
LONG = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition (simulated)"


def commands(command: click.Command = tree, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command, at every depth."""
    yield path
    if isinstance(command, click.Group):
        ctx = click.Context(command, info_name="nvc-cli", **CONTEXT)
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from commands(inner, (*path, name))


EVERY = list(commands())


def test_every_help(capfd: pytest.CaptureFixture[str]) -> None:
    """Both --help and --usage where there is one; -h is the same as --help."""
    for path in EVERY:
        assert boot.run("nvc-cli", [*path, "--help"]) == 0
        shown = capfd.readouterr()
        assert shown.err == "" and shown.out.startswith("Usage: nvc-cli"), path
        assert [line for line in shown.out.splitlines() if len(line) > WIDTH] == [], path
        titles = [line for line in shown.out.splitlines() if re.match(r" *Examples?:", line)]
        assert titles in ([], ["Example:"], ["Examples:"]), "all titles begin at the left"
        for short in ("-h", "-?"):
            assert boot.run("nvc-cli", [*path, short]) == 0
            assert capfd.readouterr() == shown


@pytest.mark.parametrize(
    "usage", [daemon.USAGE, hook_boot.USAGE, hook_cdi.USAGE], ids=["nvcd", "hook", "cdi"]
)
def test_the_help_of_other_programs(usage: str) -> None:
    assert [line for line in usage.splitlines() if len(line) > WIDTH] == []


def test_the_help_of_the_cdi_hook_says_what_each_hook_does() -> None:
    shown = hook_cdi.USAGE.partition("Hooks, ")[2]
    assert re.findall(r"^  ([a-z][a-z-]+)(?:\n {26}| {2,})\S", shown, re.MULTILINE) == list(OPTIONS)


def crowd() -> HostFacts:
    """Eight GPUs with long names, each with seven MIG devices."""
    found = []
    for index in range(8):
        mig = tuple(mig_device(index, number, MIG_UUID_0) for number in range(7))
        found.append(gpu(index, f"GPU-08f3a2f0-0000-0000-0000-00000000000{index}", name=LONG, mig=mig))
    return facts(gpus=tuple(found))


def simulated() -> SimpleNamespace:
    """The same as `nvc-cli sim show` reports it, with a process on every MIG device."""
    size = 143771 << 20
    found = []
    for index, one in enumerate(crowd().gpus):
        same = {"memory": size, "used": size}
        mig = [
            SimpleNamespace(
                index=mig.index, uuid=mig.uuid, profile="7g.141gb+me", gpu_instance=mig.gpu_instance,
                compute_instance=0, **same,
            )
            for mig in one.mig
        ]  # fmt: skip
        found.append(SimpleNamespace(
            index=index, uuid=one.uuid, name=LONG, minor=index + 128, bus_id=one.bus_id, mig_enabled=True, mig=mig,
            **same,
        ))  # fmt: skip
    processes = [
        SimpleNamespace(pid=4194304, gpu=gpu, mig=mig, used=size, busy_ns=10**15)
        for gpu in range(8)
        for mig in range(7)
    ]
    return SimpleNamespace(driver_version=VERSION, cuda_version="13.0", gpus=found, processes=processes)


def tracks() -> tuple[Track, ...]:
    long = "k8s_trainer_deployment-7f9c5d8b6d-x2x9l_production_0 on 0:6"
    return (Track("f0000154" * 8, long, MIG_UUID_0, ((0.2, 1.0),) * 3, ((0.2, 0.5),), 0.999),)


def shared_devices() -> tuple[SharedDevice, ...]:
    own = DevicePolicy(policy=2, max_instances=4096, total_weight=1 << 20, quantum_us=1000000, oversubscribe=1000)
    return tuple(SharedDevice(MIG_UUID_0, f"{number}:6", LONG, 143771 << 20, own, ()) for number in range(8))


def shares() -> tuple[Situation, ...]:
    """A crowd with long names and caps, and one without caps."""
    loads = (Load(LONG * 2, 0.999, 9.9, 0.0099, 99, 65536, 143771 << 20, 64),) * 3
    long = Load(LONG, 0.999, 9.9, None, 99, 65536, 143771 << 20, 64)
    one = Situation("GPU-0", "0:6", LONG, 2, (*loads, long), 0.04, 100, 143771 << 20)
    return one, one.replace(loads=tuple(load.replace(cores=0) for load in loads))


def tenants() -> tuple[SliceStatus, ...]:
    """A slice on eight devices in a pod with a long name, and one of a program."""
    name, size = "trainer-deployment-7f9c5d8b6d-x2x9l/pytorch-production", 143771 << 20
    entry = SliceEntry("f" * 16, "/run/nvc/vgpu/x", 1, 1, "/var/lib" + "/long" * 30, "/usr/lib", 0, ())
    devices = tuple(
        SliceDeviceStatus(
            f"GPU-{number}", f"{number}:6", LONG, size, size - 1, size - 2, True, cores=99, weight=65536, policy=3
        )
        for number in range(8)
    )
    account = Account(0, 4194304, "python3-with-15", (size,) * 8)
    one = SliceStatus(entry, "f0000154", (4194304,) * 99, devices, (account,) * 99, name=name)
    return one, one.replace(name="train", devices=devices[:1], accounts=())


def crowded_plan() -> Plan:
    """PLAN with operations whose paths leave no room for what follows them."""
    libs = "/usr/lib/x86_64-linux-gnu/nvidia"
    soname = "libnvidia-ml.so.580.159.04"
    own = (
        BindFile(f"/run{libs}/{soname}", f"{libs}/{soname}", IDENTITY),
        Ledger(f"{libs}/ledger", b"", 8192, "system_u:object_r:container_file_t:s0:c1022,c1023"),
        Symlink(f"{libs}/{soname}", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"),
        UpdateLoaderCache((LoaderEntry(soname, f"{libs}/{soname}", "x86_64"),)),
    )
    warning = "the image has a C library of another family than the driver's files, which do not run in it"
    return PLAN.replace(ops=(*PLAN.ops, *own), warnings=(warning,))


def results() -> tuple[Result, ...]:
    words = "the configuration of the engine cannot be read: /etc/docker/daemon.json: permission denied here"
    found = Finding(UNKNOWN, words, (words,), ("nvc-cli doctor",), words)
    return tuple(Result(check, (found,)) for check in CHECKS)


def entries() -> tuple[Row, ...]:
    host, request = crowd(), Request(devices=("all",), capabilities=("compat32",), imex_channels=(2047,))
    kinds = ("devices", "binaries", "libraries", "ipcs", "firmwares")
    return listing.entries(host, select(host, request), request, kinds)


TABLES: dict[str, Callable[[int], str]] = {
    "info": lambda width: listing.info_table(crowd(), width),
    "list": lambda width: listing.list_table(entries(), width),
    "configure": lambda width: plan_table(PLAN, width),
    "configure --dry-run": lambda _: describe(crowded_plan()),
    "sim show": lambda width: sim.table(simulated(), width),
    "vgpu policy": lambda width: tables.policies_table(shared_devices(), width),
    "vgpu report": lambda width: tables.tracks_table(tracks(), width),
    "vgpu advise": lambda width: advice.text(tuple(advise(one, True) for one in shares()), width),
    "vgpu ls": lambda width: tables.slices(tenants(), 1e9, width),
    "vgpu show": lambda width: tables.processes(tenants(), width),
    "vgpu top": lambda width: tables.plain_top(tenants(), 1e9, {}, width),
    "doctor": lambda width: text.table(results(), width),
    "doctor on a terminal": lambda width: text.report(results(), width=width),
    "doctor --list": lambda _: text.listing(CHECKS),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_table(name: str) -> None:
    shown = TABLES[name](WIDTH)
    assert shown.count("\n") > 1
    assert [line for line in shown.splitlines() if len(line) > WIDTH] == []


def test_one_word_for_one_thing() -> None:
    """The titles of `advise` are those of `ls` and `top`, but for what only it knows."""
    titles = [set(line.split()) for line in TABLES["vgpu advise"](0).splitlines() if line.startswith("  SLICE ")]
    assert titles and all(one - {*tables.LS, *tables.TOP} == {"STEP", "WORK"} for one in titles), titles
    assert "MiB" not in TABLES["vgpu advise"](0) and {"DEVICE", "MODEL"} <= set(sim.table(simulated()).split())


def test_a_report_keeps_its_figures() -> None:
    head, row = tables.tracks_table(tracks(), 80).splitlines()
    assert head.split()[1:6] == ["DEVICE", "ENTITLED", "MEAN", "LEAST", "MOST"]
    assert row.split()[1] == "0:6" and row.count("100.0%") == 2, (head, row)
    for name in ("vgpu policy", "vgpu report", "vgpu advise"):
        titles = [line for line in TABLES[name](45).splitlines() if line.strip().startswith(("SLICE ", "DEVICE "))]
        assert titles and not any("…" in line for line in titles), titles


def test_doctor_on_a_terminal(launcher: str, scratch: str) -> None:
    """Its sentences are folded where they are read, and are one line each for `grep`."""
    with Terminal(
        scratch, WIDTH, 50, PATH=f"{os.path.dirname(launcher)}:{CLEAN_ENV['PATH']}", R=scratch
    ) as it:
        it.type("clear; nvc-cli --root $R doctor driver.libraries; echo $((40 + 2))")
        it.wait_until(lambda lines: "42" in lines)
        lines = it.shown("-J")
    assert any(line.startswith("    seen    ") for line in lines), lines
    wide = [line for line in lines if len(line.rstrip()) > WIDTH]
    assert [line for line in wide if len(line.split()) > 1] == [], "a path alone may be wider"
    piped = run(launcher, "--root", scratch, "doctor", "driver.libraries", check=False).stdout
    assert max(map(len, piped.splitlines())) > WIDTH


@pytest.mark.parametrize("words", ["version", "config show", "config get nvc.timeout", "explain"])
def test_tables_of_nvc_itself(
    words: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "columns", lambda: WIDTH)
    assert boot.run("nvc-cli", [*words.split(), "-o", "table"]) == 0
    shown = capfd.readouterr().out
    assert shown.count("\n") > 1 and "\x1b" not in shown
    assert [line for line in shown.splitlines() if len(line) > WIDTH] == []


def test_half_a_screen(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and models are cut where values begin after them: each line has something in each column."""
    monkeypatch.setattr(output, "columns", lambda: 40)
    assert boot.run("nvc-cli", ["config", "show", "-o", "table"]) == 0
    for shown in (capfd.readouterr().out, TABLES["info"](40)):
        assert [line for line in shown.splitlines() if len(line) > 40 or line.endswith("…")] == []
        assert all(len(line.split()) > 1 for line in shown.splitlines()), shown


def test_what_is_copied_from_a_table_is_whole() -> None:
    """UUIDs, indices and paths are not cut where something else can be left out."""
    shown = listing.info_table(crowd(), WIDTH)
    assert all(one.uuid in shown for one in crowd().gpus) and shown.count(MIG_UUID_0) == 56
    assert shown.count("…(simulated)") == 8  # nobody takes one for a real GPU
    shown = listing.list_table(entries(), WIDTH)
    assert all(entry.path in shown for entry in entries())
    shown = tables.slices(tenants(), 1e9, WIDTH)
    assert "LIMIT" in shown and "USED" in shown and "POLICY" in shown and shown.count("fixed, paused") == 9
    shown = sim.table(simulated(), WIDTH)
    assert shown.count(MIG_UUID_0) == 56


def test_a_program_gets_whole_tables(capfd: pytest.CaptureFixture[str]) -> None:
    """Columns depend neither on the data nor on a width; nothing is cut."""
    assert output.columns() == 0  # capfd is no terminal
    one, other = tenants()
    reserving = one.replace(devices=(one.devices[0].replace(reserved=1 << 30),))
    origin = other.replace(name="train", container=ContainerName("docker", "", "1234", "web"))
    for show in (
        lambda some: tables.slices(some, 1e9),
        lambda some: tables.plain_top(some, 1e9, {}).partition("\nSLICE ")[2],
        lambda some: tables.plain_top(some, 1e9, {}).partition("\n\n")[2],
    ):
        titles = [tuple(show(some).splitlines()[0].split()) for some in ((one,), (other,), (reserving,), (origin,))]
        assert len(set(titles)) == 1 and "RESERVED" in titles[0]
    assert LONG not in tables.slices((one,), 1e9) and one.name in tables.slices((one,), 1e9)


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_command_that_prints_something_has_a_form_for_programs(path: tuple[str, ...]) -> None:
    """--format and -o are one option, and take json and yaml."""
    command: click.Command = tree
    ctx = click.Context(tree, info_name="nvc-cli", **CONTEXT)
    for word in path:
        assert isinstance(command, click.Group)
        inner = command.get_command(ctx, word)
        assert inner is not None
        command = inner
    formats = [param for param in command.params if "--format" in param.opts]
    silent = {
        "runtime configure", "config set", "config unset", "sim create", "sim destroy", "completion", "help",
        *(f"vgpu {name}" for name in ("run", "set", "pause", "suspend", "resume", "rm", "trace")),
    }  # fmt: skip
    if isinstance(command, click.Group) or " ".join(path) in silent:
        assert not formats
        return
    (option,) = formats
    files = {"cdi generate", "cdi refresh", "cdi transform root"}  # they write files; -o is --output there
    assert ("-o" in option.opts) == (" ".join(path) not in files)
    if isinstance(option.type, click.Choice):
        assert {"json", "yaml"} <= set(option.type.choices)
