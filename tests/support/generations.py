"""Three generations of container engines: the distribution's, Debian sid's, and the newest, which Go builds.

| | docker | containerd | podman | runc | crun | CRI-O |
| --- | --- | --- | --- | --- | --- | --- |
| debian | 20.10 | 1.6 | 4.3 | 1.1 | 1.8 | |
| sid | 28.5 | 2.1 | 5.8 | 1.3 | 1.28 | |
| newest | 29.8 | 2.3 | 5.8 | 1.5 | 1.28 | 1.36 |

Sid's are these or newer (tests/support/sid.py), the newest exactly these. What is not the machine's is fetched and
built at the first call, and kept (tests/support/cache.py): `python -m support.generations build`.
"""

from __future__ import annotations

import glob
import os
import sys
import tempfile

from . import REPO, run
from .cache import cache, kept
from .clientdebs import fetch_all
from .golang import build, go
from .sid import programs as sid_programs
from .sid import versions as sid_versions

DEBIAN, SID, NEWEST = "debian", "sid", "newest"
MOBY = "github.com/moby/moby/v2"
CONTAINERD = "github.com/containerd/containerd/v2"
STAMP = f"-X {CONTAINERD}/version.Version=v2.3.4"
#: What Go makes: module, version, package below it, whether it wants cgo, flags of the linker, tags.
GO = {
    "runc": ("github.com/opencontainers/runc", "v1.5.1", "", True, "", "seccomp"),
    "containerd": (CONTAINERD, "v2.3.4", "cmd/containerd", False, STAMP, ""),
    "containerd-shim-runc-v2": (CONTAINERD, "v2.3.4", "cmd/containerd-shim-runc-v2", False, STAMP, ""),
    "ctr": (CONTAINERD, "v2.3.4", "cmd/ctr", False, STAMP, ""),
    "crictl": ("sigs.k8s.io/cri-tools", "v1.36.0", "cmd/crictl", False, "", ""),
    # The release of this tag is Docker 29.8.1; no module says so.
    "dockerd": (
        MOBY, "v2.0.0-beta.24", "cmd/dockerd", False, f"-X {MOBY}/dockerversion.Version=29.8.1", "",
    ),
    "runsc": (
        "gvisor.dev/gvisor", "v0.0.0-20260905035102-160fafc42237", "runsc", False,
        "-X gvisor.dev/gvisor/runsc/version.version=release-20260905.0", "",
    ),
    "crio": (
        "github.com/cri-o/cri-o", "v1.36.3", "cmd/crio", True, "",
        "containers_image_openpgp exclude_graphdriver_btrfs",
    ),
}  # fmt: skip


def built(name: str) -> str:
    """The path of a program of GO; built at the first call, from the versions that its own module names."""
    module, version, below, cgo, flags, tags = GO[name]

    def make(target: str, _: str) -> None:
        with tempfile.TemporaryDirectory(prefix="nvc-go-", dir=cache()) as source:
            with open(f"{source}/go.mod", "w", encoding="ascii") as out:
                out.write(f"module nvc.test/{name}\n\ngo 1.26.0\n\nrequire {module} {version}\n")
            package, linker = f"{module}/{below}".rstrip("/"), f"-s -w {flags}"
            about = f"{module} {version}"
            build(package, f"{target}/{name}", about=about, where=source, flags=linker, tags=tags, cgo=cgo)
            if name == "crio":  # its helper for namespaces is in C
                files = f"{go('list', '-m', '-f', '{{.Dir}}', module, where=source)}/pinns/src"
                run("gcc", "-O2", "-static", "-o", f"{target}/pinns", *glob.glob(f"{files}/*.c"))

    state = repr((name, *GO[name]))
    return os.path.join(kept(state, f"{name} {version}: once, some minutes", make), name)


def programs(generation: str) -> dict[str, str]:
    """Paths of a generation's programs by their names; {} for the distribution's, which have their usual places."""
    if generation == DEBIAN:
        return {}
    found = sid_programs() | {"crictl": built("crictl")}
    if generation == NEWEST:
        found |= {name: built(name) for name in GO}
        found["pinns"] = os.path.join(os.path.dirname(found["crio"]), "pinns")
    return found


def tools(generation: str) -> str:
    """A directory with a generation's runc and crun alone, which NVC_TOOLS may name for tests of runtimes."""
    directory = os.path.join(REPO, "build/engines", generation)
    os.makedirs(directory, exist_ok=True)
    found = programs(generation)
    for name in ("crun", "runc"):
        path = os.path.join(directory, name)
        if os.path.lexists(path):
            os.unlink(path)
        os.symlink(found[name], path)
    return directory


def build_all() -> None:
    """Fetch and build every generation's programs, and clients, and say which versions there are."""
    fetch_all()
    for name in GO:
        built(name)
    came = [f"{package} {version}" for package, version in sid_versions().items()]
    print(f"{SID}: {', '.join(came)}")
    print(f"{NEWEST}: {', '.join(f'{name} {version}' for name, (_, version, *_) in GO.items())}")


if __name__ == "__main__":
    if sys.argv[1:] == ["build"]:
        try:
            build_all()
        except AssertionError as error:
            sys.exit(f"*** {error}")
    else:
        print(tools(sys.argv[1]))
