"""What an installation has beside its code: systemd units, the hooks.d file, completions, man pages, an example.

    lib/systemd/system/                     the units of systemd/
    lib/udev/rules.d/                       the rules of udev/
    share/nvc/hooks.d/nvc.json              for engines that read hooks
    share/nvc/first-container               a container with GPUs, without an engine
    share/bash-completion/completions/ ...  what `make man` put into build/completions
    share/man/man1/ ...                     and into build/man

Units and hooks are written for the prefix /usr/local; any other replaces it.
"""

from __future__ import annotations

import glob
import gzip
import os

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(REPO, "build")
WRITTEN_FOR = "/usr/local/bin/"
EXAMPLE = "share/nvc/first-container"
COMPLETIONS = {
    "bash": "share/bash-completion/completions",
    "zsh": "share/zsh/site-functions",
    "fish": "share/fish/vendor_completions.d",
}


def write(path: str, data: bytes, mode: int = 0o644) -> None:
    """Write a file of that mode; it replaces what was there at once."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "wb") as out:
        out.write(data)
    os.chmod(path + ".new", mode)
    os.rename(path + ".new", path)


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def for_prefix(path: str, prefix: str) -> bytes:
    return read(path).replace(WRITTEN_FOR.encode(), f"{prefix}/bin/".encode())


def unit(path: str, prefix: str) -> bytes:
    """The systemd unit, with the programs of `prefix`, where a space does not end a word."""
    return for_prefix(path, prefix.replace("%", "%%").replace(" ", "\\x20"))


def units() -> list[str]:
    return sorted(glob.glob(os.path.join(REPO, "packaging/systemd/*.*")))


def rules() -> list[str]:
    return sorted(glob.glob(os.path.join(REPO, "packaging/udev/*.rules")))


def completions() -> dict[str, bytes]:
    """The completion scripts, by where each shell looks for its own below a prefix."""
    return {
        os.path.join(place, os.path.basename(path)): read(path)
        for shell, place in COMPLETIONS.items()
        for path in sorted(glob.glob(os.path.join(BUILD, "completions", shell, "*")))
    }


def manual() -> dict[str, bytes]:
    """The pages of build/man (nvc-cli.1, ...), compressed, by where they belong below a prefix."""
    return {
        f"share/man/man{path[-1]}/{os.path.basename(path)}.gz": gzip.compress(read(path), mtime=0)
        for path in sorted(glob.glob(os.path.join(BUILD, "man/**/*.[1-8]"), recursive=True))
    }


def contents(prefix: str) -> dict[str, bytes]:
    """Every file, by its path below the prefix; `prefix` is where they will be found."""
    return {
        **{f"lib/systemd/system/{os.path.basename(path)}": unit(path, prefix) for path in units()},
        **{f"lib/udev/rules.d/{os.path.basename(path)}": read(path) for path in rules()},
        "share/nvc/hooks.d/nvc.json": for_prefix(os.path.join(REPO, "packaging/hooks.d/nvc.json"), prefix),
        EXAMPLE: for_prefix(os.path.join(REPO, "packaging/first-container"), prefix),
        **completions(),
        **manual(),
    }


def install(prefix: str, shown: str) -> None:
    for name, data in contents(shown).items():
        write(os.path.join(prefix, name), data, 0o755 if name == EXAMPLE else 0o644)


def documents(target: str) -> None:
    """Copy README.md, the pages of docs/ with their pictures, and the example programs into `target`.

    The pages lie beside README.md there, and the licence is Debian's `copyright`.
    """
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        text = read(os.path.join(REPO, name)).replace(b"](docs/", b"](").replace(b"](LICENSE)", b"](copyright)")
        write(os.path.join(target, name), text)
    docs = os.path.join(REPO, "docs")
    for path in sorted(glob.glob(os.path.join(glob.escape(docs), "**/*.*"), recursive=True)):
        if path.endswith((".md", ".svg", ".png", ".py")):
            write(os.path.join(target, os.path.relpath(path, docs)), read(path))
