"""Containers of the real runc and crun, whose own device programs are extended; and callers without the rights."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import sys
from collections.abc import Callable, Iterator

import pytest
from support import CLEAN_ENV, REPO, need, run
from support.bundle import RUNTIMES, Bundle, Container
from support.device_cgroup import DOCKER, GPU, Group, Prober, find, hierarchy, load, runc_shape

from nvc.apply.cgroup import prepare
from nvc.kernel import LinuxKernel, bpf

_serial = itertools.count()


@contextlib.contextmanager
def running(name: str, bundle: Bundle) -> Iterator[Container]:
    """A container of a runtime that uses cgroup v2 alone."""
    bundle.unified = True
    bundle.config["linux"]["cgroupsPath"] = f"/nvc-test-{os.getpid()}-path-{next(_serial)}"
    with hierarchy(2), bundle.created(name) as container:
        container.start()
        yield container


def denies(container: Container, path: str) -> bool:
    """Whether a process of the container is told that it may not open a node."""
    done = container.exec(f"cat {path}", check=False)
    return "Operation not permitted" in done.stdout + done.stderr


@pytest.mark.parametrize("name", RUNTIMES)
def test_program_of_a_real_runtime_is_extended(name: str, runc_bundle: Callable[..., Bundle]) -> None:
    bundle = runc_bundle()
    for path, device in (("gpu", GPU), ("fuse", (10, 229)), ("null", (1, 3))):
        os.mknod(os.path.join(bundle.rootfs, path), stat.S_IFCHR | 0o666, os.makedev(*device))
    with running(name, bundle) as container:
        found = find(container.pid)
        assert found is not None and found.version == 2
        before = bpf.attached(found.directory)
        assert len(before[0]) == 1 and before[1] == bpf.ALLOW_MULTI
        assert denies(container, "/gpu")

        change = prepare(LinuxKernel(), found, (GPU,))
        change.apply()
        assert not denies(container, "/gpu")
        assert denies(container, "/fuse")
        assert not denies(container, "/null")

        again = prepare(LinuxKernel(), found, (GPU,))
        ids = bpf.attached(found.directory)
        again.apply()
        assert bpf.attached(found.directory) == ids

        change.undo()
        assert bpf.attached(found.directory) == before
        assert denies(container, "/gpu")
        found.close()


SCRIPT = """
import os, sys
from nvc.apply.cgroup import prepare
from nvc.apply.cgroup.find import DeviceCgroup
from nvc.base.errors import NvcError
from nvc.kernel import LinuxKernel
group = DeviceCgroup(int(sys.argv[2]), os.open(sys.argv[1], os.O_RDONLY), sys.argv[1], "/sys/fs/cgroup")
try:
    change = prepare(LinuxKernel(), group, ((195, 0),))
    change.apply()
    print("warning:", change.warning)
    change.undo()
    change.close()
except NvcError as error:
    print(error)
"""


def as_caller(group: Group, *prefix: str) -> str:
    """What `prepare` and `apply` say in a process started by `prefix`."""
    env = {**CLEAN_ENV, "PYTHONPATH": os.pathsep.join([REPO, *filter(None, sys.path)])}
    command = [sys.executable, "-B", "-c", SCRIPT, group.path, str(group.version)]
    return str(run(*prefix, *command, env=env, cwd="/").stdout)


@pytest.mark.parametrize("version", [1, 2])
def test_user_namespace_leaves_device_rules_alone(version: int) -> None:
    with Group.make(version) as group:
        if version == 2:
            group.attach(load(runc_shape(DOCKER)), bpf.ALLOW_MULTI)
        else:
            group.write("devices.deny", "a")
        before = group.attached if version == 2 else group.read("devices.list")
        said = as_caller(group, need("unshare"), "--user", "--map-root-user")
        assert said == "warning: device rules are left as they are: a user namespace may not change them\n"
        assert before == (group.attached if version == 2 else group.read("devices.list"))


@pytest.mark.parametrize("version", [1, 2])
def test_caller_without_the_rights_is_told_so(version: int) -> None:
    with Group.make(version) as group:
        if version == 2:
            group.attach(load(runc_shape(DOCKER)), bpf.ALLOW_MULTI)
        else:
            group.write("devices.deny", "a")
        dropped = "-sys_admin,-net_admin,-perfmon,-bpf"
        said = as_caller(group, need("setpriv"), f"--bounding-set={dropped}", f"--inh-caps={dropped}")
        assert said.startswith(f"mount error: failed to add device rules: {group.path}")
        assert "operation not permitted" in said
        assert "run as root" in said and "--no-cgroups" in said


NAMESPACED = """
import os, sys
from nvc.apply.cgroup.find import device_cgroup
from nvc.base.errors import NvcError
from nvc.kernel import LinuxKernel
proc = os.open("/proc/" + sys.argv[1], os.O_RDONLY)
try:
    found = device_cgroup(LinuxKernel(), proc)
    print(found.version, found.path, os.fstat(found.directory).st_ino)
except NvcError as error:
    print(error)
"""


@pytest.mark.parametrize("mounted", [False, True])
def test_caller_in_a_cgroup_namespace(mounted: bool, scratch: str) -> None:
    """Names are relative to the namespace then; the host's mount shows them with a root of `/..`."""
    prepared = f"mount -t cgroup2 none {scratch} && " if mounted else ""
    with Group.make(2) as outer:
        inner = outer.child("inner")
        with Prober(inner) as process:
            inside = f'{prepared}exec "$@"'
            unshare = f"unshare --cgroup --mount sh -c '{inside}' sh"
            script = f'echo $$ > {outer.path}/cgroup.procs && exec {unshare} "$@"'
            said = run(
                *("/bin/sh", "-c", script, "sh", sys.executable, "-B", "-c", NAMESPACED, str(process.pid)),
                env={**CLEAN_ENV, "PYTHONPATH": os.pathsep.join([REPO, *filter(None, sys.path)])},
            ).stdout
            where = scratch if mounted else "/proc/self/ns/cgroup"  # there, through a mount of nvc's own
            assert said == f"2 {where}/inner {os.stat(inner.path).st_ino}\n"
