"""Libraries of specifications are found by the loaders of images, wherever those search: in real containers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from support import run
from support.bundle import Bundle
from support.cdi import give
from support.images import as_alpine, as_debian_with_programs, as_fedora
from support.plans import snapshot
from support.rootfs import multiarch

LIBS = f"/usr/lib/{multiarch()}"
VERSION = "580.159.04"
NAMES = "libcuda.so libcuda.so.1 libnvidia-ml.so.1 libEGL_nvidia.so.0"


@pytest.fixture
def start(
    runc_bundle: Callable[..., Bundle], sim_root: Callable[..., str], stage: str, launcher: str
) -> Callable[..., Bundle]:
    """Factory: `start(rootfs, *options, **driver)` returns a bundle with every GPU of a specification."""

    def make(rootfs: str, *options: str, **driver: Any) -> Bundle:
        root = sim_root(**driver)
        hook = os.path.join(stage, "bin/nvc-cdi-hook")
        words = [
            launcher,
            "--root",
            root,
            "cdi",
            "generate",
            "--format=json",
            f"--hook-path={hook}",
            *options,
        ]
        made = run(*words).stdout
        bundle = runc_bundle(rootfs)
        give(bundle, json.loads(made))
        return bundle

    return make


def opened(bundle: Bundle, names: str = NAMES, before: str = "") -> list[str]:
    """What dlopen(3) of the image's C library says of these names, in a container."""
    return str(bundle.run("runc", f"{before} open {names}").stdout).splitlines()


IMAGES = {
    "debian": (lambda rootfs: as_debian_with_programs(rootfs()), ""),
    "fedora": (lambda rootfs: as_fedora(rootfs()), ""),
    "alpine": (lambda rootfs: as_alpine(rootfs(glibc=False)), "LD_PRELOAD=/lib/libgcompat.so.0"),
}


@pytest.mark.parametrize(
    ("image", "libdir"),
    [
        ("debian", f"{LIBS}/nvidia/current"),
        ("fedora", ""),
        ("alpine", ""),
    ],
)
def test_every_loader_finds_the_driver(
    start: Callable[..., Bundle], rootfs: Any, image: str, libdir: str
) -> None:
    make, before = IMAGES[image]
    bundle = start(make(rootfs), libdir=libdir)
    assert opened(bundle, before=before) == ["loaded"] * 4
    state = snapshot(bundle.rootfs)
    assert opened(bundle, before=before) == ["loaded"] * 4
    assert snapshot(bundle.rootfs) == state, "a second start changes nothing"


@pytest.mark.parametrize(
    ("image", "directory"), [("fedora", "/usr/lib64"), ("alpine", "/usr/lib")]
)
def test_they_are_also_found_without_a_cache(
    start: Callable[..., Bundle], rootfs: Any, image: str, directory: str
) -> None:
    """By programs that look into the image's directory, and after ldconfig was run in the container."""
    make, _ = IMAGES[image]
    bundle = start(make(rootfs), libdir="/opt/driver/lib")
    places = [
        f"{directory}/{name}" for name in (*NAMES.split(), "gbm/nvidia-drm_gbm.so", "libGLX_indirect.so.0")
    ]
    done = bundle.run("runc", f"for path in {' '.join(places)}; do head -c 4 $path; readlink -f $path; done")
    lines = done.stdout.splitlines()
    assert len(lines) == len(places)
    assert all(line.startswith("\x7fELF/opt/driver/lib/lib") and VERSION in line for line in lines)


def test_a_file_of_the_image_stays(start: Callable[..., Bundle], rootfs: Any) -> None:
    path = as_fedora(rootfs())
    with open(f"{path}/usr/lib64/libnvidia-ml.so.1", "w", encoding="ascii") as out:
        out.write("of the image\n")
    os.symlink("libcuda.so.470.1", f"{path}/usr/lib64/libcuda.so.1")
    bundle = start(path)
    done = bundle.run(
        "runc", "cat /usr/lib64/libnvidia-ml.so.1; readlink /usr/lib64/libcuda.so.1; open libnvidia-ml.so.1"
    )
    assert done.stdout.splitlines() == ["of the image", f"{LIBS}/libcuda.so.1", "loaded"]


def test_a_volume_in_the_place_of_the_directory_stays_as_it_is(
    start: Callable[..., Bundle], rootfs: Any, scratch: str
) -> None:
    volume = f"{scratch}/volume"
    run("cp", "-a", f"{as_fedora(rootfs())}/usr/lib64", volume)
    bundle = start(as_fedora(rootfs()))
    bundle.config["mounts"].append(
        {"source": volume, "destination": "/usr/lib64", "type": "bind", "options": ["rbind", "rw"]}
    )
    before = snapshot(volume)
    assert opened(bundle) == ["loaded"] * 4, "by the loader cache"
    assert snapshot(volume) == before


@pytest.mark.parametrize(
    ("listed", "directory"),
    [
        ("/lib:/usr/local/lib:/usr/lib\n", "/usr/lib"),
        ("/none:relative:/usr/local/bin/../lib\n/opt/own\n/lib", "/opt/own"),
        ("/" + "x" * 4096, ""),
    ],
)
def test_musl_searches_what_its_list_says(
    start: Callable[..., Bundle], rootfs: Any, listed: str, directory: str
) -> None:
    path = as_alpine(rootfs(glibc=False), listed)
    os.makedirs(f"{path}/opt/own")
    bundle = start(path)
    done = bundle.run("runc", "open libnvidia-ml.so.1")
    assert ("loaded" in done.stdout) == bool(directory), done
    if directory:
        assert os.readlink(f"{path}{directory}/libnvidia-ml.so.1") == f"{LIBS}/libnvidia-ml.so.1"
