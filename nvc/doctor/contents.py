"""What the loader of a container finds: the driver's libraries, forward compatibility, the shim of a slice."""

from __future__ import annotations

import os

from nvc.compat import DIRECTORY as COMPAT
from nvc.compat import compat_libraries
from nvc.discovery.nodes import CONTROL
from nvc.discovery.proc import is_version
from nvc.doctor import Blocked, Check, failed, ok, unknown, warning
from nvc.doctor.container import AGAIN, looking_into
from nvc.doctor.inside import Inside
from nvc.doctor.slices import max_glibc
from nvc.environment import CAPABILITIES
from nvc.errors import NvcError
from nvc.slices.model.elfnote import layouts_of
from nvc.slices.model.variables import MEMORY, NVIDIA_LIMIT, NVIDIA_REQUEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from nvc.doctor import Finding
    from nvc.doctor.context import Context
    from nvc.doctor.inside import File
    from nvc.model import HostFacts
    from nvc.slices.store.status import SliceStatus

_LDCONFIG = "run ldconfig in the container, with the engine's exec"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: What begins the names of the variables that ask nvc for a limit of memory. Others may be for something else
#: in the container, such as HAMi's library.
_MEMORY = (MEMORY, NVIDIA_LIMIT, NVIDIA_REQUEST)


@looking_into
def libraries(context: Context, inside: Inside) -> Iterator[Finding]:
    """Whether the loader finds the driver's libraries, and not older ones of the image."""
    if inside.musl:
        yield failed(
            "the image has musl, not glibc: the driver's libraries cannot be loaded",
            advice="use an image with glibc: debian, ubuntu, a Red Hat UBI",
        )
        return
    if CONTROL not in inside.nodes():
        raise Blocked("container.nodes")
    module = context.module
    given = _files_of(context.facts)
    for soname in LIBRARIES:
        file, how = inside.loaded(soname)
        if file is None:
            # Without `compute`, libcuda is rightly absent.
            if soname == LIBRARIES[0] and not _computes(inside):
                continue
            yield failed(
                f"{soname} is not found in the container",
                f"neither by its loader cache, nor in {', '.join(inside.directories())}",
                commands=inside.found.inside("ldconfig"),
                advice=f"if it is missing altogether: {CAPABILITIES} must name compute and utility; {AGAIN}",
            )
            continue
        if file.elf is None:
            yield failed(f"{soname} in the container is not a library: {file.path}", how, advice=AGAIN)
            continue
        if layouts_of(file.elf) or (file.device, file.inode) in given or file.path.startswith(COMPAT):
            continue
        yield _foreign(soname, file, how, module)
    yield ok("the loader finds the driver's libraries")


def _computes(inside: Inside) -> bool:
    value = inside.environment.get(CAPABILITIES, "")
    return not value or "compute" in value or "all" in value


def _files_of(facts: HostFacts) -> set[tuple[int, int]]:
    return {(library.identity.device, library.identity.inode) for library in facts.libraries}


def _foreign(soname: str, file: File, how: str, module: str) -> Finding:
    version = file.path.rpartition(".so.")[2]
    if is_version(version) and version == module:
        return warning(
            f"{file.path} is a copy of the driver's {soname}, not the file of this host", how,
            advice="remove the driver's libraries from the image: they fail after the next driver upgrade",
        )  # fmt: skip
    told = f"of driver {version}" if is_version(version) else "of an unknown driver"
    return failed(
        f"{soname} in the container is {told}, the kernel module is {module}: {file.path}", how,
        advice="the image contains driver libraries, or the driver was upgraded since the container started: "
        "remove them from the image, or start the container again",
    )  # fmt: skip


@looking_into
def loader_cache(context: Context, inside: Inside) -> Iterator[Finding]:
    """Whether its loader cache names the files that were mounted."""
    if inside.musl or CONTROL not in inside.nodes():
        raise Blocked("container.libraries" if inside.musl else "container.nodes")
    remedy = inside.found.inside("ldconfig")
    try:
        entries = inside.cache()
    except OSError as error:
        yield unknown(f"its loader cache cannot be read: {(error.strerror or str(error)).lower()}")
        return
    except NvcError as error:
        yield failed(f"its loader cache is damaged: {error.cause}", commands=remedy, advice=_LDCONFIG)
        return
    if entries is None:
        found = [soname for soname in LIBRARIES if inside.loaded(soname)[0] is not None]
        text = "it has no loader cache"
        yield warning(
            text, f"found without it: {', '.join(found) or 'nothing'}", commands=remedy, advice=_LDCONFIG
        )
        return
    if not inside.mode("/etc/ld.so.cache") & 0o004:
        text = "users of the container cannot read its loader cache: for them, nothing is found"
        commands = inside.found.inside("chmod", "644", "/etc/ld.so.cache")
        yield warning(text, f"mode {inside.mode('/etc/ld.so.cache'):04o}", commands=commands)
    for soname in LIBRARIES:
        named = [path for _, name, path in entries if name == soname]
        if named and inside.file(named[0]) is None:
            yield failed(
                f"its loader cache says {soname} is {named[0]}, which does not exist",
                commands=remedy,
                advice=_LDCONFIG,
            )
        elif not named and not inside.library_path() and inside.loaded(soname)[0] is not None:
            file, how = inside.loaded(soname)
            yield warning(f"its loader cache does not name {soname}", how, commands=remedy, advice=_LDCONFIG)


@looking_into
def compat(context: Context, inside: Inside) -> Iterator[Finding]:
    """Whether a forward-compatibility libcuda of the image is one for this driver."""
    file, how = inside.loaded(LIBRARIES[0])
    if file is None or "/compat" not in file.path:
        return
    facts = context.facts
    directory = os.path.dirname(file.path)
    usable = compat_libraries(
        context.kernel, inside.root, facts.driver_version, directory, facts.cuda_version
    )
    version = file.path.rpartition(".so.")[2]
    if not usable:
        yield failed(
            f"the image's forward-compatibility libcuda {version} is not for driver {facts.driver_version}: "
            "CUDA fails with error 803 or 804",
            file.path,
            how,
            commands=("docker run -e LD_LIBRARY_PATH= IMAGE",) if how.startswith("LD_LIB") else (),
            advice='use an image whose CUDA this driver has, or set cuda-compat-mode = "disabled"; '
            f"the driver has CUDA {facts.cuda_version}",
        )
        return
    yield ok(f"CUDA is the image's forward-compatibility libcuda {version}")


def _tenant(context: Context, inside: Inside) -> SliceStatus | None:
    return next((tenant for tenant in context.slices()[0] if inside.pid in tenant.pids), None)


@looking_into
def shim(context: Context, inside: Inside) -> Iterator[Finding]:
    """Whether the shim is what its programs load, if it has a slice."""
    tenant = _tenant(context, inside)
    asked = [name for name in inside.environment if name.startswith(_MEMORY)]
    if tenant is None:
        if asked and CONTROL in inside.nodes():
            yield failed(
                f"it asks for a slice ({asked[0]}) and has whole GPUs",
                commands=("nvc-cli doctor config engines",),
                advice=f"nvc-hook or nvc-runtime must give it its GPUs; {AGAIN}",
            )
        else:
            yield ok("it has no slice")
        return
    for soname in LIBRARIES:
        file, how = inside.loaded(soname)
        if file is None or file.elf is None or not layouts_of(file.elf):
            yield failed(
                f"{soname} of slice {tenant.name} is not the shim: {file.path if file else 'not found'}",
                how,
                commands=(f"nvc-cli vgpu check {tenant.name}",),
                advice=f"its memory is not limited: {AGAIN}",
            )
            continue
        if soname == LIBRARIES[0]:
            yield from _too_new(inside, file, soname)
    from nvc.slices.admin.coverage import survey

    for report in survey(context.kernel, (tenant,), ()).reports:
        for path, cause in report.uncovered:
            yield failed(
                f"process {report.pid} ({report.name}) bypasses the shim: {path}", cause,
                commands=(f"nvc-cli vgpu check {report.pid}",),
                advice="remove that copy of the library from the image",
            )  # fmt: skip


def _too_new(inside: Inside, shim_file: File, soname: str) -> Iterator[Finding]:
    """Whether the shim needs a newer glibc than the image has."""
    libc, _ = inside.loaded("libc.so.6")
    if libc is None:
        return
    needs = _glibc(inside, shim_file.path, f"{os.path.dirname(shim_file.path)}/{soname}")
    has = _glibc(inside, libc.path)
    if (0, 0) < has < needs:
        yield failed(
            f"the shim needs glibc {needs[0]}.{needs[1]}, the image has {has[0]}.{has[1]}",
            advice="use a newer image, or build the shim for an older glibc (docs/vgpu.md)",
        )


def _glibc(inside: Inside, *paths: str) -> tuple[int, int]:
    for path in paths:
        try:
            fd = inside.open_regular(path)
        except OSError:
            continue
        try:
            return max_glibc(fd, path)
        except (OSError, NvcError):
            continue
        finally:
            os.close(fd)
    return 0, 0


@looking_into
def quota(context: Context, inside: Inside) -> Iterator[Finding]:
    """What its slice allows, and whether that and the ledger can be read."""
    tenant = _tenant(context, inside)
    namespace = f"{os.stat(f'/proc/{inside.pid}/ns/mnt').st_ino:x}-"
    for text in context.slices()[1]:
        if namespace in text:
            yield failed(f"its slice is broken: {text}", advice=f"its programs are denied memory: {AGAIN}")
    if tenant is None:
        return
    if tenant.problem:
        yield failed(f"its use is not known: {tenant.problem}", advice=AGAIN)
    for device in tenant.devices:
        if device.used >= device.limit - (64 << 20):
            yield warning(
                f"its slice of device {device.index} is full: {device.used >> 20} of {device.limit >> 20} MiB",
                commands=(f"nvc-cli vgpu set {tenant.name} --memory SIZE",),
                advice="further allocations get `out of memory`",
            )
    if not tenant.problem:
        yield ok(f"slice {tenant.name} of {len(tenant.devices)} devices")


CHECKS = (
    Check("container.libraries", "libcuda and libnvidia-ml as its loader finds them", libraries),
    Check("container.loader-cache", "its loader cache against the mounted files", loader_cache),
    Check("container.compat", "forward-compatibility libraries of the image", compat),
    Check("container.shim", "whether the shim is active", shim),
    Check("container.quota", "the quota and ledger of its slice", quota),
)
