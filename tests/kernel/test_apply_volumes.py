"""Volumes: directories of the host, or of other containers, that are mounted below the rootfs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from support.plans import LIBS, apply, mounts, plan_of, snapshot

from nvc.errors import NvcError


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


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("destination", [LIBS, "/etc", "/usr"])
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
