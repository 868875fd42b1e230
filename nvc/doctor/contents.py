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
from nvc.doctor.host.slices import SILENT, UNCOVERED, uncovered
from nvc.doctor.inside import DIRECTORIES
from nvc.kernel.processes import namespace_number
from nvc.model.slices.variables import MEMORY, NVIDIA_LIMIT, NVIDIA_REQUEST
from nvc.request.environment import CAPABILITIES
from nvc.slices.store.status import SliceStatus

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: What begins the names of the variables that ask nvc for a limit of memory. Others may be for something else
#: in the container, such as HAMi's library.
_MEMORY = (MEMORY, NVIDIA_LIMIT, NVIDIA_REQUEST)
_NEARLY = 64 << 20  # bytes that are left of a slice that is full


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
        if file is None:
            if soname != LIBRARIES[0] or computes(inside):
                yield Fact(missing=soname)
        elif file.elf is None:
            yield Fact(broken=soname, file=file, seen=[how])
        elif (file.device, file.inode) not in given and not file.elf.layouts and not file.path.startswith(COMPAT):
            yield Fact(soname=soname, file=file, copied=file.version == context.module, module=context.module,
                       driver=f"driver {file.version}" if is_version(file.version) else "an unknown driver",
                       seen=[how])  # fmt: skip


def _compat(context: Context) -> Iterator[Fact]:
    inside, facts = context.inside, context.facts
    file, how = inside.loaded(LIBRARIES[0])
    if file is None or "/compat" not in file.path:
        return
    directory = os.path.dirname(file.path)
    if not compat_libraries(context.kernel, inside.root.fd, facts.driver_version, directory, facts.cuda_version):
        own = how.startswith("LD_LIB")
        yield Fact(file=file, facts=facts, seen=[how], run=["docker run -e LD_LIBRARY_PATH= IMAGE"] if own else [])


def _slice(context: Context) -> SliceStatus | None:
    return next((one for one in context.slices[0] if context.inside.pid in one.pids), None)


def _shim(context: Context) -> Iterator[Fact]:
    inside, one = context.inside, _slice(context)
    if one is None:
        asked = [name for name in inside.environment if name.startswith(_MEMORY)]
        if asked and CONTROL in inside.nodes():
            yield Fact(asked=asked[0])
        return
    for soname in LIBRARIES:
        file, how = inside.loaded(soname)
        if file is None or file.elf is None or not file.elf.layouts:
            yield Fact(soname=soname, name=one.name, file=file.path if file else "not found", seen=[how])
    yield from (fact for fact in uncovered(context, one) if fact.process)


def _quota(context: Context) -> Iterator[Fact]:
    one, namespace = _slice(context), f"{namespace_number(context.inside.pid, 'mnt'):x}-"
    yield from (Fact(broken=text) for text in context.slices[1] if namespace in text)
    if one is None:
        return
    for device in one.devices:
        if device.used >= device.limit - _NEARLY:
            yield Fact(device=device, used=device.used >> 20, limit=device.limit >> 20, name=one.name)
    yield Fact(problem=one.problem, name=one.name, devices=counted(len(one.devices), "device"))


CHECKS = (
    Check("container.libraries", "libcuda and libnvidia-ml as its loader finds them", _libraries, (
        Row(FAILED, "the image has musl, not glibc: the driver's libraries cannot be loaded", "musl",
            advice="use an image with glibc: debian, ubuntu, a Red Hat UBI"),
        Row(FAILED, "{missing} is not found in the container", "missing",
            seen=(f"neither by its loader cache, nor in {', '.join(DIRECTORIES)}",),
            advice=f"{CAPABILITIES} must name compute and utility; {AGAIN}"),
        Row(FAILED, "{broken} in the container is not a library: {file.path}", "broken", advice=AGAIN),
        Row(WARNING, "{file.path} is a copy of the driver's {soname}, not the file of this host", "copied",
            advice="remove the driver's libraries from the image: they fail after the next driver upgrade"),
        Row(FAILED, "{soname} in the container is of {driver}, the kernel module is {module}: {file.path}",
            advice="the image contains driver libraries, or the driver was upgraded since the container started: "
            "remove them from the image, or start the container again"),
    )),
    Check("container.compat", "forward-compatibility libraries of the image", _compat, (
        Row(FAILED, "the image's forward-compatibility libcuda {file.version} is not for driver "
            "{facts.driver_version}: CUDA fails with error 803 or 804",
            advice="use an image whose CUDA this driver has, {facts.cuda_version}, "
            'or set cuda-compat-mode = "disabled"'),
    )),
    Check("container.shim", "whether the shim is active", _shim, (
        Row(FAILED, "it asks for a slice ({asked}) and has whole GPUs", "asked",
            run=("nvc-cli doctor config engines",),
            advice=f"nvc-hook or nvc-runtime must give it its GPUs; {AGAIN}"),
        Row(FAILED, "{soname} of slice {name} is not the shim: {file}", "soname",
            run=("nvc-cli vgpu check {name}",), advice=f"its memory is not limited: {AGAIN}"),
        SILENT,
        UNCOVERED,
    )),
    Check("container.quota", "the quota and ledger of its slice", _quota, (
        Row(FAILED, "its slice is broken: {broken}", "broken", advice=f"its programs are denied memory: {AGAIN}"),
        Row(FAILED, "its use is not known: {problem}", "problem", advice=AGAIN),
        Row(WARNING, "its slice of device {device.index} is full: {used} of {limit} MiB", "device",
            run=("nvc-cli vgpu set {name} --memory SIZE",), advice="further allocations get `out of memory`"),
        Row(OK, "slice {name} of {devices}"),
    )),
)  # fmt: skip
