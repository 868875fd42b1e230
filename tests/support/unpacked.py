"""Programs of other releases of Debian beside this machine's own, unpacked into the cache of tests.

apt works them out with a state of its own, as for a machine on which nothing is installed: the programs, and every
library that they load. Nothing is installed, and the machine's sources of packages are as they were.

Sid has one version of each package at a time, and archives of older ones are not among the sources of a machine. So
versions cannot be pinned: the oldest ones that tests and pages mean are named, newer ones are taken as they come,
and the file `packages` beside the unpacked ones records what came. A cache keeps what it has.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping

from .cache import kept
from .fetch import fetch
from .mirror import mirror

LOADER = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
SECONDS = 1200


def unpacked(packages: Mapping[str, str], suites: tuple[str, ...], relinked: Iterable[str]) -> str:
    """The directory with unpacked packages and what they depend on; fetched at the first call.

    `packages` has the oldest version that will do of each, `suites` where they come from: what cannot be installed
    in the first for a while, since libraries change, can be in the next. Programs that want that release's C
    library are `relinked`: paths below /usr. Raises AssertionError with apt's words where that fails.
    """
    about = f"Debian {suites[0]}: {' '.join(packages)}"

    def make(root: str, final: str) -> None:
        _unpack(root, packages, suites)
        for name in relinked:
            _relink(root, f"{root}/usr/{name}", final)

    return kept(repr((packages, relinked)), about, make)


def versions(directory: str, packages: Iterable[str]) -> dict[str, str]:
    """The versions of packages that an unpacked directory has."""
    with open(f"{directory}/packages", encoding="ascii") as text:
        found = named(text.read().split())
    return {name: found[name] for name in packages}


def _unpack(root: str, packages: Mapping[str, str], suites: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory(prefix="nvc-unpack-", dir="/var/tmp") as work:
        for name in ("lists/partial", "archives/partial", "parts", "preferences"):
            os.makedirs(f"{work}/{name}")
        open(f"{work}/status", "w", encoding="ascii").close()
        settings = {
            "Dir::Etc::sourcelist": f"{work}/sources.list", "Dir::Etc::sourceparts": f"{work}/parts",
            "Dir::Etc::preferences": f"{work}/preferences/none",
            "Dir::Etc::preferencesparts": f"{work}/preferences",
            "Dir::State": work, "Dir::State::status": f"{work}/status", "Dir::Cache": work,
            "APT::Sandbox::User": "root", "APT::Install-Recommends": "false", "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }  # fmt: skip
        apt = ["nice", "apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
        for suite in suites:
            try:
                archives = _fetched(work, apt, suite, packages)
                break
            except AssertionError as error:
                if suite == suites[-1]:
                    raise
                print(f"{error}\ntrying {suites[-1]}", file=sys.stderr)
        for archive in archives:
            _run(["nice", "dpkg", "-x", archive, root])
        with open(f"{root}/packages", "w", encoding="ascii") as out:
            out.writelines(f"{os.path.basename(archive)}\n" for archive in archives)


def _fetched(work: str, apt: list[str], suite: str, packages: Mapping[str, str]) -> list[str]:
    """The paths of the archives of packages and of what they depend on, in new enough versions."""
    what = f"{', '.join(packages)} of Debian's {suite}"
    for archive in glob.glob(f"{work}/archives/*.deb"):
        os.unlink(archive)  # another suite's
    with open(f"{work}/sources.list", "w", encoding="ascii") as out:
        out.write(f"deb {mirror()[1]} {suite} main\n")
    variables = {"DEBIAN_FRONTEND": "noninteractive"}
    fetch(what, *apt, "update", variables=variables)
    fetch(what, *apt, "-y", "install", "--download-only", *packages, variables=variables)
    archives = sorted(glob.glob(f"{work}/archives/*.deb"))
    old = lacking([os.path.basename(archive) for archive in archives], packages)
    assert not old, f"Debian's {suite} does not have what tests of engines want: {', '.join(old)}"
    return archives


def _relink(root: str, path: str, final: str) -> None:
    """Have a program load what is unpacked beside it, in `root`; the directory will be called `final`."""
    if os.path.isfile(path) and not os.path.islink(path) and _is_dynamic(path):
        machine = os.uname().machine
        # Before Debian 13, packages have files below /lib too.
        merged = os.path.exists(f"{root}/usr/{LOADER[machine]}")
        loader = f"{final}{'/usr' if merged else ''}/{LOADER[machine]}"
        libraries = ":".join(f"{final}{above}/lib/{machine}-linux-gnu" for above in ("/usr", ""))
        _run(["patchelf", "--force-rpath", "--set-interpreter", loader, "--set-rpath", libraries, path])


def named(archives: list[str]) -> dict[str, str]:
    """Versions without epochs by packages, from the names of .deb files."""
    found = {}
    for archive in archives:
        name, version, _ = archive.split("_")
        found[name] = version.replace("%3a", ":").rpartition(":")[2]
    return found


def lacking(archives: list[str], packages: Mapping[str, str]) -> list[str]:
    """What of `packages` is missing or too old, by the names of .deb files."""
    found = named(archives)
    return [
        f"{name} {found.get(name, 'missing')}, not {least} or newer"
        for name, least in packages.items()
        if _numbers(found.get(name, "0")) < _numbers(least)
    ]


def _numbers(version: str) -> tuple[int, ...]:
    """What a version begins with: (28, 5, 2) of "28.5.2+dfsg4-5"."""
    matched = re.match(r"\d+(\.\d+)*", version)
    assert matched is not None, version
    return tuple(map(int, matched[0].split(".")))


def _is_dynamic(path: str) -> bool:
    headers = subprocess.run(["readelf", "-lW", path], capture_output=True, text=True, check=True).stdout
    return re.search(r"^\s+INTERP\s", headers, re.MULTILINE) is not None


def _run(words: list[str]) -> None:
    assert shutil.which(words[0]), f"{words[0]} is missing: run `make setup`"
    done = subprocess.run(
        words, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(words)}: exit {done.returncode}\n{done.stdout[-4000:]}"
