"""`nvc-cli doctor --container`: why a GPU program in it fails, for each way to fail."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from support import run
from support.doctor import examine, problems
from support.doctorbox import Box
from support.engines import DRIVER, Host

LIBS = f"/usr/lib/{os.uname().machine}-linux-gnu"
VERSION = "580.159.04"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


@pytest.fixture(scope="module")
def box(host: Host) -> Iterator[Box]:
    yield Box(host)


def inside(box: Box, pid: int, script: str) -> None:
    """Shell lines in the mount namespace of a container, as root of the host."""
    box.host.sh(f"nsenter --target {pid} --mount /bin/sh -ec '{script}'")


def test_one_that_is_well(box: Box) -> None:
    with box.bundle(**{VISIBLE: "all", "PASSWORD": "hunter2"}).created("runc") as container:
        container.start()
        for name in (container.name, container.pid, container.name[:14]):
            text = box.doctor(name, "--all", check=0)
            assert text.count("ok  ") == 11 and "hunter2" not in text, text
        found = box.document(container)
        assert found["container"] == {
            "name": container.name, "pid": container.pid, "id": container.name, "reason": None,
        }  # fmt: skip
        assert examine(box.host, "", "host.systemd").stdout.endswith("1 ok\n")


def test_it_asked_for_nothing(box: Box) -> None:
    with box.bundle().created("runc") as container:
        assert box.named(
            container, "container.request", "did not ask for a GPU: NVIDIA_VISIBLE_DEVICES is not set"
        )
        last = box.doctor(container.name, check=1).splitlines()[-1]
        assert last.startswith(f"a GPU program in {container.name} fails: it did not ask for a GPU")


def test_it_asked_for_what_is_not_here(box: Box) -> None:
    with box.bundle(hook=False, **{VISIBLE: "7"}).created("runc") as container:
        said = box.named(container, "container.request", "it asks for 7, which this host does not have")
        assert "GPU-" in box.host.sh(said.commands[0]).stdout


def test_its_image_demands_another_driver(box: Box) -> None:
    wanted = {VISIBLE: "0", "NVIDIA_REQUIRE_CUDA": "cuda>=99.1", "NVIDIA_DISABLE_REQUIRE": "1"}
    with box.bundle(**wanted).created("runc") as container:
        said = box.named(container, "container.request", "its image requires another driver", "warning")
        assert "cuda>=99.1" in said.line


def test_nobody_was_told(box: Box) -> None:
    with box.bundle(hook=False, **{VISIBLE: "all"}).created("runc") as container:
        assert box.named(container, "container.hooks", "its bundle has no hook of nvc")
    box.host.sh("rm -rf /run/elsewhere")
    bundle = box.bundle(hook=False, **{VISIBLE: "all"})
    normal = bundle.command
    bundle.command = lambda runtime: [*normal(runtime), "--root", "/run/elsewhere"]  # type: ignore[method-assign]
    with bundle.created("runc") as container:
        assert box.named(
            container, "container.request", "it was created but not started", "cannot tell"
        )
        container.start()
        assert box.named(container, "container.hooks", "its bundle was not found", "cannot tell")


def test_a_node_is_missing_or_another(box: Box) -> None:
    with box.bundle(**{VISIBLE: "all"}).created("runc") as container:
        inside(box, container.pid, "umount /dev/nvidia1; rm /dev/nvidia1")
        assert box.named(container, "container.nodes", "/dev/nvidia1 is missing in the container")
        inside(box, container.pid, "mknod /dev/nvidia1 c 195 9")
        assert box.named(container, "container.nodes", "is 195:9 in the container, the driver's is 195:1")
        inside(box, container.pid, "rm /dev/nvidia1; mknod /dev/nvidia1 c 195 1; mknod /dev/nvidia6 c 195 6")
        assert box.named(container, "container.nodes", "nodes of 1 GPUs that it did not ask for", "warning")


def test_its_rules_deny(box: Box) -> None:
    with box.bundle(**{VISIBLE: "0"}).created("runc") as container:
        with open(f"/proc/{container.pid}/cgroup", encoding="ascii") as file:
            path = next(
                line.split(":", 2)[2].strip() for line in file if ":devices:" in line or line[:2] == "0:"
            )
        first = "/sys/fs/cgroup/devices"
        if os.path.isdir(first):
            box.host.sh(f"echo 'c 195:0 rw' > {first}{path}/devices.deny")
            said = box.named(container, "container.rules", "its cgroup denies /dev/nvidia0")
            box.host.sh("\n".join(said.commands))
            # A node that it has made itself is no reason to allow more.
            inside(box, container.pid, "mknod /dev/nvidia1 c 195 1")
            assert "container.rules" not in box.doctor(container.name, check=0)
            inside(box, container.pid, "rm /dev/nvidia1")
        box.doctor(container.name, check=0)


def test_systemd_would_take_them(box: Box) -> None:
    bundle = box.bundle(**{VISIBLE: "0"})
    scope = f"nvc-doctor-{os.getpid()}.scope"
    bundle.config["linux"]["cgroupsPath"] = f"/{scope}"
    with bundle.created("runc") as container:
        container.start()
        place = f"/run/systemd/transient/{scope}.d"
        box.host.write(f"{place}/50-DevicePolicy.conf", "[Scope]\nDevicePolicy=strict\n")
        box.host.write(f"{place}/50-DeviceAllow.conf", "[Scope]\nDeviceAllow=/dev/char/1:3 rwm\n")
        said = box.named(
            container, "container.systemd", "loses its GPUs when systemd is reloaded", "warning"
        )
        named = problems(examine(box.host, "", "host.systemd").stdout)
        assert scope in named[0].line and named[0].commands == said.commands
        # What `systemctl set-property --runtime` does with the words of the command.
        added = (
            said.commands[0].split(f"{scope} ")[1].replace("'", "").replace(" DeviceAllow", "\nDeviceAllow")
        )
        box.host.write(f"{place}/51-DeviceAllow.conf", f"[Scope]\n{added}\n")
        box.doctor(container.name, check=0)
        assert not problems(examine(box.host, "", "host.systemd").stdout)
        box.host.sh("rm -r /run/systemd")


def test_its_user_may_not_open_them(box: Box) -> None:
    bundle = box.bundle(**{VISIBLE: "0"})
    bundle.config["process"]["user"] = {"uid": 1000, "gid": 1000}
    with bundle.created("runc") as container:
        container.start()
        box.host.sh(f"chown root:44 {DRIVER}/dev/nvidia*; chmod 660 {DRIVER}/dev/nvidia*")
        text = box.doctor(container.name, check=1)
        said = "user 1000 of the container cannot open /dev/nvidia0: its group is 44"
        assert f"failed       container.user: {said}" in text
        box.host.sh(f"chmod 666 {DRIVER}/dev/nvidia*")
        box.doctor(container.name, check=0)
        box.host.sh(f"chown root:root {DRIVER}/dev/nvidia*")


def test_libraries_of_another_driver(box: Box) -> None:
    bundle = box.bundle(LD_LIBRARY_PATH="/opt/old", **{VISIBLE: "0"})
    os.makedirs(f"{bundle.rootfs}/opt/old")
    shutil.copy(
        f"{driver_libraries(box)}/libcuda.so.{VERSION}", f"{bundle.rootfs}/opt/old/libcuda.so.470.57.02"
    )
    os.symlink("libcuda.so.470.57.02", f"{bundle.rootfs}/opt/old/libcuda.so.1")
    with bundle.created("runc") as container:
        said = "libcuda.so.1 in the container is of driver 470.57.02, the kernel module is"
        assert box.named(container, "container.libraries", said)
        os.unlink(f"{bundle.rootfs}/opt/old/libcuda.so.1")
        box.doctor(container.name, check=0)
        os.rename(
            f"{bundle.rootfs}/opt/old/libcuda.so.470.57.02", f"{bundle.rootfs}/opt/old/libcuda.so.{VERSION}"
        )
        os.symlink(f"libcuda.so.{VERSION}", f"{bundle.rootfs}/opt/old/libcuda.so.1")
        assert box.named(
            container, "container.libraries", "is a copy of the driver's libcuda.so.1", "warning"
        )


def driver_libraries(box: Box) -> str:
    """The driver's libraries, copied to where this process sees them."""
    place = os.path.join(box.host.directory, "libs")
    if not os.path.isdir(place):
        box.host.sh(f"mkdir {place}; cp -a {DRIVER}{LIBS}/. {place}")
    return place


def test_forward_compatibility_for_another_driver(box: Box) -> None:
    place = "/usr/local/cuda/compat"
    bundle = box.bundle(LD_LIBRARY_PATH=place, **{VISIBLE: "0"})
    os.makedirs(f"{bundle.rootfs}{place}")
    shutil.copy(
        f"{driver_libraries(box)}/libcuda.so.{VERSION}", f"{bundle.rootfs}{place}/libcuda.so.535.10.01"
    )
    os.symlink("libcuda.so.535.10.01", f"{bundle.rootfs}{place}/libcuda.so.1")
    with bundle.created("runc") as container:
        said = box.named(container, "container.compat", "libcuda 535.10.01 is not for driver 580.159.04")
        assert said.commands == ("docker run -e LD_LIBRARY_PATH= IMAGE",)
    bundle.config["process"]["env"].append("LD_LIBRARY_PATH=")
    with bundle.created("runc") as container:
        box.doctor(container.name, check=0)


def test_an_image_with_musl(box: Box) -> None:
    bundle = box.bundle(**{VISIBLE: "0"})
    shutil.rmtree(f"{bundle.rootfs}/lib64", ignore_errors=True)
    loader = {"x86_64": "lib64/ld-linux-x86-64.so.2"}.get(os.uname().machine, "lib/ld-linux-aarch64.so.1")
    if os.path.lexists(f"{bundle.rootfs}/{loader}"):
        os.unlink(f"{bundle.rootfs}/{loader}")
    run("touch", f"{bundle.rootfs}/lib/ld-musl-{os.uname().machine}.so.1")
    with bundle.created("runc") as container:
        assert box.named(container, "container.libraries", "the image has musl, not glibc")


def test_a_process_with_the_mounts_of_the_host(box: Box) -> None:
    pid = box.host.sh("sleep inf </dev/null >/dev/null 2>&1 & echo $!").stdout.strip()
    assert "has the host's mounts" in box.doctor(int(pid), "container.process")
    box.host.sh(f"kill {pid}")


def test_a_container_that_ends_meanwhile(box: Box) -> None:
    with box.bundle(**{VISIBLE: "0"}).created("runc", "exit 0") as container:
        pid = container.pid
        container.start()
        box.host.sh(f"while [ -e /proc/{pid}/root/bin ]; do :; done")
        done = run(*box.host.namespace, "nvc-cli", "doctor", f"--container={pid}", check=False)
        assert done.returncode in (1, 2) and "Traceback" not in done.stderr


def test_completion(box: Box) -> None:
    """Names of checks, and ids of containers."""
    with box.bundle().created("runc") as container:
        for words, offered in (
            ("doctor --container nvc-te", container.name),
            ("doctor nodes.gp", "nodes.gpus"),
            ("explain nvc-120", "NVC-1201"),
        ):
            count = len(words.split())
            variables = f"_NVC_CLI_COMPLETE=bash_complete COMP_WORDS='nvc-cli {words}' COMP_CWORD={count}"
            assert f"plain,{offered}\n" in box.host.sh(f"{variables} nvc-cli").stdout
