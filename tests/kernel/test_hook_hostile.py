"""nvc-hook and hostile images: nothing of them is executed on the host, read as settings, or written through.

The rules are those that NVIDIA's vulnerabilities taught (docs/hooks.md lists them); the applier's own tests are in
test_apply_hostile.py.
"""

from __future__ import annotations

import itertools
import os
import sysconfig
from collections.abc import Callable
from typing import Any

import pytest
from support import need
from support.bundle import RUNTIMES, Bundle
from support.hook import Hook, ask, mounted
from support.plans import snapshot
from support.rootfs import LIBS

KINDS = ("prestart", "createRuntime", "createContainer")
CWD = "/proc/self/cwd"
#: What an image can set, and a hook's environment be, in the worst case. /proc/self/cwd is the image's root then.
HOSTILE = {
    "LD_PRELOAD": f"{CWD}/evil.so",
    "LD_AUDIT": f"{CWD}/evil.so",
    "LD_LIBRARY_PATH": f"{CWD}/evil",
    "GCONV_PATH": f"{CWD}/evil",
    "PYTHONPATH": CWD,
    "PYTHONHOME": CWD,
    "PYTHONSTARTUP": f"{CWD}/sitecustomize.py",
    "PYTHONINSPECT": "1",
    "PYTHONPYCACHEPREFIX": CWD,
    "PATH": f"{CWD}/bin:{CWD}/sbin",
    "HOME": CWD,
    "XDG_CONFIG_HOME": CWD,
    "NVIDIA_CTK_CONFIG_FILE_PATH": f"{CWD}/config.toml",
    "NVC_CONFIG": f"{CWD}/config.toml",
    "NVC_DEBUG_FILE": f"{CWD}/evil.log",
    "CUDA_MPS_PIPE_DIRECTORY": "/etc",
    "NVIDIA_VISIBLE_DEVICES": "all",
}
MODULES = (
    *("sitecustomize", "usercustomize", "os", "posix", "json", "encodings/__init__"),
    *("nvc/__init__", "nvc_hooks/__init__", "nvc_hooks/boot"),
)
PROGRAMS = "sbin/ldconfig sbin/ldconfig.real bin/nvidia-container-cli bin/modprobe sbin/modprobe".split()


class Image:
    """A bundle whose image bites whoever loads, imports or executes anything of it on the host."""

    def __init__(self, bundle: Bundle, mark: str) -> None:
        self.bundle = bundle
        self.root = bundle.rootfs
        self.mark = mark

    def bitten(self) -> bool:
        """Whether something of the image was executed with the host's file tree; forgets it."""
        if not os.path.exists(self.mark):
            return False
        os.unlink(self.mark)
        return True

    def put(self, name: str, content: str | bytes, mode: int = 0o644) -> None:
        """Write a file of the image."""
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as out:
            out.write(content.encode() if isinstance(content, str) else content)
        os.chmod(path, mode)


@pytest.fixture
def image(runc_bundle: Callable[..., Bundle], rootfs: Callable[..., str], poison: Any) -> Image:
    library, mark = poison("evil.so")
    made = Image(runc_bundle(rootfs()), mark)
    with open(library, "rb") as built:
        made.put("evil.so", built.read(), 0o755)
    code = f"open({mark!r}, 'w').close()\n"
    standard = sysconfig.get_path("stdlib", vars={"installed_base": "/usr", "base": "/usr"}).lstrip("/")
    for name in MODULES:
        for directory in ("", f"{standard}/", "lib/nvc/python/"):
            made.put(f"{directory}{name}.py", code)
    for name in PROGRAMS:
        made.put(name, f"#!/bin/sh\n: > {mark}\n", 0o755)
    made.put("config.toml", '[nvidia-container-cli]\nroot = "/evil"\n')
    made.put("etc/debian_version", "12.0\n")
    made.bundle.config["process"]["env"] = [f"{name}={value}" for name, value in HOSTILE.items()]
    return made


@pytest.fixture
def hook(stage: str, scratch: str, sim_root: Callable[..., str]) -> Hook:
    return Hook(stage, scratch, sim_root(gpus=2))


def test_the_image_bites_a_careless_hook(image: Image) -> None:
    """Else the tests below would prove nothing."""
    bite = "import sys; sys.exit(0)"
    image.bundle.hook("createContainer", need("python3"), ["python3", "-c", bite])
    image.bundle.run("runc", "true", check=False)
    assert image.bitten()


@pytest.mark.parametrize(
    ("runtime", "kind", "inherit"),
    [*itertools.product(RUNTIMES, KINDS, (True,)), ("runc", "createContainer", False)],
)
def test_nothing_of_the_image_is_executed(
    hook: Hook, image: Image, runtime: str, kind: str, inherit: bool
) -> None:
    """Without an `env` of its own, a createContainer hook has the image's variables (runc) and its root as cwd."""
    environment = None if inherit else [f"{name}={value}" for name, value in HOSTILE.items()]
    hook.add(image.bundle, kind, env=environment)
    done = image.bundle.run(
        runtime,
        "/bin/ls /dev",
        env={**HOSTILE, "LD_PRELOAD": "", "LD_AUDIT": "", "PATH": "/usr/sbin:/usr/bin"},
    )
    assert "nvidia1" in done.stdout
    assert not image.bitten()
    assert not os.path.exists(f"{image.root}/evil.log")
    assert hook.config in hook.logged() and "/evil" not in hook.logged().replace("evil.so", "")
    assert mounted(image.root) == []
    left = [
        name for _, directories, _ in os.walk(image.root) for name in directories if name == "__pycache__"
    ]
    assert left == []


def test_called_with_a_hostile_environment_and_directory(hook: Hook, image: Image) -> None:
    image.bundle.write("true")
    state = {"bundle": image.bundle.directory, "pid": os.getpid()}
    said = hook.refusal(state, env=HOSTILE, cwd=image.root)
    assert "shares this mount namespace" in said
    assert not image.bitten()


@pytest.mark.parametrize(("runtime", "kind"), tuple(zip(("crun", "runc", "runc"), KINDS)))
def test_links_of_the_image_stay_in_the_image(
    hook: Hook, image: Image, runtime: str, kind: str, scratch: str
) -> None:
    """Whatever a link names on the host, its counterpart in the image is what is meant."""
    outside = os.path.join(scratch, "outside")
    os.makedirs(f"{outside}/lib")
    for name in ("cache", "smi", "shadow"):
        with open(f"{outside}/{name}", "wb") as out:
            out.write(b"the host's own")
    os.makedirs(image.root + outside + "/lib")  # so that links lead somewhere in the image
    os.rmdir(image.root + LIBS)
    os.symlink(f"{outside}/lib", image.root + LIBS)
    os.unlink(f"{image.root}/etc/ld.so.cache")
    os.symlink("/.." * 12 + f"{outside}/cache", f"{image.root}/etc/ld.so.cache")
    os.symlink(f"{outside}/smi", f"{image.root}/usr/bin/nvidia-smi")
    os.makedirs(f"{image.root}/usr/local/cuda/compat")
    os.symlink(f"{outside}/shadow", f"{image.root}/usr/local/cuda/compat/libcuda.so.999.1")
    image.put("usr/local/cuda/compat/libnvidia-ptxjitcompiler.so.999.1", b"\x7fELF" + b"\xff" * 200)
    before = snapshot(outside)
    hook.add(image.bundle, kind)
    done = image.bundle.run(runtime, f"/bin/ls {outside}/lib; /bin/cat /proc/self/mounts", check=False)
    assert snapshot(outside) == before and mounted(scratch) == []
    assert not image.bitten()
    assert "compat" not in done.stdout
    if done.returncode == 0:
        assert "libcuda.so.1" in done.stdout.split()
    else:
        assert "mount error: " in hook.logged()


@pytest.mark.parametrize(
    "variables",
    [
        {"NVIDIA_VISIBLE_DEVICES": "\x1b[2J"},
        {"NVIDIA_VISIBLE_DEVICES": ",".join(str(n) for n in range(150000))},
        {"NVIDIA_REQUIRE_CUDA": "cuda>=" + "9" * (1 << 20)},
        {"ALIYUN_COM_GPU_MEM_CONTAINER": "x" * (1 << 20)},
    ],
    ids=lambda variables: next(iter(variables)) + "=" + repr(next(iter(variables.values())))[:20],
)
def test_hostile_values(hook: Hook, image: Image, variables: dict[str, str]) -> None:
    """One bounded line, before anything of the container is opened."""
    ask(image.bundle, **variables)
    image.bundle.write("true")
    said = hook.refusal({"bundle": image.bundle.directory, "pid": os.getpid()})
    assert said.startswith(
        ("nvc-hook: input error: ", "nvc-hook: requirement error: ", "nvc-hook: device error: ")
    ), said
