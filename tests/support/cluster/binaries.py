"""The programs of a cluster: built from the Go module proxy, kept outside of the checkout, by their versions.

tests/kubernetes/binaries/go.mod names modules, versions and programs, and nothing else is kept: what it does not
say, `go` works out the same way each time and checks against Go's checksum database. Ten minutes on two cores.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile

from .. import REPO
from ..cache import cache, kept
from ..golang import build

GO_MOD = os.path.join(REPO, "tests/kubernetes/binaries/go.mod")
#: What `go build` calls a program, where that is not what it is known as.
NAMES = {"server": "etcd"}
#: Variables of programs that tell their own version; a kubelet refuses an API server without one.
STAMPS = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def version(module: str) -> str:
    """The version of a required module, such as "v1.36.3"."""
    with open(GO_MOD, encoding="utf-8") as text:
        (found,) = re.findall(rf"^\t{re.escape(module)} (v\S+)$", text.read(), re.MULTILINE)
    return str(found)


def _flags() -> str:
    kubernetes = version("k8s.io/kubernetes")
    major, minor, _ = kubernetes.lstrip("v").split(".")
    words = ["-s", "-w"]
    for package in STAMPS:
        for name, value in (("gitVersion", kubernetes), ("gitMajor", major), ("gitMinor", minor)):
            words += ["-X", f"{package}.{name}={value}"]
    containerd = version("github.com/containerd/containerd/v2")
    return " ".join([*words, "-X", f"github.com/containerd/containerd/v2/version.Version={containerd}"])


def programs() -> str:
    """The directory with containerd, kubelet, helm and the others; built at the first call."""
    return _module(os.path.dirname(GO_MOD), "tool", _flags())


def promql() -> str:
    """The program that parses expressions of PromQL; built at the first call."""
    return os.path.join(_module(os.path.join(REPO, "tests/kubernetes/promql"), ".", "-s -w"), "promql")


def crio_load() -> str:
    """The program that puts images into CRI-O's store; built at the first call."""
    tags = "containers_image_openpgp exclude_graphdriver_btrfs"
    made = _module(os.path.join(REPO, "tests/kubernetes/crio"), ".", "-s -w", tags)
    return os.path.join(made, "crio-load")


def _module(source: str, what: str, flags: str, tags: str = "") -> str:
    """The directory with what `go build` makes of a module, with cgo where it has tags.

    Raises AssertionError where a module cannot be fetched, or with the compiler's words.
    """
    content = b""
    for name in sorted(os.listdir(source)):
        with open(os.path.join(source, name), "rb") as text:
            content += text.read()
    about = f"{os.path.relpath(source, REPO)}: once, some ten minutes for Kubernetes"
    return kept(
        content + flags.encode() + tags.encode(),
        about,
        lambda target, _: _build(source, what, flags, tags, target),
    )


def _build(module: str, what: str, flags: str, tags: str, target: str) -> None:
    about = f"modules of {os.path.relpath(module, REPO)}"
    with tempfile.TemporaryDirectory(prefix="nvc-go-", dir=cache()) as directory:
        source = os.path.join(directory, "module")
        shutil.copytree(module, source)
        made = target + os.sep
        build(what, made, about=about, where=source, flags=flags, tags=tags, cgo=bool(tags))
    for built, name in NAMES.items():
        if os.path.exists(os.path.join(target, built)):
            os.rename(os.path.join(target, built), os.path.join(target, name))
