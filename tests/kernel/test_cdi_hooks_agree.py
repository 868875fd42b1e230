"""nvc-cdi-hook does the same with its interpreter and without: trees, mounts, loader cache, messages, exit codes.

The launcher alone, without a line of Python beside it, is one of them. `--container-spec`, which it leaves to
Python, makes the other.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable

import pytest
from support.cdi_world import COMPAT, FOLDER, LIBS, VERSION, World, add_compat, broken
from support.launcher import sanitized
from support.nightly import few

from nvc.request.environment import SLICES


@pytest.fixture
def world(scratch: str, stage: str, sim_root: Callable[..., str]) -> World:
    return World(scratch, stage, sim_root())


def all_steps(*more: str) -> list[str]:
    """What the specification of whole GPUs has."""
    return [
        "slice-memory", "--driver-root=/",
        "create-symlinks", f"--link=libcuda.so.1::{LIBS}/libcuda.so", f"--link=x::{LIBS}/libx.so",
        "create-device-links", "--link=../card1::/dev/dri/by-path/card", "--link=../card2::/dev/dri/by-path/no",
        "enable-cuda-compat", f"--host-driver-version={VERSION}",
        "update-ldcache", f"--folder={LIBS}", *more,
        "disable-device-node-modification", "update-application-profile",
    ]  # fmt: skip


def test_a_start_needs_no_interpreter(world: World) -> None:
    world.library(f"libcuda.so.{VERSION}")
    world.library(f"libnvidia-ml.so.{VERSION}")
    seen, said = world.agree(*all_steps())
    assert "exit 0" in seen and said == []
    assert any(line.startswith(f".{LIBS}/libcuda.so.1 l ") for line in seen)
    assert any(line.startswith("./dev/dri/by-path/card l ") for line in seen)
    assert any('["EGLVisibleDGPUDevices",2]' in line for line in seen)


def arrange(world: World, random: random.Random) -> None:
    """Fill an image with some of what images have, or might have."""
    libs = world.image + LIBS
    with open(f"{world.driver}{LIBS}/libcuda.so.{VERSION}", "rb") as file:
        library = file.read()
    for name in (f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}"):
        if random.random() < 0.8:
            world.library(name, options=random.choice(("ro", "")))
    for number in range(random.randrange(3)):  # libraries that a driver might have
        made = f"{world.scratch}/made{number}"
        with open(made, "wb") as out:
            out.write(broken(random, library))
        name = random.choice(
            (f"libcuda.so.{number}", f"libodd.so.{number}", "odd so", f"libcuda.so.1.{number}")
        )
        if not os.path.exists(f"{libs}/{name}") and " " not in name:
            world.write(f"{LIBS}/{name}")
            world.mounts.append((made, f"{LIBS}/{name}", "ro"))
    for name in ("libcuda.so.1", "libcuda.so", "libx.so", "libnvidia-ml.so.1"):
        kind = random.choice(("", "", "link", "loop", "file", "directory", "fifo"))
        path = f"{libs}/{name}"
        if os.path.lexists(path):
            continue
        if kind == "link":
            os.symlink(random.choice(("libcuda.so.1", "/etc/x", "../../../../etc/x", "a\nb")), path)
        elif kind == "loop":
            os.symlink(name, path)
        elif kind == "file":
            world.write(f"{LIBS}/{name}", broken(random, library))
        elif kind == "directory":
            os.mkdir(path)
        elif kind == "fifo":
            os.mkfifo(path)
    for version in random.sample(
        ("590.10.01", "580.200.01", "470.1.1", "590.1", "600", "0590.10.01"), random.randrange(3)
    ):
        add_compat(world, version, random.choice((
            None, b"{", b'{"Driver": [535, 580]}', b'{"Driver": ["580"], "CUDA Version": "13.1"}',
            b'{"Driver": ["580.1"]}', b'{"Driver": "580"}', b'{"Driver": [580.5, null, {}]}', b'{"Driver": [0580]}',
            b'[1]', b'{"Driver": ["0580"]}',
        )))  # fmt: skip
    if random.random() < 0.3:
        world.write(f"{COMPAT}/libcuda.so.999.1", broken(random, library))
    cache = f"{world.image}/etc/ld.so.cache"
    kind = random.choice(("", "", "gone", "cut", "link", "fifo", "odd"))
    if kind:
        os.unlink(cache)
    if kind == "cut":
        world.write("/etc/ld.so.cache", b"glibc-ld.so.cache1.1" + bytes(random.randrange(60)))
    elif kind == "link":
        os.symlink(random.choice(("/usr/cache", "cache", "/none/cache")), cache)
    elif kind == "fifo":
        os.mkfifo(cache)
    elif kind == "odd":
        with open("/etc/ld.so.cache", "rb") as file:
            content = bytearray(file.read())
        for _ in range(20):
            content[random.randrange(len(content))] = random.randrange(256)
        world.write("/etc/ld.so.cache", bytes(content))
    if random.random() < 0.3:
        world.mounts.append((f"{world.driver}{LIBS}", FOLDER, random.choice(("ro", ""))))
    if random.random() < 0.2:
        os.symlink(FOLDER, f"{world.image}/short")


def choose(random: random.Random) -> list[str]:
    """Words of a call; most of them make sense."""
    words = []
    for _ in range(random.randrange(1, 6)):
        words += random.choice((
            ["create-symlinks", f"--link=libcuda.so.1::{LIBS}/libcuda.so"],
            ["create-symlinks", "--link", f"libx.so.2::{LIBS}/libx.so", f"-link=y::{FOLDER}/new"],
            ["create-symlinks", "--link=a::/short/b", "--link=/etc/x::/new/directory/link/"],
            ["create-symlinks", random.choice(("--link=a", "--link=::/a", "--link=a::b", "--link=a::/..", "--x"))],
            ["create-device-links", "--link=../card1::/dev/dri/by-path/card"],
            ["create-device-links", "--link=../../none::/dev/dri/by-path/card", "--link=../nvidia1::/dev/x/y"],
            ["update-ldcache", f"--folder={LIBS}"],
            ["update-ldcache", f"--folder={LIBS}", f"--folder={LIBS}/", "--folder=/usr/lib32", "--folder", FOLDER],
            ["update-ldcache", "--folder=/short", "--folder=/none", "--folder=/etc/ld.so.cache"],
            ["update-ldcache", "--ldconfig-path=/sbin/ldconfig"],
            ["enable-cuda-compat", f"--host-driver-version={VERSION}"],
            ["enable-cuda-compat", f"--host-driver-version={VERSION}", "--host-cuda-version=13.0"],
            ["enable-cuda-compat", "--host-driver-version=a/b"],
            ["enable-cuda-compat", "--host-driver-version=535.1", f"--cuda-compat-container-root={COMPAT}/"],
            ["disable-device-node-modification"], ["update-application-profile"], ["--quiet"],
            ["slice-memory", "--driver-root=/"], ["from-the-future", "--x"],
        ))  # fmt: skip
    return words


@pytest.mark.parametrize("seed", few(range(40), 10))
def test_any_image_and_any_call(world: World, seed: int) -> None:
    chance = random.Random(seed)
    arrange(world, chance)
    world.agree(*choose(chance), alone=False)


def test_paths_that_are_not_utf_8(world: World) -> None:
    """The launcher leaves them to Python, which takes any that Linux takes."""
    script = """exec "$@" "--link=$(printf '\\377::/etc/\\376')" """
    hook = f"{world.stage}/bin/nvc-cdi-hook"
    seen, said = world.start("/bin/sh", "-c", script, "sh", hook, "create-symlinks")
    assert {"exit 0", "./etc/\ufffd l 777 1 \ufffd"} <= set(seen), said


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 103))
def test_no_image_breaks_the_launcher(world: World, seed: int) -> None:
    chance = random.Random(seed)
    arrange(world, chance)
    shutil.copy(sanitized(), world.alone)
    for words in (all_steps(), choose(chance)):
        seen, said = world.start(world.alone, *words)
        assert {"exit 0", "exit 1"} & set(seen) and not any("anitizer" in line for line in said), said


def test_every_variable_that_asks_for_a_slice_is_known_to_the_launcher(world: World) -> None:
    for name in SLICES:
        world.process = {"env": [f"{name}=1"]}
        assert "launch.conf" in world.start(world.alone, *all_steps())[1][0], name
    world.process = {"env": ["CUDA_DEVICE_ORDER=PCI_BUS_ID", "NVIDIA_VISIBLE_DEVICES=all"]}
    assert world.agree(*all_steps())[1] == []


def test_a_configuration_that_python_has_read_once(world: World) -> None:
    """What the operator gives who asks for nothing is known to the launcher as long as the file is the same."""
    config = f"{world.etc}/nvc/config.toml"
    os.makedirs(os.path.dirname(config))
    with open(config, "w", encoding="ascii") as out:
        out.write("disable-require = true\n")
    _, said = world.start(world.alone, *all_steps())
    assert "launch.conf" in said[0]
    assert world.start(f"{world.stage}/bin/nvc-cdi-hook", *all_steps())[1] == []
    world.agree(*all_steps())
    with open(config, "a", encoding="ascii") as out:
        out.write("[nvc]\nvgpu-memory = 'nonsense'\n")
    seen, said = world.agree(*all_steps(), alone=False)
    assert "exit 1" in seen and "vgpu-memory" in said[0]


#: Replaces standard error by a pipe that nobody reads any more.
UNREAD = "import os, sys; a, b = os.pipe(); os.close(a); os.dup2(b, 2); os.execv(sys.argv[1], sys.argv[1:])"


def test_a_warning_that_nobody_reads_fails_no_start(world: World) -> None:
    world.write(f"{LIBS}/libx.so")
    seen, _ = world.start(sys.executable, "-c", UNREAD, world.alone, *all_steps())
    assert "exit 0" in seen and any(line.startswith(f".{LIBS}/libcuda.so l ") for line in seen)


def test_a_limit_of_file_sizes_is_told_and_changes_nothing(world: World) -> None:
    limit = ["/bin/sh", "-c", 'ulimit -f 0; exec "$@"', "sh"]
    untouched, _ = world.start("/bin/false")
    seen, said = world.start(*limit, f"{world.stage}/bin/nvc-cdi-hook", *all_steps())
    assert seen == untouched and "error" in said[0]


def test_a_driver_whose_params_cannot_be_read(world: World) -> None:
    """They may let the driver's libraries make device nodes, which is to be prevented."""
    host = "cd /proc/driver && mount -t tmpfs none . && cd ../driver && mkdir nvidia && ln -s params nvidia/params"
    program = ["/bin/sh", "-c", f'{host} && exec "$@"', "sh", f"{world.stage}/bin/nvc-cdi-hook"]
    untouched, _ = world.start("/bin/false")
    for more in ([], ["--container-spec=/dev/stdin"]):
        seen, said = world.start(*program, *more, *all_steps())
        assert seen == untouched and "/proc/driver/nvidia/params" in said[0]
