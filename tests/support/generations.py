"""Three generations of container engines: the distribution's, Debian sid's, and the newest, which Go builds.

| | docker | containerd | podman | runc | crun | CRI-O |
| --- | --- | --- | --- | --- | --- | --- |
| debian | 20.10 | 1.6 | 4.3 | 1.1 | 1.8 | |
| sid | 28.5 | 2.1 | 5.8 | 1.3 | 1.28 | |
| newest | 29.8 | 2.3 | 5.8 | 1.5 | 1.28 | 1.36 |

What is not the machine's is fetched and built at the first call, and kept in the cache of tests/support/cluster.
"""

from __future__ import annotations

import glob
import os
import sys
import tempfile

from . import REPO, run
from .cluster.binaries import cache, go, kept
from .sid import programs as sid_programs

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
            words = ["build", "-ldflags", f"-s -w {flags}", "-tags", tags, "-o", f"{target}/{name}"]
            go(*words, f"{module}/{below}".rstrip("/"), where=source, cgo=cgo)
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


if __name__ == "__main__":
    print(tools(sys.argv[1]))
