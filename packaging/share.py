"""What an installation has beside its code: systemd units, the hooks.d file, completions, man pages, an example.

    lib/systemd/system/                     the units of systemd/
    share/nvc/hooks.d/nvc.json              for engines that read hooks
    share/nvc/first-container               a container with GPUs, without an engine
    share/bash-completion/completions/ ...  what `nvc-cli completion` prints
    share/man/man1/ ...                     what is in build/man

Units and hooks are written for the prefix /usr/local; any other replaces it.
"""

from __future__ import annotations

import glob
import gzip
import os
import subprocess

REPO = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(REPO, "build")
WRITTEN_FOR = "/usr/local/bin/"
COMPLETIONS = {
    "bash": "share/bash-completion/completions/nvc-cli",
    "zsh": "share/zsh/site-functions/_nvc-cli",
    "fish": "share/fish/vendor_completions.d/nvc-cli.fish",
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
    return sorted(glob.glob(os.path.join(REPO, "packaging/systemd/nvc*.*")))


def completion(shell: str) -> bytes:
    """The completion script of a shell, as the program of this checkout prints it."""
    program = os.path.join(BUILD, "stage/bin/nvc-cli")
    return subprocess.run([program, "completion", shell], check=True, stdout=subprocess.PIPE).stdout


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
    for shell, path in COMPLETIONS.items():
        write(os.path.join(prefix, path), completion(shell))
    manual(os.path.join(prefix, "share/man"))


def documents(target: str) -> None:
    """Copy README.md and docs/*.md into `target`."""
    for path in [os.path.join(REPO, "README.md"), *sorted(glob.glob(os.path.join(REPO, "docs/*.md")))]:
        write(os.path.join(target, os.path.basename(path)), read(path))
