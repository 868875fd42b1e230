"""The engines that the pages say were tried are those that the tests have, or newer ones."""

from __future__ import annotations

import os
import re

import pytest
from support import REPO, golang, need, run
from support.engines import Host

GENERATIONS = ("debian", "sid", "newest")
#: Program and page; the generation's place among the versions of the page's line.
PAGES = {"containerd": "containerd"}
LINE = re.compile(r"^Tested with \w[\w-]* ((?:[0-9.]+(?:, | and )?)+)", re.MULTILINE)


def named(page: str) -> list[tuple[int, ...]]:
    """The versions of a page's line, oldest first."""
    with open(os.path.join(REPO, "docs", f"{page}.md"), encoding="utf-8") as text:
        (line,) = LINE.findall(text.read())
    return [tuple(map(int, version.split("."))) for version in re.findall(r"[0-9]+(?:\.[0-9]+)+", line)]


def version(host: Host, program: str) -> tuple[int, ...]:
    said = host.sh(f"{program} --version").stdout
    found = re.search(r"\bv?([0-9]+)\.([0-9]+)", said)
    assert found, said
    return int(found[1]), int(found[2])


@pytest.mark.parametrize("program", PAGES)
def test_the_page_s_versions(host: Host, generation: str, program: str) -> None:
    versions = named(PAGES[program])
    place = min(GENERATIONS.index(generation), len(versions) - 1)
    assert version(host, program) >= versions[place]


def test_cri_o(host: Host, generation: str) -> None:
    if generation == "newest":
        assert version(host, "crio") >= named("crio")[0]
    else:
        assert host.sh("! command -v crio").stdout == ""


def test_podman_info(host: Host) -> None:
    """The runtime that is the default, with nvc's version; of CDI devices it says nothing."""
    host.sh("nvc-cli runtime configure --engine podman --set-as-default; nvc-cli --root /srv/sim cdi refresh")
    try:
        info = host.sh("podman --storage-driver vfs --cgroup-manager cgroupfs info").stdout
    finally:
        host.sh("nvc-cli runtime configure --engine podman --remove; rm -r /run/cdi")
    assert "path: /usr/local/bin/nvc-runtime" in info and "nvc: " in info
    assert "nvidia.com/gpu" not in info


@pytest.mark.engines
def test_on_a_machine_without_go(scratch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pinned Go is fetched, and builds."""
    monkeypatch.setattr(golang, "USUAL", scratch)
    monkeypatch.setenv("PATH", scratch)
    os.symlink(need("nice"), f"{scratch}/nice")
    monkeypatch.setenv("NVC_TESTS_CACHE", f"{scratch}/cache")
    golang.compiler.cache_clear()
    try:
        assert golang.compiler().startswith(f"{scratch}/cache/")
        with open(f"{scratch}/go.mod", "w", encoding="ascii") as out:
            out.write("module nvc.test/hello\n\ngo 1.26.0\n")
        with open(f"{scratch}/hello.go", "w", encoding="ascii") as out:
            out.write('package main\n\nfunc main() { println("hello") }\n')
        golang.build(".", f"{scratch}/hello", about="nothing", where=scratch, flags="-s -w")
    finally:
        golang.compiler.cache_clear()
    assert run(f"{scratch}/hello").stderr == "hello\n"
