"""Containers with slices of claims get the same with an interpreter and without: see test_cdi_hooks_agree.py.

The slices are made as the plugin for Kubernetes makes them; the hook is called as their documents say.
"""

from __future__ import annotations

import glob
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import GIB
from support.cdi_claimed import FIXED, UID, Claimed
from support.cdi_world import COMPAT, LIBS, VERSION, World, add_compat, broken
from support.launcher import sanitized

from nvc.kernel import LinuxKernel
from nvc.kubernetes import give
from nvc.kubernetes.names import CDI_SLICE_CLASS
from nvc.request import SliceRequest
from nvc.rundir import runtime_directory
from nvc.sim import SimSpec, create
from nvc.slices.build import shim
from nvc.slices.policy import policies
from nvc.slices.store import claims, registry

FAIR = 0


@pytest.fixture
def world(scratch: str, stage: str, sim_root: Callable[..., str], shim: str) -> World:
    made = World(scratch, stage, sim_root(gpus=2))
    os.makedirs(f"{scratch}/alone/lib/nvc")
    os.symlink(f"{stage}/lib/nvc/vgpu", f"{scratch}/alone/lib/nvc/vgpu")
    return made


@pytest.fixture
def claimed(world: World) -> Iterator[Callable[..., Claimed]]:
    """Factory: `claimed(count, policy=..., ...)`."""
    yield lambda *arguments, **fields: Claimed(world, *arguments, **fields)
    claims.release(LinuxKernel(), UID)


def test_a_start_needs_no_interpreter(claimed: Any) -> None:
    one = claimed()
    seen, said = one.agree()
    assert "exit 0" in seen and said == []
    places = [line.split()[1].rpartition(LIBS)[2] for line in seen if line.startswith("/")]
    assert {"/nvc/quota", "/nvc/ledger", "/nvc/real-libcuda.so.1"} <= set(places)
    assert places.count(f"/libcuda.so.{VERSION}") == 2  # the driver's, and the shim over it
    assert f"bundle {one.world.scratch}\n" in one.about() and "container x\n" in one.about()


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
    seen, said = one.agree()
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


def test_slices_behind_other_steps(claimed: Any) -> None:
    one = claimed()
    one.words[0][:0] = OTHERS
    one.say()
    seen, _ = one.is_pythons()
    assert "exit 0" in seen


def test_slices_of_two_gpus_by_two_hooks(claimed: Any) -> None:
    two = claimed(2)
    assert two.agree(0) == two.agree(1)


def test_a_part_of_a_claim_that_another_container_has_whole(claimed: Any) -> None:
    """Whether that one lives, the launcher does not judge."""
    two = claimed(2)
    two.agree()
    del two.words[1:]
    two.say()
    seen, _ = two.is_pythons()
    assert "exit 0" in seen


def arrange(one: Claimed, chance: random.Random) -> None:
    """Fill the image with what a shim must be over, or what images may have of that name."""
    world = one.world
    with open(f"{world.driver}{LIBS}/libcuda.so.{VERSION}", "rb") as file:
        library = file.read()
    places = ["/usr/lib/libcuda.so.1", "/opt/a/libcuda.so", "/opt/b/libnvidia-ml.so.1", "/usr/lib32/libcuda.so.1.1",
              "/usr/local/nvidia/lib64/libcuda.so.1", "/opt/a/libcudart.so", "/opt/stubs/libcuda.so",
              f"{COMPAT}/lib/libcuda.so.1", "/usr/local/cuda-12/compat/libcuda.so.1",
              "/opt/b/glibc-hwcaps/x86-64-v2/libcuda.so.1", "/opt/lib64/libcuda.so.1"]  # fmt: skip
    for path in chance.sample(places, chance.randrange(len(places))):
        kind = chance.choice(("copy", "copy", "odd", "link", "fifo", "directory"))
        os.makedirs(os.path.dirname(world.image + path), exist_ok=True)
        if kind == "copy":
            world.write(path, library)
        elif kind == "odd":
            world.write(path, broken(chance, library))
        elif kind == "link":
            os.symlink(chance.choice(("/usr/lib/libcuda.so.1", "libcuda.so.1", "loop")), world.image + path)
        elif kind == "fifo":
            os.mkfifo(world.image + path)
        else:
            os.mkdir(world.image + path)
    if chance.random() < 0.5:
        searched = chance.sample(("/opt/a", "/opt/b/", "/opt/x/../b", "/opt/stubs", "x", "", "/o", "/opt/$LIB"), 4)
        world.process = {"env": ["LD_LIBRARY_PATH=/opt/none", f"LD_LIBRARY_PATH={':'.join(searched)}"]}
    if chance.random() < 0.3:
        world.write(f"{LIBS}/{one.facts.libraries[-1].path.rpartition('/')[2]}")
    if chance.random() < 0.3:
        os.unlink(f"{world.image}/etc/ld.so.cache")
    if chance.random() < 0.3:
        os.symlink("/usr/local/cuda-12", f"{world.image}/usr/local/cuda-13")


@pytest.mark.parametrize("seed", range(10))
def test_any_image(claimed: Any, seed: int) -> None:
    one = claimed()
    one.words[0] += OTHERS if seed % 2 else []
    one.say()
    arrange(one, random.Random(seed))
    one.agree()


@pytest.mark.parametrize("seed", range(100, 104))
def test_no_image_breaks_the_launcher(claimed: Any, seed: int) -> None:
    one = claimed()
    arrange(one, random.Random(seed))
    shutil.copy(sanitized(), one.world.alone)
    seen, said = one.world.start(one.world.alone, *one.words[0])
    assert "exit 0" in seen and not any("anitizer" in line for line in said), said


@pytest.mark.parametrize("place", ["/opt/b", "/opt/b/glibc-hwcaps/x86-64-v3", "/opt/b/tls/haswell", "/opt/lib64"])
def test_wherever_a_loader_looks(claimed: Any, place: str) -> None:
    one = claimed()
    one.world.write(f"{place}/libcuda.so.1", b"\x7fELF")
    one.world.process = {"env": ["LD_LIBRARY_PATH=/opt/a;/opt/b:/opt/$LIB"]}
    seen, said = one.agree()
    assert any(f"is covered: {place}/libcuda.so.1" in line for line in said)
    assert any(line.startswith(f".{place}/nvc l ") for line in seen)


def test_compat_libraries_that_the_container_does_not_use(claimed: Any) -> None:
    one = claimed()
    add_compat(one.world, "535.1.1", b'{"Driver": [470]}')
    _, said = one.agree()
    assert f"{COMPAT} is hidden" in said[0]


def test_compat_libraries_that_it_uses(claimed: Any) -> None:
    one = claimed()
    add_compat(one.world, "590.10.01", b'{"Driver": [580]}')
    seen, _ = one.is_pythons()
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


def no_recipe(one: Claimed) -> None:
    os.unlink(f"{one.entry.directory}/start")


def other_version(one: Claimed) -> None:
    change(one, "nvc ", "nvc 9")


def other_words(one: Claimed) -> None:
    """A limit that was not prepared."""
    change(one, f"={4 * GIB},", f"={5 * GIB},")


def open_to_others(one: Claimed) -> None:
    os.chmod(f"{one.entry.directory}/start", 0o666)


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
    change(one, "created ", "created x", "about")


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


def change(one: Claimed, old: str, new: str, name: str = "start") -> None:
    path = f"{one.entry.directory}/{name}"
    with open(path, encoding="ascii") as file:
        text = file.read()
    assert old in text
    with open(path, "w", encoding="ascii") as out:
        out.write(text.replace(old, new))


#: What the launcher must not judge, and whether the container starts then.
RARE: dict[str, tuple[Callable[[Claimed], None], bool]] = {
    one.__name__: (one, starts)
    for one, starts in (
        (other_node, True), (mounted_node, False), (policy, True), (no_recipe, True), (other_version, True),
        (other_words, True), (open_to_others, True), (changed_library, True), (configured, False),
        (broken_entry, False), (no_room, False), (other_gpus, False), (divided, False), (loaded_again, True),
        (garbled, False), (other_policies, False), (many_directories, False), (by_programs, True),
    )  # fmt: skip
}


@pytest.mark.parametrize("name", RARE)
def test_what_python_judges(claimed: Any, name: str) -> None:
    arrange_it, starts = RARE[name]
    one = claimed()
    try:
        arrange_it(one)
        seen, said = one.is_pythons()
        assert ("exit 0" in seen) is starts, said
    finally:
        os.chown(f"{runtime_directory()}/vgpu-policy", 0, 0)
        policies.write(one.allocation.given[0].uuid, policies.DevicePolicy())
        shutil.rmtree(f"{registry.base_directory()}/f-1-1-1", ignore_errors=True)


def test_a_configuration_that_python_has_read_once(claimed: Any) -> None:
    one = claimed()
    os.makedirs(f"{one.world.etc}/nvc")
    with open(f"{one.world.etc}/nvc/config.toml", "w", encoding="ascii") as out:
        out.write("disable-require = true\n")
    one.is_pythons()
    one.agree()


def test_a_policy_that_only_nvcd_enforces(claimed: Any) -> None:
    one = claimed(policy=FAIR, cores=0)
    directory = f"{runtime_directory()}/nvcd"
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = f"{directory}/nvcd.sock"
    if not os.path.exists(path):
        _, said = one.is_pythons()
        assert "not enforced" in said[0]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        try:
            one.agree()
        finally:
            os.unlink(path)


@pytest.mark.parametrize("fields", [{"limit": 1 << 20}, {"isolation": "kernel"}], ids=["small", "kernel"])
def test_slices_that_the_launcher_does_not_know(claimed: Any, fields: dict[str, Any]) -> None:
    one = claimed(**fields)
    assert not os.path.exists(f"{one.entry.directory}/start")


def test_facts_that_are_not_the_inventorys(claimed: Any) -> None:
    """Nothing tells then whether they hold when a container starts."""
    one = claimed()
    for path in glob.glob(f"{runtime_directory()}/inventory-*"):
        os.unlink(path)
    one.hold()
    assert not os.path.exists(f"{one.entry.directory}/start")


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


def test_a_slice_is_removed_with_what_a_killed_plugin_was_writing(claimed: Any) -> None:
    one = claimed()
    with open(f"{one.entry.directory}/.start", "w", encoding="ascii"):
        pass
    claims.release(one.kernel, UID)
    assert not os.path.exists(one.entry.directory)
