"""The vGPU shim in tests: its builds, slices of a simulated driver, and processes that use one."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator

import pytest

from nvc.model.slices import layout, ledger, quota
from nvc.testing.sim.report import report
from support import CLEAN_ENV, REPO, run, until
from support.builds import kept, make
from support.locks import locked
from support.realtime import REAL, Time
from support.simdriver import ABI, SANITIZE, SOURCES, WARN, Program, library_directory

from . import GIB, MIB

CONTEXT = 518 * MIB  # of a simulated H100
OUT_OF_MEMORY = 2
TOOL = tuple(
    f"vgpu_tool{part}.c"
    for part in ("", "_crowd", "_paths", "_loop", "_beyond", "_race", "_held", "_places")
)
#: What programs know of the shim.
INCLUDES = (ABI, f"-I{os.path.join(REPO, 'native/vgpu')}")


def build(out: str, *settings: str) -> str:
    """The shims, built in `out`; `settings` are make's."""
    make(*settings, folder="native/vgpu", out=out)
    return out


def compile_tool(directory: str, *flags: str) -> str:
    """tests/native/vgpu_tool.c as a program."""
    program = os.path.join(directory, "vgpu_tool")
    files = [os.path.join(SOURCES, name) for name in TOOL]
    run(
        "gcc",
        *WARN,
        *flags,
        "-D_FORTIFY_SOURCE=2",
        *INCLUDES,
        "-o",
        program,
        *files,
        "-ldl",
        "-lpthread",
        timeout=300,
    )
    return program


class Process(Program):
    """A program of a slice."""

    def __init__(self, slice_: Slice, *arguments: str, **variables: str) -> None:
        self.slice = slice_
        super().__init__([slice_.tool, *arguments], slice_.environment(**variables), time=slice_.time)


class Slice:
    """A directory with the shim as a container of a simulated driver has it."""

    time: Time = REAL  # of its processes
    context = CONTEXT  # bytes that a context takes
    roughly = 0  # bytes by which the account may be off

    def __init__(self, root: str, shims: str, tool: str) -> None:
        gpus = report(root).gpus
        uuids = [mig.uuid for gpu in gpus for mig in gpu.mig] or [gpu.uuid for gpu in gpus]
        self.make(root, shims, tool, library_directory(root), uuids)

    def make(
        self, root: str, shims: str, tool: str, real: str, uuids: list[str], name: str = "slice"
    ) -> None:
        """Lay it out below `root`, around the libraries in `real`."""
        self.root, self.shims, self.tool, self.uuids = root, shims, tool, uuids
        self.libraries = os.path.join(root, name)
        self.log = os.path.join(root, "log")
        self.processes: list[Process] = []
        os.makedirs(self.path("nvc/ledger"))
        for name in ("libcuda.so", "libnvidia-ml.so"):
            shutil.copy(os.path.join(shims, name), self.path(f"{name}.1"))
            shutil.copy(os.path.join(real, f"{name}.1"), self.path(f"nvc/real-{name}.1"))
        self.limit(*[2 * GIB] * len(self.uuids))
        self.new_ledger()

    def new_ledger(self) -> None:
        """An empty ledger."""
        with open(self.path("nvc/ledger/new"), "wb") as file:
            file.write(ledger.header())
            file.truncate(layout.LEDGER_SIZE)
        os.rename(file.name, self.path("nvc/ledger/ledger"))

    def path(self, name: str) -> str:
        return os.path.join(self.libraries, name)

    def limit(self, *limits: int, **fields: int) -> None:
        """Write the quota: a limit for each device, and what else QuotaDevice has, for all."""
        fields = {"context_overhead": CONTEXT, **fields}
        devices = [quota.QuotaDevice(u, limit, **fields) for u, limit in zip(self.uuids, limits)]
        fd = os.open(self.path("nvc/quota"), os.O_RDWR | os.O_CREAT, 0o644)
        quota.write(fd, tuple(devices))
        os.close(fd)

    def environment(self, **variables: str) -> dict[str, str]:
        asan = {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1"}
        return {
            **CLEAN_ENV,
            **asan,
            "LD_LIBRARY_PATH": self.libraries,
            "NVC_VGPU_LOG": self.log,
            **variables,
        }

    def process(self, *arguments: str, **variables: str) -> Process:
        self.processes.append(Process(self, *arguments, **variables))
        return self.processes[-1]

    def start(self, device: int = 0) -> Process:
        """A process with a context."""
        return self.process().start(device)

    def used(self, device: int = 0) -> int:
        """Bytes that the ledger's living slots hold of a device."""
        fd = os.open(self.path("nvc/ledger/ledger"), os.O_RDWR)
        data = os.pread(fd, layout.LEDGER_SIZE, 0)
        live = locked(fd, layout.SLOTS)
        os.close(fd)
        return sum(account.used[device] for account in ledger.parse(data, len(self.uuids)) if account.slot in live)

    def taken(self, device: int = 0) -> int:
        """Bytes that the simulated driver has given, to all processes."""
        gpus = report(self.root).gpus
        return [mig.used for gpu in gpus for mig in gpu.mig][device] if gpus[0].mig else gpus[device].used

    def agree(self, device: int = 0) -> int:
        """The bytes in use, on which ledger and driver must agree."""
        used = self.used(device)
        taken = self.taken(device)
        assert used == taken
        return used

    def refused(self, device: int = 0) -> int:
        """Requests for memory that did not fit, as the ledger has them."""
        with open(self.path("nvc/ledger/ledger"), "rb") as file:
            file.seek(layout.BUDGETS_OFFSET)
            return ledger.parse_budgets(file.read(), device + 1)[device].refused

    def said(self) -> list[str]:
        """What the shim wrote to its log."""
        if not os.path.exists(self.log):
            return []
        with open(self.log, encoding="utf-8") as log:
            return log.read().splitlines()

    def eventually(self, condition: Callable[[], bool]) -> None:
        """Wait for what another process brings about by itself."""
        until(condition)


@pytest.fixture(scope="session")
def shims() -> str:
    """The shims as they are installed."""
    return build(os.path.join(REPO, "build/vgpu"))


@pytest.fixture(scope="session")
def shims_sanitized() -> str:
    """Shims that stop at a bad access or undefined behaviour."""
    return build(os.path.join(REPO, "build/vgpu-sanitized"), "SANITIZE=1")


@pytest.fixture(scope="session")
def tool() -> str:
    return kept("vgpu_tool", lambda directory: compile_tool(directory, "-O2"))


@pytest.fixture(scope="session")
def tool_sanitized() -> str:
    return kept("vgpu_tool-sanitized", lambda directory: compile_tool(directory, "-O1", "-g", *SANITIZE))


@pytest.fixture
def plain_slice(sim_root: Callable[..., str], shims: str, tool: str) -> Iterator[Callable[..., Slice]]:
    """Factory: `plain_slice(**fields of SimSpec)` is a slice of 2 GiB of each device."""
    made: list[Slice] = []

    def make(**wanted: object) -> Slice:
        made.append(Slice(sim_root(**wanted), shims, tool))
        return made[-1]

    yield make
    end_all(made)


@pytest.fixture(params=["plain", pytest.param("sanitized", marks=pytest.mark.nightly)])
def vgpu(request: pytest.FixtureRequest, sim_root: Callable[..., str]) -> Iterator[Slice]:
    """A slice of 2 GiB of each of two GPUs with the shims as installed, and at night again under sanitizers."""
    end = "_sanitized" if request.param == "sanitized" else ""
    made = Slice(sim_root(), request.getfixturevalue(f"shims{end}"), request.getfixturevalue(f"tool{end}"))
    yield made
    end_all([made])


def end_all(slices: list[Slice]) -> None:
    """No process outlives its test, and none may have ended by itself."""
    for made in slices:
        for process in made.processes:
            alive = process.process.poll() is None
            if alive:
                process.process.send_signal(signal.SIGCONT)
                process.end()
            assert process.process.returncode in (0, -signal.SIGKILL), process.process.returncode
