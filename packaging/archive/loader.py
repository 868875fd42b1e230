"""Loads modules from hot.bin. Its code is part of that file, and the launcher's first line runs it.

No import here but of what the interpreter has in itself.
"""

from __future__ import annotations

import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import ExtensionFileLoader
from _thread import _count as threads
from marshal import loads
from posix import fstat, pread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    #: Where the module's code begins, counted from the end of the archive; its size, 0 for an extension; an
    #: extension's file, "" for a module, whose name tells; whether it is a package; the modules of the archive that
    #: it imports when it is loaded.
    Entry = tuple[int, int, str, bool, tuple[str, ...]]


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
        _, size, file, package, _ = entry
        if not size:
            file = self.directory + file
            return ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)
        directory = f"{self.directory}python/{name.replace('.', '/')}"
        file = f"{directory}/__init__.py" if package else f"{directory}.py"
        spec = ModuleSpec(name, self, origin=file, is_package=package)  # type: ignore[arg-type]
        if package:
            spec.submodule_search_locations = [directory]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual kind of module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, after that of the modules which it imports.

        Where there are threads, the interpreter imports those: it keeps one from what another has half loaded.
        Threads count from `threading.Thread.start` on; one of `_thread` may begin later, so nvc starts none.
        """
        start, size, _, _, imports = self.index[module.__name__]
        for name in imports:
            if name not in sys.modules and not threads():
                self._load(name)
        module.__file__ = module.__spec__.origin  # type: ignore[union-attr]
        try:
            code = pread(self.fd, size, self.size - start)
        except OSError as error:
            raise ImportError(
                f"cannot be read: {error.strerror}", name=module.__name__, path=self.path
            ) from None
        exec(loads(code), module.__dict__)

    def _load(self, name: str) -> None:
        """Import `name`. The interpreter's own code for that takes as long as most modules do."""
        above, _, last = name.rpartition(".")
        if above and above not in sys.modules:
            self._load(above)
        spec = self.find_spec(name)
        assert spec is not None
        module = sys.modules[name] = type(sys)(name)
        module.__spec__, module.__loader__, module.__package__ = spec, self, spec.parent  # type: ignore[assignment]
        if spec.submodule_search_locations:
            module.__path__ = spec.submodule_search_locations
        try:
            self.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        if above:
            setattr(sys.modules[above], last, module)


def complain(kind: type[BaseException], error: BaseException, traceback: object) -> None:
    """What the interpreter calls for an error before a program can report its own: one line, as always."""
    if isinstance(error, (ImportError, MemoryError, OSError)):
        cause = f"{getattr(error, 'path', None) or ''}: {error}".removeprefix(": ")
        sys.stderr.write(
            f"nvc: host error: load code: {cause or 'out of memory'}; is the installation complete?\n"
        )
    elif kind is not KeyboardInterrupt:  # the interpreter then ends as SIGINT ends a program
        sys.__excepthook__(kind, error, traceback)  # type: ignore[arg-type]


def install(path: str, fd: int, index: dict[str, Entry]) -> None:
    """Put the archive at `path` before the usual finders. `fd` stays open, so that an update cannot mix two."""
    archive = Archive(path, fd, index)
    sys.meta_path.insert(0, archive)
    sys.excepthook = complain
