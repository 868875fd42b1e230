"""The driver's modules for the X server: it searches directories of its own, and asks no loader cache."""

from __future__ import annotations

from nvc.base.errors import DetectionError
from nvc.base.files import closing
from nvc.discovery.driver.elf import read_elf
from nvc.discovery.hostroot import HostRoot
from nvc.model.facts import Module, identity_of

#: The driver itself, and the extension GLX. The latter's file bears the driver's version.
DRIVER, GLX = "nvidia_drv.so", "libglxserver_nvidia.so"
#: Where X servers of distributions search.
_BASES = ("/usr/lib", "/usr/lib64", "/usr/X11R6/lib", "/usr/X11R6/lib64")
_BELOW = tuple(
    f"{base}/{kind}"
    for base in ("xorg/modules", "xorg/modules/updates", "modules", "modules/updates")
    for kind in ("drivers", "extensions")
)


def find_modules(
    root: HostRoot, arch: str, version: str, directories: tuple[str, ...]
) -> tuple[tuple[Module, ...], tuple[str, ...]]:
    """The modules, each from the first directory that has it, and warnings.

    `directories` are those of the driver's libraries.
    """
    bases = tuple(dict.fromkeys((*directories, *_BASES)))
    places = [f"{base}/nvidia/xorg" for base in directories]
    places += [f"{base}/{below}" for base in bases for below in _BELOW]
    found: list[Module] = []
    warnings: list[str] = []
    for name, link in ((DRIVER, ""), (f"{GLX}.{version}", GLX), (GLX, "")):
        if link == "" and name == GLX and any(module.link for module in found):
            continue
        for place in places:
            module = _examine(root, f"{place}/{name}", link, arch, warnings)
            if module is not None:
                found.append(module)
                break
    return tuple(found), tuple(warnings)


def _examine(root: HostRoot, path: str, link: str, arch: str, warnings: list[str]) -> Module | None:
    try:
        fd, status = root.open_regular(path)
        with closing(fd):
            if status.st_size and read_elf(fd, path).is_for(arch):
                return Module(root.real_path(fd), path, link, identity_of(status))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, DetectionError) as error:
        root.note(error, path)
        warnings.append(f"{path} is left out: {error}")
    return None
