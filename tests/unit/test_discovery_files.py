"""Programs behind wrapper scripts, firmware where the kernel looks, sockets that are only looked at."""

from __future__ import annotations

import os
import re
import socket

import pytest
from support.drivertree import ARCH, LIBS, OTHER_ARCH, VERSION, DriverTree

from nvc.discovery.devices.sockets import find_ipcs
from nvc.discovery.driver.binaries import find_binaries
from nvc.discovery.driver.firmware import find_firmwares, firmware_directories
from nvc.model.facts import Binary, Firmware, Ipc
from nvc.model.request import DriverOptions
from nvc.testing.sim.elffile import shared_object

PATH = DriverOptions().search_path
ELF = shared_object("", ARCH)


@pytest.fixture
def tree(scratch: str) -> DriverTree:
    return DriverTree(f"{scratch}/root")


def binaries(
    tree: DriverTree, path: str = PATH, libraries: str = LIBS
) -> tuple[tuple[Binary, ...], tuple[str, ...]]:
    with tree.root() as root:
        return find_binaries(root, path, ARCH, libraries)


def test_programs_are_found_on_the_path_in_the_order_of_the_table(tree: DriverTree) -> None:
    for name in ("nvidia-cuda-mps-server", "nvidia-persistenced", "nvidia-smi", "nvidia-modprobe"):
        tree.file(f"/usr/bin/{name}", ELF, 0o755)
    found, warnings = binaries(tree)
    assert [(binary.path, binary.kind) for binary in found] == [
        ("/usr/bin/nvidia-smi", "utility"),
        ("/usr/bin/nvidia-persistenced", "utility"),
        ("/usr/bin/nvidia-cuda-mps-server", "compute"),
    ]
    assert warnings == ()
    status = os.stat(tree.full("/usr/bin/nvidia-smi"))
    assert tuple(found[0].identity) == (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def test_the_first_directory_of_the_path_wins_and_odd_entries_do_not_count(tree: DriverTree) -> None:
    for directory in ("/opt/bin", "/usr/bin"):
        tree.file(f"{directory}/nvidia-smi", ELF, 0o755)
    assert binaries(tree, "/opt/bin:/usr/bin")[0][0].path == "/opt/bin/nvidia-smi"
    assert binaries(tree, ":.:usr/bin:/usr/bin:/opt/bin")[0][0].path == "/usr/bin/nvidia-smi"
    assert binaries(tree, ":.:usr/bin", libraries="")[0] == ()


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi \"$@\"\n",
        "#!/bin/bash\nSMI='/usr/local/nvidia/bin/nvidia-smi'\nLD_LIBRARY_PATH=/x $SMI $*\n",
        "#!/usr/bin/env python3\nimport os; os.execv(\"/usr/local/nvidia/bin/nvidia-smi\", [])\n",
    ],
)  # fmt: skip
def test_behind_a_wrapper_the_program_that_it_names_is_taken(tree: DriverTree, script: str) -> None:
    tree.file("/usr/bin/nvidia-smi", script, 0o755)
    tree.file("/usr/local/nvidia/bin/nvidia-smi", ELF, 0o755)
    found, warnings = binaries(tree)
    assert [binary.path for binary in found] == ["/usr/local/nvidia/bin/nvidia-smi"]
    assert warnings == ()


def test_beside_the_libraries_is_the_last_place(tree: DriverTree) -> None:
    tree.file("/usr/bin/nvidia-smi", "#!/bin/sh\nnvidia-smi.real\n", 0o755)
    tree.file("/usr/local/nvidia/bin/nvidia-smi", ELF, 0o755)
    assert (
        binaries(tree, libraries="/usr/local/nvidia/lib64")[0][0].path == "/usr/local/nvidia/bin/nvidia-smi"
    )


def test_a_wrapper_that_leads_nowhere_is_left_out_with_a_warning(tree: DriverTree, scratch: str) -> None:
    DriverTree(f"{scratch}/outside").file("/nvidia-smi", ELF, 0o755)
    script = f"#!/bin/sh\nexec {scratch}/outside/nvidia-smi; /../outside/nvidia-smi; /usr/bin/nvidia-smi\n"
    tree.file("/usr/bin/nvidia-smi", script, 0o755)
    found, warnings = binaries(tree)
    assert found == ()
    assert warnings == (
        "binary /usr/bin/nvidia-smi is left out: a script that names no nvidia-smi of the driver",
    )


def test_what_cannot_run_here_is_not_a_program(tree: DriverTree) -> None:
    tree.file("/usr/local/sbin/nvidia-smi", shared_object("", OTHER_ARCH), 0o755)
    tree.file("/usr/local/bin/nvidia-smi", ELF, 0o644)
    tree.file("/usr/sbin/nvidia-smi", b"\x7fELF", 0o755)
    tree.directory("/usr/bin/nvidia-smi")
    assert binaries(tree) == ((), ())
    tree.directory("/bin")
    os.mkfifo(tree.full("/bin/nvidia-smi"))
    assert binaries(tree) == ((), ())


def firmwares(tree: DriverTree) -> tuple[tuple[Firmware, ...], tuple[str, ...]]:
    with tree.root() as root:
        return find_firmwares(root, firmware_directories(root, VERSION))


def test_firmware_is_what_the_kernel_would_load(tree: DriverTree) -> None:
    base = f"/lib/firmware/nvidia/{VERSION}"
    for name in ("gsp_tu10x.bin", "gsp_ga10x.bin", "gsp.txt", "other.bin"):
        tree.file(f"{base}/{name}")
    tree.file("/lib/firmware/nvidia/535.1/gsp_tu10x.bin")
    found, warnings = firmwares(tree)
    assert [firmware.path for firmware in found] == [f"{base}/gsp_ga10x.bin", f"{base}/gsp_tu10x.bin"]
    assert warnings == ()
    release = os.uname().release
    tree.file(f"/lib/firmware/updates/{release}/nvidia/{VERSION}/gsp_ga10x.bin")
    tree.file("/sys/module/firmware_class/parameters/path", "/var/lib/firmware\n")
    tree.file(f"/var/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin")
    assert [firmware.path for firmware in firmwares(tree)[0]] == [
        f"/lib/firmware/updates/{release}/nvidia/{VERSION}/gsp_ga10x.bin",
        f"/var/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin",
    ]


def test_firmware_keeps_the_kernels_path_where_lib_is_a_link(tree: DriverTree) -> None:
    tree.file(f"/usr/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    tree.link("usr/lib", "/lib")
    assert firmwares(tree)[0][0].path == f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"


def test_firmware_that_is_no_file_is_left_out_with_a_warning(tree: DriverTree) -> None:
    tree.directory(f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    found, warnings = firmwares(tree)
    assert found == ()
    assert "not a regular file" in warnings[0]


def ipcs(tree: DriverTree, mps: str = "/tmp/nvidia-mps") -> tuple[tuple[Ipc, ...], tuple[str, ...]]:
    with tree.root() as root:
        return find_ipcs(root, mps)


def bind(tree: DriverTree, name: str) -> None:
    """A socket at `name` that nobody listens on."""
    tree.directory(os.path.dirname(name))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(tree.full(name))


def test_sockets_are_looked_at_only(tree: DriverTree) -> None:
    bind(tree, "/run/nvidia-persistenced/socket")
    bind(tree, "/run/nvidia-fabricmanager/socket")
    tree.link("../run", "/var/run")
    tree.directory("/tmp/nvidia-mps")
    assert ipcs(tree) == (
        (
            Ipc("/run/nvidia-persistenced/socket", "persistenced", "utility"),
            Ipc("/run/nvidia-fabricmanager/socket", "fabricmanager", "utility"),
            Ipc("/tmp/nvidia-mps", "mps", "compute", True),
        ),
        (),
    )
    assert [ipc.service for ipc in ipcs(tree, mps="/nowhere")[0]] == ["persistenced", "fabricmanager"]


def test_var_run_of_its_own_is_searched_too(tree: DriverTree) -> None:
    bind(tree, "/var/run/nvidia-persistenced/socket")
    assert ipcs(tree)[0][0].path == "/var/run/nvidia-persistenced/socket"


def test_what_a_dead_service_left_is_left_out(tree: DriverTree) -> None:
    tree.file("/run/nvidia-persistenced/socket")
    tree.link("/run/gone", "/run/nvidia-fabricmanager/socket")
    tree.file("/tmp/nvidia-mps")
    found, warnings = ipcs(tree)
    assert found == ()
    assert warnings == (
        "socket /run/nvidia-persistenced/socket is left out: not a socket",
        "MPS directory /tmp/nvidia-mps is left out: not a directory",
    )


@pytest.mark.parametrize(
    ("path", "mode", "owner", "why"),
    [
        ("/tmp/nvidia-mps", 0o755, 65534, "it belongs to user 65534, and not to root"),
        ("/tmp/nvidia-mps", 0o777, 0, r"others can write it \(mode 0777\): chmod 755 /tmp/nvidia-mps"),
        ("/tmp/nvidia-mps", 0o1777, 0, r"others can write it \(mode 1777\)"),
        ("/tmp/nvidia-mps", 0o770, 0, r"others can write it \(mode 0770\)"),
        ("/tmp", 0o777, 0, "others can replace it, since they can write /tmp"),
        ("/tmp", 0o755, 65534, "/tmp belongs to user 65534, and not to root"),
        ("/", 0o777, 0, "others can replace it, since they can write /"),
    ],
)
@pytest.mark.parametrize("link", [False, True])
def test_an_mps_directory_is_roots_alone(
    tree: DriverTree, path: str, mode: int, owner: int, why: str, link: bool
) -> None:
    tree.directory("/tmp/nvidia-mps")
    tree.link("/tmp/nvidia-mps", "/run/mps")
    os.chmod(tree.full("/tmp"), 0o1777)
    named = "/run/mps" if link else "/tmp/nvidia-mps"
    assert [ipc.path for ipc in ipcs(tree, named)[0]] == ["/tmp/nvidia-mps"]
    os.chmod(tree.full(path), mode)
    os.chown(tree.full(path), owner, 0)
    found, (warning,) = ipcs(tree, named)
    assert found == () and re.match(f"MPS directory {named} is left out: {why}", warning)
