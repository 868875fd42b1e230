"""Why a GPU program in a container fails: what it asked for, who was to give it that, its nodes and rules."""

from __future__ import annotations

import os
import stat

from nvc.discovery.nodes import CONTROL, UVM
from nvc.doctor import AS_ROOT, Blocked, Check, failed, first, ok, unknown, warning
from nvc.doctor.context import read_text
from nvc.doctor.inside import Inside
from nvc.doctor.registrations import NVIDIAS, OURS, kind_of
from nvc.doctor.system import LOST, lost_by, scope_of
from nvc.environment import CAPABILITIES, MAX_REQUIREMENT, MAX_REQUIREMENTS, REQUIRE, VISIBLE, is_known
from nvc.errors import ContainerError, MountError, NvcError
from nvc.oci import MAX_CONFIG
from nvc.request import Request
from nvc.requirements import check as check_requirements
from nvc.selection import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nvc.doctor import Finding
    from nvc.doctor.context import Context
    from nvc.model import HostFacts

_NOTHING = ("", "none", "void")
AGAIN = "start the container again: it gets GPUs only when it starts"


def looking_into(
    check: Callable[[Context, Inside], Iterator[Finding]],
) -> Callable[[Context], Iterator[Finding]]:
    """A check of what is in the container."""

    def run(context: Context) -> Iterator[Finding]:
        assert context.container is not None
        try:
            inside = Inside(context.kernel, context.container)
        except ContainerError as error:
            yield unknown(f"{error.path} cannot be looked at: {error.cause}", advice=AS_ROOT)
            return
        try:
            yield from check(context, inside)
        finally:
            inside.close()

    return run


def _asked(inside: Inside) -> tuple[str, ...]:
    """The selectors of NVIDIA_VISIBLE_DEVICES; () where it asks for no GPU, or does so by mounts."""
    value = inside.environment.get(VISIBLE, "")
    items = tuple(item.strip() for item in value.split(",")[:64] if item.strip())
    return () if not items or items[0] in _NOTHING or items[0].startswith("/") else items


def _gpu_minors(inside: Inside) -> set[int]:
    """Minors of GPUs whose nodes it has, whatever their numbers."""
    return {node.minor for path, node in inside.nodes().items() if path[len("/dev/nvidia") :].isdigit()}


@looking_into
def process(context: Context, inside: Inside) -> Iterator[Finding]:
    """Whether it is a container at all."""
    if inside.shares_mounts:
        yield warning(
            f"process {inside.pid} ({inside.name}) has the host's mounts, so it is not in a container",
            advice="pass the process id of a container, or its name",
        )
        return
    bundle = f", bundle {inside.found.bundle}" if inside.found.bundle else ""
    yield ok(f"process {inside.pid} ({inside.name}) of container {inside.found.id or 'unknown'}{bundle}")


@looking_into
def request(context: Context, inside: Inside) -> Iterator[Finding]:
    """What it asks for, and whether there is such a thing."""
    nodes = inside.nodes()
    asked = _asked(inside)
    value = inside.environment.get(VISIBLE)
    if not asked:
        if not inside.found.bundle and inside.name.startswith(("runc:", "crun")):
            yield unknown(
                "it was created but not started: its variables are not known yet",
                commands=(f"nvc-cli doctor --container {inside.found.name}",),
            )
        elif CONTROL in nodes:
            yield ok("it got its devices by name (CDI) or by a mount, not by a variable")
        else:
            shown = "not set" if value is None else f"{value[:64]!r}"
            yield failed(
                f"it did not ask for a GPU: {VISIBLE} is {shown}, and it has no GPU by name (CDI)",
                commands=("docker run --runtime nvc -e NVIDIA_VISIBLE_DEVICES=all IMAGE",),
                advice="or ask by name: --device nvidia.com/gpu=all (podman, docker 25 and newer)",
            )
        return
    try:
        chosen = select(context.facts, Request(devices=asked))
    except NvcError as error:
        yield failed(
            f"it asks for {','.join(asked)[:80]}, which this host does not have: {error.cause or error.step}",
            *first((f"GPU {gpu.index}: {gpu.uuid}" for gpu in context.facts.gpus), 16),
            commands=(f"{context.nvc_cli} info --format table",),
            advice=f"start it with a {VISIBLE} that this host has",
        )
        return
    demands = tuple(
        value[:MAX_REQUIREMENT]
        for name, value in inside.environment.items()
        if name.startswith(REQUIRE) and not name.startswith(f"{REQUIRE}JETPACK") and value
    )
    try:
        check_requirements(demands[:MAX_REQUIREMENTS], context.facts, chosen)
    except NvcError as error:
        yield warning(
            f"its image requires another driver: {error.step}: {error.cause}".removesuffix(": "),
            f"driver {context.facts.driver_label}, CUDA {context.facts.cuda_version}",
            advice=f"{error.hint}; it was started with NVIDIA_DISABLE_REQUIRE, or by another toolkit",
        )
    yield ok(
        f"it asks for {','.join(asked)[:80]}: {len(chosen.gpus)} GPUs, {len(chosen.mig)} MIG devices",
        *(f"{name}={text[:64]!r}" for name, text in sorted(inside.environment.items()) if is_known(name)),
    )


@looking_into
def hooks(context: Context, inside: Inside) -> Iterator[Finding]:
    """Whether anything was to give it what it asks for."""
    if CONTROL in inside.nodes() or not _asked(inside):
        yield ok("it has device nodes" if CONTROL in inside.nodes() else "it asks for nothing")
        return
    if not inside.found.bundle:
        yield unknown(
            "its bundle was not found, so its hooks are not known",
            advice="its runtime keeps its state elsewhere; docker inspect and podman inspect show the runtime",
        )
        return
    programs = _hook_programs(inside)
    known = [program for program in programs if kind_of(program) in (OURS, NVIDIAS)]
    if not known:
        yield failed(
            "nothing gives it GPUs: its bundle has no hook of nvc and no CDI device",
            f"{inside.found.bundle}/config.json has {len(programs)} hooks",
            commands=(
                "nvc-cli runtime configure --engine docker",
                "docker run --runtime nvc -e NVIDIA_VISIBLE_DEVICES=all IMAGE",
            ),
            advice="podman, containerd and crio have the same option; docs/hooks.md has all ways",
        )
        return
    yield failed(
        f"{known[0]} should have given it GPUs but did not",
        advice="look at its log: [nvc] log in /etc/nvc/config.toml; nvc-cli doctor config engines",
    )


def _hook_programs(inside: Inside) -> list[str]:
    from nvc.doctor.context import read_file
    from nvc.fastjson import JsonError, parse

    try:
        data = read_file(f"{inside.found.bundle}/config.json", MAX_CONFIG + 1) or b""
        document = parse(data, MAX_CONFIG)
    except (OSError, JsonError):
        return []
    table = document.get("hooks") if isinstance(document, dict) else None
    kinds = table.values() if isinstance(table, dict) else ()
    entries = [entry for kind in kinds if isinstance(kind, list) for entry in kind]
    return [str(entry["path"]) for entry in entries if isinstance(entry, dict) and "path" in entry]


@looking_into
def nodes(context: Context, inside: Inside) -> Iterator[Finding]:
    """Whether its nodes are those that it asked for, with the driver's numbers of now."""
    there = inside.nodes()
    facts = context.facts
    wanted = _wanted(facts, inside)
    for path, (major, minor) in wanted.items():
        node = there.get(path)
        if node is None:
            yield failed(
                f"{path} is missing in the container",
                f"it has {', '.join(sorted(there)) or 'no node of NVIDIA'}",
                advice=AGAIN,
            )
        elif (node.major, node.minor) != (major, minor):
            yield failed(
                f"{path} is {node.major}:{node.minor} in the container, the driver's is {major}:{minor}",
                advice=f"the driver was reloaded after the container started: {AGAIN}",
            )
    asked = _asked(inside)
    minors = {minor for path, (_, minor) in wanted.items() if path[len("/dev/nvidia") :].isdigit()}
    more = _gpu_minors(inside) - minors
    if asked and more:
        yield warning(
            f"it has nodes of {len(more)} GPUs that it did not ask for",
            *first((f"/dev/nvidia{minor}" for minor in sorted(more)), 16),
            advice="they come from --privileged, --device or another toolkit",
        )
    yield ok(f"{len(there)} nodes of NVIDIA")


def _wanted(facts: HostFacts, inside: Inside) -> dict[str, tuple[int, int]]:
    """The nodes that it must have, with their numbers."""
    if not _asked(inside) and CONTROL not in inside.nodes():
        return {}
    found = [facts.control] if facts.control is not None else []
    capabilities = inside.environment.get(CAPABILITIES, "compute,utility") or "compute,utility"
    if "compute" in capabilities or "all" in capabilities:
        found += [node for node in facts.uvm if node.path == UVM]
    try:
        selection = select(facts, Request(devices=_asked(inside)))
    except NvcError:
        raise Blocked("container.request") from None
    found += [gpu.node for gpu in selection.gpus]
    return {node.path: (node.major, node.minor) for node in found}


@looking_into
def rules(context: Context, inside: Inside) -> Iterator[Finding]:
    """Whether its cgroup lets it open its nodes."""
    there = inside.nodes()
    numbers = {(node.major, node.minor): path for path, node in there.items()}
    # A container that may make nodes has whichever it likes: what it asked for is what it is to be allowed. Nodes
    # of MIG rights are there for all instances, and allowed for its own alone.
    asked = bool(_asked(inside))
    expected = set(_wanted(context.facts, inside)) if asked else set(there)
    wanted = tuple(
        number
        for number, path in numbers.items()
        if path in expected and not path.startswith("/dev/nvidia-caps/")
    )
    try:
        denied, place = inside.denied(wanted)
    except (MountError, OSError) as error:
        cause = error.cause if isinstance(error, MountError) else (error.strerror or str(error)).lower()
        yield unknown(f"its device rules cannot be read: {cause}", advice=AS_ROOT)
        return
    if denied:
        paths = sorted(numbers[number] for number in denied)
        listed, allow = place.endswith("devices.list"), f"{os.path.dirname(place)}/devices.allow"
        yield failed(
            f"its cgroup denies {', '.join(paths)}: programs get `Operation not permitted`, NVML `Unknown Error`",
            place,
            commands=tuple(f"echo 'c {n[0]}:{n[1]} rw' > {allow}" for n in sorted(denied))
            if listed and asked
            else (),
            advice="systemd was reloaded, or something else rewrote the rules: give devices by CDI"
            + ("" if listed else f"; {AGAIN}"),
        )
        return
    yield ok(f"its cgroup allows {len(wanted)} nodes", place)


@looking_into
def scope(context: Context, inside: Inside) -> Iterator[Finding]:
    """Whether systemd would take its nodes away."""
    name = scope_of(inside.pid)
    if name and CONTROL in inside.nodes():
        yield from (LOST[0].of(fact) for fact in lost_by(name, inside.pid))


@looking_into
def user(context: Context, inside: Inside) -> Iterator[Finding]:
    """Whether the user of its first process may open the nodes."""
    ids: dict[str, list[int]] = {}
    for line in read_text(f"/proc/{inside.pid}/status", 1 << 16).splitlines():
        name, _, values = line.partition(":")
        if name in ("Uid", "Gid", "Groups"):
            ids[name] = [int(value) for value in values.split() if value.isdigit()]
    uid = (ids.get("Uid") or [0, 0])[1]
    groups = {(ids.get("Gid") or [0, 0])[1], *ids.get("Groups", [])}
    if uid == 0:
        return
    for node in inside.nodes().values():
        if node.path.startswith("/dev/nvidia-caps/"):
            continue
        shift = 6 if node.uid == uid else 3 if node.gid in groups else 0
        if (stat.S_IMODE(node.mode) >> shift) & 6 != 6:
            yield failed(
                f"user {uid} of the container cannot open {node.path}: its group is {node.gid}",
                f"mode {stat.S_IMODE(node.mode):04o}, owner {node.uid}:{node.gid}, "
                f"the process has groups {','.join(map(str, sorted(groups)))}",
                commands=(f"docker run --group-add {node.gid} IMAGE",),
                advice="or set the node's mode to 0666 with the driver's option NVreg_DeviceFileMode",
            )


CHECKS = (
    Check("container.process", "the process, its bundle and its mounts", process),
    Check("container.request", f"{VISIBLE} against the devices of this host", request),
    Check("container.hooks", "the hooks of its bundle", hooks),
    Check("container.nodes", "its device nodes against the driver's", nodes),
    Check("container.rules", "its device rules against its device nodes", rules),
    Check("container.systemd", "GPUs that it loses when systemd reloads", scope),
    Check("container.user", "whether its user can open the device nodes", user),
)
