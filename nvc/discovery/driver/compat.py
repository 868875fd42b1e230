"""CUDA forward-compatibility libraries that an image brings along (/usr/local/cuda/compat).

They stay where they are: mounting one part of a container onto another by its path is how CVE-2024-0132 and
CVE-2025-23359 came about. The loader cache names them before the driver's libraries, which is what makes them
found. In a slice the shim lies over their libcuda, which is bound, by a descriptor, to where the shim looks for
the real one.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms

from nvc.base.errors import ContainerError, of_host
from nvc.base.files import closing
from nvc.base.value import Value
from nvc.kernel import Kernel, ffi, lib
from nvc.kernel.steps import failure_of, new_steps, raw, records_of
from nvc.model.facts import Identity, identity_of

DIRECTORY = "/usr/local/cuda/compat"
_NONE = Identity(0, 0, 0, 0)


class CompatLibrary(Value):
    """A library of the image that may stand in for the driver's."""

    soname: str
    path: str  # in the container
    identity: Identity = _NONE


def compat_libraries(
    kernel: Kernel,
    rootfs: int,
    driver_version: str,
    directory: str = DIRECTORY,
    cuda_version: str = "",
    shims: tuple[Identity, ...] = (),
) -> tuple[CompatLibrary, ...]:
    """The image's compat libraries, if they are for this driver; else none. `cuda_version` is the driver's.

    native/core/steps/compat.c judges them, as it does for nvc-cdi-hook. Where one of `shims` lies over libcuda, an
    earlier run has found that they are for it. Raises HostError where the host fails.
    """
    steps = new_steps(rootfs, False)
    known = ffi.new("struct nvc_steps_file[]", [(one.device, one.inode) for one in shims])
    lib.nvc_steps_compat(steps, raw(driver_version), raw(cuda_version), raw(directory), known, len(known))
    lib.nvc_steps_finish(steps)
    if failure := failure_of(steps):
        raise ContainerError.of(*failure)
    found = []
    for _, (soname, path, _) in records_of(steps)[0]:
        try:
            with closing(kernel.open_regular(rootfs, path)) as fd:
                st = os.fstat(fd)
        except OSError as error:
            of_host(error, "read library of the image", path)
            continue  # it has been removed meanwhile
        found.append(CompatLibrary(soname, path, identity_of(st)))
    return tuple(found)
