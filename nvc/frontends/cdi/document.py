"""build_document: host facts in, one CDI specification out. No system calls, equal input gives equal output.

What a container gets is what the plan for it would hold; this module only says it in the words of the
specification. Left out is what no engine could do from a document: the view of /proc/driver/nvidia that shows
selected GPUs alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nvc.apply.target import Layout
from nvc.base.errors import DeviceError, InternalError
from nvc.base.value import Value
from nvc.frontends.cdi.hookspec import (
    COMPAT,
    LIMIT_STEP,
    LINKS,
    OPTION,
    PROFILE,
    STEP,
    Step,
    hook_entries,
    outside_entry,
)
from nvc.frontends.cdi.sliced import Slicing, sliced, written
from nvc.frontends.cdi.versions import lowest_version
from nvc.model.facts import DeviceNode, Gpu, HostFacts, MigDevice
from nvc.model.request import Request
from nvc.model.selection import Selection
from nvc.model.slices.slice import Slice, library_directory, shared_slice
from nvc.plan import ops
from nvc.plan.build import build_plan
from nvc.plan.devices import device_links, groups_of

STRATEGIES = ("index", "uuid", "type-index")

#: The device that is none.
NONE = "none"
VOID = "NVIDIA_VISIBLE_DEVICES=void"
_GRAPHICS = ("graphics", "display")


class DocumentOptions(Value):
    """How a document is to look; what it gives a container is the request's matter."""

    hook_path: str
    vendor: str = "nvidia.com"
    device_class: str = "gpu"
    strategies: tuple[str, ...] = ("index", "uuid")
    all_device: bool = True
    disabled_hooks: tuple[str, ...] = ()
    additional_gids: bool = False
    none_device: bool = False  # also a device that is none: the driver alone
    stamp: str = ""
    #: Where the hook that makes slices looks for the driver, as its options.
    driver_arguments: tuple[str, ...] = ()
    own_hook: bool = False  # the program at `hook_path` is nvc-cdi-hook, whatever its name
    ldconfig_path: str = ""  # for hooks of other programs: nvc's runs no ldconfig


class NodeStatus(Value):
    """What the host says of a device node."""

    major: int
    minor: int
    mode: int  # permission bits
    uid: int
    gid: int


def build_document(
    facts: HostFacts,
    selection: Selection,
    request: Request,
    options: DocumentOptions,
    nodes: dict[str, NodeStatus],
    slicing: Slicing | None = None,
) -> dict[str, Any]:
    """The specification for the selected devices, in the lowest version that can express it.

    `nodes` has the status of device nodes by path, those that exist. With `slicing` the devices are slices of
    those, named `<device>:<size>`. Raises DeviceError when there is no device to name: engines refuse a file
    without one.
    """
    layout = Layout("", library_directory(facts), "", False, as_host=True)
    slice = Slice((), "", slicing.shims, "", uncounted=slicing.uncounted) if slicing else None
    if facts.outer is not None:  # this container's own: what nested ones share never changes
        slice = shared_slice(facts)
    common = build_plan(facts, Selection(), request, layout, (), slice)
    writer = _Writer(facts, options, nodes)
    shared = frozenset(common.ops)
    parts = {} if slicing is None else sliced(facts, slicing)
    devices = []
    everything: dict[str, list[dict[str, Any]]] = {}
    for names, gpu, mig in _named(selection, options.strategies):
        chosen = Selection((gpu,), ((gpu, mig),) if mig else ())
        plan = build_plan(facts, chosen, request, layout, (), slice)
        dri = gpu.dri_nodes if any(name in request.capabilities for name in _GRAPHICS) else ()
        # Under WSL the one node is every GPU's and the control node: a device without it would change nothing.
        own = ops.BindDevice(gpu.node.path, gpu.node.path, gpu.node.major, gpu.node.minor)
        operations = [op for op in plan.ops if op == own or op not in shared]
        if slicing is None:
            edits = writer.device_edits(operations, dri)
            everything.setdefault("all", []).append(edits)
            devices += [{"name": name, "containerEdits": edits} for name in names]
            continue
        for size, part in parts.get(mig.uuid if mig else gpu.uuid, ()):
            argument = f"--{OPTION}={written(part)}"
            edits = writer.device_edits(operations, dri, argument, bool(part.isolation))
            everything.setdefault(f"all:{size}", []).append(edits)
            devices += [{"name": f"{name}:{size}", "containerEdits": edits} for name in names]
    if not devices and not options.none_device:
        raise DeviceError("no device", cause="no GPU or MIG device found")
    if options.all_device:
        devices += [{"name": name, "containerEdits": merged(all_of)} for name, all_of in everything.items()]
    if options.none_device:  # engines refuse one without edits
        devices.append({"name": NONE, "containerEdits": {"env": [VOID]}})
    document: dict[str, Any] = {
        "cdiVersion": "",
        "kind": f"{options.vendor}/{options.device_class}",
        "devices": devices,
        "containerEdits": writer.common_edits(common.ops, selection, request, slicing is not None),
    }
    document["cdiVersion"] = lowest_version(document)
    return document


def _named(
    selection: Selection, strategies: tuple[str, ...]
) -> list[tuple[tuple[str, ...], Gpu, MigDevice | None]]:
    """The devices with their names. A GPU in MIG mode is none itself: nothing can run on it as a whole."""
    found: list[tuple[tuple[str, ...], Gpu, MigDevice | None]] = []
    for gpu in selection.gpus:
        if not gpu.mig_enabled:
            by = {"index": f"{gpu.index}", "uuid": gpu.uuid, "type-index": f"gpu{gpu.index}"}
            found.append((tuple(by[strategy] for strategy in strategies), gpu, None))
    for gpu, mig in selection.mig:
        place = f"{gpu.index}:{mig.index}"
        by = {"index": place, "uuid": mig.uuid, "type-index": f"mig{place}"}
        found.append((tuple(by[strategy] for strategy in strategies), gpu, mig))
    return found


class Sorted:
    """The operations of a plan by what says them in a document. Raises InternalError for what nothing does."""

    def __init__(self, operations: Iterable[ops.Op]) -> None:
        self.files: list[ops.BindFile | ops.BindSocket] = []
        self.own: list[ops.BindHostFile] = []
        self.nodes: list[ops.BindDevice] = []
        self.proc: list[ops.BindProc] = []
        self.links: list[ops.Symlink] = []
        self.entries: list[ops.LoaderEntry] = []
        for op in operations:
            if isinstance(op, (ops.BindFile, ops.BindSocket)):
                self.files.append(op)
            elif isinstance(op, ops.BindHostFile):
                self.own.append(op)
            elif isinstance(op, ops.BindDevice):
                self.nodes.append(op)
            elif isinstance(op, ops.BindProc):
                self.proc.append(op)
            elif isinstance(op, ops.Symlink):
                self.links.append(op)
            elif isinstance(op, ops.UpdateLoaderCache):
                self.entries += op.entries
            elif isinstance(op, (ops.AllowDevice, ops.Tmpfs, ops.Ledger)):
                # Engines make rules of nodes. A ledger is one container's, and so are the files of a tmpfs: hooks
                # make them.
                pass
            elif isinstance(op, (ops.BindDeviceDirectory, ops.BindInside)):
                raise InternalError("write CDI specification", op.target, "cannot be said in one")
            else:
                ops.assert_never(op)


class _Writer:
    """Turns operations of a plan into container edits."""

    def __init__(self, facts: HostFacts, options: DocumentOptions, nodes: dict[str, NodeStatus]) -> None:
        self.facts = facts
        self.options = options
        self.nodes = nodes

    def device_edits(
        self, operations: list[ops.Op], dri: tuple[str, ...], slice: str = "", isolated: bool = False
    ) -> dict[str, Any]:
        """The edits that one device adds to the common ones; `slice` is what its hook is to make of it.

        If it is `isolated`, another hook has the driver limit the container's cgroup.
        """
        found = Sorted(operations)
        nodes = [self._node(op.source, op.major, op.minor) for op in found.nodes]
        for path in dri:
            status = self.nodes.get(path)
            if status is not None:
                nodes.append(self._node(path, status.major, status.minor))
        edits: dict[str, Any] = {"deviceNodes": nodes}
        steps = []
        if self.facts.simulated:
            paths = [f"--entry={op.source}" for op in found.proc]
            steps.append(Step("simulate-proc", (f"--driver-root={self.facts.driver_root}", *paths)))
        if slice:
            steps.append(Step(STEP, (*self.options.driver_arguments, slice)))
        if steps:
            edits["hooks"] = self._hooks(steps)
        if isolated:
            limit = Step(LIMIT_STEP, (*self.options.driver_arguments, slice))
            how = self.options
            edits["hooks"].append(outside_entry(how.hook_path, limit, how.stamp, how.own_hook))
        return self._with_gids(edits)

    def common_edits(
        self, operations: tuple[ops.Op, ...], selection: Selection, request: Request, slices: bool
    ) -> dict[str, Any]:
        """The edits of every container that uses one of the selected devices, which are `slices` or whole ones."""
        found = Sorted(operations)
        mounts = [self._mount(op, below(self.facts.driver_root, op.source)) for op in found.files]
        # The shim, on files of ours. The quota is a container's own: the hook mounts it.
        shared = self.facts.outer is not None
        mounts += [self._mount(op, op.source) for op in found.own if op.identity is not None or shared]
        if "create-symlinks" in self.options.disabled_hooks:
            mounts += self._names(found)
        mounts.sort(key=lambda mount: (mount["containerPath"].count("/"), mount["containerPath"]))
        nodes = [self._node(op.source, op.major, op.minor) for op in found.nodes]
        steps = [step for step in self._steps(found, selection, request, slices)
                 if step.name not in self.options.disabled_hooks]  # fmt: skip
        edits: dict[str, Any] = {
            # A prestart hook that is registered too sees this and leaves the container alone.
            "env": [VOID],
            "deviceNodes": nodes,
            "mounts": mounts,
            "hooks": self._hooks(steps),
        }
        return self._with_gids({name: value for name, value in edits.items() if value})

    def _steps(self, found: Sorted, selection: Selection, request: Request, slices: bool) -> Iterable[Step]:
        if not slices:  # whose variables may still ask for one
            yield Step(STEP, self.options.driver_arguments)
        links = [f"--link={op.text}::{op.target}" for op in found.links]
        if links:
            yield Step("create-symlinks", tuple(links))
        graphics = any(name in request.capabilities for name in _GRAPHICS)
        nodes = [link for gpu in selection.gpus for link in device_links(gpu)] if graphics else []
        if nodes:
            yield Step(LINKS, tuple(f"--link={text}::{path}" for text, path in nodes))
        if "compute" in request.capabilities and request.cuda_compat_mode != "disabled" and not slices:
            yield Step(COMPAT, (f"--host-driver-version={self.facts.driver_version}",))
        folders = dict.fromkeys(entry.path[: entry.path.rindex("/")] for entry in found.entries)
        if folders:
            ldconfig = self.options.ldconfig_path
            how = (f"--ldconfig-path={ldconfig}",) if ldconfig else ()
            yield Step("update-ldcache", (*how, *(f"--folder={folder}" for folder in folders)))
        if not self.facts.simulated:
            yield Step("disable-device-node-modification")
        if graphics:
            yield Step(PROFILE)

    def _hooks(self, steps: list[Step]) -> list[dict[str, Any]]:
        how = self.options
        return hook_entries(how.hook_path, tuple(steps), how.stamp, how.own_hook)

    def _mount(self, op: ops.BindFile | ops.BindSocket | ops.BindHostFile, host: str) -> dict[str, Any]:
        options = [*ops.options_of(op.attributes), "rbind", "rprivate"]
        return {"hostPath": host, "containerPath": op.target, "options": options}

    def _names(self, found: Sorted) -> Iterable[dict[str, Any]]:
        """Mounts under the SONAMEs, by which programs open libraries, where no hook makes links of them."""
        files = {op.target: op for op in (*found.files, *found.own)}
        for link in found.links:
            op = files.get(link.fallback)
            if op is not None and link.text == link.fallback[link.fallback.rindex("/") + 1 :]:
                own = isinstance(op, ops.BindHostFile)
                host = op.source if own else below(self.facts.driver_root, op.source)
                yield {**self._mount(op, host), "containerPath": link.target}

    def _node(self, path: str, major: int, minor: int) -> dict[str, Any]:
        return node_edit(DeviceNode(path, major, minor), self.facts.device_root, self.nodes.get(path))

    def _with_gids(self, edits: dict[str, Any]) -> dict[str, Any]:
        """The groups of nodes that are not open to everybody; they need version 0.7.0, so only on request."""
        if not self.options.additional_gids:
            return edits
        gids = groups_of(edits.get("deviceNodes", ()))
        return {**edits, "additionalGids": sorted(gids)} if gids else edits


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Edits that do what all `parts` do, each thing once; the hooks of one program become one hook."""
    result: dict[str, Any] = {}
    for part in parts:
        for name, values in part.items():
            into = result.setdefault(name, [])
            for value in values:
                if name == "hooks":
                    _merge_hook(into, value)
                elif value not in into:
                    into.append(value)
    if "additionalGids" in result:
        result["additionalGids"].sort()
    return result


def _merge_hook(hooks: list[dict[str, Any]], hook: dict[str, Any]) -> None:
    """Device hooks of the same steps differ in arguments alone, each of which may be repeated."""
    for other in hooks:
        ours, theirs = _steps_of(other["args"]), _steps_of(hook["args"])
        if other["path"] == hook["path"] and [step[0] for step in ours] == [step[0] for step in theirs]:
            both = [dict.fromkeys(one + two) for one, two in zip(ours, theirs)]
            other["args"] = [word for step in both for word in step]
            return
    hooks.append(dict(hook))


def _steps_of(args: list[str]) -> list[list[str]]:
    steps: list[list[str]] = []
    for word in args:
        if word.startswith("--"):
            steps[-1].append(word)
        else:
            steps.append([word])
    return steps


def node_edit(node: DeviceNode, root: str, status: NodeStatus | None) -> dict[str, Any]:
    """The edit for a device node below `root`, to be read and written only.

    With `m` a container could make nodes of other GPUs (CVE-2021-1056).
    """
    edit: dict[str, Any] = {"path": node.path}
    host = below(root, node.path)
    if host != node.path:
        edit["hostPath"] = host
    edit.update(type="c", major=node.major, minor=node.minor)
    if status is not None:
        edit["fileMode"] = status.mode
        edit |= {name: value for name, value in (("uid", status.uid), ("gid", status.gid)) if value}
    return {**edit, "permissions": "rw"}


def below(root: str, path: str) -> str:
    """Where something in a root is on the host."""
    return root.rstrip("/") + path
