"""--load-kmods: which modules are loaded, with what rights, and which nodes are made how."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator

import pytest
from support import REPO, need, run
from support.drivertree import DriverTree

from nvc.discovery.devices import kmods
from nvc.discovery.devices.devfiles import wanted_nodes
from nvc.discovery.devices.kmods import load_kmods
from nvc.discovery.host import Host
from nvc.model.request import DriverOptions

Load = Callable[..., tuple[str, ...]]
CAPABILITIES = "/proc/driver/nvidia/capabilities"
SYS_MODULE_AND_DAC_OVERRIDE = (1 << 16) | (1 << 1)


@pytest.fixture(scope="session")
def modprobe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A static program that acts as modprobe inside a driver root."""
    path = str(tmp_path_factory.mktemp("modprobe") / "modprobe")
    run(need("gcc"), "-std=c11", "-D_GNU_SOURCE", "-static", "-o", path, f"{REPO}/tests/data/modprobe.c")
    return path


@pytest.fixture(autouse=True)
def own_runtime_directory(scratch: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the lock is: not the machine's."""
    os.mkdir(f"{scratch}/run", 0o700)
    monkeypatch.setattr(kmods, "runtime_directory", lambda: f"{scratch}/run")
    return f"{scratch}/run"


@pytest.fixture
def tree(scratch: str, modprobe: str) -> DriverTree:
    tree = DriverTree(f"{scratch}/root")
    with open(modprobe, "rb") as file:
        tree.file("/sbin/modprobe", file.read(), 0o755)
    tree.directory("/sys/module")
    tree.directory("/dev/char")
    tree.file("/sys/bus/pci/devices/0000:1b:00.0/vendor", "0x10de\n")
    tree.file("/proc/devices", "Character devices:\n195 nvidia\n507 nvidia-uvm\n508 nvidia-caps\n")
    tree.gpu("0000:1b:00.0", 3)
    return tree


@pytest.fixture
def load(tree: DriverTree) -> Iterator[Load]:
    """Loads for a host whose kernel shows what is in the tree."""
    root = tree.root()
    host = Host(root, root, root, False)

    def call(**options: object) -> tuple[str, ...]:
        return load_kmods(host, DriverOptions(root=tree.path, load_kmods=True, **options))  # type: ignore[arg-type]

    yield call
    host.close()


def log(tree: DriverTree) -> list[str]:
    try:
        with open(tree.full("/modprobe.log"), encoding="ascii") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def node(tree: DriverTree, name: str) -> tuple[int, int, int, int, int]:
    """Major, minor, mode, uid and gid of a character device."""
    status = os.lstat(tree.full(name))
    assert stat.S_ISCHR(status.st_mode), name
    device = status.st_rdev
    return os.major(device), os.minor(device), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid


def test_missing_modules_are_loaded_by_the_driver_roots_modprobe(tree: DriverTree, load: Load) -> None:
    os.environ["NVC_TEST_SECRET"] = "x"
    try:
        assert load() == ()
    finally:
        del os.environ["NVC_TEST_SECRET"]
    rights = f"caps={SYS_MODULE_AND_DAC_OVERRIDE:x} PATH=/sbin"
    assert log(tree) == [f"modprobe {name} {rights}" for name in ("nvidia", "nvidia-uvm", "nvidia-modeset")]
    assert node(tree, "/dev/nvidiactl") == (195, 255, 0o666, 0, 0)
    assert node(tree, "/dev/nvidia3") == (195, 3, 0o666, 0, 0)  # the kernel's minor, not the first free one
    assert node(tree, "/dev/nvidia-modeset") == (195, 254, 0o666, 0, 0)
    assert node(tree, "/dev/nvidia-uvm") == (507, 0, 0o666, 0, 0)
    assert node(tree, "/dev/nvidia-uvm-tools") == (507, 1, 0o666, 0, 0)
    assert os.readlink(tree.full("/dev/char/195:3")) == "../nvidia3"
    assert os.path.samestat(os.stat(tree.full("/dev/char/195:3")), os.stat(tree.full("/dev/nvidia3")))


def test_nothing_is_started_when_nothing_is_missing(
    tree: DriverTree, load: Load, monkeypatch: pytest.MonkeyPatch, scratch: str
) -> None:
    load()
    os.unlink(tree.full("/modprobe.log"))
    monkeypatch.setattr(os, "fork", None)
    os.unlink(f"{scratch}/run/kmods.lock")
    assert load() == ()
    assert log(tree) == []
    assert not os.path.exists(f"{scratch}/run/kmods.lock")


def test_only_what_is_missing_is_loaded(tree: DriverTree, load: Load) -> None:
    tree.file("/sys/module/nvidia/initstate", "live\n")
    tree.file("/sys/module/nvidia_modeset/initstate", "live\n")
    assert load() == ()
    assert [line.split()[1] for line in log(tree)] == ["nvidia-uvm"]


def test_the_kernels_choice_of_modprobe_is_used(tree: DriverTree, load: Load) -> None:
    os.makedirs(tree.full("/opt"))
    os.rename(tree.full("/sbin/modprobe"), tree.full("/opt/probe"))
    tree.file("/proc/sys/kernel/modprobe", "/opt/probe\n")
    assert load() == ()
    assert len(log(tree)) == 3


def test_without_an_nvidia_device_nothing_is_loaded(tree: DriverTree, load: Load) -> None:
    tree.file("/sys/bus/pci/devices/0000:1b:00.0/vendor", "0x8086\n")
    assert load() == ("kernel modules are not loaded: no NVIDIA device on the PCI bus",)
    assert log(tree) == []


def test_a_module_that_does_not_load_is_a_warning(tree: DriverTree, load: Load) -> None:
    tree.file("/modprobe.refuses")
    expected = [
        f"kernel module {name} could not be loaded: see the kernel log"
        for name in ("nvidia", "nvidia-uvm", "nvidia-modeset")
    ]
    assert list(load()) == expected
    os.unlink(tree.full("/sbin/modprobe"))
    assert list(load()) == expected


def test_a_modprobe_that_hangs_is_ended_at_the_deadline(
    tree: DriverTree, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.file("/modprobe.hangs")
    children: list[int] = []
    fork = os.fork

    def noted() -> int:
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", noted)
    assert load(timeout=0.3) == ("kernel modules: modprobe did not end in time",)
    (child,) = children
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def loaded(tree: DriverTree) -> DriverTree:
    for name in ("nvidia", "nvidia_uvm", "nvidia_modeset"):
        tree.file(f"/sys/module/{name}/initstate", "live\n")
    return tree


PARAMS = "ModifyDeviceFiles: %d\nDeviceFileUID: %d\nDeviceFileGID: %d\nDeviceFileMode: %d\n"


def test_nodes_have_the_owner_and_mode_of_the_drivers_parameters(tree: DriverTree, load: Load) -> None:
    loaded(tree).file("/proc/driver/nvidia/params", PARAMS % (1, 12, 44, 0o660))
    before = os.umask(0o077)
    try:
        assert load() == ()
    finally:
        os.umask(before)
    for name, minor in (("nvidiactl", 255), ("nvidia3", 3), ("nvidia-modeset", 254)):
        assert node(tree, f"/dev/{name}") == (195, minor, 0o660, 12, 44)
    assert node(tree, "/dev/nvidia-uvm") == (507, 0, 0o666, 0, 0)  # has no parameters


def test_nodes_that_the_driver_wants_left_alone_are(tree: DriverTree, load: Load) -> None:
    loaded(tree).file("/proc/driver/nvidia/params", PARAMS % (0, 0, 0, 0o666))
    assert load() == ()
    assert not os.path.exists(tree.full("/dev/nvidia3"))
    assert not os.path.exists(tree.full("/dev/nvidiactl"))
    assert os.path.exists(tree.full("/dev/nvidia-uvm"))


def test_a_node_of_another_number_is_replaced(tree: DriverTree, load: Load) -> None:
    loaded(tree)
    tree.node("/dev/nvidia3", 1, 3)
    tree.file("/dev/nvidiactl", "not a node")
    tree.link("/etc/passwd", "/dev/nvidia-uvm")
    assert load() == ()
    assert node(tree, "/dev/nvidia3")[:2] == (195, 3)
    assert node(tree, "/dev/nvidiactl")[:2] == (195, 255)
    assert node(tree, "/dev/nvidia-uvm")[:2] == (507, 0)
    assert not [name for name in os.listdir(tree.full("/dev")) if name.startswith(".")]


def test_a_directory_in_a_nodes_place_is_a_warning(tree: DriverTree, load: Load) -> None:
    loaded(tree).directory("/dev/nvidia3/x")
    (warning,) = load()
    assert warning.startswith("device node /dev/nvidia3 could not be made: ")
    assert os.path.exists(tree.full("/dev/nvidiactl"))


def test_capability_nodes_have_what_their_own_files_say(tree: DriverTree, load: Load) -> None:
    loaded(tree)
    lines = ["config 1", "monitor 2", "gpu3/gi1/access 12", "gpu3/gi1/ci0/access 13", "gpu3/gi2/access 21"]
    tree.file("/proc/driver/nvidia-caps/mig-minors", "\n".join([*lines, "gpu9/gi1/access 90"]))
    tree.file(f"{CAPABILITIES}/mig/config", "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
    tree.file(
        f"{CAPABILITIES}/mig/monitor", "DeviceFileMinor: 2\nDeviceFileMode: 256\nDeviceFileModify: 0\n"
    )
    for path, minor in (("gi1/access", 12), ("gi1/ci0/access", 13)):
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        tree.file(f"{CAPABILITIES}/gpu3/mig/{path}", text)
    before = os.umask(0o077)
    try:
        assert load() == ()
    finally:
        os.umask(before)
    assert sorted(os.listdir(tree.full("/dev/nvidia-caps"))) == [
        "nvidia-cap1",
        "nvidia-cap12",
        "nvidia-cap13",
    ]
    assert node(tree, "/dev/nvidia-caps/nvidia-cap1") == (508, 1, 0o400, 0, 0)
    assert node(tree, "/dev/nvidia-caps/nvidia-cap12") == (508, 12, 0o444, 0, 0)
    assert stat.S_IMODE(os.stat(tree.full("/dev/nvidia-caps")).st_mode) == 0o755


def test_imex_channels_that_were_asked_for(tree: DriverTree, load: Load) -> None:
    loaded(tree).file("/proc/devices", "Character devices:\n195 nvidia\n234 nvidia-caps-imex-channels\n")
    assert load(imex_channels=(0, 7), create_imex_channels=False) == ()
    assert not os.path.exists(tree.full("/dev/nvidia-caps-imex-channels"))
    assert load(imex_channels=(0, 7)) == ()
    assert node(tree, "/dev/nvidia-caps-imex-channels/channel7") == (234, 7, 0o666, 0, 0)
    assert os.readlink(tree.full("/dev/char/234:7")) == "../nvidia-caps-imex-channels/channel7"


def waits_for_a_lock(pid: int) -> bool:
    with open("/proc/locks", encoding="ascii") as file:
        return any("-> FLOCK" in line and f" {pid} " in line for line in file)


def test_one_start_at_a_time_does_the_work(tree: DriverTree, load: Load, own_runtime_directory: str) -> None:
    """A second start waits for the first, then finds nothing to do."""
    lock = os.open(f"{own_runtime_directory}/kmods.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    pid = os.fork()
    if pid == 0:
        os.close(lock)  # or the child would hold it, too
        os._exit(0 if load() == () and log(tree) == [] else 1)
    while not waits_for_a_lock(pid):
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it did not wait"
    for name in ("nvidia", "nvidia_uvm", "nvidia_modeset"):
        tree.file(f"/sys/module/{name}/initstate", "live\n")
    root = tree.root()
    host = Host(root, root, root, False)
    for item in wanted_nodes(host, DriverOptions()):
        item.make(root)
    os.close(lock)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    host.close()


def test_an_ordinary_user_is_told(tree: DriverTree, load: Load) -> None:
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setresuid(1234, 1234, 1234)
        os.write(send, "\n".join(load()).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as answer:
        assert answer.read() == "kernel modules are not loaded: it takes root of the host"
    os.waitpid(pid, 0)
    assert log(tree) == []
