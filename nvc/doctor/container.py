"""Why a GPU program in a container fails: what it asked for, who was to give it that, its nodes and rules."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from nvc.apply.cgroup.denied import judge
from nvc.base.errors import MountError, NvcError, counted
from nvc.discovery.containers.files import read_bytes, table, text
from nvc.discovery.devices.nodes import CONTROL, UVM_TOOLS
from nvc.discovery.devices.proc import fields_of
from nvc.doctor import AS_ROOT, FAILED, OK, UNKNOWN, WARNING, Blocked, Check, Fact, Row, first
from nvc.doctor.context import Context
from nvc.doctor.host.registrations import NVIDIAS, OURS, kind_of
from nvc.doctor.host.system import LOST, lost_by, scope_of
from nvc.doctor.inside import Inside
from nvc.model.facts import HostFacts
from nvc.model.request import Request
from nvc.model.selection import select
from nvc.request.environment import CAPABILITIES, VISIBLE, is_known, requirements
from nvc.request.requirements import check as check_requirements

_NOTHING = ("", "none", "void")
_MIG = "/dev/nvidia-caps/"
AGAIN = "start the container again: it gets GPUs only when it starts"


def _asked(inside: Inside) -> tuple[str, ...]:
    """The selectors of NVIDIA_VISIBLE_DEVICES; () where it asks for no GPU, or does so by mounts."""
    value = inside.environment.get(VISIBLE, "")
    items = tuple(item.strip() for item in value.split(",")[:64] if item.strip())
    return () if not items or items[0] in _NOTHING or items[0].startswith("/") else items


def computes(inside: Inside) -> bool:
    """Whether it is to have CUDA: without `compute`, libcuda is rightly absent."""
    value = inside.environment.get(CAPABILITIES, "")
    return not value or "compute" in value or "all" in value


def _process(context: Context) -> Iterator[Fact]:
    inside = context.inside
    bundle = f", bundle {inside.found.bundle}" if inside.found.bundle else ""
    yield Fact(inside=inside, host=inside.shares_mounts, bundle=bundle, id=inside.found.id or "unknown")


def _request(context: Context) -> Iterator[Fact]:
    inside, asked = context.inside, _asked(context.inside)
    for one in context.slices[0]:
        if inside.pid in one.pids and one.entry.program:
            yield Fact(slice=one.name)
            return
    if not asked:
        value = inside.environment.get(VISIBLE)
        yield Fact(value="not set" if value is None else f"{value[:64]!r}", has=CONTROL in inside.nodes(),
                   name=inside.found.name,
                   created=not inside.found.bundle and inside.name.startswith(("runc:", "crun")))  # fmt: skip
        return
    facts, words = context.facts, ",".join(asked)[:80]
    try:
        chosen = select(facts, Request(devices=asked))
    except NvcError as error:
        yield Fact(asked=words, missing=error.cause or error.step, run=[f"{context.nvc_cli} info --format table"],
                   seen=first((f"GPU {gpu.index}: {gpu.uuid}" for gpu in facts.gpus), 16))  # fmt: skip
        return
    try:
        check_requirements(requirements(inside.environment), facts, chosen)
    except NvcError as error:
        yield Fact(demand=f"{error.step}: {error.cause}".removesuffix(": "), facts=facts, advice=error.hint)
    known = sorted(item for item in inside.environment.items() if is_known(item[0]))
    yield Fact(asked=words, gpus=counted(len(chosen.gpus), "GPU"), mig=counted(len(chosen.mig), "MIG device"),
               seen=[f"{name}={value[:64]!r}" for name, value in known])  # fmt: skip


def _hooks(context: Context) -> Iterator[Fact]:
    inside = context.inside
    if CONTROL in inside.nodes() or not _asked(inside):
        return
    kinds = table(inside.bundle[1].get("hooks")).values()
    programs = [text(table(entry).get("path")) for kind in kinds if isinstance(kind, list) for entry in kind]
    ours = next((program for program in programs if kind_of(program) in (OURS, NVIDIAS)), "")
    yield Fact(bundle=inside.found.bundle, count=len(programs), program=ours)


def _wanted(facts: HostFacts, inside: Inside) -> dict[str, tuple[int, int]]:
    """The nodes that it must have, with their numbers."""
    if not _asked(inside) and CONTROL not in inside.nodes():
        return {}
    needed = {"", "compute"} if computes(inside) else {""}
    found = [one.node for one in facts.controls if one.capability in needed and one.node.path != UVM_TOOLS]
    try:
        selection = select(facts, Request(devices=_asked(inside)))
    except NvcError:
        raise Blocked("container.request") from None
    found += [gpu.node for gpu in selection.gpus]
    return {node.path: (node.major, node.minor) for node in found}


def _nodes(context: Context) -> Iterator[Fact]:
    there = context.inside.nodes()
    wanted = _wanted(context.facts, context.inside)
    for path, (major, minor) in wanted.items():
        node = there.get(path)
        if node is None:
            yield Fact(missing=path, there=", ".join(sorted(there)) or "no node of NVIDIA")
        elif (node.major, node.minor) != (major, minor):
            yield Fact(node=node, number=f"{major}:{minor}")
    more = [path for path in sorted(there) if path.removeprefix("/dev/nvidia").isdigit() and path not in wanted]
    if _asked(context.inside) and more:
        yield Fact(more=len(more), seen=first(more, 16))


def _rules(context: Context) -> Iterator[Fact]:
    """A container that may make nodes has whichever it likes: what it asked for is what it is to be allowed.

    Nodes of MIG rights are there for all instances, and allowed for its own alone.
    """
    inside, asked = context.inside, bool(_asked(context.inside))
    there = inside.nodes()
    expected = set(_wanted(context.facts, inside)) if asked else set(there)
    numbers = {
        (node.major, node.minor): path
        for path, node in there.items()
        if path in expected and not path.startswith(_MIG)
    }
    try:
        found = judge(context.kernel, inside.pid, tuple(numbers))
    except MountError as error:
        yield Fact(unread=error.cause)
        return
    listed = found.place.endswith("devices.list")
    allow = f"{os.path.dirname(found.place)}/devices.allow"
    if found.denied:
        yield Fact(
            place=found.place,
            denied=", ".join(sorted(numbers[number] for number in found.denied)),
            run=[f"echo 'c {n[0]}:{n[1]} rw' > {allow}" for n in sorted(found.denied) if listed and asked],
            advice="" if listed else AGAIN,
        )
    if found.unknown:
        nodes = ", ".join(sorted(numbers[number] for number in found.unknown))
        yield Fact(place=found.place, unknown=nodes, cause=found.cause)


def _systemd(context: Context) -> Iterator[Fact]:
    scope = scope_of(context.inside.pid)
    if scope and CONTROL in context.inside.nodes():
        yield from lost_by(scope, context.inside.pid)


def _user(context: Context) -> Iterator[Fact]:
    """Whether the user of the first process may open the nodes."""
    status = fields_of(read_bytes(f"/proc/{context.inside.pid}/status"))
    if not status:
        return  # it has ended
    uid, *groups = (int(status[name].split()[1]) for name in ("Uid", "Gid"))
    groups += map(int, status["Groups"].split())
    for path, node in context.inside.nodes().items():
        shift = 6 if node.status.st_uid == uid else 3 if node.status.st_gid in groups else 0
        if uid and not path.startswith(_MIG) and (node.status.st_mode >> shift) & 6 != 6:
            yield Fact(user=uid, path=path, status=node.status, mode=stat.S_IMODE(node.status.st_mode),
                       groups=", ".join(map(str, groups)))  # fmt: skip


CHECKS = (
    Check("container.process", "the process, its bundle and its mounts", _process, (
        Row(WARNING, "process {inside.pid} ({inside.name}) has the host's mounts, so it is not in a container",
            "host", advice="pass the process id of a container, or its name"),
        Row(OK, "process {inside.pid} ({inside.name}) of container {id}{bundle}"),
    )),
    Check("container.request", f"{VISIBLE} against the devices of this host", _request, (
        Row(OK, "it is a program of `vgpu run`, slice {slice}", "slice"),
        Row(WARNING, "its image requires another driver: {demand}", "demand",
            seen=("driver {facts.driver_label}, CUDA {facts.cuda_version}",),
            advice="it was started with NVIDIA_DISABLE_REQUIRE, or by another toolkit"),
        Row(FAILED, "it asks for {asked}, which this host does not have: {missing}", "missing",
            advice=f"start it with a {VISIBLE} that this host has"),
        Row(OK, "it asks for {asked}: {gpus}, {mig}", "asked"),
        Row(UNKNOWN, "it was created but not started: its variables are not known yet", "created",
            run=("nvc-cli doctor --container {name}",)),
        Row(OK, "it got its devices by name (CDI) or by a mount, not by a variable", "has"),
        Row(FAILED, f"it did not ask for a GPU: {VISIBLE} is {{value}}, and it has no GPU by name (CDI)",
            run=("docker run --runtime nvc -e NVIDIA_VISIBLE_DEVICES=all IMAGE",),
            advice="or ask by name: --device nvidia.com/gpu=all (podman, docker 25 and newer)"),
    )),
    Check("container.hooks", "the hooks of its bundle", _hooks, (
        Row(UNKNOWN, "its bundle was not found, so its hooks are not known", lambda it: not it.bundle,
            advice="its runtime keeps its state elsewhere; docker inspect and podman inspect show the runtime"),
        Row(FAILED, "{program} should have given it GPUs but did not", "program",
            advice="look at its log: [nvc] log in /etc/nvc/config.toml; nvc-cli doctor config engines"),
        Row(FAILED, "nothing gives it GPUs: its bundle has no hook of nvc and no CDI device",
            seen=("{bundle}/config.json has {count} hooks",),
            run=("nvc-cli runtime configure --engine docker",
                 "docker run --runtime nvc -e NVIDIA_VISIBLE_DEVICES=all IMAGE"),
            advice="--engine names other engines too; docs/hooks.md has all ways"),
    )),
    Check("container.nodes", "its device nodes against the driver's", _nodes, (
        Row(WARNING, "it has nodes of {more} GPUs that it did not ask for", "more",
            advice="they come from --privileged, --device or another toolkit"),
        Row(FAILED, "{missing} is missing in the container", "missing", seen=("it has {there}",), advice=AGAIN),
        Row(FAILED, "{node.path} is {node.major}:{node.minor} in the container, the driver's is {number}",
            advice=f"the driver was reloaded after the container started: {AGAIN}"),
    )),
    Check("container.rules", "its device rules against its device nodes", _rules, (
        Row(UNKNOWN, "its device rules cannot be read: {unread}", "unread", advice=AS_ROOT),
        Row(UNKNOWN, "whether its cgroup allows {unknown} is not known: {cause}", "unknown", seen=("{place}",),
            advice="open one in the container: `Operation not permitted` means that the cgroup denies it"),
        Row(FAILED, "its cgroup denies {denied}: programs get `Operation not permitted`, NVML `Unknown Error`",
            seen=("{place}",),
            advice="systemd was reloaded, or something else rewrote the rules: give devices by CDI"),
    )),
    Check("container.systemd", "GPUs that it loses when systemd reloads", _systemd, LOST),
    Check("container.user", "whether its user can open the device nodes", _user, (
        Row(FAILED, "user {user} of the container cannot open {path}: its group is {status.st_gid}",
            seen=("mode {mode:04o}, owner {status.st_uid}:{status.st_gid}, the process has groups {groups}",),
            run=("docker run --group-add {status.st_gid} IMAGE",),
            advice="or set the node's mode to 0666 with the driver's option NVreg_DeviceFileMode"),
    )),
)  # fmt: skip
