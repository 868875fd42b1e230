"""hot.bin: a start finds its modules as it would without it, and without the interpreter's search for each."""

from __future__ import annotations

import json
import os
import sys

import pytest
from support import CLEAN_ENV, REPO, run

#: What the launcher's first line does, then an import; prints what the modules say of themselves.
CODE = """
import sys
sys.path += {path!r}
if {archive!r}:
    from marshal import loads
    from posix import open, read
    fd = open({archive!r}, 0)
    loader, index = loads(read(fd, int.from_bytes(read(fd, 16)[12:], "little")))
    exec(loader)
    install({archive!r}, fd, index)
    finder, asked = sys.meta_path[0].find_spec, []
    def ask(name, *rest):
        asked.append((name, sys._getframe(1).f_code.co_name))
        return finder(name, *rest)
    sys.meta_path[0].find_spec = ask
{before}
import nvc_cli.configure
facts = {{}}
for name, module in sys.modules.items():
    if name.partition(".")[0] in ("nvc", "nvc_cli") and hasattr(module, "__file__"):
        above, _, last = name.rpartition(".")
        spec = module.__spec__
        facts[name] = [
            module.__file__, module.__package__, getattr(module, "__path__", None),
            spec.name, spec.parent, spec.origin, spec.submodule_search_locations, module.__loader__ is spec.loader,
            not above or getattr(sys.modules[above], last) is module,
        ]
import json
searched = [name for name, by in asked if by == "_find_spec" and name in index] if {archive!r} else []
print(json.dumps([facts, searched]))
"""
#: Its `start` waits until the thread is counted; one of `_thread` may not have begun yet.
THREADS = "from threading import Event, Thread; Thread(target=Event().wait, daemon=True).start()"


@pytest.fixture(scope="module")
def archive(stage: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An archive beside the stage's modules, made by the interpreter that reads it."""
    library = str(tmp_path_factory.mktemp("archive") / "lib")
    os.makedirs(library)
    os.symlink(os.path.join(stage, "lib/nvc/python"), os.path.join(library, "python"))
    run(sys.executable, "-I", os.path.join(REPO, "packaging/archive/build.py"), library)
    return os.path.join(library, "hot.bin")


def modules(archive: str, directory: str, before: str = "") -> tuple[dict[str, list[object]], list[str]]:
    """What each module says of itself, and those of the archive that the interpreter looked for."""
    path = [os.path.join(directory, "python"), *(entry for entry in sys.path if "site-packages" in entry)]
    code = CODE.format(path=path, archive=archive, before=before)
    facts, searched = json.loads(run(sys.executable, "-I", "-S", "-B", "-c", code, env=CLEAN_ENV).stdout)
    return facts, searched


@pytest.mark.parametrize("before", ["", THREADS])
def test_modules_are_what_they_would_be_without_it(archive: str, before: str) -> None:
    directory = os.path.dirname(archive)
    found, _ = modules(archive, directory, before)
    wanted, _ = modules("", directory)
    assert len(wanted) > 10
    assert found == wanted


def test_one_search_is_enough_for_all_that_a_module_imports(archive: str) -> None:
    directory = os.path.dirname(archive)
    assert modules(archive, directory)[1] == ["nvc_cli", "nvc_cli.configure", "nvc._syscalls"]
    assert len(modules(archive, directory, THREADS)[1]) > 10
