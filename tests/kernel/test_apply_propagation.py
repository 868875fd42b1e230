"""Mounts of nvc stay in the container: a volume that is shared with the host would pass them on to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support import run
from support.bundle import RUNTIMES, Bundle
from support.configure import BASIC, Configure
from support.plans import LIBS, apply, mount_at, mounts, on_host, plan_of
from support.prestart import at_prestart

from nvc.base.errors import NvcError
from nvc.plan.ops import BindDevice, BindFile, Ledger, LoaderEntry, Plan, Tmpfs, UpdateLoaderCache

REASON = "the volume there is shared with the host: what is mounted on it would appear on the host"


@pytest.fixture
def give(shared: str) -> Callable[..., None]:
    """Mounts the volume in a bundle, as engines do that are asked for a propagation."""

    def mount(bundle: Bundle, destination: str, propagation: str = "rshared", *options: str) -> None:
        bundle.config["mounts"].append(
            {
                "destination": destination,
                "type": "bind",
                "source": shared,
                "options": ["rbind", propagation, *options],
            }
        )
        bundle.config["linux"]["rootfsPropagation"] = "rshared" if "shared" in propagation else "rslave"

    return mount


def share(pid: int) -> None:
    """Make all mounts of a container shared, each in a group of its own, as systemd in a container does."""
    run("nsenter", "-t", str(pid), "-m", "mount", "--make-rshared", "/")


def plans(driver: str, target: str) -> dict[str, Plan]:
    """Plans that mount one thing, of each kind that is attached in a way of its own."""
    whole = plan_of(driver)
    file = next(op for op in whole.ops if isinstance(op, BindFile)).replace(target=target)
    node = next(op for op in whole.ops if isinstance(op, BindDevice)).replace(target=target)
    kinds = {
        "file": file,
        "node": node,
        "tmpfs": Tmpfs(target, (), ()),
        "ledger": Ledger(target, b"x", 4096),
    }
    return {name: whole.replace(ops=(op,)) for name, op in kinds.items()}


@pytest.mark.parametrize(
    ("kind", "destination"),
    [("file", LIBS), ("file", "/etc"), ("node", "/dev"), ("tmpfs", "/var/run"), ("ledger", LIBS), ("node", "/etc")],
)
def test_nothing_is_mounted_on_a_volume_that_the_host_shares(
    runc_bundle: Any, scratch: str, shared: str, give: Any, destination: str, kind: str
) -> None:
    bundle = runc_bundle()
    give(bundle, destination)
    target = f"{destination}/below/target"
    with bundle.created("runc") as container:
        before = on_host(shared), mounts(container.pid)
        with pytest.raises(NvcError) as refused:
            apply(plans(f"{scratch}/driver", target)[kind], container.pid, bundle.rootfs)
        assert (on_host(shared), mounts(container.pid)) == before
        assert f"{target}: {REASON}; mount the volume elsewhere" in str(refused.value)


def test_a_loader_cache_is_not_mounted_there(runc_bundle: Any, scratch: str, shared: str, give: Any) -> None:
    """As it is where /etc cannot be written."""
    bundle = runc_bundle()
    with open(f"{shared}/ld.so.cache", "wb") as out, open(f"{bundle.rootfs}/etc/ld.so.cache", "rb") as image:
        out.write(image.read())
    give(bundle, "/etc", "rshared", "ro")
    cache = UpdateLoaderCache((LoaderEntry("libt.so.1", f"{LIBS}/libt.so.1", "x86_64"),))
    plan = plan_of(f"{scratch}/driver")
    plan = plan.replace(ops=(Tmpfs("/proc/driver", (), ()), cache))
    with bundle.created("runc") as container:
        before = on_host(shared), mounts(container.pid)
        with pytest.raises(NvcError, match=f"/etc/ld.so.cache: {REASON}"):
            apply(plan, container.pid, bundle.rootfs)
        assert (on_host(shared), mounts(container.pid)) == before


@pytest.mark.parametrize(("runtime", "propagation"), [("runc", "rprivate"), ("crun", "rslave")])
def test_a_volume_that_passes_nothing_on(
    runc_bundle: Any, scratch: str, shared: str, give: Any, propagation: str, runtime: str
) -> None:
    bundle = runc_bundle()
    give(bundle, "/volume", propagation)
    with bundle.created(runtime) as container:
        before = on_host(shared)[0]
        for kind, plan in plans(f"{scratch}/driver", "/volume/{}").items():
            ops = tuple(op.replace(target=f"/volume/{kind}") for op in plan.ops)
            apply(plan.replace(ops=ops), container.pid, bundle.rootfs)
            mount_at(container.pid, f"/volume/{kind}")
        assert on_host(shared)[0] == before


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_container_that_shares_mounts_within_itself(
    runc_bundle: Any, debian: str, sim_root: Any, launcher: str, shared: str, give: Any, runtime: str
) -> None:
    """With a volume at a place of its own that is shared both ways, as for a storage driver of Kubernetes."""
    bundle = runc_bundle(debian)
    give(bundle, "/volume")
    configure = Configure(launcher, sim_root(gpus=1))
    before = on_host(shared)
    with at_prestart(bundle, runtime, f"ls {LIBS}/libcuda.so.1") as held:
        configure(held.pid, held.rootfs)
        assert held.release().returncode == 0
    with bundle.created(runtime) as container:
        container.start()
        share(container.pid)
        assert " shared:" in mount_at(container.pid, "/dev")
        configure(container.pid, bundle.rootfs)
        assert "GPU 0:" in container.exec("nvidia-smi -L").stdout
    assert on_host(shared) == before


@pytest.mark.parametrize("shares", [False, True])
def test_a_host_whose_mounts_cannot_be_read(
    runc_bundle: Any, debian: str, sim_root: Any, launcher: str, shares: bool
) -> None:
    """It may share with the container, unless that shares nothing."""
    bundle = runc_bundle(debian)
    configure = Configure(launcher, sim_root(gpus=1))
    with bundle.created("runc") as container:
        container.start()
        if shares:
            share(container.pid)
        words = [*configure.command, "configure", f"--pid={container.pid}", *BASIC, bundle.rootfs]
        hidden = 'mount -t tmpfs none /proc/1 && exec "$@"'
        inside = ("unshare", "--mount", "--propagation=private", "sh", "-c", hidden, "sh")
        done = run(*inside, *words, check=False)
        assert done.returncode == int(shares), done.stderr
        assert not shares or "read the host's mounts: /proc/driver: no such file" in done.stderr
