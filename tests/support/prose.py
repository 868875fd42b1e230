"""Sentences of the documentation, of help texts and of messages, as plain text."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

import click

from support import REPO

#: Code, and what is written by programs.
NOT_PROSE = re.compile(r"^```.*?^```$|^<!--.*?-->$|^ {4,}(?![-*] ).*?$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
CODE = re.compile(r"`[^`]+`")
#: In the project's Python, which formats strings with double quotes, and writes docstrings as long strings.
LONG_STRING = re.compile(r'"""(?:[^"]|"(?!""))*"""')
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def read(path: str) -> str:
    """The text of a file of the repository."""
    with open(os.path.join(REPO, path), encoding="utf-8") as file:
        return file.read()


def plain(text: str) -> str:
    """Text without marks: of a link what is shown, each piece of code as one word, on one line."""
    text = LINK.sub(r"\1", text)
    return " ".join(re.sub(r"\*\*|\*(?=\w)|(?<=\w)\*", "", text).split())


def blocks(text: str) -> Iterator[str]:
    """The headings, paragraphs, items of lists and cells of tables of a page."""
    for block in re.split(r"\n\s*\n", NOT_PROSE.sub("\n", text)):
        for item in re.split(r"\n(?=\s*(?:[-*]|\d+\.) |\||#)", "\n" + block):
            item = item.strip()
            if item.startswith("|"):
                yield from filter(None, (plain(cell) for cell in re.split(r"(?<!\\)\|", item)))
            elif item:
                yield plain(re.sub(r"^(?:[-*]|\d+\.|#+) ", "", item))


def sentences(text: str) -> Iterator[str]:
    """The sentences of a block."""
    yield from filter(None, re.split(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[\"”)]* ", text))


def words(sentence: str) -> int:
    """How many words a sentence has; a path is one, and code is none, since it comes in lists."""
    return len(re.findall(r"[\w%'’/.+-]*\w[\w%'’/.+-]*", CODE.sub("", sentence)))


def reports() -> list[str]:
    """Reports of measurements, as they were written."""
    return found("docs/measurements/reports/*.md")


def pages() -> list[str]:
    """README and the pages, without reports of measurements."""
    others = [page for page in found("docs/**/*.md") if page not in reports()]
    return ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", *others]


def found(pattern: str) -> list[str]:
    """The files of the repository that a pattern fits."""
    there = glob.glob(os.path.join(REPO, pattern), recursive=True)
    return sorted(os.path.relpath(path, REPO) for path in there)


def helps(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each help text of a command and of those below it, and where it stands."""
    place = " ".join(path) or command.name or ""
    for paragraph in re.split(r"\n\s*\n", (command.help or "").replace("\f", "")):
        if not paragraph.lstrip().startswith("\b"):
            yield place, plain(paragraph)
    for param in command.params:
        if isinstance(param, click.Option) and param.help:
            yield f"{place} {param.opts[0]}", plain(param.help)
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            yield from helps(inner, (*path, name))


def sources(*packages: str) -> list[str]:
    """The Python files of packages."""
    found = (glob.glob(os.path.join(REPO, package, "**/*.py"), recursive=True) for package in packages)
    return sorted(os.path.relpath(path, REPO) for paths in found for path in paths)


def messages(*packages: str) -> Iterator[tuple[str, str]]:
    """Strings of several words in the code, without docstrings: what a person may read. Each with its file."""
    for name in sources(*packages):
        for text in STRING.findall(LONG_STRING.sub("", read(name))):
            if text.count(" ") > 1:
                yield name, plain(text)
