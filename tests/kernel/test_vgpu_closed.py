"""State that cannot be read denies what depends on it, and says which file that is."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Iterator

import pytest
from support import CLEAN_ENV, PATIENCE, run
from support.damage import ABOUT, ANY, CALIBRATION, POLICY, QUOTA, overwrite
from support.programs import Programs
from support.vgpu import cli, entry_of

from nvc.model.slices import layout, quota
from nvc.slices.policy import policies
from nvc.testing.sim.report import report

#: One GPU with a single MIG device, which an isolated slice has for itself, and one that policies bound.
pytestmark = [pytest.mark.usefixtures("shim"), pytest.mark.driver(gpus=2, mig=("7g.80gb", ""))]


#: Damages of files of a slice that stand for the others: test_nvcd_broken.py has all.
SOME = ("empty", "of another owner", "a link", "cut short", "of another version")


@pytest.fixture
def bounded(driver: str) -> Iterator[str]:
    """The path of the policy of GPU 1, which lets two slices in."""
    uuid = report(driver).gpus[1].uuid
    policies.write(uuid, policies.DevicePolicy(max_instances=2))
    path = f"{policies.directory()}/{uuid}"
    yield path
    for left in (path, f"{path}.away"):
        if os.path.lexists(left):
            os.unlink(left)


def restore(path: str, content: bytes) -> None:
    """Make a file of the state what it was."""
    for left in (path, f"{path}.away"):
        if os.path.lexists(left):
            os.unlink(left)
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)


@pytest.mark.parametrize(("name", "damages"), [("about", ABOUT), ("quota", QUOTA)], ids=["about", "quota"])
def test_of_a_slice(
    programs: Programs, bounded: str, launcher: str, name: str, damages: dict[str, Callable[[str], None]]
) -> None:
    """One that lives may have any device where its own cannot be told; without a doubt it has no others."""
    isolated = f"{entry_of(programs.start('--device=0', '--isolation=mig', '--memory=4g')).directory}/{name}"
    with open(isolated, "rb") as file:
        content = file.read()
    for how in SOME:
        if how not in damages:
            continue
        damage = damages[how]
        entry = entry_of(
            programs.start("--device=1", "--memory=1g")
        )  # the one before denies nothing any more
        bound = f"{entry.directory}/{name}"
        for path in (isolated, bound):
            damage(path)
        for words in (("--device=0", "--isolation=mig", "--memory=4g"), ("--device=1", "--memory=1g")):
            said = programs.refused(*words)
            assert any(f"{path}: " in said for path in (isolated, bound)), f"{how}: {said}"
            assert "stop its container, then `nvc-cli vgpu rm " in said, how
        done = run(launcher, f"--root={programs.root}", "vgpu", "policy", "1", "fair", check=False)
        assert done.returncode == 1 and f"/{name}: " in done.stderr, how
        restore(isolated, content)
        if os.path.lexists(f"{bound}.away"):
            os.unlink(f"{bound}.away")
        programs.end_last()
        cli(launcher, "rm", entry.key)
        assert not os.path.exists(entry.directory), how


@pytest.mark.parametrize("name", ["about", "quota"])
def test_every_reader_names_it(programs: Programs, launcher: str, name: str) -> None:
    """Listing, pruning, the names of programs and doctor, each beside a slice that is sound."""
    broken = entry_of(programs.start("--device=1", "--memory=1g"))
    os.truncate(f"{broken.directory}/{name}", 3)
    sound = entry_of(programs.start("--device=1", "--memory=1g"))
    listed = cli(launcher, "ls", "--format=json")
    assert [one["key"] for one in json.loads(listed.stdout)["slices"]] == [sound.key]
    assert listed.stderr.count("\n") == 1 and f"{broken.directory}/{name}: " in listed.stderr
    cli(launcher, "rm", "--gone")
    assert os.path.exists(f"{broken.directory}/{name}") and os.path.exists(sound.quota)
    assert "runs: process" in cli(launcher, "rm", broken.key, check=False).stderr
    (said,) = doctor(launcher, programs.root)
    assert said.startswith(f"the slice in {broken.directory} is broken: {name}: ")
    programs.end()
    cli(launcher, "rm", broken.key)
    assert not os.path.exists(broken.directory) and doctor(launcher, programs.root) == []


def test_doctor_ends_no_change(programs: Programs, launcher: str) -> None:
    """It looks, and says which command does."""
    entry = entry_of(programs.start("--device=1", "--memory=1g"))
    overwrite(entry.quota, layout.SEQUENCE_OFFSET, layout.SEQUENCE.pack(7))
    for _ in range(2):
        (said,) = doctor(launcher, programs.root)
        assert said == f"the slice in {entry.directory} is broken: quota: a change of it was never finished"
    assert "its writer was killed" in cli(launcher, "ls").stderr
    assert doctor(launcher, programs.root) == []


def doctor(launcher: str, root: str) -> list[str]:
    """What the check of quotas finds wrong."""
    done = run(launcher, f"--root={root}", "doctor", "--format=json", "vgpu.quotas", check=False)
    (check,) = json.loads(done.stdout)["checks"]
    return [one["text"] for one in check["findings"] if one["status"] == "failed"]


def test_a_change_whose_writer_was_killed_is_ended_by_who_is_next(programs: Programs, bounded: str) -> None:
    isolated = entry_of(programs.start("--device=0", "--isolation=mig", "--memory=4g"))
    bound = entry_of(programs.start("--device=1", "--memory=1g"))
    for entry in (isolated, bound):
        overwrite(entry.quota, layout.SEQUENCE_OFFSET, layout.SEQUENCE.pack(7))
    assert "0 are too small, 1 are taken" in programs.refused("--device=0", "--isolation=mig", "--memory=4g")
    programs.start("--device=1", "--memory=1g")
    for entry in (isolated, bound):
        fd = os.open(entry.quota, os.O_RDONLY)
        assert quota.read(fd)
        os.close(fd)
    assert "2 slices on it, of at most 2" in programs.refused("--device=1", "--memory=1g")


@pytest.mark.parametrize("how", POLICY)
def test_of_a_policy(programs: Programs, bounded: str, how: str) -> None:
    POLICY[how](bounded)
    said = programs.refused("--device=1", "--memory=1g")
    assert bounded in said and "vgpu policy" in said
    programs.start("--device=0", "--memory=1g")  # another device is another matter


def test_of_measurements(launcher: str, driver: str, scratch: str) -> None:
    """In a mount namespace with a /var/lib of its own. Measuring again mends it."""
    path = "/var/lib/nvc/calibration"
    program = [launcher, f"--root={driver}", "vgpu"]
    os.mkfifo(f"{scratch}/go")
    script = f"""
        mount -t tmpfs tmpfs /var/lib
        {shlex.join(program)} calibrate > /dev/null
        echo measured; read line < {scratch}/go
        {shlex.join(program)} run --memory=1g -- true && exit 9
        {shlex.join(program)} calibrate > /dev/null
        {shlex.join(program)} run --memory=1g -- true
    """
    words = ["unshare", "-m", "--propagation=private", "sh", "-ec", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=CLEAN_ENV) as process:
        assert process.stdout is not None and process.stdout.readline() == "measured\n"
        CALIBRATION["of other words"](f"/proc/{process.pid}/root{path}")
        with open(f"{scratch}/go", "w", encoding="ascii") as go:
            go.write("\n")
        said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0 and f"{path}: " in said and "vgpu calibrate" in said, said


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("vgpu", "a link"), ("vgpu", "of another owner"),
        ("vgpu-policy", "a link"), ("vgpu-policy", "that others may write"),
    ],
)
def test_of_a_directory(launcher: str, driver: str, name: str, how: str) -> None:
    """Of /run/nvc, in a mount namespace that has one of its own."""
    script = f"""
        mount -t tmpfs -o mode=700 tmpfs /run/nvc && mkdir -m 700 /run/nvc/{name} && echo made && read line
        exec '{launcher}' --root={driver} vgpu run --memory=1g -- true
    """
    words = ["unshare", "-m", "--propagation=private", "sh", "-ec", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=CLEAN_ENV) as process:
        assert process.stdout is not None and process.stdout.readline() == "made\n"
        ANY[how](f"/proc/{process.pid}/root/run/nvc/{name}")
        said = process.communicate("\n", timeout=PATIENCE)[1]
    assert process.returncode == 1 and f"/run/nvc/{name}" in said, said


def test_what_is_broken_and_gone_denies_nothing(programs: Programs, bounded: str) -> None:
    entry = entry_of(programs.start("--device=1", "--memory=1g"))
    os.truncate(f"{entry.directory}/about", 5)
    os.truncate(entry.quota, 5)
    assert entry.key in programs.refused("--device=1", "--memory=1g")
    programs.end()
    programs.start("--device=1", "--memory=1g")
