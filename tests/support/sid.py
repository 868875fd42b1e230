"""Programs of Debian's sid beside this machine's own, unpacked into the cache of tests.

apt works them out with a state of its own, as for a machine on which nothing is installed: the programs, and every
library that they load. Nothing is installed, and the machine's sources of packages are as they were.

Sid has one version of each package at a time, and archives of older ones are not among the sources of a machine. So
the versions that tests and pages mean are named here, and another one is an error that says what has changed.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import tempfile

from .cluster.binaries import kept
from .mirror import mirror

#: The packages, with what their versions begin with.
PACKAGES = {
    "conmon": "2.1.", "containerd": "2.1.", "crun": "1.28", "docker.io": "28.5.", "docker-cli": "28.5.",
    "netavark": "1.17.", "podman": "5.8.", "runc": "1.3.",
}  # fmt: skip
#: Those that want sid's C library, with their paths there.
RELINKED = "bin/conmon bin/crun bin/podman bin/runc sbin/runc lib/podman/netavark".split()
LOADER = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
SECONDS = 1200


def sid() -> str:
    """The directory with the unpacked packages; fetched at the first call.

    Raises AssertionError with apt's words where that fails.
    """
    names = " ".join(PACKAGES)
    return kept(repr((PACKAGES, RELINKED)), f"Debian sid: {names}", _unpack)


def programs() -> dict[str, str]:
    """Paths of the programs, by their names."""
    root = sid()
    found = {}
    for directory in ("usr/sbin", "usr/bin"):
        for path in glob.glob(f"{root}/{directory}/*"):
            found[os.path.basename(path)] = path
    wanted = "conmon containerd containerd-shim-runc-v2 crun ctr docker dockerd podman runc".split()
    missing = [name for name in wanted if name not in found]
    assert not missing, f"Debian's sid has no {', '.join(missing)} in {', '.join(PACKAGES)}"
    return {name: found[name] for name in wanted} | {"netavark": f"{root}/usr/lib/podman/netavark"}


def _unpack(root: str, final: str) -> None:
    """Fill the directory `root`, which will be called `final`."""
    with tempfile.TemporaryDirectory(prefix="nvc-sid-", dir="/var/tmp") as work:
        for name in ("lists/partial", "archives/partial", "parts", "preferences"):
            os.makedirs(f"{work}/{name}")
        _, uri, _ = mirror()
        with open(f"{work}/sources.list", "w", encoding="ascii") as out:
            out.write(f"deb {uri} sid main\n")
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
        _run([*apt, "update"])
        _run([*apt, "-y", "install", "--download-only", *PACKAGES])
        archives = sorted(glob.glob(f"{work}/archives/*.deb"))
        news = changed([os.path.basename(archive) for archive in archives])
        advice = "try the tests with them, and name them in tests/support/sid.py and on the pages of the engines"
        assert not news, f"Debian's sid has other versions: {', '.join(news)}; {advice}"
        for archive in archives:
            _run(["nice", "dpkg", "-x", archive, root])
        with open(f"{root}/packages", "w", encoding="ascii") as out:
            out.writelines(f"{os.path.basename(archive)}\n" for archive in archives)
    machine = os.uname().machine
    libraries = f"{final}/usr/lib/{machine}-linux-gnu"
    words = [
        "--force-rpath",
        "--set-interpreter",
        f"{final}/usr/{LOADER[machine]}",
        "--set-rpath",
        libraries,
    ]
    for name in RELINKED:
        path = f"{root}/usr/{name}"
        if os.path.isfile(path) and not os.path.islink(path) and _is_dynamic(path):
            _run(["patchelf", *words, path])


def changed(archives: list[str]) -> list[str]:
    """What of PACKAGES is not there in the version that it should have, by the names of .deb files."""
    versions = {}
    for archive in archives:
        name, version, _ = archive.split("_")
        versions[name] = version.replace("%3a", ":").rpartition(":")[2]
    return [
        f"{name} {versions.get(name, 'missing')}, not {wanted}*"
        for name, wanted in PACKAGES.items()
        if not versions.get(name, "").startswith(wanted)
    ]


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
