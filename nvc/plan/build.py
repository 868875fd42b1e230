"""build_plan: facts and a selection in, one ordered plan out. No system calls, equal input gives equal output."""

from __future__ import annotations

from nvc.model.facts import OTHER, HostFacts, Library
from nvc.plan.devices import device_ops
from nvc.plan.ops import BindFile, BindSocket, LoaderEntry, Plan, Symlink, UpdateLoaderCache
from nvc.plan.proc import proc_ops, profile_ops

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nvc.apply.target import Layout
    from nvc.discovery.driver.compat import CompatLibrary
    from nvc.model.facts import Module
    from nvc.model.request import Request
    from nvc.model.selection import Selection
    from nvc.model.slices.slice import Slice
    from nvc.plan.ops import Op

#: Which library classes each capability brings (reference: nvidia-container-cli). What a library without a row is
#: for, nobody knows: it comes with all that may need it.
LIBRARY_KINDS = {
    "utility": ("utility",),
    "compute": ("compute", OTHER),
    "video": ("video", "compute", OTHER),
    "graphics": ("graphics", "glvnd", OTHER),
    "display": ("graphics", "glvnd", OTHER),
    "ngx": ("ngx", OTHER),
    "compat32": (),
}
#: The name by which libGLX of older images looks for NVIDIA's: no SONAME gives it.
INDIRECT = ("libGLX_nvidia.so.", "libGLX_indirect.so.0")
#: The name by which libgbm looks for a backend, below the directory of libraries.
BACKEND = ("libnvidia-allocator.so.", "gbm/nvidia-drm_gbm.so")
#: Where X servers of Debian and Fedora search for modules.
X_MODULES = ("/usr/lib/xorg/modules/", "/usr/lib64/xorg/modules/")


def build_plan(
    facts: HostFacts,
    selection: Selection,
    request: Request,
    layout: Layout,
    compat: tuple[CompatLibrary, ...] = (),
    slice: Slice | None = None,
) -> Plan:
    """The plan that gives one container what `request` asks for of `selection`, or a `slice` of it.

    Order: what lies below comes first (the overlay of /proc/driver/nvidia, then files and nodes), links after
    the files they lead to, the loader cache last, since it is replaced by a rename that nothing follows.
    """
    kinds = {kind for capability in request.capabilities for kind in LIBRARY_KINDS[capability]}
    graphics = "graphics" in request.capabilities or "display" in request.capabilities
    ops: list[Op] = list(proc_ops(facts, selection))
    if graphics:
        ops += profile_ops(gpu.minor for gpu in selection.gpus)
    for binary in facts.binaries:
        if binary.kind in request.capabilities or (binary.kind == "graphics" and graphics):
            target = f"{_place(layout, layout.bins_dir, binary.path)}/{_name(binary.path)}"
            ops.append(BindFile(binary.path, target, binary.identity))
    placed = _placed(facts.libraries, kinds, layout, layout.libs_dir)
    if slice is not None:
        placed, slice = _counted(placed, slice)
    elif "compat32" in request.capabilities and (layout.libs32_dir or layout.as_host):
        placed += _placed(facts.libraries32, kinds, layout, layout.libs32_dir)
    ops += _library_ops(placed, layout, slice)
    if request.gsp_firmware:
        for firmware in facts.firmwares:
            ops.append(BindFile(firmware.path, firmware.path, firmware.identity))
    writes_cache = _writes_cache(request.ldconfig)  # else the caller sees to it how programs find the driver
    modules = facts.modules if graphics and slice is None and writes_cache else ()
    ops += [BindFile(one.path, _module_place(one.target, layout), one.identity) for one in modules]
    if writes_cache:
        ops += _manifest_ops(facts, placed, modules)
    ops += _ipc_ops(facts, request)
    ops += device_ops(facts, selection, request)
    for library, directory in placed:
        ops += _links(library, directory, graphics)
    for one in modules:
        if one.link:
            target = _module_place(one.target, layout)
            ops.append(Symlink(_name(target), f"{target[: target.rindex('/')]}/{one.link}", target))
    if writes_cache:
        ops.append(_loader_cache(placed, compat if slice is None else beside_shims(slice)))
    uuids = tuple(gpu.uuid for gpu in selection.gpus) + tuple(mig.uuid for _, mig in selection.mig)
    roots = facts.driver_root, facts.system_root, facts.device_root
    unique = tuple(dict.fromkeys(ops))
    return Plan(*roots, facts.driver_label, uuids, unique, _warnings(facts, layout, slice), slice)


def beside_shims(slice: Slice) -> tuple[CompatLibrary, ...]:
    """The image's compat libraries that the loader is to find: over libcuda lies a shim, as over the driver's."""
    return tuple(
        library for library in slice.compat if all(library.soname != shim[0] for shim in slice.shims)
    )


def _counted(placed: list[tuple[Library, str]], slice: Slice) -> tuple[list[tuple[Library, str]], Slice]:
    """The libraries that a slice can have, and the slice that says which others there would have been.

    There is no 32-bit shim, so 32-bit libraries are not among them either.
    """
    if slice.uncounted:
        return placed, slice
    left_out = tuple(_name(library.path) for library, _ in placed if not library.counted)
    return [item for item in placed if item[0].counted], slice.replace(left_out=left_out)


def _library_ops(placed: list[tuple[Library, str]], layout: Layout, slice: Slice | None) -> list[Op]:
    if slice is None:
        return [
            BindFile(library.path, f"{directory}/{_name(library.path)}", library.identity)
            for library, directory in placed
        ]
    from nvc.plan.slices import is_shimmed, library_ops, slice_ops

    ops: list[Op] = []
    for library, directory in placed:
        if is_shimmed(library, slice):
            ops += library_ops(library, directory, layout.libs_dir, slice)
        else:
            ops.append(BindFile(library.path, f"{directory}/{_name(library.path)}", library.identity))
    return ops + slice_ops(layout.libs_dir, slice)


def _placed(
    libraries: tuple[Library, ...], kinds: set[str], layout: Layout, directory: str
) -> list[tuple[Library, str]]:
    """The wanted libraries, each with its directory in the container."""
    return [
        (library, _place(layout, directory, library.path)) for library in libraries if library.kind in kinds
    ]


def _manifest_ops(
    facts: HostFacts, placed: list[tuple[Library, str]], modules: tuple[Module, ...]
) -> list[Op]:
    """Files by which programs find what the container gets."""
    given = {_name(library.path).partition(".so")[0] for library, _ in placed}
    given |= {_name(module.target).partition(".so")[0] for module in modules}
    return [
        BindFile(one.path, one.target or one.path, one.identity, noexec=True)
        for one in facts.manifests
        if one.library in given
    ]


def _module_place(target: str, layout: Layout) -> str:
    """Where the image's X server searches, for a module that lies where the host's does; else as on the host."""
    if layout.as_host:
        return target
    own = X_MODULES[layout.libs_dir == "/usr/lib64"]
    return next((own + target[len(base) :] for base in X_MODULES if target.startswith(base)), target)


def _place(layout: Layout, directory: str, path: str) -> str:
    return path[: path.rindex("/")] if layout.as_host else directory


def _name(path: str) -> str:
    return path[path.rindex("/") + 1 :]


def _has_own_server(request: Request) -> bool:
    """Whether the container's slice has an MPS server of its own, and does not get the host's."""
    if request.vgpu is None:
        return False
    from nvc.model.slices.isolation import MPS

    return request.vgpu.isolation == MPS


def _ipc_ops(facts: HostFacts, request: Request) -> list[Op]:
    wanted = {
        "persistenced": request.persistenced,
        "fabricmanager": request.fabricmanager,
        "mps": not _has_own_server(request),
    }
    return [
        BindSocket(ipc.path, ipc.path, ipc.is_directory)
        for ipc in facts.ipcs
        if ipc.kind in request.capabilities and wanted[ipc.service]
    ]


def _links(library: Library, directory: str, graphics: bool) -> list[Op]:
    """The SONAME link, always, since an image without a loader cache is searched by name, and the driver's own."""
    name = _name(library.path)
    target = f"{directory}/{name}"
    links: list[Op] = []
    if library.soname and library.soname != name:
        links.append(Symlink(name, f"{directory}/{library.soname}", target))
    if library.link:
        links.append(Symlink(library.soname, f"{directory}/{library.link}", target))
    if name.startswith(INDIRECT[0]):
        links.append(Symlink(name, f"{directory}/{INDIRECT[1]}", target))
    if graphics and name.startswith(BACKEND[0]):
        links.append(Symlink(f"../{library.soname}", f"{directory}/{BACKEND[1]}", target))
    return links


def _writes_cache(ldconfig: str) -> bool:
    """Whether the caller wants a loader cache: with /bin/true for ldconfig it keeps the image's."""
    name = ldconfig[ldconfig.rfind("/") + 1 :].lstrip("@")
    return not name or name.startswith("ldconfig")


def _loader_cache(placed: list[tuple[Library, str]], compat: tuple[CompatLibrary, ...]) -> UpdateLoaderCache:
    native = placed[0][0].arch if placed else ""
    entries = [LoaderEntry(library.soname, library.path, native) for library in compat if native]
    taken = {(entry.soname, entry.arch) for entry in entries}
    for library, directory in placed:
        for name in filter(None, (library.soname, library.link)):
            if (name, library.arch) not in taken:
                entries.append(LoaderEntry(name, f"{directory}/{name}", library.arch))
    return UpdateLoaderCache(tuple(entries))


def _warnings(facts: HostFacts, layout: Layout, slice: Slice | None) -> tuple[str, ...]:
    found = facts.warnings
    if slice is not None:
        from nvc.plan.slices import warnings

        found += warnings(slice)
    if not layout.musl:
        return found
    return (
        *found,
        "the image has musl and no glibc loader: the driver's libraries are there, but cannot be loaded",
    )
