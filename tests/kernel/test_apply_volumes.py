"""Volumes: directories of the host, or of other containers, that are mounted below the rootfs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from support import run
from support.plans import LIBS, apply, mounts, plan_of, snapshot

from nvc.base.errors import NvcError
from nvc.plan.ops import Symlink, Tmpfs

PROFILES = "/etc/nvidia/nvidia-application-profiles-rc.d"


@pytest.fixture
def volume(scratch: str) -> Callable[[Any, str, str], str]:
    """Factory: gives a bundle a directory of the host at a destination, with options; its path is returned."""

    def make(bundle: Any, destination: str, options: str) -> str:
        path = f"{scratch}/volume"
        os.makedirs(path)
        with open(f"{path}/ld.so.cache", "w", encoding="ascii") as out:
            out.write("host\n")
        bundle.config["mounts"].append(
            {
                "destination": destination,
                "type": "bind",
                "source": path,
                "options": ["bind", *options.split(",")],
            }
        )
        return path

    return make


@pytest.mark.parametrize(("destination", "readonly"), [(LIBS, False), ("/usr", True)])
def test_a_read_only_volume_is_not_written(
    runc_bundle: Any, scratch: str, volume: Any, destination: str, readonly: bool
) -> None:
    """Also not where the rootfs itself is read-only and written all the same."""
    bundle = runc_bundle()
    bundle.config["root"]["readonly"] = readonly
    path = volume(bundle, destination, "ro")
    with bundle.created("runc") as container:
        before = snapshot(path), snapshot(bundle.rootfs), mounts(container.pid)
        with pytest.raises(NvcError, match="read-only file system; the image, or a volume"):
            apply(plan_of(f"{scratch}/driver"), container.pid, bundle.rootfs)
        assert (snapshot(path), snapshot(bundle.rootfs), mounts(container.pid)) == before


@pytest.mark.parametrize("readonly", [False, True])
def test_a_loader_cache_in_a_read_only_volume_is_covered(
    runc_bundle: Any, scratch: str, volume: Any, readonly: bool
) -> None:
    bundle = runc_bundle()
    bundle.config["root"]["readonly"] = readonly
    path = volume(bundle, "/etc", "ro")
    with open(f"{path}/ld.so.cache", "wb") as out, open(f"{bundle.rootfs}/etc/ld.so.cache", "rb") as image:
        out.write(image.read())
    plan = plan_of(f"{scratch}/driver")
    with bundle.created("runc") as container:
        before = snapshot(path)
        apply(plan, container.pid, bundle.rootfs)
        assert snapshot(path) == before
        container.start()
        count = f"busybox tr '\\0' '\\n' < /etc/ld.so.cache | grep -c '^{LIBS}/libt'"
        assert container.exec(count).stdout == "20\n"
        assert apply(plan, container.pid, bundle.rootfs).changes == 0
        refused = plan.replace(ops=(*plan.ops, Symlink("anything", "/usr")))
        with pytest.raises(NvcError):
            apply(refused, container.pid, bundle.rootfs)
        assert container.exec(count).stdout == "20\n"


@pytest.mark.parametrize(
    ("link", "text"),
    [
        (LIBS, "/data/lib"), (LIBS, "/data/new/lib"), (f"{LIBS}/libt3.so.1.0", "/data/flag"), ("/etc", "/data/etc"),
        ("/etc/ld.so.cache", "/data/new"), ("/etc/ld.so.cache", "/data/ld.so.cache"),
        ("/etc/ld.so.cache", "/data/etc/ld.so.cache"),
    ],
)  # fmt: skip
def test_a_link_of_the_image_changes_no_volume(
    runc_bundle: Any, scratch: str, volume: Any, link: str, text: str
) -> None:
    """Nobody in the container may need to have the right to write it: nvc has every right there."""
    bundle = runc_bundle()
    path = volume(bundle, "/data", "rw")
    os.mkdir(f"{path}/lib")
    os.symlink("host", f"{path}/lib/libt5.so.1")
    shutil.copytree(f"{bundle.rootfs}/etc", f"{path}/etc", symlinks=True)
    if os.path.lexists(bundle.rootfs + link):
        os.rename(bundle.rootfs + link, f"{bundle.rootfs}{link}.was")
    os.makedirs(os.path.dirname(bundle.rootfs + link), exist_ok=True)
    os.symlink(text, bundle.rootfs + link)
    with bundle.created("runc") as container:
        before = snapshot(path), snapshot(bundle.rootfs), mounts(container.pid)
        with pytest.raises(NvcError, match="a link of the image leads there, to a volume"):
            apply(plan_of(f"{scratch}/driver"), container.pid, bundle.rootfs)
        assert (snapshot(path), snapshot(bundle.rootfs), mounts(container.pid)) == before


def test_a_merged_usr_may_be_a_mount(runc_bundle: Any, scratch: str, volume: Any) -> None:
    """/lib is a link to /usr/lib in most images, and /usr may come from elsewhere."""
    bundle = runc_bundle()
    path = volume(bundle, "/usr", "rw")
    os.mkdir(f"{path}/lib")
    if os.path.lexists(f"{bundle.rootfs}/lib"):
        os.rename(f"{bundle.rootfs}/lib", f"{bundle.rootfs}/was")
    os.symlink("usr/lib", f"{bundle.rootfs}/lib")
    with bundle.created("runc") as container:
        apply(plan_of(f"{scratch}/driver", Symlink("anything", "/lib/nvc/link")), container.pid, bundle.rootfs)
        assert os.readlink(f"{path}/lib/nvc/link") == "anything"


def profile_plan(driver: str, content: bytes, *more: Any) -> Any:
    """A plan that also writes a small file in a tmpfs of its own."""
    return plan_of(driver, Tmpfs(PROFILES, (), (("10-container.conf", content),)), *more)


def test_a_tmpfs_of_somebody_else_is_covered_not_written(
    runc_bundle: Any, scratch: str, volume: Any
) -> None:
    bundle = runc_bundle()
    path = volume(bundle, PROFILES, "rw")
    run("mount", "-t", "tmpfs", "none", path)
    try:
        with open(f"{path}/10-container.conf", "w", encoding="ascii") as out:
            out.write("host\n")
        with bundle.created("runc") as container:
            before = snapshot(path)
            apply(profile_plan(f"{scratch}/driver", b"nvc\n"), container.pid, bundle.rootfs)
            assert snapshot(path) == before
            container.start()
            assert container.exec(f"cat {PROFILES}/10-container.conf").stdout == "nvc\n"
    finally:
        run("umount", "--lazy", path)


def test_what_is_there_behind_a_link_of_the_image_is_covered(
    runc_bundle: Any, scratch: str, volume: Any
) -> None:
    """Only in this container: as CUDA's directory may be on a volume, whose old libraries a slice hides."""
    bundle = runc_bundle()
    path = volume(bundle, "/data", "rw")
    os.mkdir(f"{path}/{os.path.basename(PROFILES)}")
    os.symlink("/data", f"{bundle.rootfs}{os.path.dirname(PROFILES)}")
    with bundle.created("runc") as container:
        before = snapshot(path)
        apply(profile_plan(f"{scratch}/driver", b"nvc\n"), container.pid, bundle.rootfs)
        assert snapshot(path) == before
        container.start()
        assert container.exec(f"cat {PROFILES}/10-container.conf").stdout == "nvc\n"


def test_a_second_plan_that_fails_leaves_the_first_ones_files(runc_bundle: Any, scratch: str) -> None:
    bundle = runc_bundle()
    show = f"cat {PROFILES}/10-container.conf; ls {PROFILES}"
    with bundle.created("runc") as container:
        container.start()
        apply(profile_plan(f"{scratch}/driver", b"first\n"), container.pid, bundle.rootfs)
        added = Tmpfs(PROFILES, ("new",), (("20-new.conf", b"x"),))
        refused = profile_plan(f"{scratch}/driver", b"second\n", added, Symlink("anything", "/etc"))
        with pytest.raises(NvcError, match="file exists"):
            apply(refused, container.pid, bundle.rootfs)
        assert container.exec(show).stdout == "first\n10-container.conf\n"
        second = profile_plan(f"{scratch}/driver", b"second\n", added)
        assert apply(second, container.pid, bundle.rootfs).changes == 3
        assert container.exec(show).stdout == "second\n10-container.conf\n20-new.conf\nnew\n"
