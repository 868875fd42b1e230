"""Containers with slices of claims.

The slices are made as the plugin for Kubernetes makes them; the hook is called as their documents say.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.cdi_claimed import FIXED, UID, Claimed
from support.cdi_world import COMPAT, LIBS, VERSION, World, add_compat

from nvc.base.rundir import runtime_directory
from nvc.kernel import LinuxKernel
from nvc.kubernetes.claims import give
from nvc.kubernetes.names import CDI_SLICE_CLASS
from nvc.model.request import SliceRequest
from nvc.slices.make import shim
from nvc.slices.policy import policies
from nvc.slices.store import claims, registry
from nvc.testing.sim import SimSpec, create

FAIR = 0


@pytest.fixture
def world(scratch: str, stage: str, sim_root: Callable[..., str], shim: str) -> World:
    return World(scratch, stage, sim_root(gpus=2))


@pytest.fixture
def claimed(world: World) -> Iterator[Callable[..., Claimed]]:
    """Factory: `claimed(count, policy=..., ...)`."""
    yield lambda *arguments, **fields: Claimed(world, *arguments, **fields)
    claims.release(LinuxKernel(), UID)


def test_a_start(claimed: Any) -> None:
    one = claimed()
    seen, said = one.start()
    assert "exit 0" in seen and said == []
    places = [line.split()[1].rpartition(LIBS)[2] for line in seen if line.startswith("/")]
    assert {"/nvc/quota", "/nvc/ledger", "/nvc/real-libcuda.so.1"} <= set(places)
    assert places.count(f"/libcuda.so.{VERSION}") == 2  # the driver's, and the shim over it
    assert f'"bundle":"{one.world.scratch}"' in one.about() and '"container":"x"' in one.about()


#: Of the hook of all devices, which does the slice's step too where a document has one device.
OTHERS = [
    "create-symlinks", f"--link=libcuda.so.1::{LIBS}/libcuda.so", f"--link=x::{LIBS}/libnvidia-ml.so",
    "update-ldcache", f"--folder={LIBS}", "disable-device-node-modification", "update-application-profile",
]  # fmt: skip


def test_other_steps_in_the_same_call(claimed: Any) -> None:
    one = claimed()
    one.words[0] += OTHERS
    one.say()
    one.world.write(f"{LIBS}/libnvidia-ml.so")
    add_compat(one.world, "535.1.1", b'{"Driver": [470]}')
    seen, said = one.start()
    assert "exit 0" in seen and "not made" in said[0] and "hidden" in said[1]
    assert any(line.startswith(f".{LIBS}/libcuda.so.1 l ") for line in seen)


@pytest.mark.parametrize(
    ("count", "program", "processes"),
    [(1, "nvc-cdi-hook", 1), (2, "nvc-cdi-hook", 3), (1, "nvidia-cdi-hook", 5)],
)
def test_the_hooks_of_a_claim(
    claimed: Any, stage: str, count: int, program: str, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process does all steps where a document has one device."""
    monkeypatch.setattr(shim, "directory", lambda: f"{stage}/lib/nvc/vgpu")
    one = claimed(count)
    outlet = give.Outlet("/run/cdi", f"/opt/{program}")
    (document,) = give.documents(
        one.kernel, one.facts, one.options, outlet, one.allocation, SliceRequest()
    ).values()
    edits = [document["containerEdits"], *(device["containerEdits"] for device in document["devices"])]
    hooks = [hook["args"] for each in edits for hook in each.get("hooks", ())]
    words = [word for hook in hooks for word in hook[1:] if not word.startswith("--")]
    assert words.count("slice-memory") == count and words.count("update-ldcache") == 1
    assert len(hooks) == processes and {hook[0] for hook in hooks} == {program}
    if processes == 1:
        assert words.index("slice-memory") < words.index("create-symlinks")


def test_slices_of_two_gpus_by_two_hooks(claimed: Any) -> None:
    two = claimed(2)
    assert two.start(0) == two.start(1)


def test_a_part_of_a_claim_that_another_container_has_whole(claimed: Any) -> None:
    two = claimed(2)
    two.start()
    del two.words[1:]
    two.say()
    seen, _ = two.start()
    assert "exit 0" in seen


def test_wherever_a_loader_looks(claimed: Any) -> None:
    one, place = claimed(), "/opt/b/glibc-hwcaps/x86-64-v3"
    one.world.write(f"{place}/libcuda.so.1", b"\x7fELF" + bytes(60))
    one.world.process = {"env": ["LD_LIBRARY_PATH=/opt/a;/opt/b:/opt/$LIB"]}
    seen, said = one.start()
    assert any(f"is covered: {place}/libcuda.so.1" in line for line in said)
    assert any(line.startswith(f".{place}/nvc l ") for line in seen)


def test_compat_libraries_that_the_container_does_not_use(claimed: Any) -> None:
    one = claimed()
    add_compat(one.world, "535.1.1", b'{"Driver": [470]}')
    _, said = one.start()
    assert f"{COMPAT} is hidden" in said[0]


def test_compat_libraries_that_it_uses(claimed: Any) -> None:
    one = claimed()
    add_compat(one.world, "590.10.01", b'{"Driver": [580]}')
    seen, _ = one.start()
    assert "exit 0" in seen and any(line.startswith("/") and COMPAT in line for line in seen)


def other_node(one: Claimed) -> None:
    """The node of a whole GPU beside the slice."""
    node = one.facts.gpus[1].node
    one.devices.append({"path": "/dev/x", "type": "c", "major": node.major, "minor": node.minor})
    one.say()


def mounted_node(one: Claimed) -> None:
    """A node of a GPU that comes with a volume."""
    node = one.facts.gpus[1].node
    os.makedirs(f"{one.world.scratch}/volume/dev")
    os.mknod(f"{one.world.scratch}/volume/dev/nvidia9", 0o20666, os.makedev(node.major, node.minor))
    one.world.more["mounts"] = [{"source": f"{one.world.scratch}/volume", "destination": "/mnt"}]


def policy(one: Claimed) -> None:
    policies.write(one.allocation.given[0].uuid, policies.DevicePolicy(policy=FIXED))


def changed_library(one: Claimed) -> None:
    os.utime(f"{one.world.driver}{LIBS}/libcuda.so.{VERSION}")


def other_gpus(one: Claimed, **fields: Any) -> None:
    """Other GPUs have the numbers of those that were there, as after a driver is loaded without one that failed."""
    other = f"{one.world.scratch}/other"
    create(other, SimSpec(**{"gpus": 2, "seed": "other", **fields}))
    for name in ("proc", "sys"):
        shutil.rmtree(f"{one.world.driver}/{name}")
        shutil.copytree(f"{other}/{name}", f"{one.world.driver}/{name}", symlinks=True)


def divided(one: Claimed) -> None:
    """The slice's GPU is in MIG mode now."""
    other_gpus(one, seed=one.world.scratch, mig=("3g.40gb", ""))


def loaded_again(one: Claimed) -> None:
    path = f"{one.world.driver}/sys/module/nvidia"
    os.rename(path, f"{one.world.scratch}/module")
    shutil.copytree(f"{one.world.scratch}/module", path)


def configured(one: Claimed) -> None:
    os.makedirs(f"{one.world.etc}/nvc")
    with open(f"{one.world.etc}/nvc/config.toml", "w", encoding="ascii") as out:
        out.write("[nvc]\nvgpu-memory-max = '2GiB'\n")


def broken_entry(one: Claimed) -> None:
    """Of somebody else: it may have the same holds."""
    path = f"{registry.base_directory()}/f-1-1-1"
    os.mkdir(path)
    for name in ("about", "quota"):
        with open(f"{path}/{name}", "w", encoding="ascii") as out:
            out.write("lines 5\n")


def garbled(one: Claimed) -> None:
    """As many lines as before, but one is not as nvc writes it."""
    text = one.about()
    with open(f"{one.entry.directory}/about", "w", encoding="ascii") as out:
        out.write(text.replace('"created":', '"created":"x",'))


def other_policies(one: Claimed) -> None:
    """Whoever owns the directory may have laid down policies in it, or taken them away."""
    os.chown(policies.directory(), 1, 1)


def many_directories(one: Claimed) -> None:
    one.world.process = {"env": [f"LD_LIBRARY_PATH={':/'.join(map(str, range(258)))}"]}


def by_programs(one: Claimed) -> None:
    one.world.write("/opt/p/lib/libcuda.so.1", b"\x7fELF")
    one.world.process = {"env": ["LD_LIBRARY_PATH=${ORIGIN}/../$LIB"], "args": ["/opt/p/bin/go"]}


def no_room(one: Claimed) -> None:
    os.unlink(f"{one.entry.directory}/ready")


#: What may have changed since the claim was prepared, and whether the container starts then.
RARE: dict[str, tuple[Callable[[Claimed], None], bool]] = {
    one.__name__: (one, starts)
    for one, starts in (
        (other_node, True), (mounted_node, False), (policy, True), (changed_library, True), (configured, False),
        (broken_entry, False), (no_room, False), (other_gpus, False), (divided, False), (loaded_again, True),
        (garbled, False), (other_policies, False), (many_directories, False), (by_programs, True),
    )  # fmt: skip
}


@pytest.mark.parametrize("name", RARE)
def test_what_is_looked_at_again(claimed: Any, name: str) -> None:
    arrange_it, starts = RARE[name]
    one = claimed()
    try:
        arrange_it(one)
        seen, said = one.start()
        assert ("exit 0" in seen) is starts, said
    finally:
        os.chown(f"{runtime_directory()}/vgpu-policy", 0, 0)
        policies.write(one.allocation.given[0].uuid, policies.DevicePolicy())
        shutil.rmtree(f"{registry.base_directory()}/f-1-1-1", ignore_errors=True)


def test_a_policy_that_only_nvcd_enforces(claimed: Any) -> None:
    one = claimed(policy=FAIR, cores=0)
    directory = f"{runtime_directory()}/nvcd"
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = f"{directory}/nvcd.sock"
    if not os.path.exists(path):
        _, said = one.start()
        assert "not enforced" in said[0]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        try:
            one.start()
        finally:
            os.unlink(path)


@pytest.mark.parametrize("uncounted", [(True,), (True, False)], ids=["one", "not all"])
def test_a_claim_that_keeps_libraries_that_are_not_counted(
    claimed: Any, monkeypatch: pytest.MonkeyPatch, uncounted: tuple[bool, ...]
) -> None:
    """By the documents that the plugin writes. A container keeps them if all of its slices do."""
    one = claimed(len(uncounted))
    monkeypatch.setattr(give.shim, "directory", lambda: f"{one.world.stage}/lib/nvc/vgpu")
    given = [each.replace(uncounted=kept) for each, kept in zip(one.allocation.given, uncounted, strict=True)]
    allocation = one.allocation.replace(given=tuple(given))
    outlet = give.Outlet(one.world.scratch, f"{one.world.stage}/bin/nvc-cdi-hook")
    made = give.documents(one.kernel, one.facts, one.options, outlet, allocation, SliceRequest())
    edits = [device["containerEdits"] for device in made[CDI_SLICE_CLASS]["devices"]]
    hooks = [hook["args"] for each in edits for hook in each["hooks"] if "slice-memory" in hook["args"]]
    one.words = [args[args.index("slice-memory") :] for args in hooks]
    one.say()
    assert len(one.words) == len(uncounted)
    for words in one.words:
        seen, said = one.world.start(f"{one.world.stage}/bin/nvc-cdi-hook", *words)
        assert "exit 0" in seen, said
        assert any("/vgpu/empty " in line for line in seen) is not all(uncounted)
