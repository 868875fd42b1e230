"""What the kernel tests share: containers with slices, nvc-hook, and nvcd in a place of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest
from support import CLEAN_ENV, run
from support.bundle import Bundle, Container
from support.configure import BASIC, Configure
from support.ctk import ctk, nvidia_ctk  # noqa: F401
from support.device_cgroup import Group
from support.held import hold  # noqa: F401
from support.hook import Hook
from support.nvcd import Place
from support.nvcd_programs import around, held, sliced  # noqa: F401
from support.programs import Programs
from support.replay import Starts
from support.rootfs import LIBS, as_debian
from support.simrm import Served, serve, simrm  # noqa: F401
from support.suspended import holder  # noqa: F401
from support.tracing import unmount
from support.vgpu import ensure_shim
from support.vgpucap import Worker, work  # noqa: F401
from support.vgpushim import tool  # noqa: F401
from support.virtual import World, virtual, world  # noqa: F401

from nvc.kernel import LinuxKernel
from nvc.kernel.tracer import Tracer
from nvc.slices.store import registry


@pytest.fixture
def shim(stage: str, scratch: str) -> Iterator[str]:
    """The directory of the stage's shim; slices of the test are forgotten when it ends."""
    yield ensure_shim(stage, scratch)
    registry.prune(LinuxKernel(), registry.base_directory())


@pytest.fixture
def debian(rootfs: Callable[..., str]) -> str:
    """A rootfs whose libraries are where Debian keeps them."""
    return as_debian(rootfs())


@pytest.fixture
def bundle(runc_bundle: Callable[..., Bundle], debian: str) -> Bundle:
    """A bundle of a Debian-like image."""
    return runc_bundle(debian)


@pytest.fixture
def programs(launcher: str, driver: str) -> Iterator[Programs]:
    """Programs in slices of `driver`."""
    made = Programs(launcher, driver)
    yield made
    made.end()


@pytest.fixture
def starts(
    scratch: str, stage: str, driver: str, rootfs: Callable[..., str], runc_bundle: Callable[..., Bundle]
) -> Starts:
    return Starts(scratch, stage, driver, lambda: runc_bundle(as_debian(rootfs())))


@pytest.fixture
def configure(launcher: str, driver: str) -> Configure:
    return Configure(launcher, driver)


@pytest.fixture
def container(
    runc_bundle: Callable[..., Bundle], rootfs: Callable[..., str], launcher: str, driver: str
) -> Iterator[Callable[..., Container]]:
    """Factory: `container("--vgpu-weight=2")` runs; `configure` with these words has given it GPU 0, or `device`.

    `place` is where configure runs, if it is not this process's mount namespace.
    """
    with contextlib.ExitStack() as stack:

        def make(*words: str, device: str = "0", place: Place | None = None) -> Container:
            made = stack.enter_context(runc_bundle(as_debian(rootfs())).created("runc"))
            made.start()
            command = [launcher, f"--root={driver}", "configure", f"--pid={made.pid}", f"--device={device}"]
            command += [*BASIC[1:], *words, made.bundle.rootfs]
            run(*(place.enter(*command) if place else command))
            return made

        yield make


@pytest.fixture
def hook(stage: str, scratch: str, sim_root: Callable[..., str]) -> Callable[..., Hook]:
    """Factory: `hook(settings="", **SimSpec fields)` returns a Hook for a simulated driver of two GPUs."""

    def make(settings: str = "", **wanted: Any) -> Hook:
        return Hook(stage, scratch, sim_root(**{"gpus": 2, **wanted}), settings)

    return make


@pytest.fixture
def shared(scratch: str) -> Iterator[str]:
    """A directory of the host that is a shared mount."""
    path = f"{scratch}/shared"
    os.makedirs(path)
    run("mount", "-t", "tmpfs", "volume", path)
    run("mount", "--make-shared", path)
    for name, minor in {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}.items():
        os.mknod(f"{path}/{name}", 0o20666, os.makedev(1, minor))  # it may be a container's /dev
    yield path
    run("umount", "--recursive", "--lazy", path)


@pytest.fixture
def bpffs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A directory where Tracer.open mounts a file system bpf, which is taken away."""
    made = str(tmp_path_factory.mktemp("bpf"))
    yield made
    if os.path.ismount(made):
        unmount(made)


@pytest.fixture
def tracer(bpffs: str) -> Iterator[Tracer]:
    with Tracer.open(bpffs) as made:
        yield made


@pytest.fixture
def group() -> Iterator[Group]:
    with Group.make(2) as made:
        yield made


@pytest.fixture
def served(driver: str, simrm: str) -> Iterator[Served]:  # noqa: F811
    """The resource manager of `driver`; wanted before what makes mount namespaces, so that these have it."""
    with serve(driver, simrm) as made:
        yield made


@pytest.fixture
def served_in_world(driver: str, simrm: str, world: World) -> Iterator[Served]:  # noqa: F811
    """The same in virtual time."""
    with serve(driver, simrm, world) as made:
        yield made


@pytest.fixture
def place(stage: str, scratch: str) -> Iterator[Place]:
    """Where a test's nvcd and slices are."""
    ensure_shim(stage, scratch)
    made = Place(stage, scratch)
    yield made
    made.end()


@pytest.fixture
def timed(stage: str, scratch: str, world: World) -> Iterator[Place]:  # noqa: F811
    """The same in virtual time."""
    ensure_shim(stage, scratch)
    made = Place(stage, scratch, world)
    yield made
    made.end()


@pytest.fixture
def tenant(
    timed: Place,
    driver: str,
    launcher: str,
    work: str,  # noqa: F811
    world: World,  # noqa: F811
) -> Iterator[Callable[..., Worker]]:
    """Factory: `tenant("--cores=30")` is a program in virtual time that launches kernels of 1 ms in a slice.

    The words are those of `vgpu run`, the names those of tests/native/vgpu_work.c. `inside` are words
    in front of the program.
    """

    workers: list[Worker] = []

    def start(*words: str, device: int = 0, inside: Sequence[str] = (), **arguments: object) -> Worker:
        wanted = {"ns": 1000000, "batch": 0, "warm": 0, "seconds": 1e6, **arguments}
        run = timed.sliced(launcher, driver, f"--device={device}", "--memory=8g", *words)
        timed_by = ("env", *(f"{name}={value}" for name, value in world.variables().items()))
        variables = {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{driver}{LIBS}"}
        workers.append(Worker(run[0], variables, *run[1:], *timed_by, *inside, work, time=world, **wanted))
        return workers[-1]

    yield start
    for worker in workers:
        worker.kill()


@pytest.fixture
def busy(
    place: Place,
    driver: str,
    launcher: str,
    work: str,  # noqa: F811
) -> Iterator[Callable[..., Worker]]:
    """Factory: `busy("--cores=30", seconds=2)` is a program that launches kernels of 1 ms in a slice.

    The words are those of `vgpu run`, the names those of tests/native/vgpu_work.c. `before` starts the program, and
    `variables` are for it.
    """
    workers: list[Worker] = []

    def start(
        *words: str, device: int = 0, before: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}), **arguments: object,
    ) -> Worker:  # fmt: skip
        wanted = {"ns": 1000000, "batch": 0, "warm": 0.7, "seconds": 2, **arguments}
        run = place.sliced(launcher, driver, f"--device={device}", "--memory=8g", *words)
        every = {**CLEAN_ENV, "LD_LIBRARY_PATH": f"{driver}{LIBS}", **variables}
        workers.append(Worker(run[0], every, *run[1:], *before, work, **wanted))
        return workers[-1]

    yield start
    for worker in workers:
        if worker.process.poll() is None:
            worker.kill()
