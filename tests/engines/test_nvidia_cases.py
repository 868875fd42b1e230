"""What the end-to-end tests of NVIDIA's toolkit check of Docker and the command line, on a simulated driver.

tests/features.md has all their cases, and which test is for each. Facts are those of revision d34b3046 of
NVIDIA/nvidia-container-toolkit.
"""

from __future__ import annotations

import json

import pytest
from support.clients import client_ran, named
from support.engines import DRIVER, IMAGE, Host
from support.rootfs import LIBS, multiarch

GENERATIONS = ("sid",)
VERSION = "580.159.04"
HOOK = "--gpus all"
RUNTIME = "--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=all"
CDI = "--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=runtime.nvidia.com/gpu=all"
WAYS = {
    "hook": HOOK,
    "runtime": RUNTIME,
    "runtime, --gpus": "--runtime nvidia --gpus all",
    "cdi": CDI,
    "cdi, --gpus": f"{CDI} --gpus all",
}
THREE = pytest.mark.parametrize("way", [HOOK, RUNTIME, CDI], ids=["hook", "runtime", "cdi"])
EVERYTHING = "-e NVIDIA_DRIVER_CAPABILITIES=all"
COMPAT = "/usr/local/cuda-13.9/compat"
#: Shell lines that make an image's directory another one, in which they run, by its name.
IMAGES = {
    name: f"mkdir -p .{COMPAT}; ln -s cuda-13.9 usr/local/cuda; "
    f"cp {DRIVER}{LIBS}/libcuda.so.{VERSION} .{COMPAT}/libcuda.so.{version}; "
    f"ln -s libcuda.so.{version} .{COMPAT}/libcuda.so.1"
    for name, version in (("newer", "590.10.01"), ("older", "570.10.01"))
} | {
    "order": f"mkdir -p extra/lib; cp -L lib/{multiarch()}/libc.so.6 extra/lib; "
    "sed -i '1i /extra/lib' etc/ld.so.conf; ldconfig -r .",
    "firmware": "mkdir -p lib/firmware/nvidia; "
    f"ln -s /../../../../../../../../srv/outside lib/firmware/nvidia/{VERSION}",
    "preload": "mkdir srv; cp /srv/preloaded.so .",
}
PRELOADED = """#include <fcntl.h>
__attribute__((constructor)) static void begin(void) { open("/srv/preloaded", O_CREAT | O_WRONLY, 0644); }
"""


@pytest.fixture(scope="module", autouse=True)
def images(host: Host) -> None:
    named(host)
    host.sh("nvidia-ctk runtime configure --runtime=docker; systemctl start docker")
    host.sh(f"cp /sbin/ldconfig {host.rootfs()}/sbin; mkdir /srv/outside")
    host.image()
    host.write("/srv/preloaded.c", PRELOADED)
    host.sh("gcc -shared -fPIC -o /srv/preloaded.so /srv/preloaded.c")
    for name, lines in IMAGES.items():
        host.sh(f"cp -a {host.rootfs()} /srv/{name}; cd /srv/{name}; {lines}; tar -c . | docker import - {name}")


def docker(host: Host, options: str, script: str, image: str = IMAGE) -> list[str]:
    """The lines that a shell script in a container prints."""
    return host.sh(f"docker run --rm --network none {options} {image} sh -c '{script}'").stdout.splitlines()


def test_version() -> None:
    """The revision that was read."""
    client_ran("NVIDIA's cases", "d34b3046", "root", "its end-to-end tests that need neither a GPU nor a network")


def of_host(host: Host) -> list[str]:
    smi = f"LD_LIBRARY_PATH={DRIVER}{LIBS} {DRIVER}/usr/bin/nvidia-smi -L"
    return host.sh(smi).stdout.splitlines()


@pytest.mark.parametrize("user", ["", "--user 1000:1000 --cap-drop ALL --security-opt no-new-privileges"])
@pytest.mark.parametrize("way", WAYS)
def test_the_gpus_of_the_host(host: Host, way: str, user: str) -> None:
    assert docker(host, f"{WAYS[way]} {user}", "nvidia-smi -L") == of_host(host) != []


def test_no_gpu(host: Host) -> None:
    assert docker(host, "--runtime nvidia -e NVIDIA_VISIBLE_DEVICES=none", "nvidia-smi -L; true") == [
        "No devices were found"
    ]


@pytest.mark.parametrize("way", WAYS)
def test_a_sum_of_vectors(host: Host, way: str) -> None:
    """Their samples want NVIDIA's CUDA runtime, and so a GPU; this one does the same by the driver's interface."""
    program = "/usr/local/lib/nvc/simdriver/vector_add"
    said = docker(host, f"{WAYS[way]} -v {program}:{program}:ro", program)
    assert said == host.sh(f"LD_LIBRARY_PATH={DRIVER}{LIBS} {program}").stdout.splitlines() != []


@THREE
@pytest.mark.parametrize("image", ["newer", "older"])
def test_cuda_of_the_image_only_where_it_is_newer(host: Host, way: str, image: str) -> None:
    first = 'set -- $(ldconfig -p | grep libcuda.so.1); readlink -f "$4"'
    (library,) = docker(host, way, first, image)
    directory, _, name = library.rpartition("/")
    assert name == f"libcuda.so.{'590.10.01' if image == 'newer' else VERSION}"
    assert (directory == COMPAT) is (image == "newer")


@THREE
def test_nodes_are_not_made_by_programs(host: Host, way: str) -> None:
    said = docker(host, way, "grep ModifyDeviceFiles: /proc/driver/nvidia/params")
    assert said == ["ModifyDeviceFiles: 0"]


def test_names_of_libraries_by_cdi(host: Host) -> None:
    """The loader's cache has both names of libcuda; links lead from the plain name to the file."""
    cached = {line.split()[0] for line in docker(host, CDI, "ldconfig -p | grep libcuda.so")}
    assert {"libcuda.so", "libcuda.so.1"} <= cached
    for name in ("libcuda", "libnvcuvid"):
        at = f"{LIBS}/{name}.so"
        links = docker(host, CDI, f"readlink {at}; readlink {at}.1; test -f {at}.{VERSION} && echo file")
        assert links == [f"{name}.so.1", f"{name}.so.{VERSION}", "file"]


@THREE
def test_no_mount_reaches_the_host(host: Host, way: str) -> None:
    """Not even where the container shares a directory whose mounts propagate."""
    host.sh("mkdir -p /srv/shared; mount -t tmpfs tmpfs /srv/shared; mount --make-shared /srv/shared")
    before = host.sh("sort /proc/self/mountinfo").stdout
    shared = "--mount type=bind,source=/srv/shared,target=/empty,bind-propagation=shared"
    assert docker(host, f"{way} {EVERYTHING} {shared}", "nvidia-smi -L") == of_host(host)
    assert host.sh("sort /proc/self/mountinfo").stdout == before
    host.sh("umount /srv/shared")


@THREE
def test_firmware_that_leads_out_of_the_image(host: Host, way: str) -> None:
    """NVIDIA's hook refuses the container; nvc starts it, and what leads out stays in the image."""
    assert docker(host, f"{way} {EVERYTHING}", "nvidia-smi -L", "firmware") == of_host(host)
    assert host.sh("ls -A /srv/outside").stdout == ""


@THREE
def test_a_library_that_the_image_preloads(host: Host, way: str) -> None:
    """It is loaded in the container, and in no hook."""
    preload = "-e LD_PRELOAD=/proc/self/cwd/preloaded.so"
    seen = docker(host, f"{way} {EVERYTHING} {preload}", "nvidia-smi -L; ls /srv", "preload")
    assert seen == [*of_host(host), "preloaded"]
    assert host.sh("ls /srv/preloaded", check=False).returncode != 0


@THREE
def test_the_order_of_libraries_stays(host: Host, way: str) -> None:
    look = "ldconfig -p | grep libc.so."
    assert docker(host, way, look, "order") == docker(host, "", look, "order")
    assert "/extra/lib" in docker(host, "", look, "order")[0]


@pytest.mark.parametrize("way", [HOOK, RUNTIME], ids=["hook", "runtime"])
def test_a_package_with_libopencl_can_be_installed(host: Host, way: str) -> None:
    """dpkg renames a new file over the old one, which it cannot where that is a mount."""
    at = f"{LIBS}/libOpenCL.so.1"
    script = f"echo new > {at}.0.0.dpkg-new; busybox mv {at}.0.0.dpkg-new {at}.0.0; ln -sf libOpenCL.so.1.0.0 {at}"
    assert docker(host, f"{way} {EVERYTHING}", f"{script}; cat {at}") == ["new"]


def test_the_command_line_in_namespaces_of_its_own(host: Host) -> None:
    """A root file system without /dev, which becomes the root afterwards."""
    host.sh(f"cp -a {host.rootfs()} /srv/nested; mkdir -p /srv/nested/mnt")
    host.write(
        "/srv/nested.sh",
        "mount --bind /srv/nested /srv/nested; cd /srv/nested\n"
        "mount -t proc proc proc; mount -t sysfs sys sys; mount -t tmpfs tmp tmp; mount -t tmpfs run run\n"
        "nvidia-container-cli --load-kmods configure --ldconfig=@/sbin/ldconfig --no-cgroups --utility --device 0 "
        "$(pwd)\n"
        "pivot_root . mnt\n"
        "umount -l mnt\n"
        "nvidia-smi -L\n",
    )
    done = host.sh("unshare --mount --pid --fork --propagation private sh -e /srv/nested.sh")
    assert done.stdout.splitlines() == of_host(host)[:1]


CONTAINERD = """version = 3
imports = ["/etc/containerd/conf.d/*.toml"]

[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "%s"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata]
    runtime_type = "io.containerd.kata.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata.options]
      ConfigPath = "/etc/kata-containers/configuration.toml"
"""
CUSTOM = 'version = 3\n[plugins."io.containerd.cri.v1.runtime".cni]\n  conf_template = "/etc/cni/own"\n'


@pytest.mark.parametrize("first", ["runc", "kata"])
@pytest.mark.parametrize("default", ["true", "false"])
def test_a_drop_in_of_containerd(host: Host, default: str, first: str) -> None:
    """The main file stays; containerd has its runtimes and imports, and the new one, with the default's options."""
    config = CONTAINERD % first
    host.sh("rm -rf /etc/containerd/conf.d")
    host.write("/etc/containerd/config.toml", config)
    host.write("/etc/containerd/conf.d/10-custom.toml", CUSTOM)
    drop_in = "/etc/containerd/conf.d/99-nvidia.toml"
    host.sh(
        "nvidia-ctk runtime configure --runtime=containerd --config=/etc/containerd/config.toml "
        f"--drop-in-config={drop_in} --config-source=file --set-as-default={default} --cdi.enabled"
    )
    assert host.read("/etc/containerd/config.toml") == config
    host.sh("systemctl start containerd")
    status = host.sh("crictl --runtime-endpoint unix:///run/containerd/containerd.sock info").stdout
    host.sh("systemctl stop containerd")
    cri = json.loads(status)["config"]
    assert cri["containerd"]["defaultRuntimeName"] == ("nvidia" if default == "true" else first)
    runtimes = cri["containerd"]["runtimes"]
    assert runtimes["kata"]["runtimeType"] == "io.containerd.kata.v2"
    assert runtimes["nvidia"]["options"]["BinaryName"] == "/usr/local/bin/nvc-runtime"
    assert runtimes["nvidia"]["options"].get("SystemdCgroup") is (True if first == "runc" else None)
    assert cri["enableCDI"] is True and cri["cni"]["confTemplate"] == "/etc/cni/own"
