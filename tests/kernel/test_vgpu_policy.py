"""`nvc-cli vgpu policy`: what the operator lays down for a device, for slices that run and those to come."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from support import CLEAN_ENV, PATIENCE, run, until
from support.configure import BASIC, Configure
from support.programs import Programs
from support.vgpu import cli, shares_of

from nvc.base.files import closing
from nvc.kernel import LinuxKernel
from nvc.slices.policy import policies
from nvc.slices.store import registry
from nvc.testing.sim.report import report

pytestmark = pytest.mark.usefixtures("shim")


@pytest.fixture(autouse=True)
def _as_before(driver: str) -> Iterator[None]:
    """What a test lays down for its GPUs is removed."""
    yield
    for uuid in uuids(driver):
        policies.write(uuid, policies.DevicePolicy())


def uuids(root: str) -> list[str]:
    return [gpu.uuid for gpu in report(root).gpus]


@pytest.fixture
def tenants(launcher: str, driver: str) -> Iterator[Programs]:
    """Programs that each have a slice of GPU 0."""
    made = Programs(launcher, driver, "--device=0")
    yield made
    made.end()


@pytest.fixture
def policy(launcher: str, driver: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    return lambda *words, **more: run(launcher, f"--root={driver}", "vgpu", "policy", *words, **more)


def shown(policy: Any, gpu: str = "0") -> dict[str, Any]:
    (device,) = json.loads(policy(gpu, "--format=json").stdout)["devices"]
    return device


def test_what_is_laid_down_is_shown_and_kept_for_root(policy: Any, driver: str) -> None:
    assert policy("0", "weight", "--max-instances=8", "--total-weight=16", "--quantum=20ms").stdout == ""
    device = shown(policy)
    assert (device["policy"], device["maxInstances"], device["totalWeight"]) == ("weight", 8, 16)
    assert (device["freeWeight"], device["quantumUs"], device["instances"]) == (16, 20000, 0)
    assert shown(policy, "1")["policy"] is None
    path = f"{policies.directory()}/{uuids(driver)[0]}"
    with open(path, encoding="ascii") as file:
        assert file.read() == "policy weight\nmax-instances 8\ntotal-weight 16\nquantum-us 20000\n"
    assert os.stat(path).st_mode & 0o777 == 0o600
    first, second = policy().stdout.splitlines()[1:]
    assert first.split()[2:] == ["weight", "0", "of", "8", "0M", "0", "of", "16", "20ms"]
    assert second.split()[2:] == ["-", "0", "0M", "0", "-"]
    policy("0", "none")
    assert shown(policy)["policy"] is None and shown(policy)["maxInstances"] == 8
    policy("0", "--reset")
    assert not os.path.exists(path)


def test_it_holds_for_slices_that_run_and_those_to_come(
    policy: Any, tenants: Programs, launcher: str
) -> None:
    one = tenants.start("--memory=1g")
    policy("0", "1")
    two = tenants.start("--weight=3")
    assert [share[2] for share in shares_of(one)] == ["first", "native"]  # the other GPU is hidden
    assert shares_of(two)[0] == (0, 3, "first", 0)
    said = cli(launcher, "set", str(two), "--policy=soft").stderr
    assert "without effect now: policy soft; first is in force, that of the device" in said
    policy("all", "none")
    assert [shares_of(pid)[0][2] for pid in (one, two)] == ["native", "soft"]


def test_no_more_slices_than_there_may_be(
    policy: Any, tenants: Programs, launcher: str, driver: str, runc_bundle: Any
) -> None:
    policy("0", "--max-instances=2")
    tenants.start("--memory=1g")
    assert "2 slices" not in policy("0").stderr
    tenants.start("--cores=20")
    cause = "2 slices on it, of at most 2; `nvc-cli vgpu policy` shows that"
    assert cause in tenants.refused("--memory=1g")
    with runc_bundle().created("runc") as container:
        configure = Configure(launcher, driver)
        wanted = ("--device=0", *BASIC[1:], "--vgpu-memory=1g")
        assert cause in configure.refusal(container.pid, container.bundle.rootfs, wanted)
        assert shown(policy)["instances"] == 2
        said = policy("0", "--max-instances=1").stderr
        assert "2 slices share it already" in said
        tenants.end()
        configure(container.pid, container.bundle.rootfs, wanted)
        configure(container.pid, container.bundle.rootfs, wanted)  # the same container is not one more


def test_no_more_weight_than_there_is(policy: Any, tenants: Programs, launcher: str) -> None:
    policy("0", "weight", "--total-weight=8")
    pid = tenants.start("--weight=5")
    tenants.start("--memory=1g")
    assert shown(policy)["freeWeight"] == 2
    assert "a weight of 3, and 2 of 8 is free" in tenants.refused("--weight=3")
    done = cli(launcher, "set", str(pid), "--weight=8", check=False)
    assert done.returncode == 1 and "a weight of 8, and 7 of 8 is free" in done.stderr
    cli(launcher, "set", str(pid), "--weight=7")
    assert shown(policy)["freeWeight"] == 0
    assert shares_of(pid)[0] == (0, 7, "weight", 0)
    assert "a weight of 8 already" in policy("0", "--total-weight=1").stderr
    cli(launcher, "set", str(pid), "--weight=3")  # still too much, but less
    done = cli(launcher, "set", str(pid), "--weight=4", check=False)
    assert done.returncode == 1 and "a weight of 4, and 0 of 1 is free" in done.stderr


def test_limits_add_up_to_what_the_operator_says(
    policy: Any, tenants: Programs, launcher: str, driver: str, runc_bundle: Any
) -> None:
    """The GPU has 81559 MiB. Whoever is there stays, whatever the operator says next."""
    policy("0", "--oversubscribe=200%")
    one = tenants.start("--memory=70GiB")
    with runc_bundle().created("runc") as container:
        configure, wanted = Configure(launcher, driver), ("--device=0", *BASIC[1:], "--vgpu-memory=60GiB")
        where = container.pid, container.bundle.rootfs
        configure(*where, wanted)
        assert shown(policy)["limits"] == 130 << 30 and shown(policy)["maxLimits"] == 163118 << 20
        free = "29998 MiB of 163118 MiB is free, which is 200% of its memory"
        assert f"a limit of 30 GiB, and {free}" in tenants.refused("--memory=30GiB")
        assert f"no limit, which counts as 81559 MiB, and {free}" in tenants.refused("--cores=20")
        said = policy("0", "--oversubscribe=100%").stderr
        assert "the limits of its slices are 130 GiB already, of 81559 MiB" in said
        configure(*where, wanted)  # the same container is not one more
        assert "a limit of 61 GiB, and 9879 MiB" in configure.refusal(*where, (*wanted[:-1], "--vgpu-memory=61g"))
        cli(launcher, "set", str(one), "--memory=60GiB")  # still too much, but less
        for word, what in (("--memory=61GiB", "a limit of 61 GiB"), ("--unlimited", "no limit, which counts as")):
            done = cli(launcher, "set", str(one), word, check=False)
            assert done.returncode == 1 and what in done.stderr and "20119 MiB of 81559 MiB" in done.stderr
    policy("0", "--oversubscribe=off")
    tenants.start("--cores=20")
    assert shown(policy)["maxLimits"] is None


def test_two_that_start_at_the_same_moment_do_not_both_get_the_rest(
    policy: Any, launcher: str, driver: str
) -> None:
    policy("0", "--oversubscribe=100%")
    command = [launcher, f"--root={driver}", "vgpu", "run", "--device=0", "--memory=50GiB", "--", "echo", "began"]
    base = registry.base_directory()
    with closing(registry.locked(LinuxKernel())):
        pipe = subprocess.PIPE
        both = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=CLEAN_ENV) for _ in range(2)]
        for one in both:
            until(lambda pid=one.pid: child_waits(pid, base))
    said = [one.communicate(timeout=PATIENCE) for one in both]
    assert sorted(out for out, _ in said) == ["", "began\n"], said
    assert sum("a limit of 50 GiB, and 30359 MiB" in refused for _, refused in said) == 1


def child_waits(pid: int, path: str) -> bool:
    """Whether a child of this process has opened the file whose lock this test has."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        children = [f"/proc/{child}/fd" for child in file.read().split()]
    with suppress(OSError):  # it has ended
        return any(os.path.realpath(f"{fds}/{name}") == path for fds in children for name in os.listdir(fds))
    return False


def test_a_slice_gets_no_device_that_it_did_not_ask_for(
    policy: Any, tenants: Programs, launcher: str
) -> None:
    """It would be one that nobody has let in: not counted, and under no policy that is laid down."""
    pid = tenants.start("--memory=1g")
    before = shares_of(pid)
    for words in (("--memory=1g",), ("--unlimited",), ("--cores=20",)):
        done = cli(launcher, "set", str(pid), "--device=1", *words, check=False)
        assert done.returncode == 1 and "--device: 1: hidden from this slice" in done.stderr
    assert shares_of(pid) == before and shown(policy, "1")["instances"] == 0


def test_caps_where_the_policy_is_that_of_caps(policy: Any, tenants: Programs, launcher: str) -> None:
    pid = tenants.start("--memory=1g")
    done = policy("0", "fixed", check=False)
    text = "1 slice without a cap for the policy fixed: sh; `nvc-cli vgpu set sh --cores N`"
    assert done.returncode == 1 and text in done.stderr
    assert shown(policy)["policy"] is None
    cli(launcher, "set", str(pid), "--cores=40")
    policy("0", "fixed")
    assert "its policy is fixed, and the slice has no cap" in tenants.refused("--memory=1g")
    done = cli(launcher, "set", str(pid), "--cores=100", check=False)
    assert done.returncode == 1 and "has no cap" in done.stderr and shares_of(pid)[0][0] == 40


def test_a_cap_that_does_not_hold_is_said(policy: Any, driver: str, launcher: str, runc_bundle: Any) -> None:
    policy("0", "native")
    with runc_bundle().created("runc") as container:
        wanted = ("--device=0", *BASIC[1:], "--vgpu-cores=30")
        configure = Configure(launcher, driver)
        assert (
            "the cap of 30% does not hold"
            in configure(container.pid, container.bundle.rootfs, wanted).stderr
        )
        assert shares_of(container.pid) == [(30, 1, "native", 0)]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("0", "best"), "NAME: best: no such policy; the policies are fair (0)"),
        (("0", "--max-instances=-1"), "--max-instances: -1: want a whole number from 0 to 64"),
        (("0", "--total-weight=1k"), "--total-weight: 1k: want a whole number from 0 to"),
        (("0", "--oversubscribe=99%"), "--oversubscribe: 99%: want a whole number from 100 to 1000"),
        (("0", "--quantum=10"), "--quantum: 10: no unit; want 1ms to 1s; did you mean 10ms?"),
        (("9",), "9: unknown device"),
        (("0", "fair", "--reset"), "either --reset or something"),
        (("", "fair"), "GPU: names no device"),
    ],
)
def test_refused(policy: Any, driver: str, words: tuple[str, ...], cause: str) -> None:
    done = policy(*words, check=False)
    assert done.returncode == 1 and cause in done.stderr
    assert not any(os.path.exists(f"{policies.directory()}/{uuid}") for uuid in uuids(driver))


def test_a_gpu_in_mig_mode_is_governed_by_its_parts(launcher: str, sim_root: Callable[..., str]) -> None:
    root = sim_root(gpus=2, mig=("", "1g.10gb,3g.40gb"))
    parts = [mig.uuid for mig in report(root).gpus[1].mig]
    shown = run(launcher, f"--root={root}", "vgpu", "policy", "1", "--format=json").stdout
    assert [device["uuid"] for device in json.loads(shown)["devices"]] == parts
    shown = run(launcher, f"--root={root}", "vgpu", "policy", "1:1", "--format=json").stdout
    assert [device["uuid"] for device in json.loads(shown)["devices"]] == parts[1:]


def test_what_is_spoilt_is_removed_as_its_error_says(policy: Any, driver: str) -> None:
    path = f"{policies.directory()}/{uuids(driver)[0]}"
    with open(path, "w", encoding="ascii") as out:
        out.write("a newer setting 4\n")
    done = policy("0", check=False)
    assert done.returncode == 1 and "`nvc-cli vgpu policy GPU --reset` removes it" in done.stderr
    assert policy("0", "weight", check=False).returncode == 1
    policy("0", "--reset")
    assert not os.path.lexists(path) and shown(policy)["policy"] is None
    os.symlink("/etc/passwd", path)
    policy("all", "--reset")
    assert not os.path.lexists(path) and os.path.exists("/etc/passwd")


def test_what_has_no_effect_is_said(policy: Any, tenants: Programs, launcher: str) -> None:
    """The oldest slice's policy is in force; it goes with that slice's cap."""
    one = str(tenants.start("--cores=20"))
    two = str(tenants.start("--memory=1g"))
    for words, ignored in (("--weight=4", "the weight"), ("--policy=fair", "policy fair")):
        said = cli(launcher, "set", two, words).stderr
        assert f"without effect now: {ignored}; fixed is in force, that of the oldest slice, sh" in said
    shown = cli(launcher, "show", two).stdout
    assert "fixed, at most" not in shown and ", weight 4, asks for fair" in shown, shown
    assert "the weight; fixed is in force, its own" in cli(launcher, "set", one, "--weight=2").stderr
    assert "weight is in force now, fixed before" in cli(launcher, "set", one, "--cores=100").stderr
