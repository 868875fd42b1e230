"""Whose work is inside: what installed packages say of themselves, and Debian's copyright files."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
from collections.abc import Iterator

import share
import tree

#: Linked statically into the launcher.
STATIC = "libc6"


def distributions(directory: str) -> Iterator[tuple[str, importlib.metadata.Distribution]]:
    for path, names, _ in sorted(os.walk(directory)):
        for name in sorted(names):
            if name.endswith(".dist-info"):
                where = os.path.join(path, name)
                yield where, importlib.metadata.Distribution.at(where)


def license_of(distribution: importlib.metadata.Distribution) -> str:
    """The licence that a package states: expression, classifier or field."""
    metadata = distribution.metadata
    classifiers = [
        line.split(" :: ")[-1] for line in metadata.get_all("Classifier") or () if "License ::" in line
    ]
    stated: list[str] = [*(metadata.get_all("License-Expression") or ()), ", ".join(classifiers)]
    stated += [*(metadata.get_all("License") or ()), "unknown"]
    return next(text for text in stated if text).splitlines()[0]


def license_texts(where: str, distribution: importlib.metadata.Distribution) -> list[str]:
    named = [str(file) for file in distribution.files or ()]
    named = [name for name in named if re.search(r"(?i)/(licen[cs]e|copying|notice)", name)]
    # Named from the directory that has the metadata's.
    paths = [os.path.join(os.path.dirname(where), name) for name in named]
    return [path for path in paths if os.path.isfile(path)]


def debian_version(package: str) -> str:
    query = ["dpkg-query", "-W", "-f", "${Version}", package]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout


def debian_copyright(package: str) -> str:
    return f"/usr/share/doc/{package}/copyright"


def write(target: str, prefix: str, packages: tuple[str, ...] = ()) -> None:
    """The copyright file of all below `prefix`, and those of Debian's `packages` in it, into `target`."""
    share.write(os.path.join(target, "copyright"), _text(prefix).encode())
    for name in packages:
        head = f"{name} {debian_version(name)} of Debian, which has its source\n\n".encode()
        share.write(os.path.join(target, "licenses", f"{name}.txt"), head + share.read(debian_copyright(name)))


def _text(prefix: str) -> str:
    """In Debian's format: nvc's own licence, then each of what it carries."""
    text = share.read(os.path.join(tree.REPO, "LICENSE")).decode()
    parts = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: nvc\n",
        f"Files: *\nCopyright: the authors of nvc\nLicense: Apache-2.0\n{indented(text)}",
    ]
    for where, found in distributions(prefix):
        place = os.path.relpath(os.path.dirname(where), os.path.dirname(prefix))
        texts = "\n".join(share.read(path).decode() for path in license_texts(where, found))
        stated = (found.metadata.get_all("Author-email") or found.metadata.get_all("Author") or [""])[0]
        parts.append(
            f"Files: {place}/*\nComment: {found.name} {found.version}\nCopyright: {stated or found.name}\n"
            f"License: {license_of(found)}\n{indented(texts)}"
        )
    static = share.read(debian_copyright(STATIC)).decode()
    parts.append(
        f"Files: usr/bin/nvc-cli\nComment: linked with glibc, {debian_version(STATIC)} of Debian\n"
        f"Copyright: the authors of nvc and of glibc\nLicense: LGPL-2.1-or-later\n{indented(static)}"
    )
    return "\n".join(parts)


def indented(text: str) -> str:
    """The text as the continuation of a field."""
    return "".join(f" {line.rstrip() or '.'}\n" for line in text.strip("\n").splitlines())
