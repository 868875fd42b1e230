"""Containers that low-level runtimes give slices by the edits of a document, without an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import GIB, until
from support.bundle import Bundle
from support.hook import ask
from support.images import as_fedora
from support.plans import mounts, on_host
from support.rootfs import LIBS
from support.vgpu import Inside, ensure_shim, entry_of, limits_of

from nvc.discovery import discover
from nvc.frontends.cdi.document import DocumentOptions
from nvc.frontends.cdi.generate import document_of
from nvc.frontends.cdi.sliced import SliceSize, Slicing
from nvc.frontends.runtime.spec import Spec, apply_edits
from nvc.kernel import LinuxKernel
from nvc.kernel.processes import start_of
from nvc.model.request import DriverOptions, Request
from nvc.model.slices.entry import text_of, write_about
from nvc.model.slices.layout import NO_LIMIT
from nvc.model.slices.sizes import parse_size
from nvc.slices.make.shim import installed
from nvc.slices.store import registry
from nvc.slices.store.admission import sharers
from nvc.slices.store.limits import read_quota
from nvc.slices.store.liveness import living
from nvc.slices.store.snapshot import snapshot

OUT_OF_MEMORY = 2


@pytest.fixture
def give(stage: str, scratch: str, sim_root: Callable[..., str]) -> Iterator[Callable[..., None]]:
    """Factory: `give(bundle, "0:small")` applies the edits of devices; those without a size are whole."""
    shim = ensure_shim(stage, scratch)
    root = sim_root(gpus=2)

    def edit(bundle: Bundle, *names: str, first: str = "common") -> None:
        kernel, options = LinuxKernel(), DriverOptions(root=root)
        how = DocumentOptions(os.path.join(stage, "bin/nvc-cdi-hook"))
        request = Request(devices=("all",), capabilities=("utility", "compute"))
        facts = discover(kernel, options)
        files = installed(os.path.dirname(shim)).files
        small = SliceSize("small", parse_size("small", "4GiB"), cores=50, weight=3, policy=3)
        kept = SliceSize("kept", parse_size("kept", "60GiB"), request=parse_size("kept", "50GiB"))
        spec = Spec(bundle.config)
        for slicing in (None, Slicing((small, kept), files)):
            wanted = [name for name in names if name.endswith((":small", ":kept")) == (slicing is not None)]
            if not wanted:
                continue
            document = document_of(kernel, facts, request, how, options, slicing)
            edits = [item["containerEdits"] for name in wanted for item in document["devices"]
                     if item["name"] == name]  # fmt: skip
            assert len(edits) == len(wanted)
            edits.insert(0 if first == "common" else len(edits), document["containerEdits"])
            for part in edits:
                apply_edits(spec, part)

    yield edit
    registry.prune(LinuxKernel(), registry.base_directory())


#: What the host knows of a container: all, no first process, and on a kernel that has no number for its namespace.
KNOWN: tuple[dict[str, int], ...] = ({}, {"pid": 0}, {"pid": 0, "mounts": 0})
MOVED = f"""
    busybox mv {LIBS} /usr/lib/elsewhere
    mkdir -p {LIBS}/nvc && echo mine > {LIBS}/nvc/quota
    echo > /tmp/moved; exec sleep 600
"""


@pytest.mark.parametrize(("runtime", "known"), [("crun", KNOWN[0]), *(("runc", known) for known in KNOWN[1:])])
def test_a_slice_lives_wherever_its_container_moves_its_files(
    runc_bundle: Any, give: Any, runtime: str, known: dict[str, int]
) -> None:
    bundle = runc_bundle()
    give(bundle, "0:small")
    kernel, base = LinuxKernel(), registry.base_directory()
    with bundle.created(runtime, MOVED) as container:
        entry = entry_of(container.pid)
        container.start()
        until(lambda: os.path.exists(f"{bundle.rootfs}/tmp/moved"))
        assert (entry.pid, entry.start) == (container.pid, start_of(f"/proc/{container.pid}"))
        assert entry.mounts
        changed = entry.replace(**known)
        write_about(entry.directory, text_of(changed))
        assert living(kernel, (changed,))[entry.key].pids == (container.pid,)
        assert entry.key not in registry.prune(kernel, base) and os.path.exists(entry.quota)
        uuid = entry.devices[0].uuid
        found = sharers(snapshot(kernel, locked=False), uuid, "test")
        assert entry.key in [one.key for one in found]
    until(lambda: living(kernel, (changed,)) == {})  # its last process may still be ending


@pytest.mark.parametrize("again", [False, True])
def test_the_image_of_another_distribution_loads_the_shim(
    runc_bundle: Any, rootfs: Any, give: Any, again: bool
) -> None:
    """By its loader cache, and by the links in its own directory of libraries."""
    bundle = runc_bundle(as_fedora(rootfs()))
    give(bundle, "0:small")
    if again:
        bundle.run("runc", "true")
    with bundle.created("runc") as container:
        container.start()
        assert limits_of(container.pid) == [4 * GIB]
        for name in ("libcuda.so.1", "/usr/lib64/libcuda.so.1"):
            assert container.exec(f"open {name}").stdout == "loaded\n"
        same = container.exec(f"for name in /usr/lib64 {LIBS}; do stat -L -c %d:%i $name/libcuda.so.1; done")
        assert len(set(same.stdout.split())) == 1


@pytest.mark.parametrize(("runtime", "first"), [("runc", "common"), ("crun", "devices")])
def test_a_slice(runc_bundle: Any, give: Any, tool: str, runtime: str, first: str) -> None:
    """In whatever order an engine applies the edits."""
    bundle = runc_bundle()
    give(bundle, "0:small", "1:small", first=first)
    with bundle.created(runtime) as container:
        container.start()
        assert limits_of(container.pid) == [4 * GIB, 4 * GIB]
        entry = entry_of(container.pid)
        assert [(device.cores, device.weight, device.policy) for device in read_quota(entry)] == [(50, 3, 3)] * 2
        assert [device.index for device in entry.devices] == ["0", "1"] and entry.libs_dir == LIBS
        points = [line.split()[2].removeprefix(bundle.rootfs) for line in mounts(container.pid)]
        assert points.count(f"{LIBS}/nvc/quota") == points.count(f"{LIBS}/nvc/ledger") == 1
        if runtime == "crun":
            return
        inside = Inside(container, tool).start()
        assert inside.code("alloc a 5g") == OUT_OF_MEMORY
        inside.ask("alloc a 3g")
        inside.end()


def test_a_whole_device_beside_a_slice_stays_whole(runc_bundle: Any, give: Any) -> None:
    bundle = runc_bundle()
    give(bundle, "0", "1:small")
    with bundle.created("runc") as container:
        container.start()
        assert sorted(limits_of(container.pid)) == [4 * GIB, NO_LIMIT]
        root = f"/proc/{container.pid}/root{LIBS}"
        assert os.path.getsize(f"{root}/libnvidia-opencl.so.580.159.04") == 0


def test_a_size_is_reserved_as_it_says(runc_bundle: Any, give: Any) -> None:
    """Three slices of 60 GiB may share a GPU of 80 GiB; only one can have 50 GiB that nobody else reserves."""
    first, second, third = runc_bundle(), runc_bundle(), runc_bundle()
    give(first, "0:kept")
    give(second, "0:kept")
    give(third, "1:kept")
    with first.created("runc") as container:
        entry = entry_of(container.pid)
        assert [device.reserved for device in entry.devices] == [50 * GIB]
        assert limits_of(container.pid) == [60 * GIB]
        done = second.run("runc", "echo started", check=False)
        assert done.returncode != 0 and "started" not in done.stdout
        assert "50 GiB cannot be reserved: 30359 MiB of 81559 MiB is free" in done.stderr
        third.run("runc", "true")
    until(lambda: living(LinuxKernel(), (entry,)) == {})
    second.run("runc", "true")


@pytest.mark.parametrize("how", ["link", "directory"])
def test_a_node_that_is_mounted_is_refused(
    runc_bundle: Any, give: Any, sim_root: Callable[..., str], scratch: str, how: str
) -> None:
    """Without a limit of its own it is the whole GPU, which limits cannot follow."""
    bundle = runc_bundle()
    give(bundle, "0")
    facts = discover(LinuxKernel(), DriverOptions(root=sim_root(gpus=2)))
    second = facts.gpus[1]
    nodes = os.path.join(scratch, "nodes")
    os.mkdir(nodes)
    os.mknod(f"{nodes}/nvidia1", 0o20666, os.makedev(second.node.major, second.node.minor))
    os.symlink("nvidia1", f"{nodes}/link")
    source = {"link": f"{nodes}/link", "directory": nodes}[how]
    mount = {"source": source, "destination": "/mnt", "type": "bind", "options": ["rbind"]}
    bundle.config["mounts"].append(mount)
    ask(bundle, NVC_VGPU_MEMORY="2g")
    with pytest.raises(AssertionError, match="the node of GPU 1 is mounted"), bundle.created("runc"):
        pass
    ask(bundle, NVC_VGPU_MEMORY="")  # without limits it is what was asked for
    with bundle.created("runc"):
        pass


def test_a_node_under_another_name_cannot_be_opened(runc_bundle: Any, give: Any, scratch: str) -> None:
    """It is not looked for in volumes: the device rules have the devices that were named, and no others."""
    bundle = runc_bundle()
    give(bundle, "0:small")
    os.mkdir(f"{scratch}/nodes")
    for minor in (0, 1):
        os.mknod(f"{scratch}/nodes/disk{minor}", 0o20666, os.makedev(195, minor))
    options = {"type": "bind", "options": ["rbind", "rw", "dev"]}
    bundle.config["mounts"].append({"source": f"{scratch}/nodes", "destination": "/mnt", **options})
    errors = bundle.run("runc", "cat /mnt/disk0; cat /mnt/disk1; true").stderr.splitlines()
    assert "No such device or address" in errors[0] and "Operation not permitted" in errors[1], errors


def test_a_slice_is_not_mounted_where_the_host_would_see_it(
    runc_bundle: Any, give: Any, shared: str
) -> None:
    """A volume over the slice's own directory that is shared with the host."""
    bundle = runc_bundle()
    give(bundle, "0:small")
    words = {"type": "bind", "source": shared, "options": ["rbind", "rshared"]}
    bundle.config["mounts"].append({"destination": f"{LIBS}/nvc", **words})
    bundle.config["linux"]["rootfsPropagation"] = "rshared"
    before = on_host(shared), os.listdir(registry.base_directory())
    done = bundle.run("runc", "true", check=False)
    assert done.returncode != 0 and "the volume there is shared with the host" in done.stderr
    assert (on_host(shared), os.listdir(registry.base_directory())) == before


def test_without_its_hooks_the_shim_gives_nothing(runc_bundle: Any, give: Any, tool: str) -> None:
    """An engine that leaves hooks out has mounted the shim, which finds no quota."""
    bundle = runc_bundle()
    give(bundle, "0:small")
    hooks = bundle.config["hooks"]["createContainer"]
    kept = [hook for hook in hooks if "slice-memory" not in hook["args"]]
    simulating = [hook["args"].index("slice-memory") for hook in hooks if "slice-memory" in hook["args"]]
    kept += [{**hook, "args": hook["args"][: simulating[0]]} for hook in hooks if hook not in kept]
    bundle.config["hooks"]["createContainer"] = kept
    with bundle.created("runc") as container:
        container.start()
        assert entry_of(container.pid) is None
        inside = Inside(container, tool)
        inside.ask("init")
        assert inside.code("primary 0") == OUT_OF_MEMORY
        inside.end()


def test_a_user_namespace_of_nobody_who_is_logged_in(runc_bundle: Any, rootfs: Any, give: Any) -> None:
    """Its hooks may write nowhere on the host: no quota can be kept, so nothing is started."""
    bundle = runc_bundle(rootfs())
    for path, _, _ in os.walk(bundle.rootfs):
        os.chmod(path, 0o777)
    bundle.user_namespace()
    give(bundle, "0:small")
    done = bundle.run("runc", "echo started", check=False)
    assert done.returncode != 0 and "started" not in done.stdout
    place = "/run/user/100000"
    assert (
        f"read policies: {place}/nvc/vgpu-policy: cannot be made; {place} must be a directory" in done.stderr
    )
    assert "nvc-cli doctor host]" in done.stderr
