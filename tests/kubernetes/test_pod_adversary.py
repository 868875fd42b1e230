"""Programs of the catalogue in pods, by the simulated driver's own count: limits and caps hold for a claim.

Each runs in two containers of a pod that share a claim, with processes that the kubelet started by `exec`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest
from support import GIB, until
from support.adversary import Look, Taker
from support.adversary_table import TAKERS, WAYS
from support.cluster import Cluster
from support.cluster.images import BUSYBOX
from support.cluster.pods import Space
from support.cluster.tenants import SHARED, TOOLS, Tenant, equip, small, tenant
from support.rootfs import LIBS

CAP, SECONDS, POINTS = 10, 6, 0.005
BOTH = ("main", "side")
OUT_OF_MEMORY, OPERATING_SYSTEM = 2, 304
MEMORY = [
    one for one in TAKERS
    if one.name in (
        "a child of fork", "the next program", "killed", "many processes", "opened by a handle",
        "memory sent to another process", "many threads",
    )
]  # fmt: skip
TIME = [
    one for one in WAYS
    if one.name in (
        "queue", "alternate", "processes", "forking", "exec", "leaving", "another-root", "no-limits",
        "unmapped-ledger", "cut-ledger",
    )
]  # fmt: skip


@pytest.fixture
def shared(space: Space, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """A pod with two containers that share a claim, and processes if the third of the parameters says so."""
    memory, cores, processes = getattr(request, "param", (2 * GIB, 50, True))
    equip(space)
    claim = small(memory, cores)
    space.apply(claim, tenant("shared", claim["metadata"]["name"], BOTH, shareProcessNamespace=processes))
    space.phase("shared", "Running")
    made = Tenant(space, "shared", BOTH)
    yield made
    made.end()


def test_the_catalogue_has_them() -> None:
    assert (len(MEMORY), len(TIME)) == (7, 10)


@pytest.mark.parametrize(
    ("shared", "taker"), [((one.limit, 50, True), one) for one in MEMORY], indirect=["shared"],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
def test_no_more_memory_than_the_claim(nvc: Cluster, shared: Tenant, taker: Taker) -> None:
    look = Look(shared, taker, books=False)
    taker.program(shared, look)
    look()
    assert look.most > 0


def around(root: str, more: str = "") -> str:
    """A script that takes 1 GiB, and 2 GiB more, as a program of another container, below whose root it is."""
    commands = f"init\\nprimary 0\\nalloc a 1g\\nalloc b 2g\\n{more}"
    return f"printf '{commands}' | chroot {root} {TOOLS}/vgpu_tool; echo done"


def test_an_ephemeral_container(nvc: Cluster, shared: Tenant) -> None:
    """It has no claim; in the root directory of one that has, it has that one's limit."""
    image = ("--image", BUSYBOX, "--image-pull-policy=IfNotPresent", "--attach=false", "--container=late")
    words = ("--target=main", "--", "sh", "-c", around("/proc/$(pidof sleep | cut -d' ' -f1)/root"))
    shared.space.kubectl("debug", shared.name, *image, *words)

    def said() -> str:
        text = shared.space.kubectl("logs", shared.name, "-c", "late", check=False)
        return text if "done" in text else ""

    found = until(said)
    answers = [line.split()[0] for line in found.splitlines()[:-1]]
    assert answers[3:] in ([], [str(OUT_OF_MEMORY)]), found
    assert shared.taken() == 0


def first_process(space: Space, name: str) -> int:
    """The number, on the node, of a pod's process that sleeps."""
    uid = space.get("pod", name)["metadata"]["uid"]
    for number in sorted(int(one) for one in os.listdir("/proc") if one.isdigit()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/{number}/cgroup", encoding="utf-8") as file:
                inside = f"pod{uid}/" in file.read()
            if inside and os.path.exists(f"/proc/{number}/root{LIBS}/nvc"):
                return number
    raise AssertionError(f"no process of {name}")


def test_a_pod_that_sees_the_processes_of_the_node(nvc: Cluster, shared: Tenant) -> None:
    """In the root directory of another pod it is of that one's slice: it has its limit of memory, and no launch.

    /proc there is of other processes, so that its own time namespace is not known, and that slice has a cap.
    """
    space = shared.space
    space.apply(tenant("watcher", small()["metadata"]["name"], hostPID=True))
    space.phase("watcher", "Running")
    script = around(f"/proc/{first_process(space, shared.name)}/root", "module m\\nlaunch m\\n")
    found = space.run("watcher", script)
    answers = [line.split()[0] for line in found.splitlines()[:-1]]
    assert answers == ["0", "0", "0", str(OUT_OF_MEMORY), "0", str(OPERATING_SYSTEM)], found
    taker, other = shared.start(), Tenant(space, "watcher").start()
    assert taker.code("alloc a 1g") == other.code("alloc a 1g") == 0
    assert taker.code("alloc b 1g") == other.code("alloc b 1g") == OUT_OF_MEMORY
    other.kill()


def test_memory_by_the_volume_of_another_pod(nvc: Cluster, shared: Tenant) -> None:
    """Handles of memory go from claim to claim there: each is held to its limit, and both to the sum."""
    space, uid = shared.space, shared.space.get("pod", shared.name)["metadata"]["uid"]
    document = tenant("reader", small()["metadata"]["name"])
    volume = f"/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/shared"
    document["spec"]["volumes"][1] = {"name": "shared", "hostPath": {"path": volume, "type": "Directory"}}
    space.apply(document)
    space.phase("reader", "Running")
    maker, reader = shared.start(), Tenant(space, "reader").start()
    for name in "abcdef":
        if maker.code(f"alloc {name} 400m"):
            break
        maker.do(f"ipcget {name} {SHARED}/handle")
        reader.code(f"ipcopen {name} {SHARED}/handle")
        maker.do(f"free {name}")
        assert shared.taken() <= 4 * GIB
    while maker.code("alloc z 100m") == 0 or reader.code("alloc z 100m") == 0:
        assert shared.taken() <= 4 * GIB
    reader.kill()
    assert shared.taken() <= 2 * GIB
