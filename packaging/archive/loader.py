"""Imports modules from the archive that `build.py` made; runs in the program before anything of nvc.

The launcher's boot code executes this and calls `install`. Paths in the index are relative to the archive's
directory, since an installation may have been moved. Nothing may be imported here that Python has not loaded by
itself already.
"""

from __future__ import annotations

import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import ExtensionFileLoader
from marshal import loads
from posix import fstat, pread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    #: Where the module's code begins, counted from the end of the archive; its size, 0 for an extension; its
    #: file; whether it is a package.
    Entry = tuple[int, int, str, bool]


class Archive:
    """Finder and loader. A module that is not in the archive is left to the usual finders."""

    def __init__(self, path: str, fd: int, index: dict[str, Entry]) -> None:
        self.path, self.fd, self.index = path, fd, index
        self.directory = path.rpartition("/")[0] + "/"
        self.size = fstat(fd).st_size

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """How to load `name`, or None. Nothing is looked up in the file system."""
        entry = self.index.get(name)
        if entry is None:
            return None
        _, size, file, package = entry
        file = self.directory + file
        if not size:
            return ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)
        spec = ModuleSpec(name, self, origin=file, is_package=package)  # type: ignore[arg-type]
        if package:
            spec.submodule_search_locations = [file.rpartition("/")[0]]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual kind of module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        start, size, file, _ = self.index[module.__name__]
        module.__file__ = self.directory + file
        try:
            code = pread(self.fd, size, self.size - start)
        except OSError as error:
            raise ImportError(f"cannot be read: {error.strerror}", name=module.__name__, path=self.path) from None
        exec(loads(code), module.__dict__)


def complain(kind: type[BaseException], error: BaseException, traceback: object) -> None:
    """What the interpreter calls for an error before a program can report its own: one line, as always."""
    if isinstance(error, (ImportError, MemoryError, OSError)):
        cause = f"{getattr(error, 'path', None) or ''}: {error}".removeprefix(": ")
        sys.stderr.write(f"nvc: host error: load code: {cause or 'out of memory'}; is the installation complete?\n")
    elif kind is not KeyboardInterrupt:  # the interpreter then ends as SIGINT ends a program
        sys.__excepthook__(kind, error, traceback)  # type: ignore[arg-type]


def install(path: str, fd: int, index: dict[str, Entry]) -> None:
    """Put the archive at `path` before the usual finders. `fd` stays open, so that an update cannot mix two."""
    archive = Archive(path, fd, index)
    sys.meta_path.insert(0, archive)
    sys.excepthook = complain
