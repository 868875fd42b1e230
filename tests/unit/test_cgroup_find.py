"""Where the device cgroup of a process is: texts of /proc as the kernel writes them, and as it never would."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import CLEAN_ENV, REPO, run

from nvc.apply.cgroup import find
from nvc.apply.cgroup.find import CgroupMount, below, cgroup_mounts, device_cgroup, memberships, unescape
from nvc.base.errors import MountError
from nvc.base.files import closing
from nvc.kernel import LinuxKernel

HYBRID = (
    b"9:name=systemd:/user.slice\n8:cpu,cpuacct:/a\n5:devices:/docker/c1\n"
    b"1:name=devices:/wrong\n0::/unified/c1\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HYBRID, ("/docker/c1", "/unified/c1")),
        (b"0::/system.slice/docker-1.scope\n", ("", "/system.slice/docker-1.scope")),
        (b"4:devices,freezer:/x\n", ("/x", "")),
        (b"1:name=devices:/x\n0::/y\n", ("", "/y")),
        (b"0::/a:b/0::/c d\n", ("", "/a:b/0::/c d")),
        (b"0::/../sibling\n", ("", "/../sibling")),
        (b"7:mydevices:/x\n", ("", "")),
        (b"5:devices:\n0::relative\n", ("", "")),
        (b"", ("", "")),
        (b"\n:\n::\n0:\n", ("", "")),
        (b"0::/caf\xe9\n", ("", "/caf\udce9")),
    ],
)
def test_memberships(text: bytes, expected: tuple[str, str]) -> None:
    assert memberships(text) == expected


def line(
    root: str = "/",
    point: str = "/sys/fs/cgroup",
    kind: str = "cgroup2 cgroup2 rw",
    device: str = "0:38",
    flags: str = "rw,nosuid",
    optional: str = " shared:9",
) -> bytes:
    return f"41 31 {device} {root} {point} {flags}{optional} - {kind}\n".encode()


def test_mounts() -> None:
    text = b"".join(
        (
            b"22 27 0:21 / /proc rw,relatime - proc proc rw\n",
            line(),
            line(point="/ro", flags="ro,nosuid"),
            line(
                point="/sys/fs/cgroup/devices", kind="cgroup cgroup rw,devices", device="0:33", optional=""
            ),
            line(point="/both", kind="cgroup none rw,freezer,devices", optional=" shared:1 master:2"),
            line(point="/named", kind="cgroup cgroup rw,name=devices"),
            line(point="/cpu", kind="cgroup cgroup rw,cpu"),
            line(point="/fuse", kind="cgroupfs x rw"),
            line(point="/bad", device="x:1"),
            line(point="/bad", device="1"),
            b"1 2 0:1 / /short - cgroup2\n",
            b"1 2 - cgroup2 cgroup2 rw\n",
        )
    )
    assert cgroup_mounts(text) == [
        CgroupMount(2, "/", "/sys/fs/cgroup", os.makedev(0, 38), False),
        CgroupMount(1, "/", "/sys/fs/cgroup/devices", os.makedev(0, 33), False),
        CgroupMount(1, "/", "/both", os.makedev(0, 38), False),
        CgroupMount(2, "/", "/ro", os.makedev(0, 38), True),
    ]


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (b"/plain", "/plain"),
        (b"/with\\040space", "/with space"),
        (b"/a\\011b\\012c\\134d\\043", "/a\tb\nc\\d#"),
        (b"/not\\04", "/not\\04"),
        (b"/not\\777x\\08", "/not\\777x\\08"),
        (b"\\", "\\"),
        (b"/\\134040", "/\\040"),
    ],
)
def test_unescape(field: bytes, expected: str) -> None:
    assert unescape(field) == expected


@given(st.lists(st.sampled_from(["a", "b", "..", "."]), max_size=5), st.lists(st.sampled_from(["a", ".."])))
def test_below_never_leaves_the_mount(root: list[str], path: list[str]) -> None:
    found = below("/" + "/".join(root), "/" + "/".join(path))
    assert found is None or ".." not in found.split("/")


class Host:
    """A directory for the hierarchy, one for /proc/PID, and a mountinfo that says so."""

    def __init__(self, scratch: str) -> None:
        self.scratch = scratch
        self.mountinfo = os.path.join(scratch, "mountinfo")
        self.mounts: list[bytes] = []
        self.proc = os.path.join(scratch, "proc")
        os.mkdir(self.proc)

    def mount(self, name: str, kind: str, root: str = "/", device: str = "") -> str:
        point = os.path.join(self.scratch, name)
        os.makedirs(point, exist_ok=True)
        number = os.stat(point).st_dev
        escaped = point.replace(" ", "\\040")
        device = device or f"{os.major(number)}:{os.minor(number)}"
        self.mounts.append(line(root, escaped, kind, device))
        return point

    def find(self, membership: bytes) -> tuple[int, str] | None:
        with open(self.mountinfo, "wb") as out:
            out.write(b"".join(self.mounts))
        with open(os.path.join(self.proc, "cgroup"), "wb") as out:
            out.write(membership)
        with closing(os.open(self.proc, os.O_RDONLY | os.O_DIRECTORY)) as proc:
            found = device_cgroup(LinuxKernel(), proc, self.mountinfo)
        if found is None:
            return None
        same = os.path.samestat(os.fstat(found.directory), os.stat(found.path))
        assert same and found.path.startswith(found.mount)
        found.close()
        return found.version, found.path


V2 = "cgroup2 cgroup2 rw"
V1 = "cgroup cgroup rw,devices"


@pytest.fixture
def host(scratch: str, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Seen from the host's cgroup namespace, wherever these tests run."""
    monkeypatch.setattr(find, "_INITIAL_NAMESPACE", os.stat("/proc/self/ns/cgroup").st_ino)
    return Host(scratch)


def test_prefix_of_a_bind_mount_is_taken_off(host: Host) -> None:
    point = host.mount("cgroup", V2, root="/docker")
    os.makedirs(f"{point}/c1")
    assert host.find(b"0::/docker/c1\n") == (2, f"{point}/c1")
    with pytest.raises(MountError, match="no mounted cgroup v2 hierarchy.*--no-cgroups"):
        host.find(b"0::/c1\n")


def test_v1_comes_first_unless_the_process_is_in_its_root(host: Host) -> None:
    old, new = host.mount("devices", V1), host.mount("unified", V2)
    for point in (old, new):
        os.makedirs(f"{point}/c1")
    assert host.find(b"5:devices:/c1\n0::/c1\n") == (1, f"{old}/c1")
    assert host.find(b"5:devices:/c1\n0::/\n") == (1, f"{old}/c1")
    assert host.find(b"5:devices:/\n0::/\n") == (1, old)
    assert host.find(b"5:devices:/\n0::/c1\n") == (2, f"{new}/c1")


def test_hierarchy_that_decides_must_be_reached(host: Host) -> None:
    """The other one is no way round it: what v1 denies stays denied whatever is done to v2."""
    new = host.mount("unified", V2)
    os.makedirs(f"{new}/c1")
    with pytest.raises(MountError, match="/c1: no mounted cgroup v1 hierarchy"):
        host.find(b"5:devices:/c1\n0::/c1\n")
    assert host.find(b"5:devices:/\n0::/c1\n") == (2, f"{new}/c1")


def test_mount_that_another_one_covers_is_passed_over(host: Host) -> None:
    host.mount("covered", V2, device="0:99999")
    os.makedirs(os.path.join(host.scratch, "covered/c1"))
    with pytest.raises(MountError):
        host.find(b"0::/c1\n")
    point = host.mount("visible", V2)
    os.makedirs(f"{point}/c1")
    assert host.find(b"0::/c1\n") == (2, f"{point}/c1")


def test_link_and_dots_do_not_lead_out(host: Host) -> None:
    point = host.mount("unified", V2)
    os.makedirs(os.path.join(host.scratch, "outside/c1"))
    os.symlink("../outside", f"{point}/link")
    for path in (b"/../outside/c1", b"/link/c1", b"/x/../../outside/c1"):
        with pytest.raises(MountError):
            host.find(b"0::" + path + b"\n")


def test_nothing_restricts_a_process_without_cgroups(host: Host) -> None:
    assert host.find(b"") is None
    assert host.find(b"3:cpu:/x\n") is None
    assert host.find(b"0::/\n") is None


def test_programs_cost_nothing_where_there_are_none() -> None:
    """bpf(2) and the interpreter are for v2 alone."""
    script = "import sys, nvc.apply.cgroup.v1, nvc.apply.cgroup.find; print(*sys.modules)"
    env = {**CLEAN_ENV, "PYTHONPATH": os.pathsep.join([REPO, *filter(None, sys.path)])}
    loaded = run(sys.executable, "-B", "-c", script, env=env).stdout
    assert "nvc.apply.cgroup.find" in loaded.split()
    assert not {"nvc.kernel.bpf", "nvc.apply.cgroup.v2", "nvc.apply.cgroup.program"} & set(loaded.split())


def test_unreadable_proc_is_an_error(scratch: str) -> None:
    with closing(os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)) as proc:
        with pytest.raises(MountError, match="failed to add device rules: /proc/PID/cgroup: no such file"):
            device_cgroup(LinuxKernel(), proc)
