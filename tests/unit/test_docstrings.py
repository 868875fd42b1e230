"""Docstrings: each stands alone, is there for everything public, and has no sentence that must be read twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from support.sources import sources, tree

FOLDERS = ("nvc/", "cli/", "hooks/", "packaging/")
PYTHON = [name for name in sources(".py") if name.startswith(FOLDERS)]
#: Beginnings of a sentence that needs the one above.
LEANING = r"(The same|As|That of|Those|Like|Likewise|Of)\b"
WORDS_MAX = 35
Documented = ast.Module | ast.ClassDef | ast.FunctionDef


def documented(node: Documented, name: str = "") -> Iterator[tuple[str, Documented]]:
    """A module and what is in it, with names; not what is in functions."""
    yield name, node
    for inner in node.body if not isinstance(node, ast.FunctionDef) else ():
        if isinstance(inner, ast.ClassDef | ast.FunctionDef):
            yield from documented(inner, f"{name}.{inner.name}".lstrip("."))


def sentences(text: str) -> Iterator[str]:
    """Sentences of prose; indented lines, lists and definitions are none."""
    for paragraph in text.split("\n\n"):
        if not re.search(r"^( |- |\S+:$|\{)|\S {2,}\S", paragraph, re.MULTILINE):
            yield from re.split(r"(?<=[.:;?!])\s", paragraph)


def faults(name: str) -> list[str]:
    """What is wrong with the docstrings of a file."""
    wrong = []
    for what, node in documented(tree(name)):
        text = ast.get_docstring(node)
        if text is None:
            public = not re.search(r"(^|\.)_", what) and not name.startswith("packaging/")
            # What a base class or a protocol of the type checker says is not said again.
            inherited = isinstance(node, ast.FunctionDef) and "." in what and len(node.body) == 1
            if public and not inherited:
                wrong.append(f"{what}: has none")
            continue
        if re.match(LEANING, text):
            wrong.append(f"{what}: needs another one to be understood: {text.splitlines()[0]}")
        wrong += [
            f"{what}: a sentence of {len(sentence.split())} words: {sentence[:60]}..."
            for sentence in sentences(text)
            if len(sentence.split()) > WORDS_MAX
        ]
    return [f"{name}: {one}" for one in wrong]


def test_docstrings() -> None:
    wrong = [one for name in PYTHON for one in faults(name)]
    assert not wrong, "\n".join(wrong)
