"""nvc-hook in real containers: every kind of hook, every way of asking, under runc and crun."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
from support import run
from support.bundle import RUNTIMES, Bundle
from support.device_cgroup import Group
from support.hook import ask, mounted
from support.plans import snapshot
from support.rootfs import LIBS

KINDS = ("prestart", "createRuntime", "createContainer")
NODES = ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidiactl"]
#: Devices that the container sees, then what opening GPU 0 says: ENXIO where the cgroup allows it.
LOOK = "nvidia-smi -L | wc -l; ls /dev | grep nvidia; cat /dev/nvidia0"


@pytest.fixture
def bundle(bundle: Bundle) -> Bundle:
    """One that asks for every GPU."""
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all")
    return bundle


def names(bundle: Bundle, runtime: str = "runc") -> list[str]:
    """The GPU nodes and driver libraries that a container is given, by name."""
    done = bundle.run(runtime, f"ls /dev {LIBS} /usr/bin | grep -e nvidia -e 'cuda.so.1$'; true")
    return str(done.stdout).split()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_kind_of_hook(hook: Any, bundle: Bundle, runtime: str, kind: str) -> None:
    """In createContainer the state's pid is 1 or 0, and the hook runs in the container's namespaces."""
    hook().add(bundle, kind)
    done = bundle.run(runtime, LOOK, check=False)
    assert done.stdout.split() == ["2", *NODES], done.stderr
    assert "No such device or address" in done.stderr
    assert mounted(bundle.rootfs) == []


def look_with_programs(bundle: Bundle, runtime: str, *before: str) -> None:
    """A runtime that attaches a device program, which must be found from inside of a cgroup namespace as well."""
    bundle.config["linux"]["namespaces"].append({"type": "cgroup"})
    bundle.config["linux"]["cgroupsPath"] = f"/nvc-hook-{os.getpid()}"
    bundle.unified, bundle.before = True, before
    done = bundle.run(runtime, LOOK, check=False)
    assert done.stdout.split() == ["2", *NODES], done.stderr
    assert "No such device or address" in done.stderr


@pytest.mark.parametrize(("runtime", "kind"), tuple(zip(("crun", "runc", "crun"), KINDS)))
def test_with_a_cgroup_namespace_of_version_2(hook: Any, bundle: Bundle, runtime: str, kind: str) -> None:
    hook().add(bundle, kind)
    look_with_programs(bundle, runtime)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_version_2_below_a_group_of_version_1(hook: Any, bundle: Bundle, runtime: str) -> None:
    """As in a container of a host with both versions: both hierarchies show the hook their root alone."""
    hook().add(bundle, "createContainer")
    with Group.make(1) as group:
        enter = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
        look_with_programs(bundle, runtime, "/bin/sh", "-c", enter, group.path)


@pytest.mark.parametrize(("runtime", "kind"), (("runc", "prestart"), ("crun", "createContainer")))
def test_with_a_user_namespace(hook: Any, bundle: Bundle, runtime: str, kind: str) -> None:
    for directory, _, files in os.walk(bundle.rootfs):
        for name in (".", *files):
            os.chown(os.path.join(directory, name), 100000, 100000, follow_symlinks=False)
    bundle.user_namespace()
    hook().add(bundle, kind)
    assert bundle.run(runtime, "nvidia-smi -L | wc -l").stdout == "2\n"


@pytest.mark.parametrize("called", ["nvidia-container-runtime-hook", "nvidia-container-toolkit"])
def test_under_the_names_of_the_peer(hook: Any, bundle: Bundle, scratch: str, called: str) -> None:
    """A link is enough: dockerd looks for the first name on its PATH."""
    made = hook()
    link = os.path.join(scratch, called)
    os.symlink(made.program, link)
    made.program = link
    made.add(bundle, called=called)
    assert bundle.run("runc", "nvidia-smi -L | wc -l").stdout == "2\n"


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "1"}, ["nvidia1"]),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, []),
    ],
)
def test_visible_devices(hook: Any, bundle: Bundle, variables: dict[str, str], wanted: list[str]) -> None:
    hook().add(bundle)
    ask(bundle, **variables)
    found = names(bundle)
    assert [name for name in found if name in ("nvidia0", "nvidia1")] == wanted
    assert "nvidiactl" in found and "libcuda.so.1" in found


@pytest.mark.parametrize("value", ["", "0,void"])
def test_nothing_is_asked_for(hook: Any, bundle: Bundle, value: str) -> None:
    hook().add(bundle)
    ask(bundle, NVIDIA_VISIBLE_DEVICES=value)
    before = snapshot(bundle.rootfs)
    assert names(bundle) == []
    assert snapshot(bundle.rootfs) == before


def test_capabilities_and_requirements(hook: Any, bundle: Bundle) -> None:
    hook().add(bundle)
    ask(bundle, NVIDIA_DRIVER_CAPABILITIES="utility", NVIDIA_REQUIRE_CUDA="cuda>=13.0")
    found = names(bundle)
    assert "nvidia-smi" in found and "libcuda.so.1" not in found
    ask(bundle, NVIDIA_REQUIRE_CUDA="cuda>=99.0")
    done = bundle.run("runc", "true", check=False)
    assert (
        done.returncode == 1
        and "nvc-hook: requirement error: unsatisfied condition: cuda>=99.0" in done.stderr
    )
    ask(bundle, NVIDIA_DISABLE_REQUIRE="true")
    assert "nvidia0" in names(bundle)


def test_mig_and_imex(hook: Any, bundle: Bundle) -> None:
    hook(gpus=1, mig=("7x1g.10gb",), imex_channels=(0, 3)).add(bundle)
    ask(bundle, NVIDIA_VISIBLE_DEVICES="0:2", NVIDIA_IMEX_CHANNELS="3")
    script = "ls /dev/nvidia-caps | wc -l; ls /dev/nvidia-caps-imex-channels"
    assert bundle.run("runc", script).stdout.split() == ["2", "channel3"]
    ask(bundle, NVIDIA_VISIBLE_DEVICES="all", NVIDIA_MIG_CONFIG_DEVICES="all")
    done = bundle.run("runc", "true", check=False)
    assert "cannot set MIG_CONFIG_DEVICES in non privileged container" in done.stderr
    capabilities = bundle.config["process"]["capabilities"]
    capabilities["bounding"] = [*capabilities["bounding"], "CAP_SYS_ADMIN"]
    assert bundle.run("runc", "ls /proc/driver/nvidia/capabilities/mig").stdout.split() == [
        "config",
        "monitor",
    ]


def test_unprivileged_containers_and_volume_mounts(hook: Any, bundle: Bundle) -> None:
    settings = (
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
        "accept-nvidia-visible-devices-as-volume-mounts = true\n"
    )
    made = hook(settings)
    made.add(bundle)
    assert names(bundle) == []
    assert "NVIDIA_VISIBLE_DEVICES is ignored: the container is not privileged" in made.logged()
    below = "/var/run/nvidia-container-devices"
    mounts = bundle.config["mounts"]
    mounts.append({"destination": f"{below}/0", "source": "/dev/null", "type": "tmpfs"})  # not the host's
    assert names(bundle) == []
    mounts[-1] = {"destination": f"{below}/1", "source": "/dev/null", "type": "bind", "options": ["bind"]}
    assert [name for name in names(bundle) if name in ("nvidia0", "nvidia1")] == ["nvidia1"]


ORPHANS = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER, as crun is
code = subprocess.run(sys.argv[1:]).returncode
try:
    os.waitpid(-1, 0)
    print("left a child behind")
except ChildProcessError:
    print("exit", code)
"""


@pytest.mark.parametrize("asks", ["all", "9"])
def test_no_child_is_left_behind(hook: Any, bundle: Bundle, asks: str) -> None:
    """NVML's probe outlives its answer. If a zombie of the hook's is announced to crun first, crun does not hear
    of the end of the hook, and waits for the hook's whole timeout."""
    made = hook()
    ask(bundle, NVIDIA_VISIBLE_DEVICES=asks)
    with bundle.created("runc") as container:
        state = json.dumps({"bundle": bundle.directory, "pid": container.pid})
        command = [sys.executable, "-c", ORPHANS, made.program, "-config", made.config, "prestart"]
        done = run(*command, stdin=None, input=state)
    assert done.stdout == ("exit 0\n" if asks == "all" else "exit 1\n"), done.stderr


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_failure_is_one_line(hook: Any, bundle: Bundle, runtime: str) -> None:
    made = hook()
    made.add(bundle)
    ask(bundle, NVIDIA_VISIBLE_DEVICES="7")
    before = snapshot(bundle.rootfs)
    done = bundle.run(runtime, "echo started", check=False)
    assert done.returncode != 0 and "started" not in done.stdout
    said = "nvc-hook: device error: 7: unknown device"
    assert said in done.stderr if runtime == "runc" else "hook" in done.stderr
    assert said.partition(": ")[2] in made.logged()
    assert snapshot(bundle.rootfs) == before


@pytest.mark.parametrize(("runtime", "kind"), (("runc", "prestart"), ("crun", "createRuntime")))
def test_createcontainer_command_in_the_runtime_s_namespace(
    hook: Any, bundle: Bundle, runtime: str, kind: str
) -> None:
    """It must not mount anything on the host."""
    made = hook()
    made.add(bundle, kind, command="createContainer")
    before = snapshot(bundle.rootfs)
    assert bundle.run(runtime, "true", check=False).returncode != 0
    assert "outside of the container's namespaces" in made.logged()
    assert (mounted(bundle.rootfs), snapshot(bundle.rootfs)) == ([], before)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_prestart_command_in_the_container_s_namespace(hook: Any, bundle: Bundle, runtime: str) -> None:
    """Pid 1 must not be taken for the host's init, nor pid 0 for the parent."""
    made = hook()
    made.add(bundle, "createContainer", command="prestart")
    before = snapshot(bundle.rootfs)
    assert bundle.run(runtime, "true", check=False).returncode != 0
    assert "is no container's" in made.logged()
    assert (mounted(bundle.rootfs), snapshot(bundle.rootfs)) == ([], before)
