"""The command line of nvc-cdi-hook: one step or several, each with options of its own.

    nvc-cdi-hook create-symlinks --link libcuda.so.1::/usr/lib/libcuda.so update-ldcache --folder /usr/lib

Several in one call are our own invention: every process costs a container start 10 ms.
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.types import Sequence
from nvc.base.value import Value

#: Options by step; each takes a value and may be repeated.
OPTIONS: dict[str, tuple[str, ...]] = {
    "create-symlinks": ("link",),
    "create-device-links": ("link",),
    "update-application-profile": (),
    "update-ldcache": ("folder", "ldconfig-path"),
    "create-soname-symlinks": ("folder", "ldconfig-path"),
    "enable-cuda-compat": ("host-driver-version", "host-cuda-version", "cuda-compat-container-root"),
    "chmod": ("mode", "path"),
    "disable-device-node-modification": (),
    "simulate-proc": ("driver-root", "entry"),
    "slice-memory": ("slice", "driver-root", "ldcache", "library-directory"),
    "limit-memory": ("slice", "driver-root", "ldcache", "library-directory"),
}
REQUIRED: dict[str, tuple[str, ...]] = {
    "create-symlinks": ("link",),
    "create-device-links": ("link",),
    "enable-cuda-compat": ("host-driver-version",),
    "chmod": ("mode", "path"),
    "simulate-proc": ("driver-root",),
    "slice-memory": ("driver-root",),
    "limit-memory": ("slice", "driver-root"),
}
#: Before or among the options of any step.
SPEC = "container-spec"
_HELP = "`nvc-cdi-hook --help` lists steps and options"
_MAX_WORDS = 65536
_MAX_PATH = 4096


class HookCall(Value):
    """One hook with its options."""

    name: str
    options: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        return [value for option, value in self.options if option == name]

    def last(self, name: str, default: str = "") -> str:
        """The value of an option; the last where it is repeated."""
        values = self.all(name)
        return values[-1] if values else default


class Call(Value):
    """A parsed command line."""

    steps: tuple[HookCall, ...]
    unknown: tuple[str, ...]  # names of hooks that this version does not have
    spec: str  # a file with the container's state in place of standard input, or ""
    quiet: bool
    debug: bool
    show: str  # "version" or "help", or ""


def parse_arguments(argv: Sequence[str]) -> Call:
    """The steps of a command line. Raises InputError.

    A hook of a name that nobody knows is left out with all that follows it up to the next known name: a later
    version may have it, and a container shall start all the same.
    """
    if len(argv) > _MAX_WORDS:
        raise InputError("too many arguments", cause=f"{len(argv)}, at most {_MAX_WORDS}")
    steps: list[tuple[str, list[tuple[str, str]]]] = []
    unknown: list[str] = []
    spec, quiet, debug, skipping = "", False, False, False
    words = iter(argv)
    for word in words:
        if word in OPTIONS:
            steps.append((word, []))
            skipping = False
            continue
        if skipping:
            continue
        if not word.startswith("-"):
            if steps:
                raise InputError(steps[-1][0], word, "unexpected argument", _HELP)
            unknown.append(word)
            skipping = True
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if name in ("quiet", "q", "debug", "d"):
            quiet, debug = quiet or name[0] == "q", debug or name[0] == "d"
            continue
        if name in ("help", "h", "version", "v"):
            return Call((), (), "", quiet, debug, "help" if name[0] == "h" else "version")
        at = steps[-1][0] if steps else "nvc-cdi-hook"
        if name not in (*OPTIONS.get(at, ()), SPEC):
            raise InputError(at, f"--{name}", "no such option", _HELP)
        if not equals:
            value = next(words, "\0")
            if value == "\0":
                raise InputError(at, f"--{name}", "needs a value", _HELP)
        if name == SPEC:
            spec = value
        else:
            steps[-1][1].append((name, value))
    parsed = tuple(HookCall(name, tuple(options)) for name, options in steps)
    for step in parsed:
        for option in REQUIRED.get(step.name, ()):
            if not step.all(option):
                raise InputError(step.name, f"--{option}", "is missing", _HELP)
    return Call(parsed, tuple(unknown), spec, quiet, debug, "")


def container_path(step: str, option: str, path: str) -> str:
    """`path` if it is an absolute one below the root, with its last component a name. Raises InputError."""
    name = path.rstrip("/").rpartition("/")[2]
    if not path.startswith("/") or "\0" in path or len(path) >= _MAX_PATH or name in ("", ".", ".."):
        raise InputError(step, f"--{option}={path}", "want an absolute path in the container")
    return path.rstrip("/")
