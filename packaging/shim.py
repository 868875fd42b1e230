"""Installs the vGPU shim: BASE/<version>/libcuda.so, BASE/<version>/libnvidia-ml.so and the link BASE/current.

The version ends with a hash of the files, so other files never get an old version's name: what is bound into
containers that run is never written again. A new version appears by two renames, each at once or not at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILES = ("libcuda.so", "libnvidia-ml.so")
#: So many versions stay, the newest among them: a container that is being started may want the one before.
KEPT = 3


def own_version() -> str:
    with open(os.path.join(REPO, "nvc/__init__.py"), encoding="utf-8") as text:
        found = re.search(r'__version__ = "([^"]+)"', text.read())
    assert found is not None
    return found[1]


def version_of(source: str, version: str = "") -> str:
    digest = hashlib.sha256()
    for name in FILES:
        with open(os.path.join(source, name), "rb") as file:
            digest.update(file.read())
    return f"{version or own_version()}-{digest.hexdigest()[:12]}"


def install(source: str, base: str, of: str = "") -> str:
    """Install the files of `source` below `base` and make them the current version, whose name is returned.

    They are of the version `of`, nvc's own by default.
    """
    version = version_of(source, of)
    place = os.path.join(base, version)
    os.makedirs(base, exist_ok=True)
    os.chmod(base, 0o755)
    if not os.path.isdir(place):
        temporary = f"{place}.{os.getpid()}.new"
        os.mkdir(temporary, 0o755)
        os.chmod(temporary, 0o755)
        for name in FILES:
            shutil.copyfile(os.path.join(source, name), os.path.join(temporary, name))
            os.chmod(os.path.join(temporary, name), 0o755)
        os.rename(temporary, place)
    os.utime(place)  # the newest, also when it has been there before
    link = os.path.join(base, "current")
    if not (os.path.islink(link) and os.readlink(link) == version):
        os.symlink(version, f"{link}.{os.getpid()}.new")
        os.rename(f"{link}.{os.getpid()}.new", link)
    prune(base)
    return version


def prune(base: str) -> None:
    """Remove all but the newest versions. What is bound somewhere lives on until it is unbound."""
    places = [entry.path for entry in os.scandir(base) if entry.is_dir(follow_symlinks=False)]
    places.sort(key=lambda path: os.stat(path).st_mtime_ns, reverse=True)
    for path in places[KEPT:]:
        shutil.rmtree(path)


if __name__ == "__main__":
    os.umask(0o022)
    install(sys.argv[1], sys.argv[2])
