"""How the programs that stay in the foreground are called: nvcd, nvc-kubelet-plugin, nvc-nri."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from nvc.base.errors import InitializationError, InputError
from nvc.base.program import guarded

#: Options of a program: those that take a value, those of them that take an absolute path, and flags.
Options = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


def stay(
    program: str, usage: str, options: Options, work: Callable[[dict[str, str]], int | None], needs: str = ""
) -> NoReturn:
    """Do `work` with the options of this call by name, or print `usage` or the version; the process ends then.

    `needs` are Python packages that the work imports, and what they are for: `protobuf (protobuf)`.
    """

    def called() -> int:
        words = sys.argv[1:]
        if answered(words, usage):
            return 0
        values = parsed(program, words, *options)
        try:
            return work(values) or 0
        except ImportError as error:
            if not needs:
                raise
            what, _, packages = needs.rstrip(")").partition(" (")
            hint = f"install the Python package{'s' if ' ' in packages else ''} {packages}"
            raise InitializationError(f"load {what}", error.name or "", error.msg, hint) from None

    sys.exit(guarded(program, called))


def answered(words: list[str], usage: str) -> bool:
    """Whether the call asks for help or the version, which are printed."""
    from nvc_cli.output import write
    from nvc_cli.version import version_text

    if any(word in ("-h", "-?", "--help") for word in words):
        write(usage)
    elif words == ["--version"]:
        write(version_text())
    else:
        return False
    return True


def parsed(
    program: str, words: list[str], options: tuple[str, ...], paths: tuple[str, ...], flags: tuple[str, ...]
) -> dict[str, str]:
    """Options by name, without dashes: `options` take a value, in `paths` an absolute path; `flags` get "yes".

    Those that are both can have a value. Raises InputError.
    """
    values: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        dashed = word.startswith("--")
        alone = name not in options or not rest or rest[0].startswith("-")
        if dashed and name in flags and not equals and alone:
            values[name] = "yes"
            continue
        if not dashed or name not in options:
            raise InputError("unknown argument", cause=word, hint=f"`{program} --help` lists the options")
        if not equals:
            if not rest:
                raise InputError(f"--{name}", cause="wants a value")
            value = rest.pop(0)
        if name in paths and not value.startswith("/"):
            raise InputError(f"--{name}", value, "want an absolute path")
        values[name] = value
    return values
