"""Flaws that were found in other container toolkits for GPUs: nvc does not have their pattern.

tests/security.md has the table. Tests of flaws that are older lie beside what they are about.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import REPO, run
from support.apiserver import claim, result
from support.cdi import document
from support.facts import UUID_0, facts, gpu
from support.plans import exchange, snapshot
from support.rootfs import LIBS

from nvc.frontends.cdi.document import NodeStatus
from nvc.frontends.engines.hooksd import TEXT
from nvc.frontends.runtime.give import HOOK_ENVIRONMENT
from nvc.kubernetes.claims.claim import allocation_of
from nvc.kubernetes.errors import ClaimError

Hook = Callable[[str, str], "tuple[int, str]"]
GO_PROGRAM = b"\xff Go buildinf:"
STEPS = f"create-symlinks --link=evil::{LIBS}/evil.so update-ldcache --folder={LIBS}"


@pytest.fixture
def outside(scratch: str) -> Iterator[str]:
    """A directory of the host with a loader cache and a library; what it holds must stay."""
    path = f"{scratch}/outside"
    os.makedirs(path)
    for name in ("ld.so.cache", "ld.so.conf", "evil.so"):
        with open(f"{path}/{name}", "w", encoding="ascii") as out:
            out.write("host\n")
    before = snapshot(path)
    yield path
    assert snapshot(path) == before


@pytest.fixture
def hook(stage: str, scratch: str) -> Hook:
    """`hook(rootfs, steps)` calls nvc-cdi-hook as a runtime does: exit code and standard error."""

    def call(rootfs: str, steps: str) -> tuple[int, str]:
        config = {"ociVersion": "1.0.2", "process": {}, "root": {"path": rootfs}}
        with open(f"{scratch}/config.json", "w", encoding="ascii") as out:
            json.dump(config, out)
        script = f"mount --bind '{rootfs}' '{rootfs}' && exec '{stage}/bin/nvc-cdi-hook' {steps}"
        done = run(
            "unshare", "--mount", "/bin/sh", "-c", script, check=False, stdin=None,
            input=json.dumps({"bundle": scratch}),
        )  # fmt: skip
        return done.returncode, str(done.stderr)

    return call


def entries_of(value: Any) -> list[dict[str, Any]]:
    """Every hook in a document, however deep."""
    if isinstance(value, dict):
        own = [value] if "path" in value and "args" in value else []
        return own + [entry for inner in value.values() for entry in entries_of(inner)]
    return [entry for inner in value for entry in entries_of(inner)] if isinstance(value, list) else []


@pytest.mark.parametrize("program", ["/usr/bin/nvc-cdi-hook", "/usr/bin/nvidia-cdi-hook"])
def test_cve_2025_23266_no_hook_inherits_an_environment(program: str) -> None:
    """Without one of its own, runc gives a hook the container's, with LD_PRELOAD."""
    packaged = json.loads(TEXT.format(path="/usr/bin/nvc-hook"))
    found = entries_of(document(hook_path=program)) + entries_of(packaged)
    assert len(found) > 1
    for entry in (*found, {"env": HOOK_ENVIRONMENT}):
        names = [variable.partition("=")[0] for variable in entry["env"]]
        assert "PATH" in names and set(names) <= {"PATH", "NVC_CDI_STAMP"}


@pytest.mark.parametrize("climb", ["", "../" * 12])
@pytest.mark.parametrize("path", ["etc", "etc/ld.so.cache", "etc/ld.so.conf.d", LIBS[1:]])
def test_cve_2025_23267_the_loader_cache_stays_in_the_container(
    rootfs: Any, outside: str, hook: Hook, path: str, climb: str
) -> None:
    """The image has a link to the host where the loader's files are."""
    root = rootfs()
    place = f"{root}/{path}"
    if os.path.lexists(place):
        os.rename(place, place + ".was")
    os.symlink((climb + outside).replace("//", "/"), place)
    code, said = hook(root, STEPS)
    assert code == 0 or said.count("\n") == 1, said


def test_cve_2026_24260_nothing_changes_between_look_and_use(rootfs: Any, outside: str, hook: Hook) -> None:
    """Directories of the container become links to the host, and back, while hooks work in them."""
    root = rootfs()
    places = [f"{root}/etc", f"{root}{LIBS}"]
    for place in places:
        os.makedirs(place, exist_ok=True)
        os.symlink("/" + "../" * 12 + outside.lstrip("/"), place + ".link")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for place in places:
                exchange(place, place + ".link")

    racer = threading.Thread(target=swap)
    racer.start()
    try:
        done = [hook(root, STEPS) for _ in range(20)]
    finally:
        stop.set()
        racer.join()
    assert all(code == 0 or said.count("\n") == 1 for code, said in done), done


def test_cve_2026_24196_no_display_without_its_capability() -> None:
    """An out-of-bounds read in the display driver: a container for computing has no node of that driver."""
    host = facts(gpus=(gpu(0, UUID_0, dri_nodes=("/dev/dri/card1", "/dev/dri/renderD128")),))
    modeset = host.controls[-1].node
    status = NodeStatus(226, 1, 0o660, 0, 44)
    nodes = dict.fromkeys(("/dev/dri/card1", "/dev/dri/renderD128", modeset.path), status)

    def paths(*capabilities: str) -> set[str]:
        made = document(host, capabilities, nodes=nodes)
        edits = [made["containerEdits"], *(device["containerEdits"] for device in made["devices"])]
        return {node["path"] for part in edits for node in part.get("deviceNodes", ())}

    assert not paths("compute", "utility", "video", "ngx") & nodes.keys()
    assert paths("display") >= nodes.keys(), "the test looks for what there is"


def test_cve_2026_24176_a_claim_of_another_namespace_is_refused() -> None:
    """Somebody names an object of another tenant: what holds is the UID that kubelet was told by the scheduler."""
    own, other = (claim("train", [result("gpu", "gpu-0")], namespace=name) for name in ("own", "other"))
    with pytest.raises(ClaimError, match="its UID is"):
        allocation_of(other, own["metadata"]["uid"], "gpu.nvc.dev", {})


def test_nothing_that_is_installed_is_a_go_program(stage: str) -> None:
    """Flaws of Go's standard library, for which scanners flag the binaries of other toolkits."""
    looked = 0
    for base, _, names in os.walk(stage, followlinks=True):
        for name in names:
            with open(os.path.join(base, name), "rb") as file:
                data = file.read()
            if data.startswith(b"\x7fELF"):
                looked += 1
                assert GO_PROGRAM not in data, os.path.join(base, name)
    assert looked > 4


def test_every_flaw_of_the_page_has_its_tests() -> None:
    """Each test that the table of tests/security.md names is there."""
    with open(os.path.join(REPO, "tests/security.md"), encoding="utf-8") as page:
        section = page.read().partition("## Flaws of other toolkits")[2]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 9
    for row in rows:
        named = re.findall(r"`([a-z]+/test_\w+\.py)::(test_\w+)`", row.split(" | ")[3])
        assert named, row
        for name, function in named:
            with open(os.path.join(REPO, "tests", name), encoding="utf-8") as file:
                assert f"\ndef {function}(" in file.read(), f"{name}::{function}"


def test_the_page_of_users_has_the_same_flaws() -> None:
    """docs/security.md names each of them, and no other."""
    named = []
    for page in ("docs/security.md", "tests/security.md"):
        with open(os.path.join(REPO, page), encoding="utf-8") as file:
            named.append(set(re.findall(r"CVE-\d+-\d+", file.read())))
    assert named[0] == named[1]
