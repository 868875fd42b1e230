"""A throw-away installation around the real launcher, whose program reports what reached it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any

from . import REPO, run
from .builds import kept

#: Stands where the packages' `boot` modules stand; prints one JSON document, or writes it to --to FILE.
PROBE = """
import json, os, signal, sys
def main(name):
    umask = os.umask(0)
    fds = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            fds[int(fd)] = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            pass  # the one that listed them
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    report = {
        "name": name, "package": __name__.split(".")[0], "argv": sys.argv[1:], "path": sys.path,
        "env": {os.fsdecode(k): os.fsdecode(v) for k, v in os.environb.items()}, "fds": fds, "umask": umask,
        "ignored": int(status["SigIgn"], 16), "blocked": int(status["SigBlk"], 16), "cwd": os.getcwd(),
        "flags": [sys.flags.isolated, sys.flags.no_site, sys.flags.dont_write_bytecode],
        "fresh": os.open("/dev/null", os.O_RDONLY), "uid": os.geteuid(),
    }
    out = open(sys.argv[2], "w") if sys.argv[1:2] == ["--to"] else sys.stdout
    json.dump(report, out)
"""


def sanitized() -> str:
    """The path of a launcher that aborts on every memory error and undefined operation; built once.

    It is linked to shared libraries: AddressSanitizer cannot be linked statically.
    """
    return kept("launcher-sanitized", _build_sanitized)


def _build_sanitized(directory: str) -> str:
    build = os.path.relpath(directory, REPO)
    with open(f"{directory}/.packages-build", "w", encoding="ascii"):
        pass  # as installed
    flags = "CFLAGS=-Wno-error -g1 -O0 -fsanitize=address,undefined -fno-sanitize-recover=all"
    run("make", "-s", "-C", REPO, f"{build}/launcher", f"BUILD={build}", "STATIC=", "HARDEN=", flags, timeout=600)
    return f"{directory}/launcher"


LINE = "{name}: initialization error: {path}: "


class Installation:
    """PREFIX with bin/<programs>, lib/nvc/launch.conf and lib/nvc/python around the probe."""

    def __init__(self, prefix: str, launcher: str, interpreter: str) -> None:
        self.prefix = prefix
        self.interpreter = interpreter
        self.library = os.path.join(prefix, "lib/nvc")
        self.python = os.path.join(self.library, "python")
        self.site = os.path.join(self.library, "site")
        self.conf = os.path.join(self.library, "launch.conf")
        self.extension = os.path.join(self.python, "nvc/_syscalls.abi3.so")
        os.makedirs(os.path.join(prefix, "bin"))
        os.makedirs(self.site)
        for package in ("nvc", "nvc_cli", "nvc_hooks"):
            os.makedirs(os.path.join(self.python, package))
            for name, text in (("__init__.py", ""), ("boot.py", PROBE), ("ctk.py", PROBE)):
                with open(os.path.join(self.python, package, name), "w", encoding="utf-8") as out:
                    out.write(text)
        with open(self.extension, "wb"):
            pass
        for name in ("nvc-cli", "nvc-hook", "nvc-cdi-hook"):
            shutil.copy(launcher, self.program(name))
        self.write_conf(f"interpreter {interpreter}\npath {self.site}\n")

    def program(self, name: str = "nvc-cli") -> str:
        """The path of an installed program."""
        return os.path.join(self.prefix, "bin", name)

    def write_conf(self, text: str | bytes) -> None:
        """Replace launch.conf."""
        with open(self.conf, "wb") as out:
            out.write(text.encode() if isinstance(text, str) else text)

    def start(
        self, *argv: str | bytes, program: str = "nvc-cli", **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program and return what came of it, whatever that was."""
        path: Any = options.pop("executable", None) or self.program(program)
        return run(path, *argv, check=False, **options)  # type: ignore[arg-type]

    def report(self, *argv: str | bytes, **options: Any) -> dict[str, Any]:
        """Run a program and return the probe's report."""
        done = self.start(*argv, **options)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return json.loads(done.stdout)

    def refusal(self, **options: Any) -> str:
        """Run nvc-cli, which must refuse with exit 1 and one line on stderr; that line is returned."""
        done = self.start(**options)
        assert done.returncode == 1, (done.returncode, done.stderr)
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1 and done.stderr.endswith("\n"), done.stderr
        assert done.stderr.startswith("nvc-cli: initialization error: "), done.stderr
        return done.stderr.rstrip("\n")
