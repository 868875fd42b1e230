"""Links between the pages of the documentation lead somewhere, and a reader of README.md finds every page."""

from __future__ import annotations

import os
import re

import pytest
from support import REPO

#: What is between `](` and `)` outside of code, without what is not a file here.
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|^ {4}.*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
PAGES = sorted(
    os.path.relpath(os.path.join(directory, name), REPO)
    for directory, _, names in os.walk(os.path.join(REPO, "docs"))
    for name in names
    if name.endswith(".md")
)
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
#: Pages for those who change nvc, beside what they are about.
BESIDE = ("tests/features.md", "tests/security.md", "tests/adversary/catalogue.md")
#: Pages that are not for users, and one that is made from the code.
OTHERS = ("docs/api.md", "docs/architecture.md", "docs/time.md", "docs/decisions.md", "docs/dependencies.md")
#: What somebody who comes for slices must find at the first look.
AT_ONCE = ("docs/peers.md", "docs/sharing.md", "docs/daemon.md", "docs/vgpu.md")


def read(page: str) -> str:
    with open(os.path.join(REPO, page), encoding="utf-8") as file:
        return file.read()


def links(page: str) -> list[str]:
    """The relative links of a page, as paths of the repository; what follows `#` is kept."""
    directory = os.path.dirname(page)
    return [
        page + found if found.startswith("#") else os.path.normpath(os.path.join(directory, found))
        for found in LINK.findall(CODE.sub("", read(page)))
    ]


def anchors(page: str) -> set[str]:
    """What headings of a page are called in links, as GitHub names them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in HEADING.findall(
            re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)
        )
    }


def test_every_link_leads_somewhere() -> None:
    for page in (*TOP, *PAGES, *BESIDE):
        for link in links(page):
            path, _, anchor = link.partition("#")
            assert os.path.exists(os.path.join(REPO, path)), f"{page}: {link}"
            assert not anchor or anchor in anchors(path), f"{page}: {link}: no such heading"


def test_every_page_is_found_from_the_readme() -> None:
    found, todo = set(), ["README.md"]
    while todo:
        page = todo.pop()
        if page not in found:
            found.add(page)
            todo += [
                link.partition("#")[0] for link in links(page) if link.partition("#")[0].endswith(".md")
            ]
    assert set(PAGES) <= found
    assert set(AT_ONCE) <= set(links("README.md"))


#: Pages of ways to give containers GPUs.
ENGINES = ("docker", "podman", "containerd", "crio", "runc", "cdi", "nri", "openshift", "kubernetes-operate")


@pytest.mark.parametrize("name", ENGINES)
def test_troubleshooting_begins_with_the_doctor(name: str) -> None:
    text = read(f"docs/{name}.md")
    _, found, section = text.partition("\n## Troubleshooting\n")
    commands = re.search(r"^(?: {4}.*\n)+", section, re.MULTILINE)
    assert found and commands is not None and "nvc-cli doctor" in commands[0]


def test_the_pages_stay_as_short_as_readers_bear() -> None:
    """README.md has at most 110 lines; users have at most 36,000 words, without reports of measurements."""
    assert len(read("README.md").splitlines()) <= 110
    users = [page for page in PAGES if page not in OTHERS and "/reports/" not in page]
    # Marks of tables and lists are no words.
    assert sum(bool(re.search(r"\w", word)) for page in users for word in read(page).split()) <= 36_000
