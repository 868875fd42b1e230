"""Shadow libraries: files of an image that programs would load in place of the shim, such as a second libcuda.

native/core/steps/shadows.c looks for them.
"""

from __future__ import annotations

import posix as os  # importing `os` itself costs a container start 0.8 ms
from errno import E2BIG, EFBIG, EOVERFLOW

from nvc.base.errors import MountError
from nvc.base.value import Value
from nvc.discovery.driver.places import COMPAT, DIRECTORIES
from nvc.kernel import ffi, lib
from nvc.kernel.steps import failure_of, new_steps, raw, records_of
from nvc.model.facts import Identity
from nvc.model.slices.slice import ShadowLibrary

#: SONAMEs that there are shims for.
SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")

SHORTER = "use a shorter LD_LIBRARY_PATH in the container"


class ImageLibraries(Value):
    """What of an image must be covered, linked or hidden."""

    shadows: tuple[ShadowLibrary, ...]
    links: tuple[str, ...]  # directories that need a link to the private directory
    hidden: tuple[str, ...]


def find_shadow_libraries(
    rootfs: int,
    libs_dir: str,
    library_path: tuple[str, ...] = (),
    known: tuple[Identity, ...] = (),
    compat: str = "",
) -> ImageLibraries:
    """The shadow libraries in the rootfs. `known` are the shims: a path where one already lies is left out.

    `library_path` has the directories of LD_LIBRARY_PATH, as far as it is known, with `$LIB` and `$PLATFORM` as
    they are there. Below each one, those that loaders prefer are searched, such as glibc-hwcaps. `compat` is the
    directory of forward-compatibility libraries that the container uses, "" without one: others are hidden.

    Raises MountError for more of them than anybody has by accident, and where they cannot be looked for; HostError
    where the host fails.
    """
    steps = new_steps(rootfs, True)
    kept = [raw(path) for path in (*library_path, *searched()) if "\0" not in path]
    shims = [(identity.device, identity.inode) for identity in known]
    lib.nvc_steps_shadows(
        steps, raw(libs_dir), raw(compat), ffi.new("char *[]", kept), len(kept),
        ffi.new("struct nvc_steps_file[]", shims), len(shims),
    )  # fmt: skip
    _check(steps)
    found: dict[int, list[list[str]]] = {}
    for kind, texts in records_of(steps)[0]:
        found.setdefault(kind, []).append(texts)
    places, hidden = (found.get(kind, ()) for kind in (lib.NVC_STEPS_PLACE, lib.NVC_STEPS_HIDDEN))
    return ImageLibraries(
        tuple(ShadowLibrary(*texts) for texts in found.get(lib.NVC_STEPS_SHADOW, ())),
        tuple(path for path, in places),
        tuple(path for path, in hidden),
    )


def searched() -> tuple[str, ...]:
    """The well-known directories in which loaders of this machine look, for programs of both word sizes."""
    machine = os.uname().machine
    return (*DIRECTORIES[machine], *(DIRECTORIES[COMPAT[machine]] if machine in COMPAT else ()))


def _check(steps: object) -> None:
    """Raise the failure of `steps`, if there is one."""
    if not (failure := failure_of(steps)):
        return
    step, path, error = failure
    if error.errno == E2BIG:
        cause = f"more than {lib.NVC_STEPS_SHADOWS_MAX} copies of libcuda in the image"
        raise MountError(step, path, cause, "remove those that nothing needs from the image")
    if error.errno == EOVERFLOW:
        raise MountError(step, path, f"more than {lib.NVC_STEPS_SEARCHED_MAX} directories to search", SHORTER)
    if error.errno == EFBIG:
        raise MountError(step, path, f"more than {lib.NVC_STEPS_NAMES_MAX} names", SHORTER)
    raise MountError.of(step, path, error)
