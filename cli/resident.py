"""How the programs that stay in the foreground are called: nvcd, nvc-kubelet-plugin, nvc-nri."""

from __future__ import annotations

from nvc.base.errors import InputError


def answered(words: list[str], usage: str) -> bool:
    """Whether the call asks for help or the version, which are printed."""
    from nvc_cli.output import write

    if any(word in ("-h", "-?", "--help") for word in words):
        write(usage)
        return True
    if words == ["--version"]:
        from nvc_cli.version import version_text

        write(version_text())
        return True
    return False


def parsed(
    program: str,
    words: list[str],
    options: tuple[str, ...],
    paths: tuple[str, ...],
    flags: tuple[str, ...] = (),
) -> dict[str, str]:
    """Options by name, without dashes: `options` take a value, in `paths` an absolute path; `flags` get "yes".

    Raises InputError.
    """
    values: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        dashed = word.startswith("--")
        if dashed and name in flags and not equals:
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
