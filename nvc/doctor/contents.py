"""What the loader of a container finds: the driver's libraries, forward compatibility, the shim of a slice."""

from __future__ import annotations

import os
from collections.abc import Iterator

from nvc.base.errors import counted
from nvc.discovery.devices.nodes import CONTROL
from nvc.discovery.devices.proc import is_version
from nvc.discovery.driver.compat import DIRECTORY as COMPAT
from nvc.discovery.driver.compat import compat_libraries
from nvc.doctor import FAILED, OK, WARNING, Blocked, Check, Fact, Row
from nvc.doctor.container import AGAIN, computes
from nvc.doctor.context import Context
from nvc.doctor.host.slices import SILENT, UNCOVERED, max_glibc, uncovered
from nvc.doctor.inside import DIRECTORIES, File, Inside
from nvc.kernel.processes import namespace_number
from nvc.model.slices.variables import MEMORY, NVIDIA_LIMIT, NVIDIA_REQUEST
from nvc.request.environment import CAPABILITIES
from nvc.slices.store.status import SliceStatus

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: What begins the names of the variables that ask nvc for a limit of memory. Others may be for something else
#: in the container, such as HAMi's library.
_MEMORY = (MEMORY, NVIDIA_LIMIT, NVIDIA_REQUEST)
_NEARLY = 64 << 20  # bytes that are left of a slice that is full


def _version_of(file: File) -> str:
    return file.path.rpartition(".so.")[2]


def _libraries(context: Context) -> Iterator[Fact]:
    inside = context.inside
    if inside.musl:
        yield Fact(musl=True)
        return
    if CONTROL not in inside.nodes():
        raise Blocked("container.nodes")
    given = {(one.identity.device, one.identity.inode) for one in context.facts.libraries}
    for soname in LIBRARIES:
        file, how = inside.loaded(soname)
        if file is None and soname == LIBRARIES[0] and not computes(inside):
            continue
        fact = Fact(soname=soname, module=context.module, seen=[how] if how else [])
        if file is None:
            fact.searched = ", ".join(DIRECTORIES)
        elif (file.device, file.inode) not in given and not file.path.startswith(COMPAT):
            version = _version_of(file)
            fact.other, fact.broken, fact.copied = file.path, file.elf is None, version == context.module
            fact.shim = file.elf is not None and file.elf.layouts
            fact.driver = f"driver {version}" if is_version(version) else "an unknown driver"
        yield fact


def _compat(context: Context) -> Iterator[Fact]:
    inside, facts = context.inside, context.facts
    file, how = inside.loaded(LIBRARIES[0])
    if file is None or "/compat" not in file.path:
        return
    directory = os.path.dirname(file.path)
    usable = compat_libraries(context.kernel, inside.root, facts.driver_version, directory, facts.cuda_version)
    yield Fact(
        version=_version_of(file),
        usable=usable,
        driver=facts.driver_version,
        cuda=facts.cuda_version,
        seen=[file.path, how],
        run=["docker run -e LD_LIBRARY_PATH= IMAGE"] if how.startswith("LD_LIB") else [],
    )


def _slice(context: Context) -> SliceStatus | None:
    return next((one for one in context.slices()[0] if context.inside.pid in one.pids), None)


def _shim(context: Context) -> Iterator[Fact]:
    inside, tenant = context.inside, _slice(context)
    if tenant is None:
        asked = [name for name in inside.environment if name.startswith(_MEMORY)]
        if asked and CONTROL in inside.nodes():
            yield Fact(asked=asked[0])
        return
    for soname in LIBRARIES:
        file, how = inside.loaded(soname)
        if file is None or file.elf is None or not file.elf.layouts:
            yield Fact(soname=soname, name=tenant.name, file=file.path if file else "not found", how=how)
        elif soname == LIBRARIES[0]:
            yield from _too_new(inside, file, soname)
    yield from (fact for fact in uncovered(context, tenant) if fact.pid)


def _too_new(inside: Inside, shim: File, soname: str) -> Iterator[Fact]:
    """Whether the shim needs a newer glibc than the image has."""
    libc, _ = inside.loaded("libc.so.6")
    needs = _glibc(inside, shim.path, f"{os.path.dirname(shim.path)}/{soname}")
    has = _glibc(inside, libc.path) if libc is not None else (0, 0)
    if (0, 0) < has < needs:
        yield Fact(needs=".".join(map(str, needs)), has=".".join(map(str, has)))


def _glibc(inside: Inside, *paths: str) -> tuple[int, int]:
    for path in paths:
        try:
            fd = inside.kernel.open_regular(inside.root, path)
        except OSError:
            continue
        try:
            return max_glibc(fd)
        except OSError:
            continue
        finally:
            os.close(fd)
    return 0, 0


def _quota(context: Context) -> Iterator[Fact]:
    tenant = _slice(context)
    namespace = f"{namespace_number(context.inside.pid, 'mnt'):x}-"
    yield from (Fact(broken=text) for text in context.slices()[1] if namespace in text)
    if tenant is None:
        return
    for device in tenant.devices:
        if device.used >= device.limit - _NEARLY:
            yield Fact(index=device.index, used=device.used >> 20, limit=device.limit >> 20, name=tenant.name)
    yield Fact(problem=tenant.problem, name=tenant.name, devices=counted(len(tenant.devices), "device"))


CHECKS = (
    Check("container.libraries", "libcuda and libnvidia-ml as its loader finds them", _libraries, (
        Row(FAILED, "the image has musl, not glibc: the driver's libraries cannot be loaded", "musl",
            advice="use an image with glibc: debian, ubuntu, a Red Hat UBI"),
        Row(FAILED, "{soname} is not found in the container", "searched",
            seen=("neither by its loader cache, nor in {searched}",),
            advice=f"if it is missing altogether: {CAPABILITIES} must name compute and utility; {AGAIN}"),
        Row(FAILED, "{soname} in the container is not a library: {other}", "broken", advice=AGAIN),
        Row(OK, "the loader finds the driver's {soname}", lambda it: it.shim or not it.other),
        Row(WARNING, "{other} is a copy of the driver's {soname}, not the file of this host", "copied",
            advice="remove the driver's libraries from the image: they fail after the next driver upgrade"),
        Row(FAILED, "{soname} in the container is of {driver}, the kernel module is {module}: {other}",
            advice="the image contains driver libraries, or the driver was upgraded since the container started: "
            "remove them from the image, or start the container again"),
    )),
    Check("container.compat", "forward-compatibility libraries of the image", _compat, (
        Row(OK, "CUDA is the image's forward-compatibility libcuda {version}", "usable"),
        Row(FAILED, "the image's forward-compatibility libcuda {version} is not for driver {driver}: "
            "CUDA fails with error 803 or 804",
            advice='use an image whose CUDA this driver has, or set cuda-compat-mode = "disabled"; '
            "the driver has CUDA {cuda}"),
    )),
    Check("container.shim", "whether the shim is active", _shim, (
        Row(FAILED, "it asks for a slice ({asked}) and has whole GPUs", "asked",
            run=("nvc-cli doctor config engines",),
            advice=f"nvc-hook or nvc-runtime must give it its GPUs; {AGAIN}"),
        Row(FAILED, "{soname} of slice {name} is not the shim: {file}", "soname", seen=("{how}",),
            run=("nvc-cli vgpu check {name}",), advice=f"its memory is not limited: {AGAIN}"),
        Row(FAILED, "the shim needs glibc {needs}, the image has {has}", "needs",
            advice="use a newer image, or build the shim for an older glibc (docs/vgpu.md)"),
        SILENT,
        UNCOVERED,
    )),
    Check("container.quota", "the quota and ledger of its slice", _quota, (
        Row(FAILED, "its slice is broken: {broken}", "broken", advice=f"its programs are denied memory: {AGAIN}"),
        Row(FAILED, "its use is not known: {problem}", "problem", advice=AGAIN),
        Row(WARNING, "its slice of device {index} is full: {used} of {limit} MiB", "limit",
            run=("nvc-cli vgpu set {name} --memory SIZE",), advice="further allocations get `out of memory`"),
        Row(OK, "slice {name} of {devices}"),
    )),
)  # fmt: skip
