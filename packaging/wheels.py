"""Wheels of the pinned packages, for other versions of Python and other machines than this one's."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import zipfile

import tree

PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def pins() -> dict[str, str]:
    with open(os.path.join(tree.REPO, "packaging/requirements.txt"), encoding="utf-8") as lines:
        return dict(line.split(";")[0].strip().split("==") for line in lines if "==" in line)


def download(target: str, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "-d", target, *arguments], check=True, stderr=subprocess.PIPE)


def wheel(name: str, version: str, cache: str, machine: str = "") -> str:
    """The path of the pinned wheel of `name` for one version of Python; downloaded once.

    `machine` is `x86_64` or `aarch64`, this one's by default; "any" is the wheel without compiled code.
    """
    machine = machine or platform.machine()
    places = [f"--platform=manylinux{tag}_{machine}" for tag in ("2014", "_2_17", "_2_28")]
    if machine == "any":
        places = ["--platform=any", "--implementation=py"]
    pinned = f"{name}=={pins()[name]}"
    target = os.path.join(cache, machine, f"cp{version.replace('.', '')}", pinned)
    if not os.path.isdir(target) or not os.listdir(target):
        download(target, pinned, f"--python-version={version}", "--only-binary=:all:", *places)
    return os.path.join(target, os.listdir(target)[0])


def unpack(path: str, target: str, only: str = "") -> None:
    """Unpack a wheel: all of it, or its metadata and what begins with `only`."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not only or name.startswith(only) or ".dist-info/" in name:
                archive.extract(name, target)


def every_python(site: str, cache: str, machine: str = "") -> None:
    """Add to `site` what is compiled for one version of Python, once for each: the file names tell them apart."""
    for version in PYTHONS:
        unpack(wheel("cffi", version, cache, machine), site, "_cffi_backend")
    unpack(wheel("tomli", "3.10", cache, "any"), site)
