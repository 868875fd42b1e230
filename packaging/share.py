"""What an installation has beside its code: systemd units, the hooks.d file, completions, man pages, an example.

    lib/systemd/system/                     the units of systemd/
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
    """The file, with the programs of `prefix`."""
    return read(path).replace(WRITTEN_FOR.encode(), f"{prefix}/bin/".encode())


def units() -> list[str]:
    """The paths of the systemd units."""
    return sorted(glob.glob(os.path.join(REPO, "packaging/systemd/*.*")))


def completions(prefix: str) -> None:
    """The completion scripts of each shell, where it looks for them."""
    for shell, place in COMPLETIONS.items():
        for path in sorted(glob.glob(os.path.join(BUILD, "completions", shell, "*"))):
            write(os.path.join(prefix, place, os.path.basename(path)), read(path))


def manual(target: str) -> None:
    """Compress the pages of build/man (nvc-cli.1, ...) into `target`/man1 and so on."""
    for path in sorted(glob.glob(os.path.join(BUILD, "man/**/*.[1-8]"), recursive=True)):
        page = os.path.join(target, f"man{path[-1]}", os.path.basename(path) + ".gz")
        write(page, gzip.compress(read(path), mtime=0))


def install(prefix: str, shown: str) -> None:
    """Install below `prefix` what will be found below `shown`."""
    for path in units():
        write(os.path.join(prefix, "lib/systemd/system", os.path.basename(path)), for_prefix(path, shown))
    hook = os.path.join(REPO, "packaging/hooks.d/nvc.json")
    write(os.path.join(prefix, "share/nvc/hooks.d/nvc.json"), for_prefix(hook, shown))
    example = os.path.join(REPO, "packaging/first-container")
    write(os.path.join(prefix, "share/nvc/first-container"), for_prefix(example, shown), 0o755)
    completions(prefix)
    manual(os.path.join(prefix, "share/man"))


def documents(target: str) -> None:
    """Copy README.md, the pages of docs/ and the example programs into `target`."""
    write(os.path.join(target, "README.md"), read(os.path.join(REPO, "README.md")))
    docs = os.path.join(REPO, "docs")
    for pattern in ("*.md", "examples/*"):
        for path in sorted(glob.glob(os.path.join(docs, pattern))):
            if os.path.isfile(path):
                write(os.path.join(target, os.path.relpath(path, docs)), read(path))
