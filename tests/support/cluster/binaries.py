"""The programs of a cluster: built from the Go module proxy, kept outside of the checkout, by their versions.

tests/kubernetes/binaries/go.mod names modules, versions and programs, and nothing else is kept: what it does not
say, `go` works out the same way each time and checks against Go's checksum database. Ten minutes on two cores.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys

from .. import REPO

GO_MOD = os.path.join(REPO, "tests/kubernetes/binaries/go.mod")
#: What `go build` calls a program, where that is not what it is known as.
NAMES = {"server": "etcd"}
#: Variables of programs that tell their own version; a kubelet refuses an API server without one.
STAMPS = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
SECONDS = 3600


def cache() -> str:
    """Where programs are kept: $NVC_TESTS_CACHE, or `nvc-tests` in the user's cache directory."""
    default = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "nvc-tests")
    return os.environ.get("NVC_TESTS_CACHE", default)


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
    return _kept(os.path.dirname(GO_MOD), "tool", _flags())


def promql() -> str:
    """The program that parses expressions of PromQL; built at the first call."""
    return os.path.join(_kept(os.path.join(REPO, "tests/kubernetes/promql"), ".", "-s -w"), "promql")


def _kept(source: str, what: str, flags: str) -> str:
    """The directory with what `go build` makes of a module.

    Raises AssertionError without Go, or with the compiler's words when it fails.
    """
    files = sorted(os.listdir(source))
    digest = hashlib.blake2b(digest_size=8)
    for name in files:
        with open(os.path.join(source, name), "rb") as text:
            digest.update(text.read())
    digest.update(flags.encode())
    made = os.path.join(cache(), digest.hexdigest())
    os.makedirs(cache(), exist_ok=True)
    with open(os.path.join(cache(), ".lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(made):
            _build(source, what, flags, made)
    return made


def _build(module: str, what: str, flags: str, made: str) -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    assert go, "go is missing: `make test-kubernetes` builds Kubernetes and wants Go 1.26 or newer"
    source, target = made + ".source", made + ".new"
    for directory in (source, target):
        shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(module, source)
    os.makedirs(target)
    print(f"building {os.path.relpath(module, REPO)}: once, some ten minutes for Kubernetes", file=sys.stderr)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=mod -trimpath -buildvcs=false"}
    command = ["nice", go, "build", "-ldflags", flags, "-o", target + os.sep, what]
    done = subprocess.run(
        command, cwd=source, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-4000:]}"
    for built, name in NAMES.items():
        if os.path.exists(os.path.join(target, built)):
            os.rename(os.path.join(target, built), os.path.join(target, name))
    shutil.rmtree(source)
    os.rename(target, made)
