"""Slices that the driver limits by cgroup as well: programs that go around the shim meet the same limit."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import CLEAN_ENV, GIB, MIB, run
from support.bundle import Bundle, Container
from support.configure import BASIC, Configure
from support.device_cgroup import Group
from support.hook import ask
from support.memorylimits import NO_LIMIT, get_limits
from support.programs import Programs
from support.rootfs import LIBS
from support.vgpu import cli, limits_of

from nvc.apply.cgroup.leaf import directory_of
from nvc.base.errors import ContainerError
from nvc.base.files import closing
from nvc.discovery import discover
from nvc.discovery.nvml.questions import MemoryLimit
from nvc.frontends.cdi.document import DocumentOptions
from nvc.frontends.cdi.generate import document_of
from nvc.frontends.cdi.sliced import SliceSize, Slicing
from nvc.frontends.runtime.spec import Spec, apply_edits
from nvc.kernel import LinuxKernel
from nvc.model.request import DriverOptions, Request
from nvc.model.slices.sizes import parse_size
from nvc.model.slices.slice import HeldCgroup
from nvc.slices.make import kernel_limits
from nvc.slices.make.kernel_limits import put_back
from nvc.slices.make.kernel_limits import set_limits as limit
from nvc.slices.make.shim import installed
from nvc.testing.sim.report import report

OUT_OF_MEMORY = 2
REAL = f"{LIBS}/nvc/real-libcuda.so.1"
TAKE = "init\nprimary 0\nalloc a 1g\nalloc b 256m\n"
DRIVER = {"gpus": 2, "driver_version": "615.71.09"}
pytestmark = [pytest.mark.usefixtures("shim"), pytest.mark.driver(**DRIVER)]
_serial = itertools.count()


@pytest.fixture
def uuids(driver: str) -> list[str]:
    return [gpu.uuid for gpu in report(driver).gpus]


@pytest.fixture
def around(launcher: str, driver: str, tool: str) -> Callable[..., list[int]]:
    """The driver's results for a program in a slice of `vgpu run` that loads the driver's own libcuda."""

    def ask_driver(commands: str, *options: str) -> list[int]:
        command = [launcher, f"--root={driver}", "vgpu", "run", *options, "--"]
        words = ("env", "-u", "CUDA_VISIBLE_DEVICES", tool, f"{driver}{REAL}")
        done = run(*command, *words, env=CLEAN_ENV, input=commands, stdin=None)
        return [int(line.split()[0]) for line in done.stdout.splitlines()]

    return ask_driver


def cgroup_of(pid: int) -> str:
    """Where the cgroup of a process is mounted."""
    with closing(os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY)) as fd:
        return directory_of(fd)


def move_to(path: str) -> None:
    """Have this process in another cgroup."""
    with open(f"{path}/cgroup.procs", "w", encoding="ascii") as procs:
        procs.write(str(os.getpid()))


def test_a_program_around_the_shim_is_held(around: Callable[..., list[int]]) -> None:
    assert around(TAKE, "--device=0", "--memory=1g") == [0, 0, 0, 0]
    assert around(TAKE, "--device=0", "--memory=1g", "--isolation=kernel") == [0, 0, OUT_OF_MEMORY, 0]


def test_it_gets_nothing_of_other_gpus(around: Callable[..., list[int]]) -> None:
    """A variable of the environment alone hides those from who does not load the shim."""
    words = ("--device=1", "--memory=1g")
    commands = "init\nprimary 0\nprimary 1\n"
    assert around(commands, *words) == [0, 0, 0]
    assert around(commands, *words, "--isolation=kernel") == [0, OUT_OF_MEMORY, 0]


def test_programs_end_with_their_cgroup(programs: Programs, driver: str, uuids: list[str]) -> None:
    own = cgroup_of(os.getpid())
    path = cgroup_of(programs.start("--device=0", "--memory=1g", "--isolation=kernel"))
    assert path.rpartition("/")[0] == own
    assert get_limits(driver, uuids[0], path)[:2] == (0, GIB)
    assert get_limits(driver, uuids[1], path)[:2] == (0, MIB)
    programs.end_last()
    assert not os.path.exists(path)
    path = cgroup_of(programs.start("--device=0", "--memory=1g", "--isolation=kernel"))
    programs.kill(0)
    programs.processes[0].wait()
    assert os.path.exists(path)
    programs.start("--device=0", "--memory=1g", "--isolation=kernel")
    assert not os.path.exists(path)  # removed by the next one


def test_a_reservation_ends_before_its_cgroup(programs: Programs, driver: str, uuids: list[str]) -> None:
    """What the cgroups above have is the sum of the reservations in them; it would stay."""
    words = ("--device=0", "--memory=2g", "--isolation=kernel", "--memory-request=1g")
    own = cgroup_of(os.getpid())
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(Group.make(2, f"nvc-limits-{os.getpid()}-{next(_serial)}"))
        stack.callback(move_to, own)
        group.enter(os.getpid())
        pid = programs.start(*words)
        path = cgroup_of(pid)
        assert path.startswith(f"{group.path}/")
        assert get_limits(driver, uuids[0], path)[:2] == (GIB, 2 * GIB)
        assert get_limits(driver, uuids[1], path)[:2] == (0, MIB)
        assert get_limits(driver, uuids[0], group.path)[0] == GIB
        for size, kept in ((3 * GIB, GIB), (GIB // 2, GIB // 2)):  # what is kept is at most the limit
            run(*programs.command[:3], "set", str(pid), f"--memory={size >> 20}m")
            assert get_limits(driver, uuids[0], path)[:2] == (kept, size)
        programs.end_last()
        assert get_limits(driver, uuids[0], group.path)[0] == 0
        programs.start(*words)
        programs.kill(0)
        programs.processes[0].wait()
        assert get_limits(driver, uuids[0], group.path)[0] == GIB  # nobody could end it
        programs.start("--device=1", "--memory=2g", "--isolation=kernel")
        assert get_limits(driver, uuids[0], group.path)[0] == 0
        programs.end_last()


@contextlib.contextmanager
def unified(bundle: Bundle, runtime: str) -> Iterator[Container]:
    """A running container of a runtime that uses cgroup v2 alone."""
    bundle.unified = True
    bundle.config["linux"]["cgroupsPath"] = f"/nvc-held-{os.getpid()}-{next(_serial)}"
    with bundle.created(runtime) as container:
        container.start()
        yield container


def taken(container: Container, tool: str) -> list[str]:
    """What the driver's own libcuda answers in a container."""
    shutil.copy(tool, f"{container.bundle.rootfs}/tmp/vgpu_tool")
    script = f"printf '{TAKE}' | /tmp/vgpu_tool {REAL}".replace("\n", "\\n")
    return [line.split()[0] for line in container.exec(script).stdout.splitlines()]


@pytest.mark.parametrize(("runtime", "kind"), [("runc", "createRuntime"), ("crun", "prestart")])
def test_a_container_by_variables(hook: Any, bundle: Bundle, tool: str, runtime: str, kind: str) -> None:
    variables = {"NVIDIA_GPU_MEMORY_LIMIT": "1024", "NVIDIA_GPU_MEMORY_REQUEST": "512"}
    bundle.config["linux"]["namespaces"].append({"type": "cgroup"})
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", NVC_VGPU_ISOLATION="kernel", **variables)
    hook(**DRIVER).add(bundle, kind)
    with unified(bundle, runtime) as container:
        assert limits_of(container.pid) == [GIB, GIB]
        assert taken(container, tool) == ["0", "0", str(OUT_OF_MEMORY), "0"]


@contextlib.contextmanager
def grouped(pid: int) -> Iterator[Group]:
    """A cgroup for a container's process, until it leaves it."""
    with Group.make(2, f"nvc-limits-{os.getpid()}-{next(_serial)}") as group:
        group.enter(pid)
        try:
            yield group
        finally:
            with open(f"{group.mount}/cgroup.procs", "w", encoding="ascii") as procs:
                procs.write(str(pid))


@pytest.fixture
def give(stage: str, shim: str, driver: str) -> Callable[..., None]:
    """Applies the edits of CDI devices to a bundle: `0:held`, of 1 GiB with isolation, and `1:open`, without."""

    def edit(bundle: Bundle, *names: str) -> None:
        kernel, options = LinuxKernel(), DriverOptions(root=driver)
        facts = discover(kernel, options)
        held = SliceSize("held", parse_size("held", "1GiB"), isolation="kernel")
        open_ = SliceSize("open", parse_size("open", "1GiB"))
        slicing = Slicing((held, open_), installed(os.path.dirname(shim)).files)
        how = DocumentOptions(f"{stage}/bin/nvc-cdi-hook")
        request = Request(devices=("all",), capabilities=("utility", "compute"))
        document = document_of(kernel, facts, request, how, options, slicing)
        spec = Spec(bundle.config)
        apply_edits(spec, document["containerEdits"])
        for device in document["devices"]:
            if device["name"] in names:
                apply_edits(spec, device["containerEdits"])

    return edit


def test_cdi_devices(bundle: Bundle, give: Callable[..., None], launcher: str, tool: str) -> None:
    bundle.config["linux"]["namespaces"].append({"type": "cgroup"})
    give(bundle, "0:held", "1:held")
    with unified(bundle, "runc") as container:
        assert limits_of(container.pid) == [GIB, GIB]
        assert taken(container, tool) == ["0", "0", str(OUT_OF_MEMORY), "0"]
        assert "limited by shim, kernel" in cli(launcher, "show", str(container.pid)).stdout


def test_cdi_devices_are_all_isolated_or_none(bundle: Bundle, give: Callable[..., None]) -> None:
    give(bundle, "0:held", "1:open")
    bundle.unified = True
    bundle.config["linux"]["cgroupsPath"] = f"/nvc-held-{os.getpid()}-{next(_serial)}"
    done = bundle.run("runc", "echo started", check=False)
    assert "sizes with isolation by the kernel, and without" in done.stderr and "started" not in done.stdout


def test_configure_again_and_what_it_says(
    container: Any, driver: str, launcher: str, uuids: list[str]
) -> None:
    configure, made = Configure(launcher, driver), container("--vgpu-memory=1g")
    words = ("--device=0", *BASIC[1:], "--isolation=kernel")
    with grouped(made.pid) as group:
        for size in (2, 1):
            configure(made.pid, made.bundle.rootfs, (*words, f"--vgpu-memory={size}g"))
            assert get_limits(driver, uuids[0], group.path)[:2] == (0, size * GIB)
        planned = configure(made.pid, made.bundle.rootfs, (*words, "--vgpu-memory=3g", "--dry-run")).stdout
        said = f"slice memory is limited by the kernel, too, for the cgroup {group.path}"
        assert said in " ".join(planned.split())
        assert get_limits(driver, uuids[0], group.path)[:2] == (0, GIB)
        cli(launcher, "set", str(made.pid), "--cores=50")
        found = json.loads(cli(launcher, "show", str(made.pid), "--format=json").stdout)
        assert found["devices"][0]["limitedBy"] == ["shim", "kernel"]
        assert "limited by shim, kernel\n" in cli(launcher, "show", str(made.pid)).stdout
        more = (*words[:-1], "--vgpu-memory=3g")
        assert "ask for isolation by the kernel again" in configure.refusal(
            made.pid, made.bundle.rootfs, more
        )
        assert limits_of(made.pid) == [GIB]
        change = (launcher, f"--root={driver}", "vgpu", "set", str(made.pid))
        for word, size in (("--memory=2g", 2 * GIB), ("--unlimited", NO_LIMIT), ("--memory=1g", GIB)):
            run(*change, word)
            assert limits_of(made.pid) == [size] and get_limits(driver, uuids[0], group.path)[1] == size
        inside = f"{group.path}/inside"
        os.mkdir(inside)
        with open(f"{inside}/cgroup.procs", "w", encoding="ascii") as procs:
            procs.write(str(made.pid))  # as a container with cgroups that it can write to may do
        for size in (2 * GIB, GIB):
            run(*change, f"--memory={size >> 20}m")
            assert limits_of(made.pid) == [size] and get_limits(driver, uuids[0], group.path)[1] == size
            assert get_limits(driver, uuids[0], inside)[1] == NO_LIMIT
        group.enter(made.pid)
        os.rmdir(inside)


def test_cgroups_that_are_refused(container: Any, driver: str, launcher: str) -> None:
    configure, made = Configure(launcher, driver), container("--vgpu-memory=1g")
    words = ("--device=0", *BASIC[1:], "--isolation=kernel", "--vgpu-memory=2g")
    with grouped(made.pid) as group:
        child = f"{group.path}/inside"
        os.mkdir(child)
        refusal = configure.refusal(made.pid, made.bundle.rootfs, words)
        assert f"isolate by the kernel: {group.path}: not a leaf: the cgroup inside is in it" in refusal
        os.rmdir(child)
        for owned in (group.path, f"{group.path}/cgroup.procs"):
            os.chown(owned, 1000, 1000)
            assert f"{group.path} is delegated to user 1000" in configure.refusal(
                made.pid, made.bundle.rootfs, words
            )
            os.chown(owned, 0, 0)
        os.mkdir(child)
        with open(f"{child}/cgroup.procs", "w", encoding="ascii") as procs:
            procs.write(str(made.pid))
        os.chown(group.path, 1000, 1000)  # its owner can move processes out of what is below it
        refusal = configure.refusal(made.pid, made.bundle.rootfs, words)
        assert f"{child}: {group.path} is delegated to user 1000, and that user can leave it" in refusal
        os.chown(group.path, 0, 0)
        group.enter(made.pid)
        os.rmdir(child)
        configure(made.pid, made.bundle.rootfs, words)
    refusal = configure.refusal(made.pid, made.bundle.rootfs, words)  # in the root
    assert "the root of the cgroups: the process has none of its own" in refusal


def test_a_cgroup_that_vanishes_or_is_another(driver: str, uuids: list[str]) -> None:
    library = f"{driver}{LIBS}/libnvidia-ml.so.1"
    with Group.make(2) as group:
        name = os.path.basename(group.path)
        held = HeldCgroup(group.path, os.stat(group.path).st_ino, library, (MemoryLimit(uuids[0], 0, GIB),))
        before = limit(held, 10.0)
        assert before.limits[0].hard == NO_LIMIT and get_limits(driver, uuids[0], group.path)[1] == GIB
        put_back(before, 10.0)
        assert get_limits(driver, uuids[0], group.path)[1] == NO_LIMIT
    with pytest.raises(ContainerError, match="no such file or directory; start it again if it has ended"):
        limit(held, 10.0)
    put_back(before, 10.0)  # nothing to restore: it does not raise
    with Group.make(2, name) as again:
        if os.stat(again.path).st_ino != held.inode:
            with pytest.raises(ContainerError, match="another cgroup is there now"):
                limit(held, 10.0)
        assert get_limits(driver, uuids[0], again.path)[1] == NO_LIMIT


def test_a_cgroup_that_is_divided_meanwhile_is_as_before(
    driver: str, uuids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a leaf when the driver was told."""
    with Group.make(2) as group:
        real = kernel_limits.parse_limits

        def divided(data: bytes, uuids: tuple[str, ...]) -> Any:
            if not os.path.exists(f"{group.path}/inside"):
                assert get_limits(driver, uuids[0], group.path)[1] == GIB
                os.mkdir(f"{group.path}/inside")
            return real(data, uuids)

        monkeypatch.setattr(kernel_limits, "parse_limits", divided)
        library = f"{driver}{LIBS}/libnvidia-ml.so.1"
        wanted = (MemoryLimit(uuids[0], 0, GIB),)
        with pytest.raises(ContainerError, match="not a leaf any more: inside is in it"):
            limit(HeldCgroup(group.path, os.stat(group.path).st_ino, library, wanted), 10.0)
        assert get_limits(driver, uuids[0], group.path)[:2] == (0, NO_LIMIT)
        os.rmdir(f"{group.path}/inside")


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--isolation=kernel", "--memory=1g", "--memory-request=2g"), "--memory-request: 2g: more than the limit"),
        (("--isolation=kernel", "--cores=50"), "no limit of memory is asked for; ask for a size, like 10GiB"),
    ],
)
def test_refused(programs: Programs, words: tuple[str, ...], cause: str) -> None:
    assert cause in programs.refused(*words)


def test_an_older_driver_is_refused(launcher: str, sim_root: Callable[..., str]) -> None:
    text = Programs(launcher, sim_root()).refused("--isolation=kernel", "--memory=1g")
    assert "driver 580.159.04-sim: has no memory limits by cgroup: driver 615 is the first that has" in text
    assert "the shim limits memory on every driver" in text and "NVC-1501" in text


def test_mig_devices_are_refused(launcher: str, sim_root: Callable[..., str]) -> None:
    root = sim_root(gpus=1, mig=("7x1g.10gb",), driver_version="615.71.09")
    text = Programs(launcher, root).refused("--device=0:0", "--isolation=kernel", "--memory=1g")
    assert "a MIG device: the driver limits whole GPUs by cgroup; use mig" in text
