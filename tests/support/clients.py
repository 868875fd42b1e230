"""Programs that call nvidia-container-cli or ask Docker for GPUs: Debian's own, on a test's host (engines.py).

packaging/apt-packages.txt has their packages in the role `engines`, tests/features.md what was tried of them.
"""

from __future__ import annotations

import os
import re
from runpy import run_path

from . import REPO
from .engines import CONFIG_TOML, DRIVER, Host

#: What the driver has in these directories lies over what the host has.
LAY = f"""
for where in dev usr/bin usr/lib; do
    mkdir -p /run/upper/$where /run/work/$where
    over=upperdir=/run/upper/$where,workdir=/run/work/$where
    mount -t overlay -o lowerdir={DRIVER}/$where:/$where,$over overlay /$where
done
mount --bind {DRIVER}/proc/driver /proc/driver
cp -a {DRIVER}/run/. /run
ldconfig
"""


def named(host: Host) -> None:
    """Give the host NVIDIA's names, as packages do."""
    for name, program in run_path(os.path.join(REPO, "packaging/names.py"))["NVIDIAS"].items():
        host.sh(f"ln -s {program} /usr/local/bin/{name}")


def driver_in_place(host: Host) -> None:
    """Put the driver where a host has its own, for clients that take the paths of `list`."""
    host.sh(LAY)
    host.write("/etc/nvc/config.toml", CONFIG_TOML.replace(DRIVER, "/"))


def rows() -> dict[str, tuple[int, ...]]:
    """The clients of the page's table, with the version that was tried."""
    with open(os.path.join(REPO, "tests/features.md"), encoding="utf-8") as page:
        table = page.read().split("\n## Clients\n")[1]
    found = re.findall(r"^\| ([\w-]+) ([0-9.]+) \|", table, re.MULTILINE)
    return {name: tuple(map(int, version.split("."))) for name, version in found}


def as_the_page_says(client: str, said: str) -> None:
    """The version that a program prints of itself is the page's, or newer."""
    found = re.search(r"\b([0-9]+)(?:\.([0-9]+))?", said)
    assert found is not None, said
    came = tuple(int(part) for part in found.groups(default="0"))
    assert came >= rows()[client], f"{client} {said}"
