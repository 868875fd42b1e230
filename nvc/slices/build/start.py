"""What a container's start needs of a slice that was made for a claim: the file `start` in the slice's directory.

The launcher reads it, native/launcher/cdi_recipe.c, and then needs no interpreter. A slice without the file, and a
container that has more than its slices, are for nvc/cdi/hooks/slices.py. The two are compared by
tests/kernel/test_cdi_claims_agree.py.
"""

from __future__ import annotations

import nvc
from nvc.plan.slices import warnings
from nvc.slices.build.shadow_libraries import SONAMES, searched
from nvc.slices.model import layout
from nvc.slices.model.policy import policy_of
from nvc.slices.model.slice import Slice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.discovery.key import Look
    from nvc.model import DeviceNode, HostFacts
    from nvc.slices.model.slice import SliceDevice

#: As native/launcher/cdi_recipe.h has them.
_ITEMS, _LIBRARIES, _COVERS, _LOOKS, _SIZE = 64, 8, 256, 256, 1 << 16


def start_text(
    facts: HostFacts,
    devices: tuple[SliceDevice, ...],
    libs_dir: str,
    arguments: tuple[str, ...],
    options: tuple[str, ...],
    looks: tuple[Look, ...],
) -> str:
    """The content of the file for a slice with these devices, "" where its containers need the long way.

    `arguments` are the slice's devices as hooks name them, `options` the other options of these hooks. `looks` are
    those by which the facts hold. The launcher repeats the ones at /proc and /sys: modules, GPUs, MIG devices.
    """
    seen = [look for look in looks if look[0] == "S"]
    if _is_seldom(facts, devices) or not seen:
        return ""
    shimmed = [library for library in facts.libraries if library.soname in SONAMES]
    covers = [
        library.path
        for library in facts.libraries
        if library.soname not in SONAMES and not library.counted
    ]
    covers += [library.path for library in facts.libraries32]
    lines = [f"nvc {nvc.__version__}"]
    lines += [f"option {option}" for option in options]
    lines += [f"slice {argument}" for argument in arguments]
    lines += [f"driver {facts.driver_version}", f"root {facts.driver_root}", f"libraries {libs_dir}"]
    lines += [f"system {facts.system_root}"]
    lines += [f"look S{kind}{_quoted(path.encode())} {_quoted(answer)}" for _, kind, path, answer in seen]
    lines += [f"ledger {layout.LEDGER_SIZE}"]
    lines += [f"nvcd {int(any(policy_of(one.asked_policy).needs_nvcd for one in devices))}"]
    nodes = dict.fromkeys((node.major, node.minor) for node in _nodes(facts, devices))
    lines += [f"node {major} {minor}" for major, minor in nodes]
    lines += [f"search {directory}" for directory in searched()]
    for library in shimmed:
        one = library.identity
        lines.append(
            f"shim {library.soname} {one.device} {one.inode} {one.size} {one.mtime_ns} {library.path}"
        )
    lines += [f"cover {path}" for path in covers]
    counts = (len(options), _ITEMS), (len(arguments), _ITEMS), (len(nodes), _ITEMS), (len(shimmed), _LIBRARIES)
    fits = all(count <= most for count, most in (*counts, (len(covers), _COVERS), (len(seen), _LOOKS)))
    plain = all(line.isascii() and line.isprintable() for line in lines)
    text = "".join(f"{line}\n" for line in (*lines, "end"))
    return text if fits and plain and len(text) <= _SIZE else ""


def _quoted(text: bytes) -> str:
    """ASCII without blanks and control characters, which become %xx."""
    return "".join([chr(byte) if 32 < byte < 127 and byte != 37 else f"%{byte:02x}" for byte in text])


def _is_seldom(facts: HostFacts, devices: tuple[SliceDevice, ...]) -> bool:
    """Whether a slice has what the launcher does not know, or something is to be said at each start."""
    return (
        facts.outer is not None
        or any(one.hidden or one.isolation or one.reserved or policy_of(one.asked_policy).server for one in devices)
        or any(one.policy != one.asked_policy for one in devices)
        or bool(warnings(Slice(devices, "", (), "")))
    )


def _nodes(facts: HostFacts, devices: tuple[SliceDevice, ...]) -> Iterator[DeviceNode]:
    """Nodes that a container with just these devices may have: the driver's, and theirs."""
    uuids = {one.uuid for one in devices}
    for node in (facts.control, *facts.uvm, facts.modeset):
        if node is not None:
            yield node
    for gpu in facts.gpus:
        parts = [part for part in gpu.mig if part.uuid in uuids]
        if parts or gpu.uuid in uuids:
            yield gpu.node
        for part in parts:
            yield from (node for node in (part.gi_node, part.ci_node) if node is not None)
