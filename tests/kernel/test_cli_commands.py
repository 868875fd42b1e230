"""The installed command line on a simulated driver: info, list, configure --dry-run, the debug log, completion."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
from collections.abc import Callable

import pytest
from support import CLEAN_ENV, PATIENCE, run
from support.completion import offers as completed
from support.completion import offers_in_fish, screen_of_zsh
from support.nightly import few

from nvc.slices.show.tables import LS

Root = Callable[..., str]
Cli = Callable[..., "subprocess.CompletedProcess[str]"]
#: A level, the time, a thread, and where in the code.
LOG_LINE = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ \w+\.py:\d+\] \S.*")


@pytest.fixture
def root(sim_root: Root) -> str:
    """Two GPUs, the second with three MIG devices."""
    return sim_root(gpus=2, mig=("", "3g.40gb,2x2g.20gb"))


@pytest.fixture
def cli(launcher: str, root: str) -> Cli:
    """`cli(*words)` runs nvc-cli with that driver root."""

    def call(
        *words: str, env: dict[str, str] | None = None, **options: object
    ) -> subprocess.CompletedProcess[str]:
        return run(launcher, "--root", root, *words, env={**CLEAN_ENV, **(env or {})}, **options)  # type: ignore[arg-type]

    return call


def document(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    made: dict[str, object] = json.loads(done.stdout)
    assert made["schemaVersion"] == 1
    return made


def test_info(cli: Cli, root: str) -> None:
    done = cli("info")
    assert done.stderr == f"nvc-cli: simulated driver in {root}: these GPUs are not real\n"
    blocks = done.stdout.split("\n\n")
    assert re.fullmatch(r"NVRM version:   [0-9.]+-sim\nCUDA version:   \d+\.\d", blocks[0])
    assert [block.splitlines()[0] for block in blocks[1:]] == ["Device Index:   0", "Device Index:   1"]
    header, version, _, *gpus = csv.reader(cli("info", "--csv").stdout.splitlines())
    assert header == ["NVRM version", "CUDA version"]
    shown = cli("info", "--format=json")
    made = document(shown)
    driver, found = made["driver"], made["gpus"]
    assert isinstance(driver, dict)
    assert isinstance(found, list)
    assert driver["simulated"] is True
    assert [driver["version"] + "-sim", driver["cudaVersion"]] == version
    keys = ("index", "minor", "model", "brand", "uuid", "busId", "architecture")
    assert [[str(gpu[key]) for key in keys] for gpu in found] == gpus[1:]
    assert [len(gpu["migDevices"]) for gpu in found] == [0, 3]
    table = cli("info", "--format", "table").stdout
    assert "\x1b" not in table  # no terminal, no colour
    assert [line.split()[0] for line in table.splitlines()] == ["DEVICE", "0", "1", "1:0", "1:1", "1:2"]
    assert all(gpu["uuid"] in table and gpu["model"].removeprefix("NVIDIA ") in table for gpu in found)


def test_top_shows_gpus_without_slices_or_says_why_not(cli: Cli, launcher: str, scratch: str) -> None:
    uuids = [row[4] for row in csv.reader(cli("info", "--csv").stdout.splitlines()) if len(row) > 4][1:]
    shown = cli("vgpu", "top", "--once").stdout
    assert shown.splitlines()[2].split()[:3] == ["DEVICE", "UUID", "SLICES"]
    assert uuids[0] in shown and uuids[1] not in shown and shown.count(" MIG-") == 3  # what slices can have
    done = run(launcher, "--root", scratch, "vgpu", "top", "--once")
    assert "warning: GPUs without slices are not shown: " in done.stderr


def test_names_of_slices_for_scripts(cli: Cli) -> None:
    assert cli("vgpu", "ls", "-q").stdout == cli("vgpu", "ls", "-o", "name").stdout
    head, _, rows = cli("vgpu", "ls").stdout.partition("\n")
    assert head.split() == [*LS] and cli("vgpu", "ls", "-o", "wide").stdout.splitlines()[0] == head
    assert cli("vgpu", "ls", "--no-headers").stdout in rows


def test_everything_that_list_prints_is_there(cli: Cli, root: str) -> None:
    done = cli("list")
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines == list(dict.fromkeys(lines))
    for line in lines:
        assert os.path.lexists(root + line), line
    made = document(cli("list", "--format=json"))["entries"]
    assert isinstance(made, list)
    assert [entry["path"] for entry in made] == lines
    table = cli("list", "--format=table").stdout.splitlines()
    assert [line.split()[1] for line in table[1:]] == lines
    for entry in made:
        if entry["kind"] == "device":
            status = os.stat(root + entry["path"])
            assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (entry["major"], entry["minor"])


def test_list_by_parts_is_list(cli: Cli) -> None:
    words = ("--device=all", "--binaries", "--libraries", "--compat32", "--ipcs", "--firmwares")
    assert cli("list", *words).stdout == cli("list").stdout
    parts = [
        cli("list", *part).stdout for part in (words[:1], words[1:2], words[2:4], words[4:5], words[5:])
    ]
    assert "".join(parts) == cli("list").stdout


def test_info_without_root(launcher: str, root: str) -> None:
    done = run(launcher, "--root", root, "info", "--csv", user=65534, group=65534, extra_groups=[])
    assert done.stdout == run(launcher, "--root", root, "info", "--csv").stdout


@pytest.mark.parametrize("word", ["-u", "--user=nobody"])
def test_the_helper_runs_as_another_user(cli: Cli, launcher: str, root: str, word: str) -> None:
    done = run(launcher, word, "--no-inventory", "--root", root, "info", "--csv")
    assert done.stdout == cli("info", "--csv").stdout


def test_dry_run_shows_the_plan_and_touches_nothing(cli: Cli, scratch: str) -> None:
    rootfs = os.path.join(scratch, "rootfs")
    os.mkdir(rootfs)
    words = ("configure", "--dry-run", "--device=1:0", "--compute", "--utility", rootfs)
    text = cli(*words).stdout
    made = document(cli(*words, "--format=json"))
    assert os.listdir(rootfs) == []
    devices, operations = made["devices"], made["operations"]
    assert isinstance(devices, list)
    assert isinstance(operations, list)
    assert [device[:4] for device in devices] == ["GPU-", "MIG-"]
    assert re.match(r"driver   [0-9.]+-sim  root /.*\ngpu      GPU-.*\ngpu      MIG-.*\n", text)
    shown = [
        line.split()[1] for line in text.splitlines() if not line.startswith((" ", "driver", "gpu", "allow"))
    ]
    assert shown == [op["target"] for op in operations if op["operation"] != "allowDevice"]
    assert text == cli(*words).stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["--device=9"],
            "device error: 9: unknown device: there is no GPU 9, this driver has GPUs 0 and 1; `nvc-cli info`",
        ),
        (["--device=GPU-\x1b[2J"], "device error: GPU-?[2J: unknown device: this driver has GPUs 0 and 1; "),
        (
            ["--device=1:0", "--mig-config=all"],
            "mig-config error: all: cannot enable mig-config with specific",
        ),
    ],
)
def test_failures_are_one_line(cli: Cli, words: list[str], line: str) -> None:
    done = cli("configure", "--pid=1", *words, "/run/no-such-rootfs", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"nvc-cli: {line}")
    assert done.stderr.count("\n") == 1


def test_a_wrong_driver_root(launcher: str, scratch: str) -> None:
    done = run(launcher, "--root", scratch, "info", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.match(r"nvc-cli: (initialization|detection) error: ", done.stderr)
    assert done.stderr.count("\n") == 1


def log_lines(text: str) -> list[str]:
    """The lines of one run's log, after its head."""
    head = "\n-- WARNING, the following logs are for debugging purposes only --\n\n"
    assert text.startswith(head)
    lines = text.removeprefix(head).splitlines()
    assert lines
    for line in lines:
        assert LOG_LINE.fullmatch(line), line
    return lines


def test_debug_log(cli: Cli, scratch: str) -> None:
    path, rootfs = os.path.join(scratch, "log"), os.path.join(scratch, "rootfs")
    os.mkdir(rootfs)
    cli(f"--debug={path}", "configure", "--dry-run", "--device=1:1", "--utility", rootfs)
    with open(path, encoding="utf-8") as log:
        first = log.read()
    lines = [line.partition("] ")[2] for line in log_lines(first)]
    assert lines[0].startswith("configure: --root")
    for wanted in (
        "driver ",
        "gpu 1 GPU-",
        "library /",
        "selected gpu 1 ",
        "selected mig device 1:1 ",
        "plan: bind ",
    ):
        assert any(line.startswith(wanted) for line in lines), wanted
    assert cli("-d", path, "list", "--device=7", check=False).returncode == 1
    with open(path, encoding="utf-8") as log:
        both = log.read()
    assert both.startswith(first)  # appended
    assert log_lines(both.removeprefix(first))[-1].startswith("E")
    assert os.stat(path).st_mode & 0o777 == 0o644


def test_debug_log_on_standard_error_and_from_the_environment(cli: Cli, scratch: str) -> None:
    log_lines(cli("-d", "/dev/stderr", "list").stderr)
    path = os.path.join(scratch, "log")
    cli("list", env={"NVC_DEBUG_FILE": path})
    with open(path, encoding="utf-8") as log:
        log_lines(log.read())
    assert cli("list", "--device=0", env={"NVC_DEBUG_FILE": ""}).stderr == ""


def test_a_full_disk_does_not_stop_the_run(cli: Cli) -> None:
    assert cli("--debug=/dev/full", "list").stdout == cli("list").stdout


def test_a_reader_that_leaves(launcher: str, root: str) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [launcher, "--root", root, "list"], env=CLEAN_ENV, stdout=write, stderr=subprocess.PIPE, timeout=PATIENCE
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_driver_file_replaced_between_two_runs(
    cli: Cli, launcher: str, root: str, rootfs: Callable[..., str]
) -> None:
    """The inventory still holds by its key: the file itself tells, and is looked up again, not refused."""
    libcuda = root + next(
        line for line in cli("list", "--libraries").stdout.splitlines() if "/libcuda.so." in line
    )
    os.utime(libcuda, ns=(0, os.stat(libcuda).st_mtime_ns + 10**9))
    words = ["configure", "--compute", "--no-cgroups", rootfs()]
    plain = ["--root", root, "--debug=/dev/stderr", *words]
    shell = 'for i in 1 2; do "$0" "$@" || exit 1; done'
    done = run("unshare", "--mount", "sh", "-c", shell, launcher, *plain)  # standalone mode: mounts are ours
    first, second = done.stderr.split("-- WARNING, the following logs")[1:]
    assert first.count("changed since it was found") == 1
    assert "looking again" in first
    assert "looking again" not in second
    assert second.rstrip().endswith("0 changes")


@pytest.mark.parametrize(
    ("words", "offers"),
    few([
        ("nvc-cli in", ["info"]),
        ("nvc-cli --root ROOT list --device 1:", ["0", "1", "2"]),  # bash has the word up to the colon
        ("nvc-cli --root=ROOT list --device=1:", ["0", "1", "2"]),
        ("nvc-cli --root ROOT list --device 0,a", ["0,all"]),
        ("nvc-cli vgpu policy 0 n", ["native", "none"]),
        ("nvc-cli configure --vgpu-policy=fi", ["first", "fixed"]),
        ("nvc-cli config set nvc.time", ["nvc.timeout"]),
        ("nvc-cli explain NVC-120", ["NVC-1201"]),
        ("nvc-cli --root /nowhere list --device a", []),
        ("nvc-cli info --format t", ["text", "table"]),
        ("nvc-cli vgpu ls -o y", ["yaml"]),
        ("nvc-cli configure --cuda-compat-mode d", ["disabled"]),
        ("nvc-cli vgpu run --memory 1g -- nvc-cd", ["nvc-cdi-hook"]),
        ("nvc-cli vgpu run --memory 1g -- env nvc-cd", []),
    ], 3),
)  # fmt: skip
def test_completion(launcher: str, root: str, words: str, offers: list[str]) -> None:
    assert completed(launcher, words.replace("ROOT", root)) == offers


def test_completion_in_fish(launcher: str) -> None:
    assert offers_in_fish(launcher, "nvc-cli vgpu r") == ["report", "resume", "rm", "run"]
    assert "--memory" in offers_in_fish(launcher, "nvc-cli vgpu run --me")


def test_completion_in_zsh(launcher: str) -> None:
    shown = screen_of_zsh(launcher, "nvc-cli vgpu r", "rm")
    assert all(f"{word} " in shown for word in ("report", "resume", "run"))
